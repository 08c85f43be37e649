"""Endpoints that take a JSON body: FastAPI describes them in the interface, and they are called without it.

Its own way leads through seven layers that look for dependencies, forms, response models and others' errors, of which
there are none here (docs/log.md has what that costs).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from redraft.errors import RedraftError
from redraft.server.body import Body, read_body
from redraft.server.refusal import Refusal
from redraft.server.stream import EventStream

TEXT = {"type": "string"}
ERROR = {"message": TEXT, "type": TEXT, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}
TOLD = {"type": "object", "properties": {"error": {"type": "object", "properties": ERROR}}}
REFUSED = {"description": "A refusal or a failure", "content": {"application/json": {"schema": TOLD}}}
STREAM = {"description": "An answer, as events where `stream` is true", "content": {"text/event-stream": {}}}

Tell = Callable[[Request, Exception], Awaitable[Response]]
"""What is answered to an error."""

FORESEEN = (Refusal, RedraftError, ValidationError, HTTPException)
"""Errors that are an answer and no failure of the server's."""


def router_of_bodies(*, streams: bool = True) -> APIRouter:
    """A router of such endpoints, with errors of one form and, if it `streams`, answers of both."""
    return APIRouter(responses={"default": REFUSED} | ({200: STREAM} if streams else {}))


class Direct:
    """An application whose endpoints that take a body are called from here; the others are its own to call."""

    def __init__(self, app: FastAPI, tell: Tell) -> None:
        self.app, self.tell = app, tell
        routes = [route for route in app.routes if isinstance(route, APIRoute)]
        self.routes = {route.path: (route, body) for route in routes if (body := _body_of(route)) is not None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        route, body = self.routes.get(scope.get("path", ""), (None, Body))
        if route is None or scope.get("method") != "POST":
            await self.app(scope, receive, send)
            return
        scope["app"], scope["route"] = self.app, route
        request, answer = Request(scope, receive), None
        try:
            asked, ignored = read_body(body, await _read(scope, receive))
            told = await route.endpoint(request, asked)
            answer = (
                told
                if isinstance(told, Response)
                else Response(msgspec.json.encode(told), media_type="application/json")
            )
            if ignored:
                answer.headers["x-ignored-fields"] = ", ".join(ignored)
            await answer(scope, receive, send)
        except Exception as error:  # whatever it is, who asked is told in the one form that errors have
            begun = answer is not None and (answer.begun if isinstance(answer, EventStream) else True)
            refusal = await self.tell(request, error)
            if not begun:
                await refusal(scope, receive, send)
            if begun or not isinstance(error, FORESEEN):
                raise


def _body_of(route: APIRoute) -> type[Body] | None:
    """What an endpoint takes, if it is a body of ours."""
    found = None if route.body_field is None else route.body_field.field_info.annotation
    return found if isinstance(found, type) and issubclass(found, Body) else None


async def _read(scope: Scope, receive: Receive) -> Any:
    kind = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1")
    if "json" not in kind.lower():
        message = f"the content-type is {kind[:100]!r}; send JSON, as application/json"
        raise Refusal(400, message, code="invalid_json")
    raw, more = bytearray(), True
    while more:
        part = await receive()
        if part["type"] == "http.disconnect":
            raise Refusal(400, "the body ended early", code="invalid_json")
        raw += part.get("body", b"")
        more = part.get("more_body", False)
    scope["state"]["size"] = len(raw)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON ({error})", code="invalid_json") from None
