"""The vision tower's tensors: stored names, loading from a checkpoint folder, and the tensors to store.

A tower is loaded separately, with the first image, in the number format of its text model's activations; quantizing a
checkpoint copies it unchanged (`weights/quantize.py`). Every stored tensor is one of ours under another name (model
spec 6.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from redraft.config import ModelConfig, read_config
from redraft.errors import WeightsError
from redraft.images.config import VisionConfig, has_tower, parse_vision
from redraft.model.vision import BOUNDS, VisionTower
from redraft.shapes import Tensor
from redraft.weights.build import DTYPES
from redraft.weights.layouts import check_plain
from redraft.weights.names import VISION_PREFIXES, shown
from redraft.weights.source import WeightSource

_TOWER, _EMBEDDER = VISION_PREFIXES
_WHOLE = {
    "patches.weight": _TOWER + "patch_embedder.input_proj.weight",
    "positions": _TOWER + "patch_embedder.position_embedding_table",
    "std_bias": _TOWER + "std_bias",
    "std_scale": _TOWER + "std_scale",
    "projection.weight": _EMBEDDER + "embedding_projection.weight",
}
_NORMS = {
    "input_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "pre_mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
}
_LINEARS = {
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
# Some published files have these beside the tower; no engine reads them.
_STRAY = (_EMBEDDER + "embedding.",)


def stored_name(ours: str) -> str:
    """The name under which a checkpoint stores our tensor of that name."""
    if ours in _WHOLE:
        return _WHOLE[ours]
    _, number, rest = ours.split(".", 2)
    module, _, kind = rest.rpartition(".")
    theirs = _NORMS[module] if module in _NORMS else _LINEARS[module] + ("" if kind in BOUNDS else ".linear")
    return f"{_TOWER}encoder.layers.{number}.{theirs}.{kind}"


def stored_shapes(config: VisionConfig, text_size: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors that a checkpoint stores of such a tower."""
    with torch.device("meta"):
        tower = VisionTower(config, text_size)
    return {stored_name(name): tuple(tensor.shape) for name, tensor in tower.state_dict().items()}


def stored_tensors(tower: VisionTower) -> dict[str, Tensor]:
    """A tower's tensors by their stored names, as `save_model` takes them."""
    return {stored_name(name): tensor for name, tensor in tower.state_dict().items()}


def vision_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of a checkpoint's tower in memory; 0 without one. Raises ConfigError for an unsupported tower."""
    return dtype.itemsize * vision_parameters(config)


def vision_parameters(config: ModelConfig) -> int:
    """Numbers that a checkpoint stores of its tower; 0 without one. Raises as `vision_bytes`."""
    if not has_tower(config):
        return 0
    vision, _ = parse_vision(config.vision or {})
    return sum(map(math.prod, stored_shapes(vision, config.hidden_size).values()))


@torch.no_grad()
def load_vision(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    report: Callable[[str], None] | None = None,
) -> VisionTower:
    """The vision tower of a checkpoint folder, in eval mode with gradients off. `dtype` is the text model's.

    Raises ConfigError for an unsupported tower, WeightsError if there is
    none or its tensors are missing, surplus, damaged, not finite or of another shape or number format.
    """
    if dtype not in DTYPES.values():
        raise WeightsError(f"dtype is {dtype}; supported: {', '.join(DTYPES)}")
    model = read_config(folder).model
    if not has_tower(model):
        raise WeightsError(f"{folder} has no vision tower; use a checkpoint that has one, or leave images out")
    config, unknown = parse_vision(model.vision or {})
    for key in unknown:
        if report is not None:
            report(f"{folder}: {key} is an unknown setting and has no effect")
    source = WeightSource(folder)
    _check_headers(source, stored_shapes(config, model.hidden_size))
    with torch.device("meta"):
        tower = VisionTower(config, model.hidden_size).to(dtype)
    tower.to_empty(device=device)
    for name, place in tower.state_dict().items():
        stored = stored_name(name)
        place.copy_(source.read(stored))
        bad = place.isnan() if name.endswith(BOUNDS) else ~place.isfinite()  # a bound may be infinite
        if bad.any():
            raise WeightsError(f"{source.tensors[stored].file}: {stored} holds NaN or infinity; fetch the model again")
    return tower.eval().requires_grad_(False)


@torch.no_grad()
def random_tower(config: VisionConfig, text_size: int, seed: int) -> VisionTower:
    """An untrained tower in float32 on the CPU, parameters with gradients on; the same for the same seed.

    Matrices are normal with variance 1 / fan-in and so are positions, with their width for fan-in; norms and scales are
    1, biases 0, and nothing is clipped.
    """
    tower = VisionTower(config, text_size)
    draw = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(tower.state_dict().items()):
        if name.endswith(BOUNDS):
            tensor.fill_(-torch.inf if name.endswith("min") else torch.inf)
        elif tensor.ndim == 1:
            tensor.fill_(0.0 if name == "std_bias" else 1.0)
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=draw) * tensor.shape[-1] ** -0.5)
    return tower


def _check_headers(source: WeightSource, wanted: Mapping[str, tuple[int, ...]]) -> None:
    there = {name for name in source.tensors if name.startswith(VISION_PREFIXES) and not name.startswith(_STRAY)}
    for what, odd in (("lacks", wanted.keys() - there), ("holds surplus", there - wanted.keys())):
        if odd:
            raise WeightsError(
                f"{source.folder} {what} {len(odd)} tensors of the vision tower in its config.json:"
                f" {shown(sorted(odd))}; the weights and the config are not of one model"
            )
    for name, shape in wanted.items():
        check_plain(source.tensors[name], shape)
