"""LoRA adapters in PEFT's layout: names, files, and merging.

    adapter_config.json          rank, alpha, which modules
    adapter_model.safetensors    base_model.model.<stored name>.lora_A.weight [rank, in], .lora_B.weight [out, rank]

Routed experts are adapted as parameters: A has the experts one after another [experts · rank, in], B has them innermost
[out, rank · experts]. PEFT nests the two parameters of one module, so `gate_up_proj` is under `experts.base_layer` and
`down_proj` under `experts` (PEFT 0.19).

Our encoder and canvas mode share every matrix. transformers has a module for each, so an adapter is written under both
names. An adapter whose two copies differ cannot be used here: there is no single matrix to merge it into.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from redraft.errors import RunError, WeightsError
from redraft.files import write_json
from redraft.model.gemma import DiffusionGemma
from redraft.reader import read_json
from redraft.shapes import Float, Tensor
from redraft.weights.layouts import FLOATS
from redraft.weights.names import Slot, shown, slots
from redraft.weights.source import check_names, opened

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_BEFORE = "base_model.model."
_DECODER, _ENCODER = "model.decoder.", "model.encoder.language_model."
_FIXED: dict[str, object] = {
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "use_dora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "alora_invocation_tokens": None,  # a part that has effect behind these alone
    "use_qalora": False,
    "layer_replication": None,
}
_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""How an adapter may have begun; by other ways it belongs to a base that was changed."""
PARTS = ("attention", "mlp", "experts", "self_conditioning")


@dataclass(frozen=True)
class Low:
    """The two small matrices beside one stored one: A [rank, in], B [out, rank]; experts have one axis more, first."""

    a: Float[Tensor, "*experts rank in_"]
    b: Float[Tensor, "*experts out rank"]

    def delta(self, scale: float) -> Tensor:
        """Their addition to the stored matrix."""
        return (self.b @ self.a) * scale


def part_of(slot: Slot) -> str | None:
    """The part of the network that a stored matrix belongs to, if adapters can change it: one of PARTS."""
    name = slot.target
    if name.startswith("self_conditioning.mlp."):
        return "self_conditioning"
    part = name.split(".")[2] if name.startswith("layers.") and len(slot.shape) > 1 else ""
    return part if part in PARTS else None


def write_adapter(found: Mapping[str, Low], folder: Path, *, alpha: float, base: str) -> None:
    """Write an adapter; `found` maps stored names to their matrices, `base` is the checkpoint it belongs to.

    Raises RunError if the disk refuses.
    """
    tensors = {name: value for stored, low in found.items() for name, value in _stored(stored, low)}
    some = next(iter(found.values()))
    modules = "|".join(sorted({_module(name) for name, low in found.items() if low.a.ndim == 2})) or "none"
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": some.a.shape[-2],
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        **_FIXED,
        "inference_mode": True,
        "task_type": None,
        # A pattern, not names: the vision tower has modules of the same names.
        "target_modules": rf"model\.(decoder|encoder\.language_model)\..*\.({modules})",
        "target_parameters": sorted({f"experts.{_module(name)}" for name, low in found.items() if low.a.ndim == 3}),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        write_json(folder / CONFIG, settings)
        (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)  # the library's files are readable only by the owner
    except (OSError, SafetensorError) as error:
        raise RunError(f"the adapter could not be written to {folder}: {error}; free some space") from None


@torch.no_grad()
def merge_adapter(model: DiffusionGemma, folder: Path) -> None:
    """Add an adapter to a plain model's matrices. The sum is computed in float32 and rounded to the model's dtype.

    Raises WeightsError for a folder that is not a LoRA adapter, or an adapter of another model or an unsupported form.
    """
    settings = _read_settings(folder)
    scale = settings["lora_alpha"] / settings["r"]
    ours, stored = model.state_dict(), _read_tensors(folder)
    used: set[str] = set()
    wanted = [(slot, low) for slot in slots(model.config) if (low := _low(slot, stored, used, folder)) is not None]
    if surplus := sorted(stored.keys() - used):
        raise WeightsError(f"{folder} adapts what this model does not have: {shown(surplus)}; it belongs to another")
    if not used:
        raise WeightsError(f"{folder}/{WEIGHTS} holds no adapter matrices; train the adapter again")
    if packed := [slot.target for slot, _ in wanted if slot.target not in ours]:
        raise WeightsError(f"{folder}: {shown(packed)} is packed; merge the adapter into the plain checkpoint first")
    for slot, low in wanted:
        if low.a.shape[-2] != settings["r"]:
            raise WeightsError(
                f"{folder}: {slot.stored} has rank {low.a.shape[-2]}; {CONFIG} has r {settings['r']}: fetch it again"
            )
        if not (low.a.isfinite().all() and low.b.isfinite().all()):
            raise WeightsError(f"{folder}: the adapter of {slot.stored} holds NaN or infinity; train it again")
    for writes in (False, True):  # not before all are looked at
        for slot, low in wanted:
            rows = ours[slot.target][slot.rows]
            merged = (rows.float() + low.delta(scale).to(rows.device)).to(rows.dtype)
            if writes:
                rows.copy_(merged)
            elif not merged.isfinite().all():
                raise WeightsError(f"{folder}: {slot.stored} would be too large with its adapter; lower lora_alpha")


def _stored(stored: str, low: Low) -> Iterator[tuple[str, Tensor]]:
    a, b = low.a, low.b
    if a.ndim == 3:
        b = b.permute(1, 2, 0).reshape(b.shape[1], -1)
        a = a.reshape(-1, a.shape[-1])
    for name in _names(stored):
        yield f"{name}.lora_A.weight", a.detach().float().contiguous().clone()
        yield f"{name}.lora_B.weight", b.detach().float().contiguous().clone()


def _names(stored: str) -> list[str]:
    """PEFT's names for the adapter of a stored tensor: in the decoder, and in the encoder if it has that module."""
    module = stored.removesuffix(".weight")
    if ".experts." in module:
        head, _, which = module.rpartition(".")
        module = f"{head}.base_layer" if which == "gate_up_proj" else head
    names = [_BEFORE + module]
    if ".layers." in module:
        names.append(_BEFORE + _ENCODER + module.removeprefix(_DECODER))
    return names


def _module(stored: str) -> str:
    return stored.removesuffix(".weight").rpartition(".")[2]


def _low(slot: Slot, stored: Mapping[str, Tensor], used: set[str], folder: Path) -> Low | None:
    copies = []
    for name in _names(slot.stored):
        keys = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
        if keys[0] in stored and keys[1] in stored:
            used.update(keys)
            if odd := {str(stored[key].dtype) for key in keys} - {str(one) for one in FLOATS.values()}:
                raise WeightsError(f"{folder}: {slot.stored} is adapted in {odd.pop()}; supported: {', '.join(FLOATS)}")
            copies.append((stored[keys[0]], stored[keys[1]]))
    if not copies:
        return None
    if len(copies) < len(_names(slot.stored)) or any(
        not torch.equal(mine, other) for mine, other in zip(copies[0], copies[-1], strict=True)
    ):
        raise WeightsError(
            f"{folder}: {slot.stored} is adapted otherwise in the encoder than in the decoder; they share their"
            " weights, so such an adapter cannot be merged: train it with redraft tune"
        )
    a, b = (part.float() for part in copies[0])
    if a.ndim != 2 or b.ndim != 2:
        raise WeightsError(f"{folder}: {slot.stored} is adapted by {a.ndim} and {b.ndim} axes; it takes two matrices")
    if not a.numel() or not b.numel():
        raise WeightsError(f"{folder}: {slot.stored} is adapted by an empty matrix; train the adapter again")
    if len(slot.shape) == 3 and not a.shape[0] % slot.shape[0] and not b.shape[1] % slot.shape[0]:
        a = a.view(slot.shape[0], -1, a.shape[-1])
        b = b.view(b.shape[0], -1, slot.shape[0]).permute(2, 0, 1)
    if (*a.shape[:-2], b.shape[-2], a.shape[-1]) != slot.shape or a.shape[-2] != b.shape[-1]:
        raise WeightsError(f"{folder}: {slot.stored} is {list(slot.shape)}; the adapter is for another model")
    return Low(a, b)


def _read_settings(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        raise WeightsError(f"{folder} is not an adapter: it has no {CONFIG}; give the folder that redraft tune names")
    found = read_json(folder / CONFIG)
    if found.get("peft_type") != "LORA":
        raise WeightsError(f"{folder}/{CONFIG}: peft_type is {found.get('peft_type')!r}; supported: 'LORA'")
    for key, fixed in _FIXED.items():
        if found.get(key, fixed) not in (fixed, None):
            raise WeightsError(f"{folder}/{CONFIG}: {key} is {found[key]!r}; supported: {fixed!r}")
    if found.get("init_lora_weights") not in _STARTS:
        raise WeightsError(
            f"{folder}/{CONFIG}: init_lora_weights is {found['init_lora_weights']!r}, which changes the model that the"
            " adapter is for; convert it to a plain LoRA"
        )
    for key in ("r", "lora_alpha"):
        value = found.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
            raise WeightsError(f"{folder}/{CONFIG}: {key} is {value!r}; it must be a number above 0")
    return dict(found)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    try:
        with opened(folder / WEIGHTS) as file:
            check_names(folder / WEIGHTS)
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{folder}/{WEIGHTS} cannot be read ({error}); fetch or train the adapter again") from None
