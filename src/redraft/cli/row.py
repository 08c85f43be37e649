"""Rows of a file as `redraft run` reads them: bounded in memory, and each with a digest that it is known by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO

from redraft.server.http.errors import ApiError
from redraft.server.limits import read_json
from redraft.server.openai.batch import MOST_ID, MOST_LINE_BYTES, is_name

PIECE = 2**20  # bytes that are read at a time of a row that is too long


@dataclass(frozen=True)
class Row:
    """A row of the input, and the SHA-256 that tells it from what it may be edited to. Of one that is too long to be
    read there are only the first bytes."""

    data: bytes
    digest: str
    size: int
    name: str | None = None

    def named(self) -> Row:
        """With its own name in place of its data, where it is only waited for."""
        return replace(self, data=b"", name=id_of(self.data))


def rows_of(file: IO[bytes]) -> Iterator[Row]:
    """The rows of a file, without blank lines; no more than MOST_LINE_BYTES are in memory at a time."""
    while data := file.readline(MOST_LINE_BYTES + 1):
        if len(data) > MOST_LINE_BYTES and not data.endswith(b"\n"):
            digest, size, piece = hashlib.sha256(data[:-2]), len(data), data
            end = data[-2:]  # which may be that of the line
            while not piece.endswith(b"\n") and (piece := file.readline(PIECE)):
                digest.update((end + piece)[:-2])
                size, end = size + len(piece), (end + piece)[-2:]
            digest.update(end.removesuffix(b"\n").removesuffix(b"\r"))
            yield Row(data[:1000], digest.hexdigest(), size)
        elif bare := data.strip():  # how a line ends is no part of its row
            yield Row(data, hashlib.sha256(bare).hexdigest(), len(data))


def check_length(row: Row) -> None:
    """Raise ApiError for a row that is too long to be read."""
    if row.size > MOST_LINE_BYTES:
        raise ApiError(400, f"the row has {row.size} bytes; at most {MOST_LINE_BYTES}", code="invalid_json")


def id_of(row: bytes) -> str | None:
    """A row's own name."""
    with suppress(ValueError, RecursionError):
        found = read_json(row)
        name = found.get("custom_id") if isinstance(found, dict) else None
        if is_name(name) and len(str(name)) <= MOST_ID:
            return str(name)
    return None
