"""GGUF files of the model, as llama.cpp's converter names their tensors.

A folder has one `.gguf` file beside the checkpoint's config.json and tokenizer files: the file's own metadata does not
have every setting. Matrices of layers stay packed if all of their blocks are of one kind in `weights/blocks.py`. The
`gguf` package decodes all else to float32, one tensor at a time, which the model casts to its dtype or packs again
under a plan: without a plan it takes the memory of plain numbers, and a load says so. GGUF files are not written.
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from redraft.errors import WeightsError
from redraft.model.packed import INT4, Packed
from redraft.shapes import Tensor
from redraft.weights.blocks import KINDS
from redraft.weights.names import Slot
from redraft.weights.plan import Formats, PackingPlan
from redraft.weights.source import Stored, WeightSource, has_weights

_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate_inp.weight": "router.proj.weight",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "layer_output_scale.weight": "layer_scalar",
}
_WHOLE = {
    "token_embd.weight": "model.decoder.embed_tokens.weight",
    "output_norm.weight": "model.decoder.norm.weight",
    "self_cond_pre_norm.weight": "model.decoder.self_conditioning.pre_norm.weight",
    "self_cond_gate.weight": "model.decoder.self_conditioning.gate_proj.weight",
    "self_cond_up.weight": "model.decoder.self_conditioning.up_proj.weight",
    "self_cond_down.weight": "model.decoder.self_conditioning.down_proj.weight",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_DERIVED = ("rope_freqs.weight",)  # follows from the config
_PACKABLE = PackingPlan("blocks", INT4, INT4, INT4)
ARCHITECTURE = "diffusion-gemma"


class GgufSource(WeightSource):
    """The tensors of a folder's one GGUF file, under the released names. Opening it reads headers only.

    Raises WeightsError if the folder has several, the file is damaged or of another model, or `gguf` is not installed.
    """

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.glob("*.gguf"))
        if len(files) != 1:
            names = ", ".join(path.name for path in files)
            raise WeightsError(f"{folder} holds {len(files)} GGUF files ({names}); give a folder with one whole file")
        self.folder, self.path = folder, files[0]
        self._entries: dict[str, _Entry] = {}
        for one in _read(self.path):
            name = released_name(one.name)
            if name in self._entries:
                raise WeightsError(f"{self.path} is damaged (it has {name} twice, once as {one.name}); fetch it again")
            if one.name not in _DERIVED:
                self._entries[name] = one
        self.tensors = {
            name: Stored(name, tuple(reversed(one.shape)), "F32", self.path) for name, one in self._entries.items()
        }

    def kept(self, wanted: Sequence[Slot]) -> Formats:
        """The formats of our tensors that are of one kind in every part and may stay so; of experts both or neither."""
        parts: dict[str, set[str]] = {}
        for slot in wanted:
            kinds = parts.setdefault(slot.target, set())
            kinds.add(self._entries[slot.stored].tensor_type.name if slot.stored in self._entries else "")
        kept = {name: kinds.pop() for name, kinds in parts.items() if len(kinds) == 1 and _PACKABLE.format_of(name)}
        found = {name: KINDS[kind].format for name, kind in kept.items() if kind in KINDS}
        for name in [name for name in found if ".experts." in name]:
            if not {name.replace("gate_up", "down"), name.replace("down", "gate_up")} <= found.keys():
                found.pop(name, None)
        return found

    def blocks(self, packed: Container[str], wanted: Sequence[Slot]) -> tuple[str, ...]:
        """The kinds of quantised blocks that are unpacked if these tensors of ours are not."""
        names = {slot.stored for slot in wanted if slot.target not in packed} & self._entries.keys()
        return tuple(sorted({self._entries[name].tensor_type.name for name in names} - {"F32", "F16", "BF16"}))

    def read_packed(self, name: str) -> Packed:
        """One tensor of blocks of a kind that is kept, of a stack one matrix at a time."""
        one, stack = self._entries[name], self.tensors[name].shape[:-1]
        kind, size = KINDS[one.tensor_type.name], one.block_bytes
        found = [
            kind.read(kind.format, torch.from_numpy(matrix.copy()))
            for matrix in one.data.reshape(-1, stack[-1], one.data.shape[-1] // size, size)
        ]
        parts = (torch.stack(part).view(*stack, -1) for part in zip(*(each.parts for each in found), strict=True))
        return found[0].with_parts(parts)

    def format_of(self, name: str) -> str | None:
        """F32, or BF16 for smaller formats and quantised blocks, for which it is precise enough."""
        if name not in self._entries:
            return None
        return "F32" if self._entries[name].tensor_type.name == "F32" else "BF16"

    def read(self, name: str) -> Tensor:
        """One tensor as float32."""
        from gguf import dequantize

        one = self._entries[name]
        try:
            values = dequantize(one.data, one.tensor_type)
        except NotImplementedError:
            raise WeightsError(
                f"{self.path}: {one.name} has the format {one.tensor_type.name}, which the gguf package does not decode"
            ) from None
        values = values if values.flags.writeable else values.copy()  # plain numbers are the file itself
        return torch.from_numpy(values).reshape(self.tensors[name].shape)

    def read_rows(self, name: str, rows: slice) -> Tensor:
        return self.read(name)[rows]

    def stream(self, names: Container[str]) -> Iterator[tuple[Stored, Tensor]]:
        """The tensors whose name is in `names`, in the file's order, one at a time."""
        for name, stored in self.tensors.items():
            if name in names:
                yield stored, self.read(name)


def open_source(folder: Path) -> WeightSource:
    """The tensors of a folder: safetensors if there are any, else a GGUF file. Raises WeightsError as they do."""
    if not has_weights(folder) and any(folder.glob("*.gguf")):
        return GgufSource(folder)
    return WeightSource(folder)


def released_name(name: str) -> str:
    """The released checkpoint's name of a GGUF tensor; an unknown name stays, and is surplus."""
    if name in _WHOLE:
        return _WHOLE[name]
    block = _BLOCK.fullmatch(name)
    if block is None:
        return name
    if block[2] == "enc_layer_output_scale.weight":
        return f"model.encoder.language_model.layers.{block[1]}.layer_scalar"
    return f"model.decoder.layers.{block[1]}.{_LAYER[block[2]]}" if block[2] in _LAYER else name


def _read(path: Path) -> list[_Entry]:
    """The head of a file. Its texts are many (a vocabulary and its merges), and only walked over: the package's own
    reader makes arrays of each, which takes half a minute."""
    try:
        import gguf  # noqa: F401, the sizes of blocks, and what decodes them
    except ImportError:
        raise WeightsError(
            f"{path} is a GGUF file, which needs the gguf package; run: pip install 'redraft[gguf]'"
        ) from None
    try:
        if not path.is_file():
            raise ValueError("it is no regular file")
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        found, entries = _Head(data).read()
        _check_apart(entries)
    except (ValueError, OSError, OverflowError) as error:
        raise WeightsError(f"{path} is damaged or not a GGUF file ({error}); fetch it again") from None
    if found != ARCHITECTURE:
        raise WeightsError(f"{path} holds a model of architecture {found!r:.100}; supported: {ARCHITECTURE!r}")
    return entries


class _Entry:
    """One tensor of a file: its name, its sizes, innermost first, its type, and its bytes, which stay on the disk."""

    def __init__(self, name: str, shape: Sequence[int], kind: int) -> None:
        """Raises ValueError for a type that the package does not know, or rows that are no whole blocks of it."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        self.name, self.shape, self.tensor_type = name, shape, GGMLQuantizationType(kind)
        block, self.block_bytes = GGML_QUANT_SIZES[self.tensor_type]
        if not shape or shape[0] % block:
            raise ValueError(f"{name} has rows of {shape[0] if shape else 0}, which are no blocks of {block}")
        self._byte_shape = (*reversed(shape[1:]), shape[0] // block * self.block_bytes)
        self.n_bytes = math.prod(self._byte_shape)

    def set_start(self, file: mmap.mmap, start: int) -> None:
        """Raises ValueError if the file ends before the tensor does."""
        if start + self.n_bytes > len(file):
            raise ValueError(f"{self.name} claims {self.n_bytes} bytes from byte {start} of {len(file)}")
        self._file, self.start = file, start

    @property
    def data(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Its bytes, as the package decodes them."""
        return np.frombuffer(self._file, np.uint8, self.n_bytes, self.start).reshape(self._byte_shape)


_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the kinds of numbers in a file's metadata."""
_UINT32, _TEXT, _LIST = 4, 8, 9
_MOST_AXES = 4
_MOST_KEYS, _MOST_CHARS, _MOST_ENTRIES, _DEEPEST = 2**16, 2**26, 2**22, 4
"""Of keys and of tensors; of one text; of a list's texts, where a vocabulary's merges are half a million; of lists in
lists."""


class _Head:
    """What stands before the tensors of a file, read from its start to its end. Nothing it claims is believed before
    the file is seen to hold it."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 0

    def read(self) -> tuple[object, list[_Entry]]:
        """The model's architecture, None if that is not said, and the tensors in the file's order.

        Raises ValueError where the file is damaged.
        """
        magic, version = self._bytes(4), self._number(4)
        tensors, keys = self._number(8), self._number(8)
        if magic != b"GGUF" or version not in (2, 3):
            order = " in the other byte order" if version in (2 << 24, 3 << 24) else ""
            raise ValueError(f"it begins with {magic!r} and has version {version}{order}; supported: GGUF 2 and 3")
        if max(tensors, keys) > _MOST_KEYS:
            raise ValueError(f"{tensors} tensors and {keys} keys; at most {_MOST_KEYS} of each")
        metadata: dict[str, object] = {}
        for _ in range(keys):
            name = self._text()
            metadata[name] = self._value(self._number(4))
        placed: dict[str, tuple[_Entry, int]] = {}
        for _ in range(tensors):
            name = self._text()
            if (axes := self._number(4)) > _MOST_AXES:
                raise ValueError(f"a tensor of {axes} axes")
            shape = [self._number(8) for _ in range(axes)]
            if name in placed:
                raise ValueError(f"it has {name} twice")
            placed[name] = _Entry(name, shape, self._number(4)), self._number(8)
        step = metadata.get("general.alignment", 32)
        if not isinstance(step, int) or step < 1 or step & (step - 1):
            raise ValueError(f"an alignment of {step!r}")
        for entry, offset in placed.values():
            entry.set_start(self._data, -(-self._at // step) * step + offset)
        return metadata.get("general.architecture"), [entry for entry, _ in placed.values()]

    def _take(self, count: int) -> int:
        start = self._at
        if count > len(self._data) - start:
            raise ValueError(f"{count} bytes are claimed at byte {start} of {len(self._data)}")
        self._at = start + count
        return start

    def _bytes(self, count: int) -> bytes:
        start = self._take(count)
        return self._data[start : self._at]

    def _number(self, size: int) -> int:
        return int.from_bytes(self._bytes(size), "little")

    def _text(self) -> str:
        if (size := self._number(8)) > _MOST_CHARS:
            raise ValueError(f"a text of {size} bytes at byte {self._at}")
        return self._bytes(size).decode(errors="replace")

    def _value(self, kind: int) -> object:
        """A text or a whole number; None for what nothing here needs."""
        if kind == _TEXT:
            return self._text()
        if kind == _UINT32:
            return self._number(4)
        if kind in _SIZES:
            self._take(_SIZES[kind])
        elif kind == _LIST:
            self._skip_list(self._number(4), self._number(8))
        else:
            raise ValueError(f"a value of kind {kind} at byte {self._at}")
        return None

    def _skip_list(self, kind: int, count: int, deep: int = 1) -> None:
        if kind in _SIZES:
            self._take(count * _SIZES[kind])
        elif kind == _TEXT and count <= _MOST_ENTRIES:
            for _ in range(count):
                self._take(self._number(8))
        elif kind == _LIST and count <= _MOST_ENTRIES and deep < _DEEPEST:
            for _ in range(count):
                self._skip_list(self._number(4), self._number(8), deep + 1)
        else:
            raise ValueError(f"a list of {count} values of kind {kind} at byte {self._at}")


def _check_apart(entries: Iterable[_Entry]) -> None:
    """Raise ValueError for tensors that share bytes."""
    end, before = 0, ""
    for one in sorted(entries, key=lambda one: one.start):
        if one.start < end:
            raise ValueError(f"{one.name} overlaps {before}")
        end, before = one.start + one.n_bytes, one.name
