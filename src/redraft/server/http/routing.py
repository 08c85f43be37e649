"""Endpoints that take a JSON body: one form of errors, and a header for fields that have no effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from redraft.server.http.body import Body

B = TypeVar("B", bound=Body)
TEXT = {"type": "string"}
ERROR = {"message": TEXT, "type": TEXT, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}
FORM = {"type": "object", "properties": {"error": {"type": "object", "properties": ERROR}}}
REFUSED = {"description": "A refusal or a failure", "content": {"application/json": {"schema": FORM}}}
STREAM = {"description": "An answer, as events where `stream` is true", "content": {"text/event-stream": {}}}


def router_of_bodies(*, streams: bool = True) -> APIRouter:
    """A router of such endpoints, with errors of one form and, if it `streams`, answers of both."""
    return APIRouter(responses={"default": REFUSED} | ({200: STREAM} if streams else {}))


def answers(
    endpoint: Callable[[Request, B], Awaitable[Response | dict[str, Any]]],
) -> Callable[[Request, B], Awaitable[Response]]:
    """An endpoint whose answer is a response, with the body's fields without effect in `x-ignored-fields`."""

    @wraps(endpoint)
    async def answered(request: Request, body: B) -> Response:
        answer = await endpoint(request, body)
        response = answer if isinstance(answer, Response) else JSONResponse(answer)
        if body.ignored:
            response.headers["x-ignored-fields"] = ", ".join(body.ignored)
        return response

    return answered
