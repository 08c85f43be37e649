"""From a model to a checkpoint folder in the released layout, which transformers also reads.

Files are written in a hidden folder beside the target and moved into place, one after another, when all of them are
complete. A failure to write leaves the target as it was. A crash between two moves leaves the weights of one save or a
folder that cannot be loaded: an index never has shards of two saves. Peak memory is the model and one shard.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from redraft.config import OWN_FILE, GenerationConfig, generation_json, model_json
from redraft.errors import RunError, WeightsError
from redraft.files import alone, final_name, is_free, write_json
from redraft.model.fused import FusedLayer
from redraft.model.gemma import DiffusionGemma
from redraft.shapes import Tensor
from redraft.weights.build import DTYPES
from redraft.weights.names import VISION_PREFIXES, Slot, check_filled, shown, slots
from redraft.weights.shards import TensorHeader, index_json, split
from redraft.weights.source import INDEX, Stored, WeightSource

_SHARD_BYTES = 5_000_000_000
_SAVED = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|\.tmp\w{6}")
"""How files of weights are named here, and the library's halves of them."""


@dataclass(frozen=True)
class _Entry:
    """One tensor to store: a slot of the model, or an unchanged vision tensor."""

    name: str
    num_bytes: int
    slot: Slot | None


def save_model(
    model: DiffusionGemma,
    folder: Path,
    *,
    generation: GenerationConfig,
    vision: WeightSource | Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = _SHARD_BYTES,
) -> None:
    """Write the weights, config.json, generation_config.json and redraft.json into `folder`, replacing these files.

    `vision` has the vision tensors, stored unchanged; without it the config has no vision tower, and transformers,
    which requires one, would start it from random numbers. `dtype` is the dtype of the text tensors (None: the
    model's). Weights above `max_shard_bytes` are split over several files. Other files in `folder` stay.

    Raises WeightsError for a model that is not plain, holds NaN or infinity, or a `folder` that is a file; RunError if
    writing fails.
    """
    dtype = dtype or model.dtype
    if dtype not in DTYPES.values():
        raise WeightsError(f"dtype is {dtype}; supported: {', '.join(DTYPES)}")
    if max_shard_bytes < 1:
        raise WeightsError(f"max_shard_bytes is {max_shard_bytes}; it must be at least 1")
    if any(isinstance(layer, FusedLayer) for layer in model.layers):
        raise WeightsError(
            "the model's layers are fused for inference (as redraft.load and the engine make them) and no longer have"
            " the stored tensors; save the plain model that redraft.weights.load.load_model returns"
        )
    ours = model.state_dict()
    wanted = slots(model.config)
    check_filled(wanted, {name: tuple(tensor.shape) for name, tensor in ours.items()})
    extra, read = _vision(vision, model.config.vision is not None)
    entries = [_Entry(slot.stored, slot.num_elements * dtype.itemsize, slot) for slot in wanted] + extra
    config = model.config
    if not extra:
        root = {key: value for key, value in config.root.items() if key != "vision_config"}
        config = replace(config, vision=None, root=root)
    with _staged(folder) as stage:
        _write_weights(stage, split(entries, max_shard_bytes), ours, read, dtype)
        write_json(stage / "config.json", model_json(config, str(dtype).removeprefix("torch.")))
        write_json(stage / "generation_config.json", generation_json(generation))
        write_json(stage / OWN_FILE, {"preset": generation.preset})


def _vision(
    given: WeightSource | Mapping[str, Tensor] | None, configured: bool
) -> tuple[list[_Entry], Callable[[str], Tensor]]:
    """The vision tensors to store, and what reads one by its name."""
    there: Mapping[str, Stored | Tensor] = given.tensors if isinstance(given, WeightSource) else given or {}
    names = [name for name in there if name.startswith(VISION_PREFIXES)]
    if not isinstance(given, WeightSource) and (odd := sorted(there.keys() - set(names))):
        raise WeightsError(f"vision holds tensors that are not the vision tower's: {shown(odd)}; leave them out")
    if names and not configured:
        raise WeightsError("vision tensors were given, and the model's config has no vision_config to go with them")
    # Bytes decide only where shards end, and a WeightSource has no itemsize: 4 is the largest.
    entries = [_Entry(name, 4 * torch.Size(there[name].shape).numel(), None) for name in names]
    return entries, given.read if isinstance(given, WeightSource) else (given or {}).__getitem__


def _write_weights(
    stage: Path,
    shards: Mapping[str, Sequence[_Entry]],
    ours: Mapping[str, Tensor],
    read: Callable[[str], Tensor],
    dtype: torch.dtype,
) -> None:
    headers: dict[str, list[TensorHeader]] = {}
    for name, shard in shards.items():
        tensors = {entry.name: _stored(entry, ours, read, dtype) for entry in shard}
        save_file(tensors, stage / name, metadata={"format": "pt"})  # transformers refuses files without it
        headers[name] = [TensorHeader(one, tensor.dtype, tuple(tensor.shape)) for one, tensor in tensors.items()]
    if len(shards) > 1:
        write_json(stage / INDEX, index_json(headers))


def _stored(entry: _Entry, ours: Mapping[str, Tensor], read: Callable[[str], Tensor], dtype: torch.dtype) -> Tensor:
    if entry.slot is None:
        return read(entry.name).detach().cpu().clone(memory_format=torch.contiguous_format)
    rows = ours[entry.slot.target][entry.slot.rows].detach()
    # A copy even without a cast: the format refuses tensors that share memory, as the rows of a stack do.
    tensor = rows.to("cpu", dtype, copy=True).contiguous()
    if not all(bound.isfinite() for bound in tensor.aminmax()):
        raise WeightsError(f"the model's {entry.slot.target} holds NaN or infinity as {dtype}; nothing was saved")
    return tensor


@contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """A folder to write into; its files replace the weights and configs of `folder` when the block succeeds."""
    if folder.exists() and not folder.is_dir():
        raise WeightsError(f"{folder} is a file; give a folder to save into")
    stage: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(f".{escape(folder.name)}.saving-*"):  # by a kill
            with suppress(OSError):
                if (names := list(left.iterdir())) and all(map(_is_ours, names)) and is_free(left):
                    shutil.rmtree(left)
        stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}.saving-", dir=folder.parent))
        with alone(stage, folder):
            yield stage
            _publish(stage, folder)
    except (OSError, SafetensorError) as error:
        raise RunError(f"the model could not be saved to {folder} ({error}); free space or save elsewhere") from None
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    """Whether a file in a folder of this kind is one that a save writes, whole or not."""
    known = ("config.json", "generation_config.json", OWN_FILE, INDEX)
    return final_name(path.name) in known or _SAVED.fullmatch(path.name) is not None


def _publish(stage: Path, folder: Path) -> None:
    """Move every staged file into `folder`, then remove weight files that only an earlier save had."""
    folder.mkdir(exist_ok=True)
    written = {path.name for path in stage.iterdir()}
    (folder / INDEX).unlink(missing_ok=True)  # until all shards are there; in sorted order the new one comes last
    # safetensors makes files that only their owner may read; the config files have the user's default mode.
    mode = (stage / "config.json").stat().st_mode
    for name in sorted(written):
        (stage / name).chmod(mode)
        os.replace(stage / name, folder / name)
    for path in folder.glob("model*.safetensors"):
        if path.name not in written and _SAVED.fullmatch(path.name):
            path.unlink(missing_ok=True)
