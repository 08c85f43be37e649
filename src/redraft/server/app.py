"""The application: routes, the page, and every error in OpenAI's form."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from redraft.errors import RedraftError
from redraft.server.guard import Guard, answer
from redraft.server.log import Log
from redraft.server.refusal import Refusal, first_refusal, kind_of, refusal_of
from redraft.server.respond import GONE
from redraft.server.route import FORESEEN, Direct, Tell
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
    modules = (chat, completions, responses, canvas, infill, edits, decisions, meta)
    routers = [module.router for module in modules] + ([page.router] if service.settings.page else [])
    # All in one list: a router in a router is matched twice for every request.
    app.router.routes += [route for router in routers for route in router.routes]
    tell = _teller(service, log)
    for kind in (*FORESEEN, Exception):
        app.add_exception_handler(kind, tell)
    return Guard(Direct(app, tell), service, log)


def _teller(service: Service, log: Log) -> Tell:
    async def tell(request: Request, error: Exception) -> Response:
        if isinstance(error, RedraftError) and request.scope["state"]["log"].get("gone"):
            return Response(status_code=GONE)  # work that was cut short is no failure
        refusal = _refusal(request, error)
        if refusal.status == 500:
            log.write("failure", {"id": request.scope["state"].get("request_id"), "kind": kind_of(error)})
        service.metrics.errors.labels(refusal.code or str(refusal.status)).inc()
        reply = answer(refusal)
        if isinstance(error, HTTPException):
            reply.headers.update(error.headers or {})  # Allow, of 405
        return reply

    return tell


def _refusal(request: Request, error: Exception) -> Refusal:
    match error:
        case Refusal():
            return error
        case RedraftError():
            return refusal_of(error)
        case ValidationError():
            return first_refusal(error.errors())
        case HTTPException():
            message = f"there is no {request.method} {request.url.path[:200]} here; see /openapi.json"
            return Refusal(error.status_code, message, code="not_found")
    return Refusal(500, "the server failed; the log has its kind", code="internal_error")
