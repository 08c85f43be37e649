"""Routers of endpoints that take a JSON body: one form of errors, and a header for fields that have no effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from redraft.server.body import Body

TEXT = {"type": "string"}
ERROR = {"message": TEXT, "type": TEXT, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}
TOLD = {"type": "object", "properties": {"error": {"type": "object", "properties": ERROR}}}
REFUSED = {"description": "A refusal or a failure", "content": {"application/json": {"schema": TOLD}}}
STREAM = {"description": "An answer, as events where `stream` is true", "content": {"text/event-stream": {}}}


def router_of_bodies(*, streams: bool = True) -> APIRouter:
    """A router of such endpoints, with errors of one form and, if it `streams`, answers of both."""
    return APIRouter(responses={"default": REFUSED} | ({200: STREAM} if streams else {}), route_class=_Route)


class _Route(APIRoute):
    """A route that names the body's fields without effect in `x-ignored-fields`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, _answered(endpoint), **options)


def _answered(endpoint: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Response]]:
    @wraps(endpoint)
    async def answered(**given: Any) -> Response:
        answer = await endpoint(**given)
        response = answer if isinstance(answer, Response) else JSONResponse(answer)
        ignored = [name for value in given.values() if isinstance(value, Body) for name in value.ignored]
        if ignored:
            response.headers["x-ignored-fields"] = ", ".join(ignored)
        return response

    return answered
