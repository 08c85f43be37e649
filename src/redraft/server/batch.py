"""Requests in a file, answers in another: row by row in the same order, with bounded memory, resumed where it stopped.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}    OpenAI's batch form
    {"messages": [...], "seed": 7}    {"prompt": "..."}                                   ours: the body alone

Row i of the output answers row i of the input and has its SHA-256, so what is done is how many whole lines there are,
and a row that was edited since is found. A line that a kill cut short is cut off, and its row is done again; rows
behind it were never written.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import msgspec
import pydantic

from redraft.errors import RedraftError, RequestError, RunError
from redraft.server.refusal import Refusal, first_refusal, refusal_of
from redraft.server.respond import Exchange, Work
from redraft.server.routes import chat, completions
from redraft.server.schema import Chat, Completion
from redraft.server.service import Service

PATHS = ("/v1/chat/completions", "/v1/completions")
MOST_LINE_BYTES = 16 * 2**20
MOST_FAILED = 3
"""Rows with an error that a run names at its end."""
NO_SETTINGS: Mapping[str, Any] = {}
NOTHING: AbstractAsyncContextManager[object] = nullcontext()
BEGUN = b'{"id": "batch_req_'
"""How every line of an output begins."""

Answered = Callable[[bytes, int], Awaitable[tuple[int, Mapping[str, Any]]]]
"""What answers a row, given that and its number, with a status and a body. A Refusal is an answer, too."""


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
        told = body.get("usage")
        counts = [told.get(name) if isinstance(told, dict) else None for name in ("completion_tokens", "forwards")]
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


class _Reply(msgspec.Struct):
    status_code: int
    body: dict[str, Any] = {}


class _Told(msgspec.Struct):
    """What is read of a line that is there already."""

    row_sha256: str
    response: _Reply
    settings: dict[str, Any] | None = None


def run_batch(
    service: Service,
    source: Path,
    target: Path,
    *,
    seed: int | None,
    at_once: int,
    settings: Mapping[str, Any] = NO_SETTINGS,
    told: Callable[[Done], None] = lambda _: None,
) -> Done:
    """Answer the rows of `source` that `target` does not have yet. Raises RequestError and RunError.

    With a `seed`, row i that brings none has `seed` + i, so a run that was resumed gives what one in a piece gives.
    `settings` are kept in the first line of the output; a run with others is refused.
    """
    how: dict[str, Any] = {"at_once": at_once, "settings": settings, "told": told}
    return answer_rows(lambda row, i: answer(service, row, i, seed), source, target, **how)


def answer_rows(
    answered: Answered,
    source: Path,
    target: Path,
    *,
    at_once: int,
    settings: Mapping[str, Any] = NO_SETTINGS,
    told: Callable[[Done], None] = lambda _: None,
    within: AbstractAsyncContextManager[object] = NOTHING,
) -> Done:
    """As `run_batch`, whoever answers the rows; `within` is open while they are answered."""
    if at_once < 1:
        raise RequestError(f"the number of rows at once is {at_once}; it must be at least 1")

    async def whole(rows: Iterator[bytes], out: IO[bytes], begun: Done) -> Done:
        async with within:
            return await _run(answered, rows, out, begun, at_once, settings, told)

    with _opened(source, target) as (rows, out):
        return asyncio.run(whole(rows, out, resume(rows, out, source, target, settings)))


def count_rows(path: Path) -> int:
    """Rows of a file."""
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def resume(
    rows: Iterator[bytes], out: IO[bytes], source: Path, target: Path, settings: Mapping[str, Any] = NO_SETTINGS
) -> Done:
    """Skip the rows that are done already; how many these are. A line that was cut short is removed.

    Raises RequestError, and leaves the output as it is, for one that answers other rows or began with other settings.
    """
    out.seek(0)
    done, end = Done(0, 0), 0
    for line in out:
        if not line.endswith(b"\n") and line.startswith(BEGUN[: len(line)]):
            break
        try:
            found = msgspec.convert(json.loads(line), _Told)  # lines may hold NaN and unpaired surrogates
        except (msgspec.MsgspecError, ValueError, RecursionError):
            said = (
                f"line {done.rows + 1} of {target} is not of a run's output, which would be lost; name another output"
            )
            raise RequestError(said) from None
        row = next(rows, None)
        if row is None:
            raise RequestError(f"{target} has more than the {done.rows} rows of {source}; they do not belong together")
        if found.row_sha256 != _digest(row):
            said = (
                f"row {done.rows + 1} of {source} is not the one that {target} answers: it was edited, or is of another"
                " file"
            )
            raise RequestError(f"{said}; name another output, or keep the first {done.rows} lines of this one")
        _check_settings(found.settings, settings, target)
        done, end = done.after({"response": msgspec.to_builtins(found.response)}), end + len(line)
    out.truncate(end)
    out.seek(end)
    return replace(done, tokens=0, forwards=0)


def _check_settings(began: Mapping[str, Any] | None, now: Mapping[str, Any], target: Path) -> None:
    """Raise RequestError for a run that began with other settings, which only the first line of an output has. No
    settings agree with any."""
    if began is None or not now:
        return
    for name in sorted(began.keys() | now.keys()):
        was, value = began.get(name), now.get(name)
        if was != value:
            raise RequestError(
                f"{target} was begun with {name} {was!r} and {name} is {value!r}; run it with the same, or name another"
                " output"
            )


async def _run(
    answered: Answered,
    rows: Iterator[bytes],
    out: IO[bytes],
    done: Done,
    at_once: int,
    settings: Mapping[str, Any],
    told: Callable[[Done], None],
) -> Done:
    running: deque[asyncio.Task[dict[str, Any]]] = deque()
    number, more = done.rows, True
    while True:
        while more and len(running) < at_once:
            row = next(rows, None)
            if row is None:
                more = False
            else:
                running.append(asyncio.create_task(_line(answered, row, number)))
                number += 1
        if not running:
            out.flush()
            os.fsync(out.fileno())
            return done
        line = await running.popleft()
        if done.rows == 0 and settings:
            line["settings"] = dict(settings)
        try:
            out.write(json.dumps(line, ensure_ascii=False).encode(errors="backslashreplace") + b"\n")
            out.flush()
        except OSError as error:
            raise RunError(f"the output cannot be written: {error.strerror}; free some room and run it again") from None
        done = done.after(line)
        told(done)


async def answer(service: Service, row: bytes, number: int, seed: int | None) -> tuple[int, Mapping[str, Any]]:
    """Status and body of the answer to one row. Raises Refusal."""
    try:
        exchange = Exchange(service, _work(service, row, None if seed is None else seed + number))
        exchange.open(drafts=False)
        await exchange.finish()
        return 200, exchange.whole()
    except RedraftError as error:
        raise refusal_of(error) from None


async def _line(answered: Answered, row: bytes, number: int) -> dict[str, Any]:
    """The line that answers a row; a refusal is an answer, too."""
    try:
        status, body = await answered(row, number)
    except Refusal as refusal:
        status, body = refusal.status, refusal.body
    return {
        "id": f"batch_req_{number + 1}",
        "custom_id": _id_of(row, number),
        "row_sha256": _digest(row),
        "response": {"status_code": status, "request_id": f"row-{number + 1}", "body": body},
        "error": None,
    }


def read_row(row: bytes, seed: int | None) -> tuple[str, Any]:
    """The path that a row asks for, and the body. Raises Refusal."""
    body = _object(row)
    path = body.get("url", PATHS[0] if "messages" in body else PATHS[1])
    if path not in PATHS:
        raise Refusal(400, f"url is {path!r}; supported: {', '.join(PATHS)}", param="url")
    if "body" in body:
        body = body["body"]
    else:
        body = {key: value for key, value in body.items() if key not in ("custom_id", "method", "url")}
    return path, {"seed": seed} | body if isinstance(body, dict) else body


def _work(service: Service, row: bytes, seed: int | None) -> Work:
    path, body = read_row(row, seed)
    try:
        checked = Chat.model_validate(body) if path == PATHS[0] else Completion.model_validate(body)
    except pydantic.ValidationError as error:
        raise first_refusal(error.errors()) from None
    if checked.stream:
        raise Refusal(400, "stream is true; a row is told whole, so leave it out", param="stream")
    if isinstance(checked, Chat):
        return chat.prepare(service, checked)
    if completions.hole_of(service, checked) is not None:
        raise Refusal(400, "suffix is not supported in a batch; leave it out", param="suffix")
    return completions.prepare(service, checked)


def _object(row: bytes) -> dict[str, Any]:
    if len(row) > MOST_LINE_BYTES:
        raise Refusal(400, f"the row has {len(row)} bytes; at most {MOST_LINE_BYTES}", code="invalid_json")
    try:
        found = json.loads(row)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the row is not JSON ({error})", code="invalid_json") from None
    if not isinstance(found, dict):
        raise Refusal(400, f"the row is a {type(found).__name__}; it must be an object", code="invalid_json")
    return found


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
            raise RequestError(f"{target} is no file that can be read again, to go on where a run stopped; name one")
        try:
            out = target.open("r+b" if target.exists() else "w+b")
        except OSError as error:
            raise RequestError(f"{target} cannot be written: {error.strerror}") from None
        with out:
            try:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RequestError(f"{target} is being written by another run; wait for it") from None
            yield (line for line in rows if line.strip()), out
