"""Endpoints that take a JSON body: one form of errors, and a header for fields that have no effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar, get_type_hints

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError

from redraft.errors import INPUT_ERRORS, RedraftError
from redraft.server.http.body import Body
from redraft.server.http.errors import ApiError, as_sent, refusal_of, sent_name
from redraft.server.http.service import service_of
from redraft.server.limits import read_json

B = TypeVar("B", bound=Body)
TEXT = {"type": "string"}
ERROR = {"message": TEXT, "type": TEXT, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}
FORM = {"type": "object", "properties": {"error": {"type": "object", "properties": ERROR}}}
REFUSED = {"description": "A refusal or a failure", "content": {"application/json": {"schema": FORM}}}
STREAM = {"description": "An answer, as events where `stream` is true", "content": {"text/event-stream": {}}}


FORM_TYPE = "application/x-www-form-urlencoded"
"""What `curl -d` says of any body. JSON is read under it, too."""
BROWSERS = frozenset({"origin", "sec-fetch-site", "cookie"})
"""Headers of a browser. It may send that type to another site without asking first, so from a browser it is refused,
even though the origin was checked before."""


SHORT_BODY = 2**13
"""Bytes below which the event loop reads a body itself: thousands of small objects take tenths of a second to check."""


class _Bounded(Request):
    """A request whose body is bounded before it becomes objects."""

    async def json(self) -> Any:
        """The body; a long one is of the endpoint's type already. Raises ApiError."""
        data = await self.body()
        self.scope["state"]["bytes"] = len(data)
        try:
            if len(data) < SHORT_BODY:
                return read_json(data)
            kind = get_type_hints(self.scope["endpoint"])["body"]
            return await service_of(self).on_thread(self, _read_body, kind, data)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is not JSON ({error})", code="invalid_json") from None
        except RedraftError as error:
            raise refusal_of(error) from None


def _read_body(kind: type[Body], data: bytes) -> Body:
    """A body of an endpoint. Raises ValueError for what is no JSON, ApiError for another body."""
    body = kind.read(read_json(data))
    body.ignored  # noqa: B018  # looked up here, since that takes as long
    return body


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            scope = request.scope
            kind = request.headers.get("content-type", "").partition(";")[0]
            if kind.strip().lower() == FORM_TYPE and BROWSERS.isdisjoint(request.headers):
                others = [one for one in scope["headers"] if one[0] != b"content-type"]
                scope = {**scope, "headers": [*others, (b"content-type", b"application/json")]}
            return await handle(_Bounded(scope, request.receive))

        return handled


def router_of_bodies(*, streams: bool = True) -> APIRouter:
    """A router of such endpoints, with errors of one form and, if it `streams`, answers of both."""
    return APIRouter(route_class=_Route, responses={"default": REFUSED} | ({200: STREAM} if streams else {}))


def answers(
    endpoint: Callable[[Request, B], Awaitable[Response | dict[str, Any]]],
) -> Callable[[Request, B], Awaitable[Response]]:
    """An endpoint whose answer is a response, with the body's fields without effect in `x-ignored-fields`."""

    @wraps(endpoint)
    async def answered(request: Request, body: B) -> Response:
        try:
            answer = await endpoint(request, body)
        except (ApiError, RedraftError, ValidationError, *INPUT_ERRORS) as error:
            refusal = refusal_of(error)
            if refusal.status not in (400, 504) or request.scope["state"]["log"].get("gone"):
                raise
            raise as_sent(refusal, body) from error
        response = answer if isinstance(answer, Response) else JSONResponse(answer)
        unused = response.headers.get("x-ignored-fields", "").split(",")
        own = {sent_name(name, body.model_fields_set) for name in unused if name}
        if ignored := sorted(own.union(body.ignored)):
            response.headers["x-ignored-fields"] = ", ".join(ignored)
        return response

    return answered
