"""Small models that read images: random towers and text models, with a tokenizer and a chat template of their own."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.helpers import FULL, SLIDING, tiny_json, tiny_model
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

import redraft
from redraft.config import GenerationConfig, ModelConfig, parse_model
from redraft.images.config import ImageConfig, VisionConfig, parse_images
from redraft.images.pixels import Picture, prepare
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import FAST, Kernels
from redraft.model.vision import VisionTower
from redraft.operations.engine import Engine
from redraft.weights.save import save_model
from redraft.weights.vision import random_tower, stored_tensors

PLACEHOLDER = 60
IDS = {"boi_token_id": 61, "image_token_id": PLACEHOLDER, "eoi_token_id": 62}
MOST_TOKENS = 12  # soft tokens of an image

TURNS = """\
{{ bos_token }}
{%- for message in messages -%}
<|turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}
{%- else %}{% for part in message['content'] -%}
{% if part['type'] == 'image' %}{{ '<|image|>' }}{% else %}{{ part['text'] }}{% endif %}
{%- endfor %}{% endif %}<turn|>
{% endfor %}
{%- if add_generation_prompt %}<|turn>model
{% endif %}"""
"""A chat template that prints the image token for an image, as the released one does."""


def vision_json(**keys: Any) -> dict[str, Any]:
    """The `vision_config` of a small tower, in the released file's keys."""
    return {
        "model_type": "gemma4_vision",
        "hidden_size": 24,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "position_embedding_size": 64,
        "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
        "use_clipped_linears": False,
        "standardize": True,
    } | keys


def image_json(vision: dict[str, Any], ids: dict[str, int] | None = None, **text: Any) -> dict[str, Any]:
    """The `config.json` of a small model with that tower; keywords replace keys of its text_config."""
    own = {"architectures": ["DiffusionGemmaForBlockDiffusion"], "dtype": "float32", "vision_config": vision}
    root = tiny_json(use_bidirectional_attention="vision", **text)
    return root | (ids or IDS) | own | {"vision_soft_tokens_per_image": MOST_TOKENS}


def image_config(root: dict[str, Any]) -> tuple[ModelConfig, ImageConfig]:
    """Its two configs."""
    model, unknown = parse_model(root)
    images = parse_images(model, {})
    assert images is not None
    assert unknown == images.unknown_keys == ()
    return model, images


@torch.no_grad()
def own_tower(config: VisionConfig, text_size: int, seed: int, kernels: Kernels = FAST) -> VisionTower:
    """Norms, scales and biases away from what would let them be left out, and bounds that clip."""
    tower = random_tower(config, text_size, seed)
    twin = VisionTower(config, text_size, kernels)
    draw = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(tower.state_dict().items()):
        noise = torch.randn(tensor.shape, generator=draw)
        if name.endswith(("_min", "_max")):
            tensor.copy_((0.5 + noise.abs()) * (-1 if name.endswith("min") else 1))
        elif tensor.ndim == 1:
            tensor.add_(0.3 * noise)
    twin.load_state_dict(tower.state_dict())
    return twin.eval().requires_grad_(False)


def drawn(width: int, height: int, seed: int = 0) -> Image.Image:
    """An image of noise."""
    noise = np.random.default_rng(seed)
    return Image.fromarray(noise.integers(0, 256, (height, width, 3), np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image as a file's bytes."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pictures(sizes: list[tuple[int, int]], config: ImageConfig) -> list[Picture]:
    """Images of noise, ready for a tower."""
    noise = np.random.default_rng(0)
    found = [Image.fromarray(noise.integers(0, 256, (height, width, 3), np.uint8)) for width, height in sizes]
    return [prepare(image, config) for image in found]


def write_model(folder: Path, root: dict[str, Any], seed: int) -> tuple[DiffusionGemma, ImageConfig]:
    """A random model with a tower, saved in a folder."""
    model_config, images = image_config(root)
    model = tiny_model(model_config, seed)
    tensors = stored_tensors(own_tower(images.vision, model_config.hidden_size, seed))
    save_model(model, folder, generation=GenerationConfig(eos_token_ids=(1,)), vision=tensors)
    return model, images


def write_words(folder: Path) -> dict[str, int]:
    """A tokenizer of letters and bytes, and a template; returns the ids of the image's tokens and the vocabulary."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|image>", "<|image|>", "<image|>"]
    letters = ["▁", *"\nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"{}[]()-/"]
    vocabulary = {token: i for i, token in enumerate([*specials, *letters])}
    vocabulary |= {f"<0x{i:02X}>": len(vocabulary) + i for i in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "chat_template.jinja").write_text(TURNS)
    ids = {"boi_token_id": "<|image>", "image_token_id": "<|image|>", "eoi_token_id": "<image|>"}
    return {key: vocabulary[token] for key, token in ids.items()} | {"vocab_size": len(vocabulary)}


def write_whole(folder: Path, seed: int = 0, **text: Any) -> Path:
    """A whole checkpoint that chats about images: an untrained model, a tower, a tokenizer and a template."""
    ids = write_words(folder)
    keys = {"vocab_size": ids.pop("vocab_size"), "sliding_window": 20, "max_position_embeddings": 4096} | text
    kinds = {"layer_types": [FULL, SLIDING, FULL], "num_hidden_layers": 3}  # so that the rules differ
    root = image_json(vision_json(), ids, **(kinds | keys)) | {"canvas_length": 16}
    write_model(folder, root, seed)
    return folder


def vision_engine(folder: Path, **options: Any) -> Engine:
    """Such a checkpoint, written and loaded."""
    return redraft.load(write_whole(folder), device="cpu", dtype="float32", **options)


def asking(*parts: Any) -> list[dict[str, Any]]:
    """One user's turn of texts and images."""
    kinds = [
        {"type": "text", "text": one} if isinstance(one, str) else {"type": "image", "image": one} for one in parts
    ]
    return [{"role": "user", "content": kinds}]
