"""The application: routes, the page, and every error in OpenAI's form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from redraft import __version__
from redraft.errors import RedraftError
from redraft.server.guard import Guard, answer
from redraft.server.log import Log
from redraft.server.refusal import Refusal, refusal_of
from redraft.server.routes import chat, completions, meta
from redraft.server.service import Service

PAGE = Path(__file__).parent / "page"
PAGE_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def create_app(service: Service, log: Log) -> ASGIApp:
    """The server as an ASGI application."""
    app = FastAPI(
        title="redraft", version=__version__, docs_url=None, redoc_url=None, separate_input_output_schemas=False
    )
    app.state.service = service
    for module in (meta, chat, completions):
        app.include_router(module.router)
    if service.settings.page:
        _serve_page(app)
    _tell_errors(app, service, log)
    return Guard(app, service, log)


def _serve_page(app: FastAPI) -> None:
    """The files of the page, by name: no path of a request is ever opened."""
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in PAGE_TYPES} if PAGE.is_dir() else {}

    async def file(name: str) -> Response:
        if name not in files:
            raise Refusal(404, f"the page has no file {name!r}", code="not_found")
        path = files[name]
        return FileResponse(path, media_type=PAGE_TYPES[path.suffix], headers={"cache-control": "no-cache"})

    async def index() -> Response:
        return await file("index.html")

    app.add_api_route("/", index, include_in_schema=False)
    app.add_api_route("/page/{name}", file, include_in_schema=False)


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

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
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
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, broken)


def first_refusal(errors: Sequence[Any]) -> Refusal:
    """The most telling of a body's mistakes: the one deepest inside it, and of these the first."""
    error = max(errors, key=lambda one: len(one["loc"]))
    kind, context = error["type"], error.get("ctx", {})
    path = [part for part in error["loc"][1:] if isinstance(part, int) or str(part).isidentifier()]
    field = ".".join(map(str, path)) or None
    if kind == "json_invalid":
        return Refusal(400, f"the body is not JSON ({context.get('error', 'unreadable')})", code="invalid_json")
    if kind == "extra_forbidden":
        message = f"{field} is not a field of this endpoint; leave it out (docs/server.md lists the fields)"
        return Refusal(400, message, param=field, code="unsupported_parameter")
    if kind == "unsupported":
        field = ".".join(filter(None, [field, context["field"]]))
        return Refusal(400, error["msg"], param=field, code="unsupported_parameter")
    if kind == "missing":
        return Refusal(400, f"{field or 'the body'} is missing", param=field, code="missing_required_parameter")
    said = repr(error["input"])
    said = said if len(said) <= 100 else said[:100] + "…"
    return Refusal(400, f"{field or 'the body'} is {said}: {error['msg']}", param=field, code="invalid_value")
