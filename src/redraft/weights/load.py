"""From a checkpoint folder to a model that runs.

    config.json ──► what must be there ──► headers agree? ──► memory ──► one tensor at a time: cast, place, check

Everything that can be refused from names and shapes is refused before memory is taken. Peak memory is the model and one
stored tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from redraft.config import CheckpointConfig, read_config
from redraft.errors import WeightsError
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import FAST, Kernels
from redraft.shapes import Tensor
from redraft.weights.build import empty_model
from redraft.weights.names import Slot, check_filled, shown, slots, sort_names
from redraft.weights.source import Source

_STORED_DTYPES = ("F32", "BF16", "F16")


def load_model(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    kernels: Kernels = FAST,
    report: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[DiffusionGemma, CheckpointConfig]:
    """The model of a checkpoint folder, in eval mode with gradients off, and what its config files say.

    `dtype` is float32 or bfloat16. `report` receives one line for each thing in the folder that is not used.
    `progress` receives elements placed so far and elements in all, after each tensor.

    Raises ConfigError for config files that are absent or of another model, WeightsError for tensors that are missing,
    surplus, damaged, not finite, of another shape or of another number format, RunError for too little memory.
    """
    config = read_config(folder)
    source = Source(folder)
    wanted = slots(config.model)
    report = report or _silent
    for key in config.unknown_keys:
        report(f"{folder}: {key} is not a setting that redraft knows; it has no effect")
    _check_headers(source, wanted, report)
    model = empty_model(config.model, dtype=dtype, device=device, kernels=kernels)
    ours = model.state_dict()
    check_filled(wanted, {name: tuple(tensor.shape) for name, tensor in ours.items()})
    _fill(ours, source, wanted, progress)
    return model.eval().requires_grad_(False), config


def _check_headers(source: Source, wanted: tuple[Slot, ...], report: Callable[[str], None]) -> None:
    names = sort_names(source.tensors, wanted)
    if names.missing:
        raise WeightsError(
            f"{source.folder} lacks {len(names.missing)} tensors of the model in its config.json:"
            f" {shown(names.missing)}; the weights and the config are not of one model"
        )
    if names.surplus:
        raise WeightsError(
            f"{source.folder} holds {len(names.surplus)} tensors that the model in its config.json does not have:"
            f" {shown(names.surplus)}; the weights and the config are not of one model"
        )
    for slot in wanted:
        _check_header(source, slot)
    for copy, original in names.tied:
        _check_copy(source, copy, original)
    if names.vision:
        report(f"{source.folder}: {len(names.vision)} vision tensors are not loaded; redraft runs the text model")


def _check_header(source: Source, slot: Slot) -> None:
    stored = source.tensors[slot.stored]
    if stored.shape != slot.shape:
        raise WeightsError(
            f"{stored.file}: {slot.stored} has shape {list(stored.shape)}; config.json makes it {list(slot.shape)}"
        )
    if stored.dtype not in _STORED_DTYPES:
        raise WeightsError(
            f"{stored.file}: {slot.stored} is stored as {stored.dtype}; supported: {', '.join(_STORED_DTYPES)},"
            " so use the checkpoint that is not quantized"
        )


def _check_copy(source: Source, name: str, original: str) -> None:
    """A tied tensor stored twice is harmless while both are equal; if not, nobody can say which one is meant."""
    kept, copied = source.tensors[original], source.tensors[name]
    equal = kept.shape == copied.shape and kept.dtype == copied.dtype
    if not equal or not torch.equal(source.read(original).view(torch.uint8), source.read(name).view(torch.uint8)):
        raise WeightsError(
            f"{copied.file}: {name} should be a copy of {original} and differs; the two are one tensor in this model"
        )


@torch.no_grad()
def _fill(
    ours: Mapping[str, Tensor], source: Source, wanted: Iterable[Slot], progress: Callable[[int, int], None] | None
) -> None:
    places = {slot.stored: slot for slot in wanted}
    done, total = 0, sum(slot.num_elements for slot in places.values())
    for stored, tensor in source.stream(places):
        slot = places[stored.name]
        place = ours[slot.target][slot.rows]
        place.copy_(tensor)
        # Looked at after the cast, on the model's own device: an overflow in the cast is found too.
        if not all(bound.isfinite() for bound in place.aminmax()):
            raise WeightsError(f"{stored.file}: {stored.name} holds NaN or infinity; fetch or make the weights again")
        done += slot.num_elements
        if progress:
            progress(done, total)


def _silent(line: str) -> None:
    """For a caller who did not ask for reports."""
