"""Writes safetensors files larger than memory: headers first, then numbers tensor by tensor.

The safetensors package needs all tensors of a file in memory. The format is simple: eight bytes of length, a JSON
header with every tensor's place, then the bytes. So this file writes front to back with one tensor in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch

from redraft.shapes import Tensor
from redraft.weights.source import SINGLE

_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.int64: "I64",
}


@dataclass(frozen=True)
class TensorHeader:
    """One tensor to be written."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its numbers."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def write_shard(path: Path, headers: Sequence[TensorHeader], chunks: Iterator[Tensor]) -> None:
    """Write a file whose tensors are `headers`, in that order; `chunks` are their numbers, in runs of any length.

    The file appears under its name when it is whole. Raises OSError if the disk refuses.
    """
    beside = path.with_suffix(".part")
    beside.unlink(missing_ok=True)  # a killed call's, or a link, which would be written through
    with beside.open("xb") as file:
        table, end = {"__metadata__": {"format": "pt"}}, 0
        for header in headers:
            place = {"dtype": _NAMES[header.dtype], "shape": list(header.shape)}
            table[header.name] = place | {"data_offsets": [end, end + header.num_bytes]}  # type: ignore[assignment]
            end += header.num_bytes
        encoded = json.dumps(table).encode()
        encoded += b" " * (-len(encoded) % 8)  # readers map the numbers, which begin on a multiple of eight
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for chunk in chunks:
            file.write(chunk.contiguous().flatten().view(torch.uint8).numpy().data)
        assert file.tell() == 8 + len(encoded) + end, f"{path} got other numbers than its header says"
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


@runtime_checkable
class Sized(Protocol):
    """An entry of a shard."""

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""


Some = TypeVar("Some", bound=Sized)


def split(entries: Iterable[Some], limit: int) -> dict[str, list[Some]]:
    """Runs of at most `limit` bytes, a larger entry alone, by the file names that transformers expects."""
    runs: list[list[Some]] = [[]]
    size = 0
    for entry in entries:
        if runs[-1] and size + entry.num_bytes > limit:
            runs.append([])
            size = 0
        runs[-1].append(entry)
        size += entry.num_bytes
    if len(runs) == 1:
        return {SINGLE: runs[0]}
    return {f"model-{number:05}-of-{len(runs):05}.safetensors": run for number, run in enumerate(runs, start=1)}


def index_json(shards: Mapping[str, Sequence[TensorHeader]]) -> dict[str, object]:
    """The index of several shards."""
    total = sum(header.num_bytes for headers in shards.values() for header in headers)
    places = {header.name: name for name, headers in shards.items() for header in headers}
    return {"metadata": {"total_size": total}, "weight_map": places}
