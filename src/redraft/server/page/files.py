"""The page: static files of this package, by name. No path of a request is ever opened."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import Response

from redraft.server.http.errors import ApiError

FOLDER = Path(__file__).parent
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".jsonl": "application/jsonl",
}
FILES = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.suffix in TYPES}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index() -> Response:
    """What a browser opens."""
    return await file("index.html")


@router.get("/page/{name:path}")
async def file(name: str) -> Response:
    """One of its files. Raises ApiError for a name that is none."""
    path = FILES.get(name)
    if path is None:
        raise ApiError(404, f"the page has no file {name[:200]!r}", code="not_found")
    return Response(path.read_bytes(), media_type=TYPES[path.suffix], headers={"cache-control": "no-cache"})
