"""Rows of a file answered into another: in order, with bounded memory, resumed where it stopped.

Row i of the output answers row i of the input and has its SHA-256, so the number of whole lines says what is done, and
a row that was edited since is found. A line that a kill cut short is removed and its row answered again.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Union

import msgspec

from redraft.cli.common import tame
from redraft.cli.row import MOST_HELD_BYTES, Row, answers_of, check_length, id_of, image_bytes, rows_of, with_images
from redraft.errors import RedraftError, RequestError, RunError
from redraft.files import lock
from redraft.server.http.errors import ApiError, refusal_of
from redraft.server.http.service import Service
from redraft.server.openai.batch import answer as answer_row

MOST_FAILED = 3  # rows with an error that a run names at its end
MOST_ANSWER_BYTES, LINE_BYTES = 2**28, 1000
"""Of a line of an output, at most and about without its body."""
NOTHING: AbstractAsyncContextManager[object] = nullcontext()
BEGUN = b'{"id": "batch_req_'  # how every line of an output begins

MOST_AT_ONCE, MOST_ANSWERS_BYTES, AHEAD = 4096, 2**29, 16
"""Rows under way, the bytes of the answers of another server to them together, and how many times as many rows may be
begun behind one that is slow: a kill loses their answers."""

Body = Union[Mapping[str, Any], bytes, "Kept"]
"""What answers a row, or its JSON, which takes less where it waits for earlier rows."""

Answered = Callable[[bytes, int], Awaitable[tuple[int, Body]]]
"""Answers a row and its number with a status and a body. An ApiError is an answer, too."""


@dataclass(frozen=True)
class Kept:
    """A body of an earlier output (`cli/earlier.py`), read when it is written: it may be long, and many wait."""

    read: Callable[[], Mapping[str, Any]]


Earlier = Callable[[int, bytes], Kept | None]
"""The body that answered a row, by its number and data, in an earlier run."""

Settings = Mapping[str, str | int]
"""Flags that an output was begun with."""


RowAnswer = tuple[Row, int, Body]
"""A row with the status and the body of its answer."""


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

    def after(self, status: int, body: Mapping[str, Any]) -> Done:
        """With one line more. What another server counts need not be a number."""
        usage = body.get("usage")
        counts = [usage.get(name) if isinstance(usage, dict) else None for name in ("completion_tokens", "forwards")]
        tokens, forwards = (count if type(count) is int and 0 <= count < 2**53 else 0 for count in counts)
        wrong = status != 200
        failed = (*self.failed, f"row {self.rows + 1}: {_message(body)}") if wrong else self.failed
        return Done(
            self.rows + 1, self.errors + wrong, self.tokens + tokens, self.forwards + forwards, failed[:MOST_FAILED]
        )


def _message(body: Mapping[str, Any]) -> str:
    """What the body of an error says, on one line; another server may say it otherwise than ours."""
    error = body.get("error")
    said = str(error.get("message", error) if isinstance(error, Mapping) else error)
    return tame(" ".join(said[:1000].split()))[:300]


class _RowReply(msgspec.Struct):
    status_code: int
    body: dict[str, Any] = {}


class OutputLine(msgspec.Struct):
    """What is read of a line of an output."""

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
    earlier: Earlier = lambda *_: None,
    report: Callable[[Done], None] = lambda _: None,
) -> Done:
    """Answer the rows of `source` that `target` does not have yet. Raises RequestError and RunError.

    With a `seed`, row i that brings none has `seed` + i, so a resumed run gives what an uninterrupted one gives.
    """

    async def answered(row: bytes, number: int) -> tuple[int, Body]:
        if (body := earlier(number, row)) is not None:
            return 200, body
        row = with_images(row, source.parent)
        status, said = await answer_row(service, row, None if seed is None else seed + number)
        return status, json.dumps(said, ensure_ascii=False).encode(errors="backslashreplace")

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

    async def answers(rows: Iterator[Row], first: int) -> AsyncGenerator[RowAnswer, None]:
        sized = ((row, len(row.data) + image_bytes(row.data, source.parent)) for row in rows)
        async with within, aclosing(_each(answered, sized, first, at_once)) as found:
            async for one in found:
                yield one

    return write_rows(answers, source, target, settings=settings, report=report)


def write_rows(
    answers: Callable[[Iterator[Row], int], AsyncGenerator[RowAnswer, None]],
    source: Path,
    target: Path,
    *,
    settings: Settings | None = None,
    report: Callable[[Done], None] = lambda _: None,
) -> Done:
    """As `run_batch`, with the answers to the rows from a number on given in their order."""

    async def whole(rows: Iterator[Row], out: IO[bytes]) -> Done:
        done = resume(rows, out, source, target, settings)
        async with aclosing(answers(rows, done.rows)) as found:
            return await _write(found, out, done, settings, report)

    with _opened(source, target) as (rows, out):
        return asyncio.run(whole(rows, out))


def resume(rows: Iterator[Row], out: IO[bytes], source: Path, target: Path, settings: Settings | None) -> Done:
    """Skip the rows that are done already, and count them. A line that was cut short is removed.

    Raises RequestError, and leaves the output as it is, for one that answers other rows, or with other settings.
    """
    out.seek(0)
    done, end = Done(0, 0), 0
    for line, found in output_lines(out, target, settings):
        row = next(rows, None)
        if row is None:
            raise RequestError(f"{target} has more than the {done.rows} rows of {source}; they do not belong together")
        if found.row_sha256 != row.digest:
            said = f"row {done.rows + 1} of {source} is not the one that {target} answers: it was edited, or is of"
            kept = f"keep the first {done.rows} lines of" if done.rows else "delete"
            raise RequestError(f"{said} another file; name another output, or {kept} this one")
        done, end = done.after(found.response.status_code, found.response.body), end + len(line)
        if not line.endswith(b"\n"):
            out.write(b"\n")
            end += 1
    out.truncate(end)
    out.seek(end)
    return replace(done, tokens=0, forwards=0)


def output_lines(
    out: IO[bytes], target: Path, settings: Settings | None, remedy: str = "name another output"
) -> Iterator[tuple[bytes, OutputLine]]:
    """The lines of an output, each with what it says, up to one that a kill cut short.

    Raises RequestError for a file that is none, or was begun with other settings.
    """
    for number, line in enumerate(iter(partial(out.readline, MOST_ANSWER_BYTES + 1), b""), 1):
        if len(line) > MOST_ANSWER_BYTES:
            said = f"line {number} of {target} has over {MOST_ANSWER_BYTES} bytes, which no run writes"
            raise RequestError(f"{said}; {remedy}")
        try:
            found = msgspec.convert(json.loads(line), OutputLine)  # lines may hold NaN and unpaired surrogates
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            is_json = isinstance(error, msgspec.MsgspecError)  # a line that was cut is none; an editor takes ends away
            if not is_json and not line.endswith(b"\n") and line.startswith(BEGUN[: len(line)]):
                break
            raise RequestError(f"line {number} of {target} is not of a run's output; {remedy}") from None
        if settings is not None and found.settings is not None and (other := _differing(found.settings, settings)):
            raise RequestError(f"{target} was begun with {other}: go on with the same, or {remedy}")
        yield line, found


async def _each(
    answered: Answered, rows: Iterator[tuple[Row, int]], first: int, at_once: int
) -> AsyncGenerator[RowAnswer, None]:
    """Answers in the order of rows, each with its bytes; `at_once` answers are under way, a row of several counting as
    so many, but as no more than leave an eighth to others, which could not be begun beside it; and fewer where rows or
    the answers that wait for an earlier one are long."""
    begun, moved, stops = deque[asyncio.Task[RowAnswer]](), asyncio.Event(), False
    under_way = held = 0

    async def counted(row: Row, number: int, size: int, count: int) -> RowAnswer:
        nonlocal under_way, held, stops
        try:
            row, status, body = await _answer(answered, row, number)
        except BaseException:
            stops = True  # what ended this row ends the run
            raise
        finally:
            under_way -= count
            moved.set()
        held += _waiting(body) - size
        return row.named(), status, body

    try:
        for number, (row, size) in enumerate(rows, first):
            count = min(answers_of(row.data), max(1, at_once - max(1, at_once // 8)))
            while begun and (
                begun[0].done()
                or stops
                or held > MOST_HELD_BYTES
                or len(begun) >= AHEAD * at_once
                or under_way + count > at_once
            ):
                if begun[0].done():
                    found = await begun.popleft()
                    held -= _waiting(found[2])
                    yield found
                else:
                    moved.clear()
                    await moved.wait()
            begun.append(asyncio.create_task(counted(row, number, size, count)))
            under_way, held = under_way + count, held + size
        while begun:
            yield await begun.popleft()
    finally:  # where one has ended the run, the others end with it, and say nothing
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


def _waiting(body: Body) -> int:
    """Bytes of an answer that waits for an earlier one, about."""
    return LINE_BYTES + (len(body) if isinstance(body, bytes) else 0)


async def _write(
    answers: AsyncIterator[RowAnswer],
    out: IO[bytes],
    done: Done,
    settings: Settings | None,
    report: Callable[[Done], None],
) -> Done:
    async for row, status, found in answers:
        body = found.read() if isinstance(found, Kept) else json.loads(found) if isinstance(found, bytes) else found
        data = _line((row, status, body), done.rows, settings)
        if len(data) > MOST_ANSWER_BYTES:
            refused = ApiError(400, f"the answer has {len(data)} bytes; at most {MOST_ANSWER_BYTES}: ask for less")
            status, body = refused.status, refused.body
            data = _line((row, status, body), done.rows, settings)
        _check_place(out)
        try:
            out.write(data)
            out.flush()
        except OSError as error:
            raise RunError(f"the output cannot be written: {error.strerror}; free some room and run it again") from None
        done = done.after(status, {} if isinstance(found, Kept) else body)
        report(done)
    _check_place(out)
    out.flush()
    os.fsync(out.fileno())
    return done


def _check_place(out: IO[bytes]) -> None:
    """Raise RunError for an output that somebody removed, replaced or cut since the last line."""
    ours, there = os.fstat(out.fileno()), Path(out.name)
    if not (there.exists() and os.path.samestat(ours, there.stat())) or ours.st_size != out.tell():
        raise RunError(f"{there} was removed or changed while it was written; run it again, from its beginning")


async def _answer(answered: Answered, row: Row, number: int) -> RowAnswer:
    """A refusal is an answer, too, and so is whatever else a row makes go wrong; an error of the run's own ends it."""
    try:
        check_length(row)
        return row, *await answered(row.data, number)
    except RedraftError:
        raise
    except Exception as error:
        refusal = refusal_of(error)
        return row, refusal.status, refusal.body


def _line(answer: RowAnswer, number: int, settings: Settings | None) -> bytes:
    """The line that answers a row."""
    row, status, body = answer
    name = row.name if row.name is not None else id_of(row.data)
    line = {
        "id": f"batch_req_{number + 1}",
        "custom_id": str(number + 1) if name is None else name,
        "row_sha256": row.digest,
        "response": {"status_code": status, "request_id": f"row-{number + 1}", "body": body},
        "error": None,
        "settings": settings,
    }
    return json.dumps(line, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def _differing(before: Settings, now: Settings) -> str:
    """The settings that differ, in words; outputs of older versions do not say of which weights they are."""
    before = {**{name: value for name, value in now.items() if name in ("weights", "tokenizer")}, **before}
    names = sorted(name for name in {**before, **now} if before.get(name) != now.get(name))
    return "; ".join(f"{one} {before.get(one, 'not given')!r}, now {now.get(one, 'not given')!r}" for one in names)


@contextmanager
def _opened(source: Path, target: Path) -> Iterator[tuple[Iterator[Row], IO[bytes]]]:
    """The rows of one file, and the other, open for this process alone."""
    try:
        rows = source.open("rb")
    except OSError as error:
        raise RequestError(f"{source} cannot be read: {error.strerror}") from None
    with rows:
        if target.exists() and not (target.is_file() and not os.path.samestat(target.stat(), os.fstat(rows.fileno()))):
            raise RequestError(f"{target} is not a regular file beside the rows, which resuming needs; name one")
        try:
            is_there = target.exists()
            real = target if is_there else Path(os.path.realpath(target))  # it may be a link to nothing yet
            out = real.open("r+b" if is_there else "x+b")  # another may just have begun it
        except OSError as error:
            raise RequestError(f"{target} cannot be written: {error.strerror}") from None
        try:
            lock(out.fileno(), target)
            begun = os.fstat(rows.fileno())
            yield rows_of(rows), out
            now = os.fstat(rows.fileno())
            if now.st_size < begun.st_size:
                raise RunError(f"{source} was cut short while it was read, so rows may be missing; run it again whole")
            if now.st_ctime_ns != begun.st_ctime_ns and source.is_file():
                _check_rows(rows, out, source, target)
        finally:
            with suppress(OSError):  # of a full disk, which has been reported; what is done was flushed
                out.close()


def _check_rows(rows: IO[bytes], out: IO[bytes], source: Path, target: Path) -> None:
    """Raise RunError where a file that was changed has not the rows any more that were read; it may have more."""
    with os.fdopen(os.dup(rows.fileno()), "rb") as again:  # whose buffer holds nothing of before
        again.seek(0)
        try:
            resume(rows_of(again), out, source, target, None)
        except RequestError as error:
            raise RunError(f"{source} was changed while it was read: {error}") from None
