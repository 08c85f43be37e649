"""Whether the server answers, its figures, and its version."""

from __future__ import annotations

import platform

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from redraft.server.http.errors import ApiError
from redraft.server.http.service import service_of

router = APIRouter()


@router.get("/health")
@router.get("/v1/health")
@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 when it answers requests, 503 before and after that."""
    service = service_of(request)
    if service.phase == "ready":
        return JSONResponse({"status": "ok"})
    share = service.done / service.total if service.total else 0.0
    message = {"loading": f"Loading model ({share:.0%})", "draining": "Stopping", "failed": "Failed"}[service.phase]
    raise ApiError(503, message, code=service.phase, retry_sec=2)


@router.get("/live")
async def live() -> Response:
    """200 while the process can answer at all."""
    return JSONResponse({"status": "ok"})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """In Prometheus's text format."""
    return PlainTextResponse(service_of(request).metrics.text(), media_type="text/plain; version=0.0.4")


@router.get("/version")
async def version(request: Request) -> dict[str, str]:
    """Of this program."""
    return {"version": service_of(request).settings.version, "python": platform.python_version()}
