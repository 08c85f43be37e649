"""From a checkpoint folder to a model that runs.

    config.json ──► what must be there ──► headers agree? ──► memory ──► one tensor at a time: cast, place, check

Wrong names and shapes are refused before memory is allocated. Peak memory is the model and one stored tensor. Packed
checkpoints (`weights/layouts.py`) are loaded as they are; a plain one can be packed while loading.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from redraft.config import CheckpointConfig, ModelConfig, read_config
from redraft.errors import WeightsError
from redraft.images.config import has_tower
from redraft.model.gemma import DiffusionGemma, Layer
from redraft.model.kernels import FAST, Kernels
from redraft.model.linear import TILED_OUTER, PackedMatrix, can_tile, tile
from redraft.model.moe import PackedExperts
from redraft.model.packed import Packed
from redraft.model.rows import IMAGE_ATTENTION
from redraft.reader import read_json
from redraft.shapes import Tensor
from redraft.weights.build import empty_model
from redraft.weights.fill import Filler
from redraft.weights.gguf import open_source
from redraft.weights.layouts import Layout, check_plain, read_layout
from redraft.weights.memory import GIGABYTE, Room, check_fits, footprint, free_memory
from redraft.weights.names import check_filled, shown, slots, sort_names
from redraft.weights.offload import keep_on_host
from redraft.weights.place import Placement
from redraft.weights.plan import (
    Formats,
    PackingPlan,
    check_device,
    formats,
    packed_matrices,
    plain_tensors,
    usable_plans,
)
from redraft.weights.source import Stored, WeightSource
from redraft.weights.words import check_trivial


def load_model(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    kernels: Kernels = FAST,
    plan: PackingPlan | None = None,
    placement: Placement = Placement.DEVICE,
    image_attention: str = IMAGE_ATTENTION[0],
    report: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[DiffusionGemma, CheckpointConfig]:
    """The model of a checkpoint folder, in eval mode with gradients off, and its config.

    `dtype` is float32 or bfloat16; `plan` has the formats that plain matrices are packed to; `placement` is where
    experts are (`weights/place.py`); `image_attention` decides which tokens see an image (`model/rows.py`). `report`
    receives one line for each unused item in the folder. `progress` receives the elements loaded so far and all
    elements, after each tensor.

    Raises ConfigError for config files that are absent or of another model, WeightsError for tensors that are missing,
    surplus, damaged, not finite, of another shape or of another number format, RunError for too little memory,
    RequestError for an `image_attention` that does not exist.
    """
    config = read_config(folder)
    source = open_source(folder)
    wanted = slots(config.model)
    report = report or (lambda _: None)
    for key in config.unknown_keys:
        report(f"{folder}: {key} is an unknown setting and has no effect")
    layout = read_layout(source.tensors, wanted, read_settings(folder))
    if layout.formats and plan:
        raise WeightsError(f"{folder} is packed already; plan {plan.name} needs the checkpoint that is not quantized")
    check_headers(source, layout, config.model, report)
    kept: Formats = {} if plan else source.kept(wanted)
    packed = layout.formats or kept or formats(config.model, plan)
    if plan is None and (blocks := source.blocks(packed, wanted)):
        size = footprint(config.model, dtype, packed).fixed / GIGABYTE
        kinds = ", ".join(blocks)
        report(f"{folder}: blocks of {kinds} are unpacked, to {size:.3g} GB of weights; --plan int4 packs them again")
    check_usable(config.model, dtype, packed, torch.device(device), report, placement)
    model = empty_model(
        config.model,
        dtype=dtype,
        device=device,
        kernels=kernels,
        packed=packed,
        placement=placement,
        image_attention=image_attention,
    )
    filler = Filler(plain_tensors(model), packed_matrices(model))
    shapes = {name: tuple(tensor.shape) for name, tensor in filler.plain.items()}
    shapes |= {name: matrix.packed.shape for name, matrix in filler.packed.items()}
    check_filled(wanted, shapes)
    _fill(filler, source, layout, kept, progress)
    model = model.eval().requires_grad_(False)
    if placement is Placement.HOST:
        return keep_on_host(model), config
    _tile(model)
    return model, config


def _tile(model: DiffusionGemma) -> None:
    """Put experts of 4 bits into the order in which this processor multiplies them, if it can."""
    for layer in model.layers:
        if isinstance(layer, Layer) and isinstance(experts := layer.experts, PackedExperts):
            for matrix in experts.matrices.values():
                assert isinstance(matrix, PackedMatrix)
                if can_tile(matrix.format, model.dtype, model.device) and matrix.codes.shape[-2] % TILED_OUTER == 0:
                    matrix.take(tile(matrix.packed))


def check_usable(
    config: ModelConfig,
    dtype: torch.dtype,
    packed: Formats,
    device: torch.device,
    report: Callable[[str], None],
    placement: Placement = Placement.DEVICE,
) -> None:
    """Raise WeightsError if a device cannot compute with these formats, RunError if a network does not fit there."""
    check_device(packed, device)
    plans = None if device.type == "cpu" else usable_plans(config, device)
    room = Room(free_memory(device), free_memory(torch.device("cpu")), device.type, plans)
    check_fits(config, dtype, packed, room, report, placement)


def check_headers(source: WeightSource, layout: Layout, config: ModelConfig, report: Callable[[str], None]) -> None:
    """Raise WeightsError if a folder's tensors are not those of its config's model."""
    trivial = {piece.stored: piece for piece in layout.trivial}
    known = {piece.stored for piece in layout.pieces} | trivial.keys() | set(layout.unread)
    names = sort_names(source.tensors.keys() - known, layout.whole)
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
    for slot in layout.whole:
        check_plain(source.tensors[slot.stored], slot.shape, ", so use the checkpoint that is not quantized")
    for copy, original in names.tied:
        _check_copy(source, copy, original)
    for stored, tensor in source.stream(trivial) if trivial else ():
        piece = trivial[stored.name]
        check_trivial(piece.style, piece.kind, stored, tensor, piece.form.group if piece.form else 0)
    if names.vision and has_tower(config):
        report(f"{source.folder}: {len(names.vision)} tensors of the vision tower are loaded with the first image")
    if layout.unread:
        report(f"{source.folder}: {len(layout.unread)} scales of activations or caches are not used")


def _check_copy(source: WeightSource, name: str, original: str) -> None:
    """Raise WeightsError if the two copies of a tied tensor differ: it is unclear which one is meant."""
    kept, copied = source.tensors[original], source.tensors[name]
    equal = kept.shape == copied.shape and kept.dtype == copied.dtype
    if not equal or not torch.equal(source.read(original).view(torch.uint8), source.read(name).view(torch.uint8)):
        raise WeightsError(
            f"{copied.file}: {name} should be a copy of {original} and differs; the two are one tensor in this model"
        )


@torch.no_grad()
def _fill(
    filler: Filler,
    source: WeightSource,
    layout: Layout,
    kept: Formats,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Read and place everything."""
    slots = {slot.stored: slot for slot in layout.whole}
    blocks = {slot.stored for slot in layout.whole if slot.target in kept}
    pieces = {piece.stored: piece for piece in layout.pieces}
    names = {*slots, *pieces}
    done, total = 0, sum(math.prod(source.tensors[name].shape) for name in names)
    whole = ((source.tensors[name], source.read_packed(name)) for name in sorted(blocks))
    stream: Iterable[tuple[Stored, Tensor | Packed]] = chain(whole, source.stream(names - blocks))
    for stored, tensor in stream:
        name = stored.name
        if name in slots:
            placed = filler.place_slot(slots[name], tensor)
        else:
            assert isinstance(tensor, Tensor), "pieces are no blocks"
            placed = filler.place_piece(pieces[name], tensor)
        # Checked after the cast, on the model's device: this also finds an overflow in the cast.
        if placed.is_floating_point() and not _is_finite(placed):
            raise WeightsError(f"{stored.file}: {name} holds NaN or infinity; fetch or make the weights again")
        done += math.prod(stored.shape)
        del tensor  # otherwise it is in memory while the next one is read
        if progress:
            progress(done, total)


def _is_finite(tensor: Tensor) -> bool:
    # e4m3 has no reductions; its NaN stays NaN in float32.
    wide = tensor.float() if tensor.itemsize == 1 else tensor
    return all(bool(bound.isfinite()) for bound in wide.aminmax())


def read_settings(folder: Path) -> Mapping[str, Any]:
    """The quantization_config of a checkpoint's config.json; empty if there is none. Raises WeightsError."""
    found = read_json(folder / "config.json").get("quantization_config") or {}
    if not isinstance(found, Mapping):
        raise WeightsError(f"quantization_config is a {type(found).__name__}; it must be an object")
    return found
