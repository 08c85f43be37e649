"""The application: routes, the page, and every error in OpenAI's form."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from redraft.errors import RedraftError
from redraft.server.guard import Guard, answer
from redraft.server.log import Log
from redraft.server.refusal import Refusal, first_refusal, refusal_of
from redraft.server.respond import GONE
from redraft.server.routes import canvas, chat, completions, decisions, edits, elsewhere, infill, meta, page, responses
from redraft.server.service import Service


def create_app(service: Service, log: Log, there: elsewhere.Elsewhere | None = None) -> ASGIApp:
    """The server as an ASGI application. Another server is behind it or beside it, as the settings say."""
    app = FastAPI(
        title="redraft",
        version=service.settings.version,
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    app.state.service = service
    app.state.elsewhere = there
    settings, modules = service.settings, (chat, completions, responses, canvas, infill, edits, decisions)
    at_hand = [*(module.router for module in modules), meta.tokens]
    routers = at_hand if settings.beyond is None else [elsewhere.router]
    routers += [meta.router] + ([page.router] if settings.page else [])
    routers += [elsewhere.beside] if settings.beside is not None else []
    # All in one list: a router in a router is matched twice for every request.
    app.router.routes += [route for router in routers for route in router.routes]
    _tell_errors(app, service, log)
    return Guard(app, service, log)


def _tell_errors(app: FastAPI, service: Service, log: Log) -> None:
    def tell(refusal: Refusal) -> Response:
        service.metrics.errors.labels(refusal.code or str(refusal.status)).inc()
        return answer(refusal)

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return tell(error)

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, RedraftError)
        if request.scope["state"]["log"].get("gone"):  # work that was cut short is no failure
            return Response(status_code=GONE)
        return tell(refusal_of(error))

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, ValidationError)
        return tell(first_refusal(error.errors()))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"there is no {request.method} {request.url.path[:200]} here; see /openapi.json"
        reply = tell(Refusal(error.status_code, message, code="not_found"))
        reply.headers.update(error.headers or {})  # Allow, of 405
        return reply

    async def broken(request: Request, error: Exception) -> Response:
        log.write("failure", {"id": request.scope["state"].get("request_id"), "kind": type(error).__name__})
        return tell(Refusal(500, "the server failed; the log has its kind", code="internal_error"))

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(RedraftError, ours)
    app.add_exception_handler(ValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, broken)
