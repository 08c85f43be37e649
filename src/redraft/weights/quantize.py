"""From a plain checkpoint folder to a packed one, in the compressed-tensors layout that other engines load.

    headers ──► what is packed, what is copied ──► plan of shards ──► one matrix at a time: read, round, write

Only one matrix is in memory, for any size of checkpoint. Shards are written into a folder beside the target, which is
renamed to the target when it is complete. After an interruption the same call continues with the missing shards: a
shard is whole or absent, and the folder records its source.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch

from redraft.config import read_config
from redraft.errors import RunError, WeightsError
from redraft.files import alone, copy_files, final_name, remove_halves, write_json
from redraft.model.packed import Format, error, pack
from redraft.reader import read_json
from redraft.shapes import Tensor
from redraft.weights.fingerprint import fingerprint, stamps, texts_digest
from redraft.weights.layouts import FLOATS, Matrix, matrices, read_layout, stored_names
from redraft.weights.load import check_headers, read_settings
from redraft.weights.names import VISION_PREFIXES, Slot, shown, slots
from redraft.weights.plan import Formats, PackingPlan, formats
from redraft.weights.shards import TensorHeader, index_json, split, write_shard
from redraft.weights.source import INDEX, TEXT_FILES, WeightSource, has_weights

REPORT = "quantization_report.json"
_PROGRESS = "progress.json"
_SHARD_BYTES = 2_000_000_000
_CHUNK_ROWS = 8192
_MISPLACED = (  # the place, not the disk
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG),
)
_CARRIED = ("generation_config.json", "redraft.json", *TEXT_FILES, "LICENSE")
_KNOWN = (_PROGRESS, REPORT, INDEX, "config.json", *_CARRIED)


@dataclass(frozen=True)
class Report:
    """The result. `errors`: our matrix's name -> root of its squared error over its squared size."""

    plan: str
    folder: Path
    bytes_before: int
    bytes_after: int
    errors: Mapping[str, float]


@dataclass(frozen=True)
class _Item:
    """One tensor copied (`matrix` None) or one matrix packed. Experts are read one by one from their stack."""

    stored: str
    headers: tuple[TensorHeader, ...]
    matrix: Matrix | None = None
    form: Format | None = None

    @property
    def num_bytes(self) -> int:
        return sum(header.num_bytes for header in self.headers)


@dataclass
class _Errors:
    """Sums of squares by target: of rounding errors and of the matrix."""

    sums: dict[str, list[float]] = field(default_factory=dict)

    def add(self, target: str, squares: Sequence[float]) -> None:
        before = self.sums.get(target, [0.0, 0.0])
        self.sums[target] = [a + b for a, b in zip(before, squares, strict=True)]

    def relative(self) -> dict[str, float]:
        return {target: (changed / whole) ** 0.5 if whole else 0.0 for target, (changed, whole) in self.sums.items()}


class _Progress(msgspec.Struct):
    """What an interrupted call leaves: the job, and by shard and target the sums of `_Errors`."""

    making: dict[str, Any]
    done: dict[
        str, dict[str, Annotated[list[Annotated[float, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=2, max_length=2)]]
    ]


def quantize_checkpoint(
    folder: Path,
    target: Path,
    plan: PackingPlan,
    *,
    max_shard_bytes: int = _SHARD_BYTES,
    progress: Callable[[int, int], None] | None = None,
    source: WeightSource | None = None,
) -> Report:
    """Write the checkpoint of `folder`, packed by `plan`, as the new folder `target`. `progress` receives the bytes
    written so far and all bytes. `source` has its tensors, if not the files of the folder.

    Raises WeightsError for a checkpoint that is packed already or damaged, a plan whose groups do not fit, or a target
    that exists or cannot be made, and if the checkpoint changes meanwhile; RunError if writing fails.
    """
    if plan.table is not None:
        raise WeightsError(f"plan {plan.name} packs the embedding table, which files have plain; use --plan on loading")
    if os.path.lexists(target):
        raise WeightsError(f"{target} exists; give the name of a folder that does not")
    began, config = stamps(folder), read_config(folder)
    if source is None and not has_weights(folder) and any(folder.glob("*.gguf")):
        raise WeightsError(f"{folder} holds GGUF, whose blocks are quantized already; give the folder of safetensors")
    source = source or WeightSource(folder)
    wanted = slots(config.model)
    layout = read_layout(source.tensors, wanted, read_settings(folder))
    if layout.pieces:
        raise WeightsError(f"{folder} is packed already; start from the checkpoint that is not quantized")
    check_headers(source, layout, config.model, lambda _: None)
    packed = formats(config.model, plan)
    shards = split(_items(source, wanted, packed), max_shard_bytes)
    stage = target.parent / f".{target.name}.quantizing"
    folders = sorted({one.resolve() for one in (folder, *(stored.file.parent for stored in source.tensors.values()))})
    making = {"plan": plan.name, "shards": max_shard_bytes, "source": source_state(folders)}
    try:
        if stage.is_symlink():
            raise WeightsError(f"{stage} is a link, and what it leads to is not ours; remove it")
        stage.mkdir(parents=True, exist_ok=True)
        with alone(stage, target):
            done = _resume(stage, making, shards)
            errors = _write_all(stage, source, shards, done, progress)
            _write_rest(stage, folder, plan, packed, errors, shards)
            if stamps(folder) != began or source_state(folders) != making["source"]:  # parts of it would be another's
                raise WeightsError(f"{folder} was changed meanwhile; run the same command again")
            remove_halves(stage, _KNOWN)
            os.replace(stage, target)
            (target / _PROGRESS).unlink()  # behind that, so that a kill between both loses nothing
    except OSError as failure:
        if failure.errno in _MISPLACED:
            raise WeightsError(f"{target} cannot be made: {failure.strerror}; give another folder") from None
        raise RunError(
            f"{target} could not be written ({failure}); free space and run the same command again"
        ) from None
    before = sum(path.stat().st_size for path in {stored.file for stored in source.tensors.values()})
    after = sum((target / name).stat().st_size for name in shards)
    return Report(plan.name, target, before, after, errors.relative())


def source_state(folders: Sequence[Path]) -> list[list[Any]]:
    """What tells whether these folders still have what they had."""
    return [[fingerprint(one), texts_digest(one), stamps(one)] for one in folders]


def quantization_json(packed: Formats) -> dict[str, Any]:
    """The quantization_config of a checkpoint, in the form of compressed-tensors."""
    groups: dict[str, Any] = {}
    by_format: dict[Format, set[str]] = {}
    for target, form in packed.items():
        by_format.setdefault(form, set()).add(target.split(".")[2])
    for number, (form, parts) in enumerate(sorted(by_format.items(), key=lambda pair: pair[0].name)):
        targets = [f"re:.*decoder\\.layers\\.\\d+\\.{_MODULES[part]}$" for part in sorted(parts)]
        groups[f"group_{number}"] = {"targets": targets, **_scheme(form)}
    kinds = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": kinds.pop() if len(kinds) == 1 else "mixed-precision",
        "config_groups": groups,
        "ignore": [f"re:.*{name}.*" for name in ("lm_head", "embed", "router", "self_conditioning", "vision_tower")],
    }


_MODULES = {
    "attention": r"self_attn\.[qkvo]_proj",
    "mlp": r"mlp\.(gate|up|down)_proj",
    "experts": r"experts\.\d+\.(gate|up|down)_proj",
}


def _scheme(form: Format) -> dict[str, Any]:
    kind = "float" if form.is_float else "int"
    weights = {"num_bits": form.bits, "type": kind, "symmetric": True, "dynamic": False}
    if form.group:
        weights |= {"strategy": "tensor_group" if form.is_float else "group", "group_size": form.group}
    else:
        weights |= {"strategy": "channel"}
    rows = {"num_bits": form.bits, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}
    name = {"int8": "int-quantized", "fp8": "float-quantized", "nvfp4": "nvfp4-pack-quantized"}
    found = {"weights": weights, "format": name.get(form.name, "pack-quantized")}
    return found | {"input_activations": rows if form.round_rows else None}


def _items(source: WeightSource, wanted: Sequence[Slot], packed: Formats) -> Iterator[_Item]:
    """All items to write, in the order of the network; then the vision tower, unchanged."""
    for slot in wanted:
        form = packed.get(slot.target)
        if form is None:
            yield _copied(source, slot.stored)
            continue
        for matrix in matrices(slot):
            row = pack(torch.zeros(1, matrix.shape[1]), form, matrix.prefix)
            named = stored_names(matrix.prefix, row.each(partial(_tall, rows=matrix.shape[0])))
            headers = tuple(TensorHeader(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in named.items())
            yield _Item(slot.stored, headers, matrix, form)
    for name in source.tensors:
        if name.startswith(VISION_PREFIXES):
            yield _copied(source, name)


def _tall(row: Tensor, rows: int) -> Tensor:
    """Room for so many rows, without numbers."""
    return torch.empty(rows, row.shape[1], dtype=row.dtype, device="meta")


def _copied(source: WeightSource, name: str) -> _Item:
    stored = source.tensors[name]
    if stored.dtype not in FLOATS:
        raise WeightsError(f"{stored.file}: {name} is stored as {stored.dtype}; supported: {', '.join(FLOATS)}")
    return _Item(name, (TensorHeader(name, FLOATS[stored.dtype], stored.shape),))


def _resume(
    stage: Path, making: Mapping[str, Any], shards: Mapping[str, Sequence[_Item]]
) -> dict[str, dict[str, list[float]]]:
    """The errors of the shards that an interrupted call has written; empties the folder if its job was another, or what
    it says of it cannot be read."""
    path = stage / _PROGRESS
    with suppress(OSError, ValueError, RecursionError):  # MsgspecError and UnicodeDecodeError are of the second kind
        found = msgspec.json.decode(path.read_bytes() if path.is_file() else b"", type=_Progress)
        if found.making == json.loads(json.dumps(making)):
            made = {name: {one.matrix.slot.target for one in items if one.matrix} for name, items in shards.items()}
            done = found.done.items()
            sizes = {name: sum(item.num_bytes for item in items) for name, items in shards.items()}
            return {
                name: sums
                for name, sums in done
                if sums.keys() == made.get(name) and (stage / name).is_file() and _is_whole(stage / name, sizes[name])
            }
    if strange := [one.name for one in stage.iterdir() if not _is_ours(one.name)]:
        raise WeightsError(f"{stage} holds {shown(strange)}, which this did not write; remove the folder")
    for one in sorted(stage.iterdir(), key=lambda one: one.name == _PROGRESS):  # it goes last: a kill may come
        one.unlink()
    write_json(path, {"making": making, "done": {}})
    return {}


def _is_whole(path: Path, data: int) -> bool:
    """Whether a shard is as long as its header and so many bytes of numbers."""
    with path.open("rb") as file:
        return path.stat().st_size == 8 + int.from_bytes(file.read(8), "little") + data


def _is_ours(name: str) -> bool:
    """Whether a file is one that this writes, whole or not: what else lies there is somebody's."""
    return final_name(name) in _KNOWN or (name.startswith("model") and name.endswith((".safetensors", ".part")))


def _write_all(
    stage: Path,
    source: WeightSource,
    shards: Mapping[str, Sequence[_Item]],
    done: dict[str, dict[str, list[float]]],
    progress: Callable[[int, int], None] | None,
) -> _Errors:
    written, total = 0, sum(item.num_bytes for items in shards.values() for item in items)
    for name, items in shards.items():
        if name not in done:
            headers, errors = [header for item in items for header in item.headers], _Errors()
            write_shard(stage / name, headers, _counted(_chunks(source, items, errors), written, total, progress))
            done[name] = errors.sums
            making = read_json(stage / _PROGRESS)["making"]
            write_json(stage / _PROGRESS, {"making": making, "done": done})
        written += sum(item.num_bytes for item in items)
    whole = _Errors()
    for sums in done.values():
        for target, squares in sums.items():
            whole.add(target, squares)
    return whole


def _counted(
    chunks: Iterator[Tensor], written: int, total: int, progress: Callable[[int, int], None] | None
) -> Iterator[Tensor]:
    """The same chunks; reports the bytes so far after each."""
    for chunk in chunks:
        yield chunk
        written += chunk.numel() * chunk.element_size()
        if progress:
            progress(written, total)


def _chunks(source: WeightSource, items: Sequence[_Item], errors: _Errors) -> Iterator[Tensor]:
    """The numbers of a shard."""
    for item in items:
        if item.matrix is None or item.form is None:
            yield from _copy(source, item)
        else:
            yield from _packed(source, item.stored, item.matrix, item.form, errors)


def _copy(source: WeightSource, item: _Item) -> Iterator[Tensor]:
    shape = item.headers[0].shape
    may_be_infinite = item.stored.startswith(VISION_PREFIXES)  # a tower's bounds that bound nothing
    if len(shape) != 2 or shape[0] <= _CHUNK_ROWS:
        found = source.read(item.stored)
        yield found if may_be_infinite else _finite(item.stored, found)
        return
    for start in range(0, shape[0], _CHUNK_ROWS):
        found = source.read_rows(item.stored, slice(start, start + _CHUNK_ROWS))
        yield found if may_be_infinite else _finite(item.stored, found)


def _finite(stored: str, numbers: Tensor) -> Tensor:
    if numbers.numel() and not all(bound.isfinite() for bound in numbers.aminmax()):
        raise WeightsError(f"{stored} holds NaN or infinity; fetch or make the weights again")
    return numbers


def _packed(source: WeightSource, stored: str, matrix: Matrix, form: Format, errors: _Errors) -> Iterator[Tensor]:
    if matrix.expert is None:
        weight = source.read(stored)
    else:
        weight = source.read_rows(stored, slice(matrix.expert, matrix.expert + 1))[0, matrix.rows]
    packed = pack(_finite(stored, weight), form, matrix.prefix)
    errors.add(matrix.slot.target, error(weight, packed))
    yield from stored_names(matrix.prefix, packed).values()


def _write_rest(
    stage: Path,
    folder: Path,
    plan: PackingPlan,
    packed: Formats,
    errors: _Errors,
    shards: Mapping[str, Sequence[_Item]],
) -> None:
    """Write all files but the weights."""
    if len(shards) > 1:
        headers = {name: [header for item in items for header in item.headers] for name, items in shards.items()}
        write_json(stage / INDEX, index_json(headers))
    copy_files(_CARRIED, folder, stage)
    write_json(stage / REPORT, {"plan": plan.name, "relative_error": errors.relative()})
    write_json(
        stage / "config.json", {**read_json(folder / "config.json"), "quantization_config": quantization_json(packed)}
    )
