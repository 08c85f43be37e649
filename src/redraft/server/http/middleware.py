"""Around every route: request ids, hosts and origins, keys, body size, safe headers, a log line at the end.

A web page elsewhere must not be able to use a server on this machine: a browser's `Origin` has to be this server's own
or one that was allowed, and `Host` one of the names the server knows (a page can rebind its own name to 127.0.0.1).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, MutableMapping
from random import getrandbits
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redraft.server.http.errors import GONE, ApiError
from redraft.server.http.keys import key_number, sent_key
from redraft.server.http.limits import HEAD_BYTES, WAITS, Bodies, Refusals, body_too_large, head_too_long
from redraft.server.http.log import Log
from redraft.server.http.service import Service, caller_of, stopping
from redraft.server.http.settings import Settings
from redraft.server.http.sse import DONE, line_of

OPEN = ("/health", "/v1/health", "/live", "/ready")  # for probes, which have no key
UNVERSIONED = ("/chat/completions", "/completions", "/responses", "/models")
"""Paths whose `/v1` may be left out, as base URLs often lack it."""
ABSOLUTE = re.compile(r"(?i)\Ahttps?://[^/]*")
POLL_SEC = 0.25
"""How often it is looked, while a body is being sent, whether the server is being ended."""
SAFE_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        b"require-trusted-types-for 'script'; trusted-types 'none'",
    ),
)
"""The last is for the page: it may load and call nothing but this server, run no code that is not one of its files, and
turn no string into markup. What a model says can only ever be text."""


class Middleware:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service, log: Log) -> None:
        self.app, self.service, self.log = app, service, log
        self._bodies, self._refusals = Bodies(), Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        name_path(scope)
        if scope["path"].startswith(UNVERSIONED):
            scope["path"] = "/v1" + scope["path"]
        headers = headers_of(scope)
        state = scope.setdefault("state", {})
        seen = _Seen(send, request_id(headers), self._refusals, state)
        state["request_id"] = seen.id
        state["log"] = seen.notes
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])  # with ": " and the line's end
        # No route reads them, and the libraries below take them apart all the same, 90 ms for 60 KB.
        scope["query_string"] = b""
        scope["headers"] = [(name, b"" if name == b"cookie" else value) for name, value in scope["headers"]]
        # Where GET is answered, so is HEAD: the server below leaves out the body, by the method that it sees.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            refused = self._refuse(scope, headers, size)
            seen.caller = caller_of(scope)
            if refused is not None:
                self.service.metrics.errors.labels(refused.code or str(refused.status)).inc()
                await answer(refused)(scope, receive, seen.send)
            else:
                await self.app(inner, self._bounded(receive, seen), seen.send)
        except asyncio.CancelledError:  # the server's end, for which it has waited as long as it may
            if not seen.status:
                await answer(stopping())(scope, receive, seen.send)
            elif not seen.done:  # a stream
                await seen.send({"type": "http.response.body", "body": line_of(stopping().body) + DONE})
        finally:
            self._bodies.drop(seen.caller, seen.read)
            self._account(scope, inner.get("route"), seen)

    def _refuse(self, scope: Scope, headers: Mapping[str, str], size: int) -> ApiError | None:
        settings, path = self.service.settings, scope["path"]
        if size > HEAD_BYTES:  # the parser below refuses those that do not come at once
            return head_too_long()
        host = headers.get("host", "")
        name, colon, port = host.rpartition(":")
        host = name if colon and (port.isdecimal() or not port) else host
        if "*" not in settings.hosts and host.lower() not in map(str.lower, settings.hosts):
            return ApiError(403, f"the host {host!r} is not one of this server's names; use --allow-host", code="host")
        own = [f"{scheme}://{headers.get('host')}" for scheme in ("http", "https")]
        for origin in (value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"):
            if "*" not in settings.origins and origin not in (*settings.origins, *own):
                return ApiError(403, f"pages of {origin!r} may not call this server; use --cors-origin", code="origin")
        if "content-length" in headers and "transfer-encoding" in headers:
            said = "the body has a Content-Length and a Transfer-Encoding; send one of them"
            return ApiError(400, said, code="two_lengths")
        packed = ", ".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"content-encoding")
        if packed.strip().lower() not in ("", "identity"):
            said = f"the body is encoded as {packed[:40]!r}; send it as it is, without Content-Encoding"
            return ApiError(415, said, code="content_encoding")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.service.body_bytes:
            return body_too_large(self.service.body_bytes)
        is_page = scope["method"] in ("GET", "HEAD") and (path == "/" or path.startswith("/page/"))
        if not settings.keys or path in OPEN or is_page:
            return None
        number = key_number(settings.keys, sent_key(headers))
        if number is None:
            return ApiError(401, "the API key is missing or unknown; send it as a Bearer token", code="invalid_api_key")
        scope["state"]["key"] = number
        return None

    def _bounded(self, receive: Receive, seen: _Seen) -> Receive:
        """The body, counted as it comes: a chunked one has no length to be refused by."""
        limit = self.service.body_bytes

        async def bounded() -> Message:
            message = await self._sent(receive, seen)
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                seen.read += size
                seen.whole = not message.get("more_body", False)
                self._bodies.add(seen.caller, size, seen.read)
                if seen.read > limit:
                    raise body_too_large(limit)
            elif message["type"] == "http.disconnect" and not seen.done:
                seen.notes["gone"] = True
            return message

        return bounded

    async def _sent(self, receive: Receive, seen: _Seen) -> Message:
        """What a client sends next. Raises ApiError where the server is being ended and the body is not there yet."""
        if seen.whole:
            return await receive()
        sent = asyncio.ensure_future(receive())
        try:
            while self.service.phase != "draining":
                if (await asyncio.wait({sent}, timeout=POLL_SEC))[0]:
                    return sent.result()
            raise stopping()
        finally:
            sent.cancel()

    def _account(self, scope: Scope, route: object, seen: _Seen) -> None:
        metrics = self.service.metrics
        # By route, not by path: a stranger's paths must not become labels without end.
        path = getattr(route, "path", "other")
        metrics.requests.labels(path, str(seen.status)).inc()
        metrics.seconds.labels(path).observe(time.monotonic() - seen.began)
        if seen.notes.get("gone"):
            metrics.gone.inc()
        self.log.write(
            "request",
            {
                "id": seen.id,
                "method": scope["method"],
                "path": path,
                "status": seen.status,
                "ms": round((time.monotonic() - seen.began) * 1e3, 1),
                **seen.notes,
            },
        )


class _Seen:
    """One request and what is known of its answer. A refusal waits for its turn among those of its caller."""

    def __init__(self, send: Send, id_: str, refusals: Refusals, state: MutableMapping[str, Any]) -> None:
        self._send, self.id, self._refusals, self.state = send, id_, refusals, state
        self.began, self.status, self.done = time.monotonic(), 0, False
        self.caller: object = None
        self.read, self.whole = 0, False  # bytes of its body, and whether these are all
        self.notes: MutableMapping[str, Any] = {}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            refuses = message["status"] >= 400 and message["status"] != GONE
            if refuses and (wait_sec := self._refusals.wait_sec(self.caller)):
                self.state[WAITS] = True
                await asyncio.sleep(wait_sec)
                self.state[WAITS] = False
            self.status = message["status"]
            message["headers"] += [*HEADERS, (b"x-request-id", self.id.encode())]
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.done = True
        await self._send(message)


def headers_of(scope: Scope) -> Mapping[str, str]:
    """The headers of a request; of two of one name the first holds."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


def name_path(scope: Scope) -> None:
    """Leave the path alone of a target that has its server in front (RFC 9112, 3.2.2)."""
    scope["path"] = ABSOLUTE.sub("", scope["path"], count=1) or "/"


def cors(app: ASGIApp, settings: Settings) -> CORSMiddleware:
    """The application as pages elsewhere may call it that are allowed to."""
    return CORSMiddleware(
        app,
        allow_origins=settings.origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=["x-request-id", "x-ignored-fields", "x-ignored-keywords", "x-constraint", "retry-after"],
    )


def answer(refusal: ApiError) -> Response:
    """A refusal as a response."""
    return JSONResponse(refusal.body, refusal.status, refusal.headers)


def request_id(headers: Mapping[str, str]) -> str:
    """The client's own id, or a new one."""
    given = headers.get("x-request-id", "")
    return given if SAFE_ID.fullmatch(given) else f"req-{getrandbits(96):024x}"
