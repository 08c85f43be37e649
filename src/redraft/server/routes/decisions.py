"""`POST /v1/decisions`: questions about a text, answered by the shares of their choices in one denoising step each.

Nothing is written: the probability of every choice is read off the canvas (redraft.engine.decide). Shares are the
model's own and are not calibrated.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from redraft.engine.decide import Decision, decide
from redraft.engine.engine import Engine
from redraft.engine.request import Options
from redraft.server.body import BOOKKEEPING, Body, Flag, Int, Str
from redraft.server.refusal import Refusal
from redraft.server.replies import Json
from redraft.server.respond import GONE, headers_of, key_of, service_of
from redraft.server.routes.responses import Item
from redraft.server.schema import Part
from redraft.server.stream import unless_gone

router = APIRouter()

YES, NO = "yes", "no"


class Option(Body):
    """One choice."""

    inert = frozenset({"description"})

    value: Flag | Str


class Level(Body):
    """One level of a score."""

    inert = frozenset({"description"})

    label: Str


class Asking(Body):
    """What every question has."""

    instructions: Str | list[Part]
    name: Str | None = None

    @property
    def said(self) -> str:
        """The instructions as one text."""
        return self.instructions if isinstance(self.instructions, str) else "".join(p.text for p in self.instructions)


class Predicate(Asking):
    """Whether something is so."""

    type: Literal["predicate"]


class Choice(Asking):
    """Which of some values."""

    type: Literal["choice"]
    choices: list[Option] = Field(min_length=2, max_length=255)


class Score(Asking):
    """How far along ordered levels; the first counts 0."""

    type: Literal["score"]
    levels: list[Level] = Field(min_length=2, max_length=255)


Question = Annotated[Predicate | Choice | Score, Field(discriminator="type")]


class Decisions(Body):
    """`POST /v1/decisions`."""

    inert: ClassVar[frozenset[str]] = BOOKKEEPING
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"joint": (False,)}

    model: Str | None = None
    input: Str | list[Item] = Field(description="a text, or turns of text")
    questions: list[Question] = Field(min_length=1, max_length=400, description="predicates, choices and scores")
    seed: Int | None = Field(default=None, description="of the noise (0)")
    canvases: Int | None = Field(default=None, description="canvases of other noise to average over, 1 to 64 (1)")


@router.post("/v1/decisions", response_model=None)
async def decisions(request: Request, body: Decisions) -> Response:
    """Answer questions about a text."""
    service = service_of(request)
    service.check_name(body.model)
    engine, gone = service.engine, threading.Event()
    with service.enter(1, key_of(request)):
        work = asyncio.to_thread(_answers, engine, body, gone)
        answers, tokens = await unless_gone(request, work, gone.set)
    if gone.is_set():
        return Response(status_code=GONE)
    usage = {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens,
        "forwards": len(answers) * (body.canvases or 1),
    }
    told = {"object": "decision", "model": service.settings.name, "answers": answers, "usage": usage}
    return JSONResponse(told, headers=headers_of(body))


def _answers(engine: Engine, body: Decisions, gone: threading.Event) -> tuple[list[Json], int]:
    found: list[Json] = []
    tokens = 0
    for question in body.questions:
        if gone.is_set():
            break
        # A full canvas: what stands behind a short answer is part of what the model expects.
        options = Options(seed=(body.seed or 0) % 2**64, max_tokens=engine.config.model.canvas_length)
        request = engine.request(_turns(body.input, question.said), options=options)
        tokens += len(request.prompt)
        canvases = 1 if body.canvases is None else body.canvases
        decision = decide(engine, request, [*_choices(question)], canvases=canvases)
        found.append({"type": question.type, "name": question.name} | _told(question, decision))
    return found, tokens


def _turns(given: str | list[Item], asked: str) -> list[dict[str, str]]:
    """The input with the question behind its last turn, if that is the user's, else as a turn of its own."""
    if isinstance(given, str):
        return [{"role": "user", "content": f"{given}\n{asked}" if asked else given}]
    turns = []
    for item in given:
        content = item.content if isinstance(item.content, str) else "".join(part.text for part in item.content)
        turns.append({"role": "system" if item.role == "developer" else item.role, "content": content})
    if not turns or turns[-1]["role"] != "user":
        return [*turns, {"role": "user", "content": asked}]
    last = turns[-1]["content"]
    return [*turns[:-1], {"role": "user", "content": f"{last}\n{asked}" if asked else last}]


def _choices(question: Predicate | Choice | Score) -> Mapping[str, Any]:
    """What may be answered, and what each answer stands for. Raises Refusal if two are one."""
    if isinstance(question, Predicate):
        return {YES: True, NO: False}
    if isinstance(question, Score):
        pairs: list[tuple[str, Any]] = [(level.label, i) for i, level in enumerate(question.levels)]
    else:
        pairs = [(_spelt(option.value), option.value) for option in question.choices]
    if len(dict(pairs)) < len(pairs) or not all(text for text, _ in pairs):
        said = f"a question has choices that are empty or equal: {[text for text, _ in pairs]}"
        raise Refusal(400, said[:500], param="questions")
    return dict(pairs)


def _spelt(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _told(question: Predicate | Choice | Score, decision: Decision) -> Json:
    values, shares = _choices(question), decision.shares
    if isinstance(question, Predicate):
        return {"probability": shares[YES]}
    best, pairs = decision.best, [(text, values[text], share) for text, share in shares.items()]
    if isinstance(question, Choice):
        probabilities = [{"value": value, "probability": share} for _, value, share in pairs]
        return {"choice": values[best], "confidence": shares[best], "probabilities": probabilities}
    levels = [{"label": text, "value": value, "probability": share} for text, value, share in pairs]
    return {"score": sum(v * share for _, v, share in pairs), "confidence": shares[best], "probabilities": levels}
