"""Rows of a file as `redraft run` reads them: bounded in memory, each with a digest that it is known by, and images."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from redraft.cli.common import image_part
from redraft.errors import RequestError
from redraft.files import named_from
from redraft.server.http.errors import ApiError
from redraft.server.limits import BOUNDS, read_json
from redraft.server.openai.batch import MOST_ID, MOST_LINE_BYTES, is_name

PIECE = 2**20  # bytes that are read at a time of a row that is too long
MOST_HELD_BYTES = 2**26  # of rows under way together, and of the images of one
MOST_IMAGES = 64  # of a row
MOST_ANSWERS = int(BOUNDS["answers"].most)
MOST_IMAGE_BYTES = int(BOUNDS["image"].most) * 3 // 4 - 100  # of an image, whose data is written as a URL


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
            yield Row(data, hashlib.sha256(bare).hexdigest(), len(bare))


def check_length(row: Row) -> None:
    """Raise ApiError for a row that is too long to be read."""
    if row.size > MOST_LINE_BYTES:
        raise ApiError(400, f"the row has {row.size} bytes; at most {MOST_LINE_BYTES}", code="invalid_json")


_SEVERAL = re.compile(rb'"n"|"prompt"\s*:\s*\[|\\u')
"""What a row has that asks for several answers."""


def answers_of(row: bytes) -> int:
    """How many answers a row asks for, as far as it is in order."""
    if _SEVERAL.search(row) is None:
        return 1
    with suppress(ValueError, RecursionError, AttributeError, TypeError, LookupError):
        found = read_json(row)
        body = found.get("body", found)
        prompts, each = body.get("prompt"), body.get("n")
        several = len(prompts) if isinstance(prompts, list) and isinstance(prompts[0], str | list) else 1
        return min(max(1, each if type(each) is int else 1) * max(1, several), MOST_ANSWERS)
    return 1


def id_of(row: bytes) -> str | None:
    """A row's own name."""
    with suppress(ValueError, RecursionError):
        found = read_json(row)
        name = found.get("custom_id") if isinstance(found, dict) else None
        if is_name(name) and len(str(name)) <= MOST_ID:
            return str(name)
    return None


def with_images(row: bytes, folder: Path) -> bytes:
    """A row whose `image`, a file or several, named from the folder of the rows, stands in its last turn.

    Raises ApiError for an image that cannot be read, or a row without a user's turn at its end.
    """
    if b'"image"' not in row:
        return row
    with suppress(ValueError, RecursionError):  # reading the row reports what is wrong with it
        found = read_json(row)
        body = found.get("body", found) if isinstance(found, dict) else None
        if not isinstance(body, dict) or "image" not in body:
            return row
        given, turns = body.pop("image"), body.get("messages")
        if given is None:  # as no field
            return json.dumps(found).encode()
        files = [given] if isinstance(given, str) else given
        last = turns[-1] if isinstance(turns, list) and turns else None
        if not (isinstance(files, list) and all(isinstance(one, str) for one in files)):
            raise ApiError(400, f"image is {given!r:.100}; it must be a file or a list of files", param="image")
        if len(files) > MOST_IMAGES:
            raise ApiError(400, f"image names {len(files)} files; at most {MOST_IMAGES}", param="image")
        if (size := _bytes_of(files, folder)) > MOST_HELD_BYTES:
            raise ApiError(400, f"image names {size} bytes of files; at most {MOST_HELD_BYTES}", param="image")
        if not isinstance(last, dict) or last.get("role") != "user" or not isinstance(last.get("content"), str | list):
            raise ApiError(400, "image needs messages that end with a user's turn; add one", param="image")
        said = last["content"]
        try:
            shown = [image_part(named_from(folder, one), MOST_IMAGE_BYTES) for one in files]
        except RequestError as error:
            raise ApiError(400, str(error), param="image") from None
        last["content"] = [*shown, *([{"type": "text", "text": said}] if isinstance(said, str) else said)]
        return json.dumps(found).encode()
    return row


def image_bytes(row: bytes, folder: Path) -> int:
    """Bytes of the files that a row names as its images; 0 for one that is refused anyway."""
    if b'"image"' not in row:
        return 0
    with suppress(ValueError, RecursionError, AttributeError, TypeError):
        found = read_json(row)
        given = found.get("body", found).get("image") or []
        return _bytes_of([given] if isinstance(given, str) else given, folder)
    return 0


def _bytes_of(files: Sequence[str], folder: Path) -> int:
    """Bytes of files together, without those that are refused anyway, as all of too many are."""
    size = 0
    for one in files if len(files) <= MOST_IMAGES else ():
        with suppress(OSError, TypeError, RequestError):
            size += named_from(folder, one).stat().st_size
    return size
