"""Answers of an earlier output: a run keeps them, and asks the rows again that have an error there."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from redraft.cli.common import note
from redraft.cli.row import rows_of
from redraft.cli.rows import MOST_ANSWER_BYTES, Earlier, Kept, Settings, output_lines
from redraft.errors import RequestError, RunError

WANTED = "the output of an earlier run of these rows and settings"
NO_ANSWER = -1  # in place of where a line begins


@contextmanager
def earlier_of(name: str | None, source: Path, target: Path, settings: Settings) -> Iterator[Earlier]:
    """What finds the answer to a row of `source` in an output, or finds none where that is not named. A row that was
    edited since has none. Only where the lines begin is in memory.

    Raises RequestError for a file that is no output of these rows and settings, or is `target` itself.
    """
    if name is None:
        yield lambda *_: None
        return
    path = Path(name)
    with path.open("rb") as out, source.open("rb") as rows:
        if target.exists() and os.path.samestat(target.stat(), os.fstat(out.fileno())):
            raise RequestError(f"--answered is {name}, which is the output itself; name another for this run")
        begins, at, same = array("q"), 0, 0
        lines = output_lines(out, path, settings, remedy=f"--answered wants {WANTED}")
        for row, (line, found) in zip(rows_of(rows), lines, strict=False):
            is_its, reply = found.row_sha256 == row.digest, found.response
            begins.append(at if is_its and reply.status_code == 200 and reply.body else NO_ANSWER)
            at, same = at + len(line), same + is_its
        if begins and not same:
            raise RequestError(f"--answered is {name}, whose lines answer no row of {source}; pass {WANTED}")
        kept = len(begins) - begins.count(NO_ANSWER)
        note(f"{kept} answers of {name} are kept, and the other rows are asked")

        def body(number: int, digest: str) -> Mapping[str, Any]:
            out.seek(begins[number])
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                found = json.loads(out.readline(MOST_ANSWER_BYTES))
                if found["row_sha256"] == digest and found["response"]["status_code"] == 200:
                    return dict(found["response"]["body"])
            raise RunError(f"{source} or {path} was changed while answers were taken over; run it again")

        def earlier(number: int, row: bytes) -> Kept | None:
            if number >= len(begins) or begins[number] == NO_ANSWER:
                return None
            return Kept(partial(body, number, hashlib.sha256(row.strip()).hexdigest()))

        yield earlier
