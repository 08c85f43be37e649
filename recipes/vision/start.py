"""Writes what `nano-vision.toml` starts from: an untrained text model with a tiny vision tower.

    python recipes/vision/start.py runs/vision-start

A token of an image is a square of 12 pixels; a picture has at most 49 of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from redraft.config import GenerationConfig, parse_model
from redraft.images.config import parse_images
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
        "patch_size": 6,
        "pooling_kernel_size": 2,
        "position_embedding_size": 64,
        "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
        "use_clipped_linears": False,
        "standardize": False,
    }
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "canvas_length": 128,
        "eos_token_id": [1],
        "tie_word_embeddings": True,
        "dtype": "float32",
        "vision_soft_tokens_per_image": 49,
        "text_config": text,
        "vision_config": vision,
    } | ids


def write_start(folder: Path, seed: int = 0) -> Path:
    """The whole checkpoint."""
    write_tokenizer(folder, "plain")
    tokenizer = build_tokenizer("plain")
    added = [AddedToken(token, special=True, normalized=False) for token in IMAGE_TOKENS.values()]
    tokenizer.add_special_tokens(added)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    ids = {key: tokenizer.token_to_id(token) for key, token in IMAGE_TOKENS.items()}
    root = config_json(tokenizer.get_vocab_size(), ids)
    model, _ = parse_model(json.loads(json.dumps(root)))
    images = parse_images(model, {})
    assert images is not None, "the config above has a tower"
    tower = random_tower(images.vision, model.hidden_size, seed)
    generation = GenerationConfig(eos_token_ids=(1,))
    save_model(initial_model(model, seed=seed), folder, generation=generation, vision=stored_tensors(tower))
    return folder


if __name__ == "__main__":
    write_start(Path(sys.argv[1]))
