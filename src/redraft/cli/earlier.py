"""Answers of an earlier output: a run keeps them, and asks the rows again that have an error there."""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from redraft.cli.row import rows_of
from redraft.cli.rows import MOST_ANSWER_BYTES, Earlier, Kept, Settings, answered_lines
from redraft.errors import RequestError, RunError

NO_ANSWER = -1  # in place of where a line begins


@contextmanager
def earlier_of(name: str | None, source: Path, target: Path, settings: Settings) -> Iterator[Earlier]:
    """What finds the answer to a row of `source` in an output, or finds none where that is not named. Only where its
    lines begin is in memory.

    Raises RequestError for a file that is no output of these rows and settings, or is `target` itself.
    """
    if name is None:
        yield lambda *_: None
        return
    if not (path := Path(name)).is_file():  # a pipe would be waited for
        raise RequestError(f"--answered is {name}, which is not a file; pass the output of an earlier run")
    with path.open("rb") as out, source.open("rb") as rows:
        if target.exists() and os.path.samestat(target.stat(), os.fstat(out.fileno())):
            raise RequestError(f"--answered is {name}, which is the output itself; name another for this run")
        begins, at = array("q"), 0
        try:
            for line, status, body in answered_lines(rows_of(rows), out, source, path, settings):
                begins.append(at if status == 200 and body else NO_ANSWER)
                at += len(line)
        except RequestError as error:
            said = re.split("; name another output|: go on with the same|; they do not", str(error))[0]
            remedy = "name the output of an earlier run of these rows and settings"
            raise RequestError(f"--answered: {said}; {remedy}") from None

        def answer(number: int, digest: str) -> Mapping[str, Any] | None:
            out.seek(begins[number])
            with suppress(ValueError, LookupError, TypeError, RecursionError):  # it was changed meanwhile
                found = json.loads(out.readline(MOST_ANSWER_BYTES))
                is_same = found["row_sha256"] == digest and found["response"]["status_code"] == 200
                return dict(found["response"]["body"]) if is_same else None
            return None

        def kept(number: int, digest: str) -> Mapping[str, Any]:
            if (body := answer(number, digest)) is None:
                raise RunError(f"{path} was changed while its answers were taken over; run it again")
            return body

        def earlier(number: int, row: bytes) -> Kept | None:
            digest = hashlib.sha256(row.strip()).hexdigest()
            is_there = number < len(begins) and begins[number] != NO_ANSWER and answer(number, digest) is not None
            return Kept(partial(kept, number, digest)) if is_there else None

        yield earlier
