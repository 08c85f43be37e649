"""Another server that speaks OpenAI's interface: one question, one streamed answer, and in words what goes wrong.

Whatever the other side does, an answer or an error is there after `seconds`: refusals that pass are repeated within
that time, a stream that breaks off is no answer, and of what is told in an error nothing can steer a terminal. The key
is in the header of a request and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx2

from redraft.errors import CallerError, RequestError, RunError

PASSING = (408, 429, 500, 502, 503, 504)
"""Refusals that another try may not meet."""

TRIES = 4
CONNECT_SEC = 10.0
MOST_BYTES = 16 * 2**20
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Backend:
    """Where it is. `model` is the name it goes by there, None for the only one, or for the `likely` one of several;
    `key_env` names the variable that holds the key, and without a name none is sent; `seconds` is how long an answer
    may take."""

    base_url: str
    model: str | None = None
    likely: str | None = None
    key_env: str | None = None
    seconds: float = 600.0

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # of brackets, or a port that is none
            good = False
        if not good or not self.base_url.isprintable() or " " in self.base_url:
            raise RequestError(f"the base URL is {self.base_url!r}; write it as http://127.0.0.1:8642/v1")
        if parts.query or parts.fragment:  # paths go behind it, and it is shown to whoever asks
            raise RequestError("the base URL has something behind its path; leave out what follows the ? or the #")
        if parts.username is not None or parts.password is not None:
            raise RequestError("the base URL has a name or a password in it; put the key in a variable and name that")
        if not 0 < self.seconds <= 86_400:
            raise RequestError(f"the time for an answer is {self.seconds}; it must be above 0 and at most 86400 s")

    @property
    def key(self) -> str | None:
        """The key. Raises RequestError for a variable that is not set, or holds what no header can."""
        if self.key_env is None:
            return None
        found = os.environ.get(self.key_env, "").strip()
        if not found:
            raise RequestError(f"the variable {self.key_env}, which should hold the key, is not set")
        if not found.isascii() or not found.isprintable():
            raise RequestError(f"the variable {self.key_env} holds characters that no key has; set it anew")
        return found


@dataclass(frozen=True)
class Reply:
    """An answer. Counts are what the server tells, None where it does not; times are seconds from the question."""

    text: str
    finish: str
    tokens: int | None
    steps: int | None
    seconds: float
    first_sec: float


class Channel:
    """A connection, to be opened with `async with`."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self._key = backend, backend.key
        self._model = backend.model
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx2.Timeout(backend.seconds, connect=min(CONNECT_SEC, backend.seconds))
        none = CookieJar(DefaultCookiePolicy(allowed_domains=()))  # one asker's would go along with another's question
        self._client = httpx2.AsyncClient(headers=headers, timeout=limits, cookies=none)

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def ask(self, path: str, body: Json, told: Callable[[str], None] = lambda _: None) -> Reply:
        """Answer a body of chat/completions or completions; `told` hears each piece of text as it comes.

        Raises RequestError for what the server refuses for good, RunError for everything else.
        """
        async with self._within():
            streamed = {"model": await self.model(), **body, "stream": True, "stream_options": {"include_usage": True}}
            began = time.monotonic()
            async with aclosing(await self._sent("POST", path, streamed)) as answer:
                return await self._read(answer, began, told)

    async def chunks(self, path: str, body: Json) -> AsyncGenerator[tuple[int, Json], None]:
        """Status and JSON of each chunk of a streamed answer, what it says unread; of a refusal, once. Raises RunError
        for no answer at all, and for one that breaks off."""
        async with self._within():
            streamed, over = {"model": await self.model(), **body, "stream": True}, False
            async with aclosing(await self._sent("POST", path, streamed, final=True)) as answer:
                if answer.status_code != 200:
                    yield await self._refused(answer)
                    return
                async for data in _events(answer):
                    if data == b"[DONE]":
                        return
                    chunk = self._chunk(data)
                    over = over or _ends(chunk)
                    yield 200, chunk
            if not over:
                raise RunError(f"{self.backend.base_url} broke off in the middle of an answer; ask again")

    async def post(self, path: str, body: Json) -> tuple[int, Json]:
        """Status and JSON of an answer that is not streamed, whatever it is. Raises RunError for no answer at all."""
        async with self._within():
            named = {"model": body.get("model") or await self.model(), **body}
            async with aclosing(await self._sent("POST", path, named, final=True)) as answer:
                if answer.status_code != 200:
                    return await self._refused(answer)
                found = await self._json(answer)
            if not isinstance(found, dict):
                raise self._strange(found)
            return 200, found

    async def known(self) -> str:
        """`model`, within the time that there is: whether anybody is there. Raises RunError, too."""
        async with self._within():
            return await self.model()

    async def model(self) -> str:
        """The name to ask by. Raises RequestError if there are several to choose from."""
        if self._model is None:
            async with aclosing(await self._sent("GET", "models", None)) as answer:
                listed = await self._json(answer)
            try:
                names = [str(one["id"]) for one in listed["data"]]
            except (KeyError, TypeError):
                raise self._strange(listed) from None
            if self.backend.likely in names:
                names = [self.backend.likely]
            if len(set(names)) != 1:
                some = ", ".join(map(_plain, names[:8])) or "none"
                flags = "--model, or beside a model at hand with --their-model"
                raise RequestError(f"{self.backend.base_url} has these models: {some}; name one with {flags}")
            self._model = names[0]
        return self._model

    @asynccontextmanager
    async def _within(self) -> AsyncIterator[None]:
        """The time that there is, and what the transport throws, in words."""
        where, seconds = self.backend.base_url, self.backend.seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise RunError(f"{where} does not answer ({_plain(str(error)) or 'no connection'}); is it up?") from None
        except (TimeoutError, httpx2.TimeoutException):
            raise RunError(f"{where} had not answered after {seconds:g} s; raise --timeout") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise RunError(f"{where} broke off the connection ({_plain(str(error))}); ask again") from None

    async def _sent(self, method: str, path: str, body: Json | None, *, final: bool = False) -> httpx2.Response:
        """The answer to a request, its head read and found to be good; with `final` also a refusal for good."""
        url = f"{self.backend.base_url.rstrip('/')}/{path}"
        content, headers = None if body is None else encoded(body), {"content-type": "application/json"}
        for left in range(TRIES - 1, -1, -1):
            answer = await self._client.send(
                self._client.build_request(method, url, content=content, headers=headers), stream=True
            )
            if answer.status_code == 200 or (final and not (left and answer.status_code in PASSING)):
                return answer
            async with aclosing(answer):
                refusal = await self._refusal(answer)
                wait = _wait(answer, TRIES - 1 - left)
            if not left or answer.status_code not in PASSING:
                raise refusal
            await asyncio.sleep(wait)
        raise AssertionError

    async def _refusal(self, answer: httpx2.Response) -> CallerError | RunError:
        raw = await _bytes(answer, 64 * 1024)
        try:
            error = json.loads(raw)["error"]
            said = error["message"] if isinstance(error, dict) else error
        except (ValueError, KeyError, TypeError, RecursionError):
            said = raw.decode(errors="replace")
        told = f"{self.backend.base_url} answered {answer.status_code}: {self._shown(said) or 'nothing else'}"
        mine = 400 <= answer.status_code < 500 and answer.status_code not in PASSING
        return RequestError(told) if mine or 300 <= answer.status_code < 400 else RunError(told)

    async def _refused(self, answer: httpx2.Response) -> tuple[int, Json]:
        return answer.status_code, {"error": {"message": str(await self._refusal(answer))}}

    async def _json(self, answer: httpx2.Response) -> Any:
        raw = await _bytes(answer, MOST_BYTES)
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            raise self._strange(raw.decode(errors="replace")) from None

    async def _read(self, answer: httpx2.Response, began: float, told: Callable[[str], None]) -> Reply:
        pieces, finish, usage, first = list[str](), None, dict[str, Any](), 0.0
        async for data in _events(answer):
            if data == b"[DONE]":
                break
            chunk = self._chunk(data)
            try:
                usage = dict(chunk.get("usage") or usage)
                for choice in chunk["choices"]:
                    piece = choice["delta"].get("content") if "delta" in choice else choice["text"]
                    if piece:
                        first = first or time.monotonic() - began
                        pieces.append(str(piece))
                        told(whole(pieces[-1]))
                    finish = choice.get("finish_reason") or finish
            except (ValueError, KeyError, TypeError, AttributeError):
                raise self._strange(data.decode(errors="replace")) from None
        if finish is None:
            said = f"after {sum(map(len, pieces))} characters of an answer"
            raise RunError(f"{self.backend.base_url} broke off {said}; ask again")
        seconds = time.monotonic() - began
        tokens, steps = (_count(usage.get(name)) for name in ("completion_tokens", "steps"))
        return Reply(whole("".join(pieces)), str(finish), tokens, steps, seconds, first or seconds)

    def _chunk(self, data: bytes) -> Json:
        """One chunk of a stream. Raises RunError for an error in its place, and for what is none."""
        try:
            chunk = json.loads(data)
            error = chunk.get("error")
        except (ValueError, AttributeError, RecursionError):
            raise self._strange(data.decode(errors="replace")) from None
        if error is not None:
            said = error.get("message", "") if isinstance(error, dict) else error
            raise RunError(f"{self.backend.base_url} gave up in the middle: {self._shown(said)}")
        found: Json = chunk
        return found

    def _strange(self, said: object) -> RunError:
        shown = self._shown(said)[:120]
        return RunError(
            f"{self.backend.base_url} answered {shown!r}, which is not of OpenAI's interface; look at the URL"
        )

    def _shown(self, said: object) -> str:
        """What may be shown of the other side's words; hidden before it is cut, the key leaves no half behind."""
        return _plain(str(said).replace(self._key or "\0", "[the key]"))


def encoded(body: Json) -> bytes:
    """A body as JSON. Raises RequestError for numbers and characters that JSON does not have."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise RequestError(f"what is asked cannot be written as JSON: {_plain(str(error))}") from None


def whole(text: str) -> str:
    """A text without halves of characters, which JSON can hold and nothing can print."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


async def _events(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """The data of each server-sent event. Raises RunError for an answer without end."""
    rest, size = b"", 0
    async for part in answer.aiter_bytes():
        size += len(part)
        if size > MOST_BYTES:
            raise RunError(f"the answer has more than {MOST_BYTES} bytes; lower --max-tokens")
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield rest[5:].strip()


async def _bytes(answer: httpx2.Response, most: int) -> bytes:
    found = b""
    async for part in answer.aiter_bytes():
        found += part
        if len(found) > most:
            return found[:most]
    return found


def _ends(chunk: Json) -> bool:
    """Whether a choice has its reason to end."""
    choices = chunk.get("choices")
    return isinstance(choices, list) and any(isinstance(one, dict) and one.get("finish_reason") for one in choices)


def _wait(answer: httpx2.Response, tried: int) -> float:
    """Seconds before another try: what the server asks for, or twice as long each time."""
    try:
        return min(30.0, max(0.0, float(answer.headers.get("retry-after", ""))))
    except ValueError:
        return 0.25 * 2.0**tried


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _plain(said: str) -> str:
    """What may be shown of somebody else's words."""
    return " ".join("".join(one if one.isprintable() else " " for one in said).split())[:300]
