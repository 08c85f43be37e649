"""The map between stored tensors and ours: names, shapes, row ranges (model spec 6.1).

The released layout stores the shared layers once, under `model.decoder.`, and one scalar per layer again under
`model.encoder.`. We stack some of its matrices by rows, so that one matmul computes several:

    q_proj, k_proj, v_proj   ->  attention.qkv     (full layers have no v_proj)
    gate_proj, up_proj       ->  gate_up           (of each layer's MLP and of self-conditioning)

Every other tensor is one of ours under another name. A file may also have the vision tower, which is loaded separately
(`weights/vision.py`), and copies of shared tensors under other names. This file handles no numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from redraft.config import LayerConfig, ModelConfig
from redraft.errors import WeightsError

VISION_PREFIXES = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
_DECODER, _ENCODER_TEXT = "model.decoder.", "model.encoder.language_model."
_SHOWN = 5


@dataclass(frozen=True)
class Slot:
    """One stored tensor's place: rows `start .. start + shape[0]` of our tensor `target`."""

    stored: str
    target: str
    shape: tuple[int, ...]
    start: int = 0

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.shape[0])

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Sorted:
    """A checkpoint's names by their use. `tied` pairs a copy's name with the name of its original."""

    vision: tuple[str, ...]
    tied: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    surplus: tuple[str, ...]


def slots(config: ModelConfig) -> tuple[Slot, ...]:
    """Every tensor that a text checkpoint of this shape stores, in the order of the network."""
    hidden = config.hidden_size
    found = [Slot(_DECODER + "embed_tokens.weight", "embed.weight", (config.vocab_size, hidden))]
    stored, ours = _DECODER + "self_conditioning.", "self_conditioning."
    found.append(Slot(stored + "pre_norm.weight", ours + "pre_norm.weight", (hidden,)))
    found += _mlp(stored, ours + "mlp.", hidden, config.intermediate_size)
    for i, layer in enumerate(config.layers):
        found += _layer(config, layer, f"layers.{i}.")
    found.append(Slot(_DECODER + "norm.weight", "norm.weight", (hidden,)))
    return tuple(found)


def sort_names(stored: Iterable[str], wanted: Iterable[Slot]) -> Sorted:
    """The stored names by their use, for the slots that the config needs."""
    there, needed = sorted(stored), {slot.stored for slot in wanted}
    rest = [name for name in there if name not in needed]
    originals = {name: original for name in rest if (original := _original(name)) in needed}
    vision = tuple(name for name in rest if name.startswith(VISION_PREFIXES))
    return Sorted(
        vision=vision,
        tied=tuple(originals.items()),
        missing=tuple(sorted(needed.difference(there))),
        surplus=tuple(name for name in rest if name not in originals and not name.startswith(VISION_PREFIXES)),
    )


def check_filled(wanted: Iterable[Slot], ours: Mapping[str, tuple[int, ...]]) -> None:
    """Raise WeightsError unless the slots fill every row of every tensor of ours exactly once.

    It fails for a model whose matrices were replaced (an adapter that is not merged, another number format), and if the
    network and this map do not agree.
    """
    by_target: dict[str, list[Slot]] = {}
    for slot in wanted:
        by_target.setdefault(slot.target, []).append(slot)
    if odd := sorted(by_target.keys() ^ ours.keys()):
        raise WeightsError(
            f"the model's tensors do not match the stored layout at {shown(odd)};"
            " only a plain model can be loaded or saved, so merge adapters and undo quantization first"
        )
    for target, parts in by_target.items():
        parts.sort(key=lambda slot: slot.start)
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + part.shape[0])
        got = (starts[-1], *parts[0].shape[1:])
        if [part.start for part in parts] != starts[:-1] or got != ours[target]:
            raise WeightsError(f"the model's {target} is {list(ours[target])}; the stored layout fills {list(got)}")


def shown(names: Iterable[str]) -> str:
    """Up to five names and how many there are, for an error message."""
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _layer(config: ModelConfig, layer: LayerConfig, prefix: str) -> Iterator[Slot]:
    hidden, ffn, experts = config.hidden_size, config.moe_intermediate_size, config.num_experts
    stored = _DECODER + prefix
    yield from _attention(config, layer, prefix)
    yield from _mlp(stored + "mlp.", prefix + "mlp.", hidden, config.intermediate_size)
    yield Slot(stored + "router.proj.weight", prefix + "router.proj.weight", (experts, hidden))
    yield Slot(stored + "router.scale", prefix + "router.scale", (hidden,))
    yield Slot(stored + "router.per_expert_scale", prefix + "router.per_expert_scale", (experts,))
    yield Slot(stored + "experts.gate_up_proj", prefix + "experts.gate_up", (experts, 2 * ffn, hidden))
    yield Slot(stored + "experts.down_proj", prefix + "experts.down", (experts, hidden, ffn))
    for theirs, ours in _LAYER_NORMS.items():
        yield Slot(f"{stored}{theirs}.weight", f"{prefix}{ours}.weight", (hidden,))
    yield Slot(stored + "layer_scalar", prefix + "denoise_scalar", (1,))
    yield Slot(_ENCODER_TEXT + prefix + "layer_scalar", prefix + "encode_scalar", (1,))


# Feed-forward norms: 1 is the dense branch, 2 the routed one, without a number around both (model spec 1.6).
_LAYER_NORMS = {
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "pre_mlp_norm",
    "post_feedforward_layernorm_1": "post_mlp_norm",
    "pre_feedforward_layernorm_2": "pre_experts_norm",
    "post_feedforward_layernorm_2": "post_experts_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _attention(config: ModelConfig, layer: LayerConfig, prefix: str) -> Iterator[Slot]:
    stored, ours = f"{_DECODER}{prefix}self_attn.", prefix + "attention."
    q, kv = config.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    parts = {"q_proj": q, "k_proj": kv} | ({} if layer.is_full else {"v_proj": kv})
    yield from _stack(stored, ours + "qkv.weight", parts, config.hidden_size)
    yield Slot(stored + "o_proj.weight", ours + "out.weight", (config.hidden_size, q))
    yield Slot(stored + "q_norm.weight", ours + "q_norm.weight", (layer.head_dim,))
    yield Slot(stored + "k_norm.weight", ours + "k_norm.weight", (layer.head_dim,))


def _mlp(stored: str, ours: str, hidden: int, ffn: int) -> Iterator[Slot]:
    yield from _stack(stored, ours + "gate_up.weight", {"gate_proj": ffn, "up_proj": ffn}, hidden)
    yield Slot(stored + "down_proj.weight", ours + "down.weight", (hidden, ffn))


def _stack(stored: str, target: str, parts: Mapping[str, int], columns: int) -> Iterator[Slot]:
    start = 0
    for name, rows in parts.items():
        yield Slot(f"{stored}{name}.weight", target, (rows, columns), start)
        start += rows


def _original(name: str) -> str | None:
    """The name under which a tied tensor is stored, if `name` is another possible name of it."""
    if name == "lm_head.weight":
        return _DECODER + "embed_tokens.weight"
    if name.startswith(_ENCODER_TEXT) and not name.endswith(".layer_scalar"):
        return _DECODER + name.removeprefix(_ENCODER_TEXT)
    return None
