"""A client of another server that speaks OpenAI's HTTP interface (`--backend openai`).

A call has `Backend.seconds`, with its tries, and ends with an answer or an error of one line. Its turn at a busy server
(`measure/window.py`) and what a 429 asks to wait are not counted while others are answered. Errors mask the API key.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import httpx2

from redraft.errors import RedraftError, RequestError, RunError
from redraft.measure.failures import (
    MISTAKEN,
    TRIES,
    AbsentError,
    BrokenError,
    FailedError,
    LateError,
    LongError,
    RefusedError,
    StatusError,
    StrangeError,
    is_busy,
    is_own,
    is_passing,
    refused,
)
from redraft.measure.window import Place, Window
from redraft.measure.wire import count_of, encoded, lines_of

BUSY_SEC = 90.0
"""How long a server is waited for that is asked too much and does not say when to come back, since its last answer."""
FAILED_SEC, BREAKS_SEC, MOST_ALONE = 30.0, (0.5, 1.0, 2.0, 4.0, 8.0), 2
"""The longest wait that a server which fails may ask for, since it is on the clock; pauses behind what broke off, and
how many of them where none is beside it."""
MOST_LATE, MOST_VAIN = 8, 2
"""How often a request is asked again that had no answer in time because it stood behind others; of these, where no
other had one meanwhile."""
AWAY_SEC = (1.0, 2.0, 4.0, 8.0, *[15.0] * 19)
"""Pauses between small requests to a server that fails and may be back: five minutes, in which it loads its model."""
AT_ONCE_SEC = 0.25  # within which what a server sent before it failed may still be read
LONG = 2  # pauses behind which a user is to know of it
MOST_TRIED = 8  # models that a server names which are tried where none has answered
SMALL: Mapping[str, Mapping[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"prompt": "Hi"},
}
"""What a server answers that answers anything: it tells a server's failure from one at a row."""
MOST_SHOWN = 4000  # characters of an error that are looked at
MOST_VALUES = 2**22
"""Of an answer: each takes some hundred bytes where it is read."""
MOST_BYTES = 2**26
"""Of one answer, where no fewer are allowed."""


@dataclass(frozen=True)
class Backend:
    """Where the server is. `model` None stands for its only model, or for `preferred` where it has several."""

    base_url: str
    model: str | None = None
    preferred: str | None = None
    key: str = field(default="", repr=False)
    seconds: float = 600.0


@dataclass(frozen=True)
class Reply:
    """An answer. Counts are None where the server does not report them; times are seconds since the call."""

    text: str
    finish: str
    tokens: int | None
    steps: int | None
    seconds: float
    first_sec: float


class Remote:
    """A connection to one server. The calls are coroutines; close it with `close`."""

    def __init__(
        self, backend: Backend, *, most_bytes: int = MOST_BYTES, note: Callable[[str], None] = lambda _: None
    ) -> None:
        """`most_bytes` are of one answer. `note` is called with what a user who waits may want to know."""
        self.backend, self.where, self._model = backend, backend.base_url, backend.model
        self._most_bytes, self._note = most_bytes, note
        self._answered = 0.0  # when the last answer began
        self._good = dict[str, object]()  # by its path, a model that has answered
        self._looking, self._alone, self._window = asyncio.Lock(), asyncio.Lock(), Window()
        self._looked = self._back = -math.inf  # when it was last found to answer, and to do so again
        self._over: RedraftError | None = None  # what ends the run
        self._is_reached = False  # something has taken a connection
        headers = {"content-type": "application/json"}
        headers |= {"authorization": f"Bearer {backend.key}"} if backend.key else {}
        timeout = httpx2.Timeout(backend.seconds, connect=min(10.0, backend.seconds))
        every = httpx2.Limits(max_connections=None)  # who waited for one would lose its time; callers bound them
        self._client = httpx2.AsyncClient(base_url=backend.base_url, headers=headers, timeout=timeout, limits=every)
        # No cookies: each would go with every later request.
        self._client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.aclose = self._client.aclose

    async def ask(self, prompt: str | Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> Reply:
        """Continue a text, or answer a conversation. Raises RequestError for a lasting refusal, else RunError."""
        path, name = ("completions", "prompt") if isinstance(prompt, str) else ("chat/completions", "messages")
        asked = {"stream": True, "stream_options": {"include_usage": True}, "model": await self._name()}
        body, place = {name: prompt, **fields, **asked}, Place()
        text, finish, usage, began, first = "", None, None, time.monotonic(), 0.0
        async with self._errors() as clock, self._sent(clock, "POST", path, body, place) as answer:
            async for line in lines_of(self._parts(answer)):
                if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                    continue
                chunk = json.loads(line[5:])
                if chunk.get("error") is not None:
                    raise RunError(f"{self.where} failed within an answer: {self._shown(chunk['error'])}")
                usage = chunk.get("usage") or usage
                if not isinstance(usage, dict | None):
                    raise TypeError("counts are an object")
                for choice in chunk["choices"]:
                    text += (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""
                    first = first or (time.monotonic() - began if text else 0.0)
                    finish = choice.get("finish_reason") or finish
        if finish is None:
            raise RunError(f"{self.where} ended its answer early, after {len(text)} characters; ask again")
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half characters cannot be printed
        seconds = time.monotonic() - began
        counts = (count_of(usage, "completion_tokens"), count_of(usage, "steps"))
        return Reply(text, finish, *counts, seconds, first or seconds)

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The answer to a body as it stands, not streamed, in its JSON: one that waits for others takes many times as
        much when it is read. Raises a StatusError where the server fails at this body or refuses it, and answers
        others; where it answers none, RequestError for a lasting refusal, else RunError."""
        outages, breaks, vain, place = 0, 0, 0, Place()
        while True:
            alone, is_suspect = self._alone, outages > 1  # one of the rows at which it broke off twice may end it
            async with AsyncExitStack() as turn:
                if is_suspect:
                    await turn.enter_async_context(alone)
                    if self._over is not None:
                        raise self._over
                    if alone is not self._alone:  # that row has been found meanwhile
                        await turn.aclose()
                try:
                    return await self._posted(path, body, place)
                except RefusedError as error:
                    if is_own(error.status):
                        raise
                    problem: StatusError | BrokenError = error
                except (FailedError, BrokenError) as error:
                    problem = error
                meanwhile = None
                if isinstance(problem, LateError):
                    meanwhile = self._window.late(place)
                    place.lates, vain = place.lates + 1, vain + (not meanwhile)
                is_again = meanwhile is not None and place.lates <= MOST_LATE and vain <= MOST_VAIN
                if is_again and meanwhile:
                    continue
                size = self._window.size
                if type(problem) in (BrokenError, AbsentError):
                    self._window.broken(place)
                was_away = not await self._is_well(path, body.get("model"), problem)
                if is_found := was_away and is_suspect and alone is self._alone:
                    self._alone = asyncio.Lock()
            outages += was_away
            if is_again and not was_away:
                continue
            if was_away:  # then it says nothing of its room
                self._window.size = max(self._window.size, size)
            breaks += not was_away
            most = len(BREAKS_SEC) if place.beside else MOST_ALONE
            if is_found or breaks > most or (not was_away and isinstance(problem, StatusError)):  # tried again already
                break
            await asyncio.sleep(BREAKS_SEC[max(0, breaks - 1)])
        raise problem if isinstance(problem, StatusError) else FailedError(str(problem), problem.status)

    async def _is_well(self, path: str, own: object, problem: RedraftError) -> bool:
        """Whether a server that has just failed was well then: it answers something else now, and did all the time.
        Raises what ends the run if it answers nothing."""
        failed = time.monotonic()
        async with self._looking:
            if self._over is not None:
                raise self._over
            before = self._back
            if self._looked < failed:
                is_there = self._good or not isinstance(problem, MISTAKEN)
                for count, pause in enumerate((*(AWAY_SEC if is_there else ()), None)):  # by either path, of two
                    if await self._answers(path, own) or await self._answers(next(iter(SMALL.keys() - {path})), own):
                        break
                    if self._looked >= failed or await self._has_others(path, own, problem):  # another row was answered
                        break
                    if self._answered > failed + AT_ONCE_SEC:  # no look had room, but others were answered all along
                        self._back = before
                        break
                    self._back = math.inf
                    if pause is None or time.monotonic() > failed + sum(AWAY_SEC):
                        ends = RequestError if isinstance(problem, RefusedError) else RunError
                        fewer = "; lower --at-once" if isinstance(problem, LateError) else ""
                        self._over = ends(f"{problem}{fewer} (and nothing else is answered, so the rows stay open)")
                        raise self._over
                    if count == LONG:
                        self._note(f"{problem}; it is waited for, {sum(AWAY_SEC) / 60:.0f} minutes at most")
                    await asyncio.sleep(pause)
                self._looked = max(self._looked, now := time.monotonic())
                self._back = min(self._back, now)
        return self._back < failed

    async def _answers(self, path: str, own: object) -> bool:
        """Whether the server answers a small request, with the model that has answered, or else a row's own; where none
        is known, whether it names its models."""
        try:
            known = next(iter(self._good.values()), self._model or own)
            if (model := self._good.get(path, known)) is not None:
                await self._posted(path, {"model": model, **SMALL[path], "max_tokens": 1})
                self._window.opened()
                return True
            async with self._errors() as clock, self._sent(clock, "GET", "models", None) as answer:
                return isinstance(json.loads(await self._whole(answer, MOST_BYTES))["data"], list)
        except RefusedError as error:
            return is_own(error.status)
        except (FailedError, BrokenError):
            return False

    async def _has_others(self, path: str, own: object, problem: RedraftError) -> bool:
        """Whether a server that refuses a row's own model has others that answer, or has not that one by its list."""
        with suppress(RedraftError):
            names = [] if self._good or own is None else await self._names()
            if own not in names and getattr(problem, "status", None) == 404:
                return bool(names)
            for name in names[:MOST_TRIED]:
                with suppress(RedraftError):
                    await self._posted(path, {"model": name, **SMALL[path], "max_tokens": 1})
                    return True
        return False

    async def _posted(self, path: str, body: Mapping[str, Any], place: Place | None = None) -> bytes:
        """The answer to a body, or to a look, which has no place."""
        named, began = body if "model" in body else {"model": await self._name(), **body}, time.monotonic()
        most = MOST_BYTES if place is None else None
        async with self._errors() as clock, self._sent(clock, "POST", path, named, place) as answer:
            data = await self._whole(answer, most)
            if sum(map(data.count, b",[{")) > MOST_VALUES:
                raise LongError(f"{self.where} answered with over {MOST_VALUES} values; ask for less", 500)
            found = json.loads(data)
            if not isinstance(found, dict):
                raise ValueError("an answer is an object")
            # Nor is one with numbers that no JSON has, or too deep for a line of an output.
            json.dumps({"response": {"body": found}}, allow_nan=False)
        if error := found.get("error"):  # as some gateways say that they are overloaded
            code = str(error.get("code")) if isinstance(error, dict) else ""
            said = f"{self.where} answered 200 and an error: {self._shown(error)}"
            status = int(code) if re.fullmatch("[45][0-9][0-9]", code) else 500
            raise (BrokenError if is_passing(status) else RefusedError)(said, status)
        if not isinstance(found.get("choices"), list) or not found["choices"]:
            raise StrangeError(f"{self.where} answered 200 and no choices: {self._shown(found)}", 500)
        if place is not None:  # before it may have been refused, which says nothing of a server that has failed since
            began = place.sent
        self._good[path], self._looked = named["model"], max(self._looked, began)
        return data

    async def _name(self) -> str:
        """The model's name there. Raises RequestError if there are several to choose from, and RunError if the server
        does not say, since that concerns every request."""
        if self._model is None:
            try:
                names = await self._names(Place())
            except RefusedError as error:
                raise RequestError(str(error)) from None
            except FailedError as error:
                raise RunError(str(error)) from None
            names = [self.backend.preferred] if self.backend.preferred in names else names
            if len(names) != 1:
                said = f"{self.where} has these models: {self._shown(names)}; name one"
                raise RefusedError(said, 400) if self._good else RequestError(said)  # other rows name theirs
            self._model = str(names[0])
        return self._model

    async def _names(self, place: Place | None = None) -> list[Any]:
        async with self._errors() as clock, self._sent(clock, "GET", "models", None, place) as answer:
            return [model["id"] for model in json.loads(await self._whole(answer, MOST_BYTES))["data"]]

    @asynccontextmanager
    async def _sent(
        self, clock: asyncio.Timeout, method: str, path: str, body: Mapping[str, Any] | None, place: Place | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """A response with status 200, tried again where another status may pass. A server that is asked too much is
        waited for, and off the clock, as long as other requests are answered; with a `place` in the window's turn."""
        content, began, fails, refusals = None if body is None else encoded(body), time.monotonic(), 0, 0
        base = self._client.base_url
        while True:
            async with AsyncExitStack() as stack:
                if place is not None:
                    await stack.enter_async_context(self._window.within(place, clock))
                    if self._over is not None:
                        raise self._over
                is_in_line = self._is_reached and place is not None
                timeout = httpx2.Timeout(self.backend.seconds) if is_in_line else self._client.timeout
                seen = {"trace": self._reaches}
                sent = self._client.stream(method, base.join(path), content=content, timeout=timeout, extensions=seen)
                answer = await stack.enter_async_context(sent)
                if answer.status_code == 200:
                    self._client.base_url = base
                    if place is not None:  # else each row that is given up renews the patience of all others
                        self._answered = time.monotonic()
                    yield answer
                    if place is not None:
                        self._window.answered(place)
                    return
                if answer.status_code == 404 and base.path == "/" and not self._good:  # a URL that lacks its /v1
                    base = base.join("/v1/")
                    continue
                after, status = answer.headers.get("retry-after", ""), answer.status_code
                retry_sec = float(after) if after.isdecimal() else None
                retry_sec = None if retry_sec is None else min(retry_sec, max(FAILED_SEC, self.backend.seconds))
                if busy := is_busy(status, after):
                    refusals += 1
                    most = BUSY_SEC if retry_sec is None else self.backend.seconds + retry_sec
                    is_in_time = place is not None and time.monotonic() < max(began, self._answered) + most
                    pause = self._pause(refusals, retry_sec, place)
                else:
                    fails += 1
                    is_in_time = is_passing(status) and fails < TRIES
                    pause = 2.0 ** (min(fails, TRIES) - 3) if retry_sec is None else min(FAILED_SEC, retry_sec)
                if not (is_in_time or (busy and refusals < TRIES)):
                    raise await self._refusal(answer)
            if busy:
                clock.reschedule(asyncio.get_running_loop().time() + pause + self.backend.seconds)
            await asyncio.sleep(pause)

    async def _reaches(self, event: str, _: object) -> None:
        """Sees whether something took a connection, so that who has none now has a server without room for it."""
        self._is_reached = self._is_reached or event == "connection.connect_tcp.complete"

    def _pause(self, refusals: int, retry_sec: float | None, place: Place | None) -> float:
        """Seconds behind so many refusals of a request by a server that is asked too much. A look, which has no place,
        waits for no time that the server says: others wait for it."""
        if place is None:
            return 2.0 ** (min(refusals, TRIES) - 4)
        own = self._window.refused(place, says_when=retry_sec is not None)
        return own if retry_sec is None else max(own, retry_sec, 2.0 ** (min(refusals, 6) - 5))

    async def _refusal(self, answer: httpx2.Response) -> RedraftError:
        """A response whose status is not 200 as an error of ours."""
        said = (await self._whole(answer)).decode(errors="replace")
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            said = json.loads(said)["error"]["message"]
        said = f"{self.where} answered {answer.status_code}: {self._shown(said) or 'nothing else'}"
        return refused(answer.status_code, said)

    async def _parts(self, answer: httpx2.Response, most: int | None = None) -> AsyncGenerator[bytes, None]:
        """What comes of an answer. Raises LongError for one of over `most` bytes."""
        left = most = most or self._most_bytes
        async for part in answer.aiter_bytes():
            if (left := left - len(part)) < 0:
                fewer = ", or ask fewer rows at once" if most < MOST_BYTES else ""
                said = f"over {most / 2**20:.3g} MiB; look at the URL{fewer}"
                raise LongError(f"{self.where} answered with {said}", 500)
            yield part

    async def _whole(self, answer: httpx2.Response, most: int | None = None) -> bytes:
        return b"".join([part async for part in self._parts(answer, most)])

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[asyncio.Timeout]:
        """The time limit, which it gives, and every failure of the transport or the format as an error of ours."""
        try:
            async with asyncio.timeout(self.backend.seconds) as clock:
                yield clock
        except (TimeoutError, httpx2.ReadTimeout, httpx2.WriteTimeout):
            said = f"{self.where} had not answered after {self.backend.seconds:g} s; raise --timeout"
            raise LateError(said) from None
        except httpx2.HTTPError as error:
            is_absent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            if self._is_reached and isinstance(error, httpx2.ConnectTimeout):
                raise LateError(f"{self.where} takes no further connection") from None
            kind = AbsentError if is_absent and not self._is_reached else BrokenError
            said = f"cannot be reached or broke off ({self._shown(error) or type(error).__name__}); is it up?"
            raise kind(f"{self.where} {said}") from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            said = f"{self.where} sent something that is not of OpenAI's interface; look at the URL"
            raise StrangeError(said) from None

    def _shown(self, said: object) -> str:
        """Another program's words, fit for one line; the key is masked before the text is cut."""
        most = MOST_SHOWN + len(self.backend.key)
        found = str(said)[:most].replace(self.backend.key or "\0", "[the key]")[:MOST_SHOWN]
        return "".join(one if one.isprintable() else " " for one in found).strip()[:300]
