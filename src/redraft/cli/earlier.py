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

REMEDY = "pass --answered the output of an earlier run of these rows and settings"
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
        begins, at, answers = array("q"), 0, 0
        for row, (line, found) in zip(rows_of(rows), output_lines(out, path, settings, REMEDY), strict=False):
            is_answer = found.response.status_code == 200 and bool(found.response.body)
            begins.append(at if is_answer and found.row_sha256 == row.digest else NO_ANSWER)
            at, answers = at + len(line), answers + is_answer
        kept = len(begins) - begins.count(NO_ANSWER)
        if answers and not kept:
            said = f"--answered is {name}, of which no line answers the row of {source} in its place"
            raise RequestError(f"{said}; put new rows behind the others, or {REMEDY}")
        note(f"{kept} of {answers} answers of {name} are kept, those to a row in its old place; other rows are asked")

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
