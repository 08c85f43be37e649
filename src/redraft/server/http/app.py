"""The application: routes, the page, and every error in OpenAI's form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, get_type_hints

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from redraft.errors import RedraftError
from redraft.server import canvas
from redraft.server.fim import edits, infill, llamacpp
from redraft.server.http import health
from redraft.server.http.body import Body
from redraft.server.http.errors import GONE, ApiError, body_error, kind_of, refusal_of
from redraft.server.http.log import Log
from redraft.server.http.middleware import Middleware, answer, cors
from redraft.server.http.service import Service, stopping
from redraft.server.openai import chat, completions, decisions, models, responses
from redraft.server.page import files

NO_JSON = ApiError(400, "the body is not a JSON object; send one, as application/json", code="invalid_json")


def create_app(service: Service, log: Log) -> ASGIApp:
    """The server as an ASGI application."""
    app = FastAPI(
        title="redraft",
        version=service.settings.version,
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
        redirect_slashes=False,
    )
    app.state.service = service
    modules = (chat, completions, responses, canvas, infill, llamacpp, edits, decisions, models, health)
    routers = [module.router for module in modules] + ([files.router] if service.settings.page else [])
    for router in routers:
        app.include_router(router)
    answered = _error_handler(service, log)
    for kind in (ApiError, RedraftError, ValidationError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answered)
    return cors(Middleware(app, service, log), service.settings)


def _error_handler(service: Service, log: Log) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answered(request: Request, error: Exception) -> Response:
        state = request.scope["state"]
        if isinstance(error, RedraftError) and state["log"].get("gone"):
            return Response(status_code=GONE)  # work that was cut short is no failure
        refusal = _refusal(request, error)
        if service.abandoned and refusal.status >= 500:  # whatever it was: the work was ended, not its request
            refusal = stopping()
        if refusal.status == 500:
            log.write("failure", {"id": state.get("request_id"), "kind": kind_of(error)})
        service.metrics.errors.labels(refusal.code or str(refusal.status)).inc()
        reply = answer(refusal)
        _forget_frames(error)
        if isinstance(error, HTTPException):
            reply.headers.update(error.headers or {})  # Allow, of 405
        return reply

    return answered


def _forget_frames(error: BaseException | None) -> None:
    """Let go of the calls that an error and its causes came through: they have the body, and are in a circle with the
    error, so that it would be there until the garbage collector comes by."""
    while error is not None and error.__traceback__ is not None:  # an error may be its own cause
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _refusal(request: Request, error: Exception) -> ApiError:
    match error:
        case RequestValidationError():
            return _body_refusal(request, error.errors())
        case HTTPException(__cause__=ApiError() as refusal):  # while the body was read
            return refusal
        case HTTPException(status_code=400):
            return NO_JSON
        case HTTPException():
            message = f"there is no {request.method} {request.url.path[:200]} here; see /openapi.json"
            return ApiError(error.status_code, message, code="not_found" if error.status_code == 404 else None)
    return refusal_of(error)


def _body_refusal(request: Request, errors: Sequence[Any]) -> ApiError:
    first = errors[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON ({first['ctx']['error']})", code="invalid_json")
    if first["loc"] == ("body",) and (first["input"] is None or isinstance(first["input"], bytes)):
        return NO_JSON
    body = get_type_hints(request.scope["endpoint"]).get("body", Body)
    return body_error([error | {"loc": error["loc"][1:]} for error in errors], body.fields_at)
