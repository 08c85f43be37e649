"""The application: routes, the page, and every error in OpenAI's form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from redraft.errors import RedraftError
from redraft.server.guard import Guard, answer
from redraft.server.log import Log
from redraft.server.refusal import FAILED, Refusal, first_refusal, kind_of, refusal_of
from redraft.server.respond import GONE
from redraft.server.routes import canvas, chat, completions, decisions, edits, infill, meta, page, responses
from redraft.server.service import Service

NO_JSON = Refusal(400, "the body is not a JSON object; send one, as application/json", code="invalid_json")


def create_app(service: Service, log: Log) -> ASGIApp:
    """The server as an ASGI application."""
    app = FastAPI(
        title="redraft",
        version=service.settings.version,
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    app.state.service = service
    modules = (chat, completions, responses, canvas, infill, edits, decisions, meta)
    routers = [module.router for module in modules] + ([page.router] if service.settings.page else [])
    for router in routers:
        app.include_router(router)
    answered = _error_handler(service, log)
    for kind in (Refusal, RedraftError, ValidationError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answered)
    return Guard(app, service, log)


def _error_handler(service: Service, log: Log) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answered(request: Request, error: Exception) -> Response:
        state = request.scope["state"]
        if isinstance(error, RedraftError) and state["log"].get("gone"):
            return Response(status_code=GONE)  # work that was cut short is no failure
        refusal = _refusal(request, error)
        if refusal.status == 500:
            log.write("failure", {"id": state.get("request_id"), "kind": kind_of(error)})
        service.metrics.errors.labels(refusal.code or str(refusal.status)).inc()
        reply = answer(refusal)
        if isinstance(error, HTTPException):
            reply.headers.update(error.headers or {})  # Allow, of 405
        return reply

    return answered


def _refusal(request: Request, error: Exception) -> Refusal:
    match error:
        case Refusal():
            return error
        case RedraftError():
            return refusal_of(error)
        case RequestValidationError():
            return _body_refusal(error.errors())
        case ValidationError():
            return first_refusal(error.errors())
        case HTTPException(__cause__=Refusal() as refusal):  # while the body was read
            return refusal
        case HTTPException(status_code=400):
            return NO_JSON
        case HTTPException():
            message = f"there is no {request.method} {request.url.path[:200]} here; see /openapi.json"
            return Refusal(error.status_code, message, code="not_found")
    return FAILED


def _body_refusal(errors: Sequence[Any]) -> Refusal:
    first = errors[0]
    if first["type"] == "json_invalid":
        return Refusal(400, f"the body is not JSON ({first['ctx']['error']})", code="invalid_json")
    if first["loc"] == ("body",) and (first["input"] is None or isinstance(first["input"], bytes)):
        return NO_JSON
    return first_refusal([error | {"loc": error["loc"][1:]} for error in errors])
