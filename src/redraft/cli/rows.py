"""Rows of a file answered into another: in order, with bounded memory, resumed where it stopped.

Row i of the output answers row i of the input and has its SHA-256, so the number of whole lines says what is done, and
a row that was edited since is found. A line that a kill cut short is removed and its row answered again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import msgspec

from redraft.cli.common import image_part
from redraft.errors import RequestError, RunError
from redraft.files import lock
from redraft.server.http.errors import ApiError
from redraft.server.http.service import Service
from redraft.server.openai.batch import answer as answer_row

MOST_FAILED = 3
"""Rows with an error that a run names at its end."""
NOTHING: AbstractAsyncContextManager[object] = nullcontext()
BEGUN = b'{"id": "batch_req_'
"""How every line of an output begins."""

Answered = Callable[[bytes, int], Awaitable[tuple[int, Mapping[str, Any]]]]
"""Answers a row and its number with a status and a body. An ApiError is an answer, too."""

RowAnswer = tuple[bytes, int, Mapping[str, Any]]
"""A row with the status and the body of its answer."""

Settings = Mapping[str, str | int]
"""Flags that an output was begun with."""


@dataclass(frozen=True)
class Done:
    """How far a run is: rows of its output and those with an error, earlier runs' too; its own tokens and forwards.

    `failed` says of the first rows with an error which they are and why.
    """

    rows: int
    errors: int
    tokens: int = 0
    forwards: int = 0
    failed: tuple[str, ...] = ()

    def after(self, line: Mapping[str, Any]) -> Done:
        """With one line more. What another server counts need not be a number."""
        body = line["response"]["body"]
        usage = body.get("usage")
        counts = [usage.get(name) if isinstance(usage, dict) else None for name in ("completion_tokens", "forwards")]
        tokens, forwards = (count if type(count) is int else 0 for count in counts)
        wrong = line["response"]["status_code"] != 200
        failed = (*self.failed, f"row {self.rows + 1}: {_message(body)}") if wrong else self.failed
        return Done(
            self.rows + 1, self.errors + wrong, self.tokens + tokens, self.forwards + forwards, failed[:MOST_FAILED]
        )


def _message(body: Mapping[str, Any]) -> str:
    """What the body of an error says, which another server may say otherwise than ours."""
    error = body.get("error")
    return str(error.get("message", error) if isinstance(error, Mapping) else error)


class _RowReply(msgspec.Struct):
    status_code: int
    body: dict[str, Any] = {}


class _OutputLine(msgspec.Struct):
    """What is read of an earlier run's line."""

    row_sha256: str
    response: _RowReply
    settings: dict[str, str | int] | None = None


def run_batch(
    service: Service,
    source: Path,
    target: Path,
    *,
    seed: int | None,
    at_once: int,
    settings: Settings | None = None,
    report: Callable[[Done], None] = lambda _: None,
) -> Done:
    """Answer the rows of `source` that `target` does not have yet. Raises RequestError and RunError.

    With a `seed`, row i that brings none has `seed` + i, so a resumed run gives what an uninterrupted one gives.
    """

    async def answered(row: bytes, number: int) -> tuple[int, Mapping[str, Any]]:
        return await answer_row(service, with_images(row, source.parent), None if seed is None else seed + number)

    return answer_rows(answered, source, target, at_once=at_once, settings=settings, report=report)


def answer_rows(
    answered: Answered,
    source: Path,
    target: Path,
    *,
    at_once: int,
    settings: Settings | None = None,
    report: Callable[[Done], None] = lambda _: None,
    within: AbstractAsyncContextManager[object] = NOTHING,
) -> Done:
    """As `run_batch`, with the rows answered by `answered`; `within` is open meanwhile."""
    if at_once < 1:
        raise RequestError(f"the number of rows at once is {at_once}; it must be at least 1")

    async def answers(rows: Iterator[bytes], first: int) -> AsyncGenerator[RowAnswer, None]:
        async with within:
            async for one in _each(answered, rows, first, at_once):
                yield one

    return write_rows(answers, source, target, settings=settings, report=report)


def write_rows(
    answers: Callable[[Iterator[bytes], int], AsyncGenerator[RowAnswer, None]],
    source: Path,
    target: Path,
    *,
    settings: Settings | None = None,
    report: Callable[[Done], None] = lambda _: None,
) -> Done:
    """As `run_batch`, with the answers to the rows from a number on given in their order."""

    async def whole(rows: Iterator[bytes], out: IO[bytes]) -> Done:
        done = resume(rows, out, source, target, settings)
        async with aclosing(answers(rows, done.rows)) as found:
            return await _write(found, out, done, settings, report)

    with _opened(source, target) as (rows, out):
        return asyncio.run(whole(rows, out))


def with_images(row: bytes, folder: Path) -> bytes:
    """A row whose `image`, a file or several, named from the folder of the rows, stands in its last turn.

    Raises ApiError for an image that cannot be read, or a row without a user's turn at its end.
    """
    if b'"image"' not in row:
        return row
    with suppress(ValueError, RecursionError):  # reading the row reports what is wrong with it
        found = json.loads(row)
        body = found.get("body", found) if isinstance(found, dict) else None
        if not isinstance(body, dict) or "image" not in body:
            return row
        given, turns = body.pop("image"), body.get("messages")
        files = [given] if isinstance(given, str) else given
        last = turns[-1] if isinstance(turns, list) and turns else None
        if not (isinstance(files, list) and all(isinstance(one, str) for one in files)):
            raise ApiError(400, f"image is {given!r:.100}; it must be a file or a list of files", param="image")
        if not isinstance(last, dict) or last.get("role") != "user" or not isinstance(last.get("content"), str | list):
            raise ApiError(400, "image needs messages that end with a user's turn; add one", param="image")
        said = last["content"]
        try:
            shown = [image_part(folder / one) for one in files]
        except RequestError as error:
            raise ApiError(400, str(error), param="image") from None
        last["content"] = [*shown, *([{"type": "text", "text": said}] if isinstance(said, str) else said)]
        return json.dumps(found).encode()
    return row


def count_rows(path: Path) -> int:
    """Rows of a file."""
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def resume(rows: Iterator[bytes], out: IO[bytes], source: Path, target: Path, settings: Settings | None) -> Done:
    """Skip the rows that are done already, and count them. A line that was cut short is removed.

    Raises RequestError, and leaves the output as it is, for one that answers other rows, or with other settings.
    """
    out.seek(0)
    done, end = Done(0, 0), 0
    for line in out:
        if not line.endswith(b"\n") and line.startswith(BEGUN[: len(line)]):
            break
        try:
            found = msgspec.convert(json.loads(line), _OutputLine)  # lines may hold NaN and unpaired surrogates
        except (msgspec.MsgspecError, ValueError, RecursionError):
            said = (
                f"line {done.rows + 1} of {target} is not of a run's output, which would be lost; name another output"
            )
            raise RequestError(said) from None
        if settings is not None and found.settings is not None and found.settings != settings:
            raise RequestError(_differ(target, found.settings, settings))
        row = next(rows, None)
        if row is None:
            raise RequestError(f"{target} has more than the {done.rows} rows of {source}; they do not belong together")
        if found.row_sha256 != _digest(row):
            said = (
                f"row {done.rows + 1} of {source} is not the one that {target} answers: it was edited, or is of another"
                " file"
            )
            raise RequestError(f"{said}; name another output, or keep the first {done.rows} lines of this one")
        done, end = done.after({"response": msgspec.to_builtins(found.response)}), end + len(line)
    out.truncate(end)
    out.seek(end)
    return replace(done, tokens=0, forwards=0)


async def _each(answered: Answered, rows: Iterator[bytes], first: int, at_once: int) -> AsyncGenerator[RowAnswer, None]:
    """Answers in the rows' order, `at_once` of them under way."""
    running: deque[asyncio.Task[RowAnswer]] = deque()
    for number, row in enumerate(rows, first):
        running.append(asyncio.create_task(_answer(answered, row, number)))
        if len(running) == at_once:
            yield await running.popleft()
    while running:
        yield await running.popleft()


async def _write(
    answers: AsyncIterator[RowAnswer],
    out: IO[bytes],
    done: Done,
    settings: Settings | None,
    report: Callable[[Done], None],
) -> Done:
    async for one in answers:
        line = _line(one, done.rows, settings)
        try:
            out.write(json.dumps(line, ensure_ascii=False).encode(errors="backslashreplace") + b"\n")
            out.flush()
        except OSError as error:
            raise RunError(f"the output cannot be written: {error.strerror}; free some room and run it again") from None
        done = done.after(line)
        report(done)
    out.flush()
    os.fsync(out.fileno())
    return done


async def _answer(answered: Answered, row: bytes, number: int) -> RowAnswer:
    """A refusal is an answer, too."""
    try:
        return row, *await answered(row, number)
    except ApiError as refusal:
        return row, refusal.status, refusal.body


def _line(answer: RowAnswer, number: int, settings: Settings | None) -> dict[str, Any]:
    """The line that answers a row."""
    row, status, body = answer
    return {
        "id": f"batch_req_{number + 1}",
        "custom_id": _id_of(row, number),
        "row_sha256": _digest(row),
        "response": {"status_code": status, "request_id": f"row-{number + 1}", "body": body},
        "error": None,
        "settings": settings,
    }


def _differ(target: Path, before: Settings, now: Settings) -> str:
    """The message for an output that was begun with other settings."""
    names = sorted(name for name in {**before, **now} if before.get(name) != now.get(name))
    pairs = [f"{name} {before.get(name, 'not given')!r}, now {now.get(name, 'not given')!r}" for name in names]
    return f"{target} was begun with {'; '.join(pairs)}: use the same flags, or name another output"


def _id_of(row: bytes, number: int) -> str:
    """A row's own name, or its number."""
    with suppress(ValueError, RecursionError):
        found = json.loads(row)
        if isinstance(found, dict) and found.get("custom_id") is not None:
            return str(found["custom_id"])
    return str(number + 1)


def _digest(row: bytes) -> str:
    """What tells a row from what it may be edited to; not how its line ends."""
    return hashlib.sha256(row.strip()).hexdigest()


@contextmanager
def _opened(source: Path, target: Path) -> Iterator[tuple[Iterator[bytes], IO[bytes]]]:
    """The rows of one file, and the other, open for this process alone."""
    try:
        rows = source.open("rb")
    except OSError as error:
        raise RequestError(f"{source} cannot be read: {error.strerror}") from None
    with rows:
        if target.exists() and not target.is_file():
            raise RequestError(f"{target} is not a regular file, which resuming needs; name one")
        try:
            out = target.open("r+b" if target.exists() else "w+b")
        except OSError as error:
            raise RequestError(f"{target} cannot be written: {error.strerror}") from None
        with out:
            lock(out.fileno(), target)
            yield (line for line in rows if line.strip()), out
