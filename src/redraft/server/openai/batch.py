"""One row of a batch: a request in JSON, and its answer without HTTP.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}    OpenAI's batch form
{"messages": [...], "seed": 7}    {"prompt": "..."}                                   ours: the body alone
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from redraft.operations.engine import Engine
from redraft.server.http.errors import ApiError, refusal_of
from redraft.server.http.limits import ServerLimits
from redraft.server.http.service import Service
from redraft.server.http.settings import Settings
from redraft.server.limits import BOUNDS, read_json
from redraft.server.openai import chat, completions
from redraft.server.openai.exchange import Exchange, Work
from redraft.server.openai.fields import Chat, Completion

PATHS = ("/v1/chat/completions", "/v1/completions")
BUSY, WAITS_SEC = 503, (1, 2, 4, 8, 0)
"""A refusal that passes, and how long to wait behind each try."""
MANY = 2**31
MOST_LINE_BYTES, MOST_ID = int(BOUNDS["row"].most), int(BOUNDS["name"].most)


def service_for_rows(settings: Settings, engine: Engine) -> Service:
    """What answers them with an engine whose loop turns: who sends the rows bounds them."""
    limits = ServerLimits(per_key=MANY, in_flight=MANY, request_sec=86_400.0)
    engine.loop.scheduler.max_waiting = MANY
    service = Service(replace(settings, limits=limits))
    service.ready(engine)
    return service


async def answer(service: Service, row: bytes, seed: int | None) -> tuple[int, Mapping[str, Any]]:
    """Status and body of the answer to one row. One that is refused for a reason that passes is tried again. Raises
    ApiError."""
    for wait in WAITS_SEC:
        try:
            exchange = Exchange(service, await service.aside(_work, service, row, seed, size=len(row)))
            said = await exchange.finish(exchange.whole)
            assert said is not None, "nobody leaves a batch"
            return 200, said
        except Exception as error:  # whatever it is, it is the answer to this row: the others have theirs
            refusal = refusal_of(error, local=True)
            if refusal.status != BUSY:
                raise refusal from error
        await asyncio.sleep(wait)
    raise refusal


def is_name(name: object) -> bool:
    """Whether it may be a row's `custom_id`: a string, or an integer, as tables have them."""
    return isinstance(name, str | int) and not isinstance(name, bool)


def read_row(row: bytes, seed: int | None) -> tuple[str, Any]:
    """The path that a row asks for, and the body. Raises ApiError."""
    body = _object(row)
    if not is_name(name := body.get("custom_id")) and name is not None:
        raise ApiError(400, f"custom_id is {name!r:.100}; it must be a string", param="custom_id")
    if len(str(name)) > MOST_ID:
        raise ApiError(400, f"custom_id has more than {MOST_ID} characters; send fewer", param="custom_id")
    url, method = body.get("url"), body.get("method")
    if "body" in body:
        others = {name for name, value in body.items() if value is not None} - {"custom_id", "method", "url", "body"}
        if others:
            name = min(others)
            raise ApiError(
                400, f"{name[:100]} stands beside the body; put it inside, or leave it out", param=name[:100]
            )
        body = body["body"]
    else:
        body = {key: value for key, value in body.items() if key not in ("custom_id", "method", "url")}
    if isinstance(body, dict) and url is None and not body.keys() & {"messages", "prompt"}:
        raise ApiError(400, "the row has no messages and no prompt; a row is the body of a request", param="messages")
    said = PATHS[0] if isinstance(body, dict) and "messages" in body else PATHS[1]
    path = said if url is None else url
    if path not in PATHS:
        raise ApiError(400, f"url is {path!r:.100}; supported: {', '.join(PATHS)}", param="url")
    if method not in (None, "POST"):
        raise ApiError(400, f"method is {method!r:.100}; a row is a POST, so leave it out", param="method")
    if isinstance(body, dict) and body.get("seed") is None:  # null is as no field
        body = body | {"seed": seed}
    return path, body


def _work(service: Service, row: bytes, seed: int | None) -> Work:
    path, body = read_row(row, seed)
    checked = Chat.read(body) if path == PATHS[0] else Completion.read(body)
    if checked.stream:
        raise ApiError(400, "stream is true; a row is answered whole, so leave it out", param="stream")
    if isinstance(checked, Chat):
        return chat.prepare(service, checked)
    if completions.gap_of(service, checked) is not None:
        raise ApiError(400, "suffix is not supported in a batch; leave it out", param="suffix")
    return completions.prepare(service, checked)


def _object(row: bytes) -> dict[str, Any]:
    try:
        found = read_json(row)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the row is not JSON ({error})", code="invalid_json") from None
    if not isinstance(found, dict):
        raise ApiError(400, f"the row is a {type(found).__name__}; it must be an object", code="invalid_json")
    return found
