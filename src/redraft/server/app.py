"""The application: routes, the page, and every error in OpenAI's form."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from redraft.errors import RedraftError
from redraft.server.guard import Guard, answer
from redraft.server.log import Log
from redraft.server.refusal import Refusal, first_refusal, refusal_of
from redraft.server.routes import canvas, chat, completions, decisions, edits, infill, meta, page, responses
from redraft.server.service import Service


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
    for module in (meta, chat, completions, infill, edits, canvas, responses, decisions):
        app.include_router(module.router)
    if service.settings.page:
        app.include_router(page.router)
    _tell_errors(app, service, log)
    return Guard(app, service, log)


def _tell_errors(app: FastAPI, service: Service, log: Log) -> None:
    def tell(refusal: Refusal) -> Response:
        service.metrics.errors.labels(refusal.code or str(refusal.status)).inc()
        return answer(refusal)

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return tell(error)

    async def ours(_: Request, error: Exception) -> Response:
        assert isinstance(error, RedraftError)
        return tell(refusal_of(error))

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return tell(first_refusal(error.errors()))

    async def inner(_: Request, error: Exception) -> Response:
        """A request that was turned into one of another endpoint, and is none there."""
        assert isinstance(error, ValidationError)
        return tell(first_refusal([one | {"loc": ("body", *one["loc"])} for one in error.errors()]))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, Refusal):  # of the body, while it was read
            return tell(error.__cause__)
        if error.status_code == 400:
            return tell(Refusal(400, "the body is not JSON", code="invalid_json"))
        message = f"there is no {request.method} {request.url.path[:200]} here; see /openapi.json"
        return tell(Refusal(error.status_code, message, code="not_found"))

    async def broken(request: Request, error: Exception) -> Response:
        log.write("failure", {"id": request.scope["state"].get("request_id"), "kind": type(error).__name__})
        return tell(Refusal(500, "the server failed; the log has its kind", code="internal_error"))

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(RedraftError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(ValidationError, inner)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, broken)
