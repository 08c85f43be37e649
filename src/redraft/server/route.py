"""A route that takes a JSON body: FastAPI's, which describes it in the interface, but for how a request is read.

FastAPI's own way looks for dependencies, forms and response models, too, of which there are none here (docs/log.md has
what that costs).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from redraft.server.body import Body
from redraft.server.refusal import Refusal

TEXT = {"type": "string"}
ERROR = {"message": TEXT, "type": TEXT, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}
TOLD = {"type": "object", "properties": {"error": {"type": "object", "properties": ERROR}}}
REFUSED = {"description": "A refusal or a failure", "content": {"application/json": {"schema": TOLD}}}


def router_of_bodies() -> APIRouter:
    """A router of such routes, each of which has errors of one form."""
    return APIRouter(route_class=BodyRoute, responses={"default": REFUSED})


class BodyRoute(APIRoute):
    """Calls its endpoint with the request and the checked body, if it takes one."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What reads a request. It raises Refusal and ValidationError."""
        body = None if self.body_field is None else self.body_field.field_info.annotation
        if not (isinstance(body, type) and issubclass(body, Body)):
            return super().get_route_handler()

        async def handle(request: Request) -> Response:
            answer: Response = await self.endpoint(request, body.model_validate(await _read(request)))
            return answer

        return handle


async def _read(request: Request) -> Any:
    kind = request.headers.get("content-type", "")
    if "json" not in kind.lower():
        message = f"the content-type is {kind[:100]!r}; send JSON, as application/json"
        raise Refusal(400, message, code="invalid_json")
    try:
        return json.loads(await request.body())
    except ClientDisconnect:
        raise Refusal(400, "the body ended early", code="invalid_json") from None
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON ({error})", code="invalid_json") from None
