"""Writes what `nano-vision.toml` starts from: an untrained text model, and a tiny vision tower that knows characters.

    python recipes/vision/start.py runs/vision-start

The tower is taught alone, in about two minutes: the soft token of a square is to be the embedding of the character that
is drawn in it. So the text model begins with pictures that read like text, and learns where to look. Learnt together
from nothing, neither tells the other anything for a long time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import torch
from drawn import BOARD, COLUMNS, LINES, RECEIPT, SQUARE, board, receipt
from tokenizers import AddedToken, Tokenizer
from torch.nn import functional as F

from redraft.config import GenerationConfig, ModelConfig, parse_model
from redraft.images.config import ImageConfig, parse_images
from redraft.images.pixels import read_picture
from redraft.model.kernels import REFERENCE
from redraft.model.vision import VisionTower
from redraft.shapes import Tensor
from redraft.tasks import stream_seed
from redraft.tune.initial import initial_model
from redraft.tune.vocabulary import build_tokenizer, write_tokenizer
from redraft.weights.save import save_model
from redraft.weights.vision import random_tower, stored_tensors

IMAGE_TOKENS = {"boi_token_id": "<|image>", "image_token_id": "<|image|>", "eoi_token_id": "<image|>"}
TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{{- '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] | trim -}}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{{- '<|image|>' if part['type'] == 'image' else part['text'] | trim -}}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<turn|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|turn>model\\n' -}}{%- endif -%}"
)
SLIDING, FULL = "sliding_attention", "full_attention"
STEPS, PAGES, RATE = 1500, 12, 2e-3


def config_json(vocab: int, ids: dict[str, int]) -> dict[str, Any]:
    """The `config.json` of the small model."""
    text = {
        "model_type": "diffusion_gemma_text",
        "vocab_size": vocab,
        "hidden_size": 128,
        "intermediate_size": 256,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "head_dim": 32,
        "global_head_dim": 64,
        "num_experts": 4,
        "top_k_experts": 2,
        "sliding_window": 128,
        "max_position_embeddings": 512,
        "layer_types": [SLIDING, FULL, SLIDING, FULL],
        "use_bidirectional_attention": "vision",
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
            FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
    }
    vision = {
        "model_type": "gemma4_vision",
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 24,
        "patch_size": SQUARE,
        "pooling_kernel_size": 1,
        "position_embedding_size": 64,
        "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
        "use_clipped_linears": False,
        "standardize": False,
    }
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "canvas_length": 48,
        "eos_token_id": [1],
        "tie_word_embeddings": True,
        "dtype": "float32",
        "vision_soft_tokens_per_image": COLUMNS * LINES,
        "text_config": text,
        "vision_config": vision,
    } | ids


def write_start(folder: Path, seed: int = 0, steps: int = STEPS) -> Path:
    """The whole checkpoint."""
    write_tokenizer(folder, "plain")
    tokenizer = build_tokenizer("plain")
    added = [AddedToken(token, special=True, normalized=False) for token in IMAGE_TOKENS.values()]
    tokenizer.add_special_tokens(added)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    ids = {key: tokenizer.token_to_id(token) for key, token in IMAGE_TOKENS.items()}
    config, images = configs(config_json(tokenizer.get_vocab_size(), ids))
    model, tower = initial_model(config, seed=seed), VisionTower(images.vision, config.hidden_size, REFERENCE)
    tower.load_state_dict(random_tower(images.vision, config.hidden_size, seed).state_dict())
    teach(tower, model.embed.weight.detach(), tokenizer, images, seed, steps)
    generation = GenerationConfig(eos_token_ids=(1,))
    save_model(model, folder, generation=generation, vision=stored_tensors(tower))
    return folder


def configs(root: dict[str, Any]) -> tuple[ModelConfig, ImageConfig]:
    """What a `config.json` says of the text model and of images."""
    model, _ = parse_model(json.loads(json.dumps(root)))
    images = parse_images(model, {})
    assert images is not None, "the config has a tower"
    return model, images


def teach(tower: VisionTower, table: Tensor, tokenizer: Tokenizer, config: ImageConfig, seed: int, steps: int) -> None:
    """Train the tower alone: each soft token towards the embedding of its square's character, as the text model has it,
    and nearer to that than to any other token's."""
    rng = Random(stream_seed(BOARD + RECEIPT, "train", seed))
    scale = table.shape[1] ** 0.5
    # All pages at once take a third of the time. Only the first product is random: it tries how the machine adds up.
    together = torch.vmap(lambda patches: tower(patches, COLUMNS), randomness="same")
    optimizer = torch.optim.AdamW(tower.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 50, (steps - step) / (steps / 2))
        patches, wanted = [], list[int]()
        for i in range(PAGES):
            image, page = (board, receipt)[i % 2](rng)
            patches.append(torch.from_numpy(read_picture(image, config).patches()))
            wanted += [tokenizer.token_to_id(char.replace(" ", "▁")) for char in "".join(page)]
        found, target = together(torch.stack(patches)).flatten(0, 1), torch.tensor(wanted)
        loss = F.mse_loss(found, table[target] * scale) + F.cross_entropy(found @ table.T, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            right = ((found @ table.T).argmax(-1) == target).float().mean().item()
            sys.stderr.write(f"tower: step {step + 1}/{steps}  loss {loss.item():.3f}  squares right {right:.4f}\n")


if __name__ == "__main__":
    write_start(Path(sys.argv[1]))
