"""`POST /v1/decisions`: questions about a text, answered by the shares of their choices in one denoising step.

Nothing is written: the probability of every choice is read off the canvas (redraft.operations.decide).
Several questions are a form on one canvas, or on as few as hold it, unless `joint` is false; then, as where there is
one, each has a canvas of its own and is read over all spellings of its choices.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from string import ascii_uppercase
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Request, Response
from pydantic import Field

from redraft.engine.request import Options
from redraft.engine.request import Request as Asked
from redraft.operations.decide import Belief, Decision, Form, decide, decide_all, form_size, read_belief
from redraft.operations.engine import Engine
from redraft.server.body import BOOKKEEPING, Body, Flag, Int, Real, Str
from redraft.server.refusal import Refusal
from redraft.server.replies import Json
from redraft.server.respond import GONE, key_of, note_prompts, service_of
from redraft.server.route import router_of_bodies
from redraft.server.routes.responses import Item
from redraft.server.schema import Part, text_of
from redraft.server.stream import unless_gone

router = router_of_bodies(streams=False)

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

    instructions: Str | list[Part] = Field(description="the question")
    name: Str | None = Field(default=None, description="what its answer is called in the reply")

    @property
    def said(self) -> str:
        """The instructions as one text."""
        return text_of(self.instructions)


class Predicate(Asking):
    """Whether something is so."""

    type: Literal["predicate"]


class Choice(Asking):
    """Which of some values."""

    type: Literal["choice"]
    choices: list[Option] = Field(min_length=2, max_length=255, description="objects with a `value`, at least two")


class Score(Asking):
    """How far along ordered levels; the first counts 0."""

    type: Literal["score"]
    levels: list[Level] = Field(min_length=2, max_length=255, description="objects with a `label`, lowest first")


Question = Annotated[Predicate | Choice | Score, Field(discriminator="type")]


class Decisions(Body):
    """`POST /v1/decisions`."""

    inert: ClassVar[frozenset[str]] = BOOKKEEPING

    model: Str | None = None
    input: Str | list[Item] = Field(description="a text, or turns of text")
    questions: list[Question] = Field(min_length=1, max_length=400, description="predicates, choices and scores")
    joint: Flag | None = Field(default=None, description="false: a canvas for each question, not one for all (true)")
    temperature: Real | None = Field(
        default=None, gt=0, description="what the logs of shares are divided by; left out, the checkpoint's own, or 1"
    )
    seed: Int | None = Field(default=None, description="of the noise (0)")
    canvases: Int | None = Field(default=None, description="canvases of other noise to average over, 1 to 64 (1)")


@router.post("/v1/decisions", response_model=None)
async def decisions(request: Request, body: Decisions) -> Response | Json:
    """Answer questions about a text."""
    service = service_of(request)
    service.check_name(body.model)
    gone = threading.Event()
    note_prompts(request, [turn["content"] for turn in _turns(body.input, "")] + [one.said for one in body.questions])
    with service.enter(1, key_of(request)):
        work = asyncio.to_thread(_read, service.engine, body, gone)
        read = await unless_gone(request, work, gone.set)
    if gone.is_set():
        return Response(status_code=GONE)
    belief = read_belief(service.engine)
    fitted = 1.0 if belief is None else belief.temperature
    temperature = fitted if body.temperature is None else body.temperature
    usage = {
        "input_tokens": read.tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read.tokens,
        "forwards": read.forwards,
    }
    return {
        "object": "decision",
        "model": service.settings.name,
        "answers": [
            {"type": question.type, "name": question.name} | _told(question, found.at(temperature))
            for question, found in zip(body.questions, read.found, strict=True)
        ],
        "usage": usage,
        "temperature": temperature,
        "calibration": _calibration(belief, temperature),
    }


@dataclass
class _Reading:
    """What was read so far: decisions in the order of the questions, tokens of prompts, denoising forwards."""

    found: list[Decision]
    tokens: int = 0
    forwards: int = 0


def _read(engine: Engine, body: Decisions, gone: threading.Event) -> _Reading:
    """All questions, each with its own choices as the keys of its shares."""
    read, canvases = _Reading([]), 1 if body.canvases is None else body.canvases
    # A full canvas: what stands behind a short answer is part of what the model expects.
    options = Options(seed=(body.seed or 0) % 2**64, max_tokens=engine.config.model.canvas_length)
    texts = [[*_choices(question)] for question in body.questions]
    for part in _parts(engine, body, texts):
        if gone.is_set():
            break
        asked = [_Asked(i + 1, body.questions[at].said, texts[at]) for i, at in enumerate(part)]
        said = "\n".join(one.said(engine) for one in asked) if len(part) > 1 else body.questions[part[0]].said
        request = engine.resolve(Asked(_turns(body.input, said), options=options))
        read.tokens, read.forwards = read.tokens + len(request.prompt), read.forwards + canvases
        if len(part) == 1:
            read.found.append(decide(engine, request, texts[part[0]], canvases=canvases))
            continue
        found = decide_all(engine, request, [piece for one in asked for piece in one.form(engine)], canvases=canvases)
        read.found += [one.named(decision) for one, decision in zip(asked, found, strict=True)]
    return read


def _parts(engine: Engine, body: Decisions, texts: Sequence[Sequence[str]]) -> list[range]:
    """Which questions share a canvas: as few canvases as hold them, each with about as many questions."""
    count, room = len(body.questions), engine.config.model.canvas_length
    if body.joint is False:
        return [range(i, i + 1) for i in range(count)]
    sizes = [form_size(engine, _Asked(count, "", choices).form(engine)) for choices in texts]
    for parts in range(1, count):
        cuts = [count * i // parts for i in range(parts + 1)]
        if all(sum(sizes[low:high]) < room for low, high in pairwise(cuts)):
            return [range(low, high) for low, high in pairwise(cuts)]
    return [range(i, i + 1) for i in range(count)]


@dataclass(frozen=True)
class _Asked:
    """One question of a form. Choices of unequal numbers of tokens go by letters, which the prompt explains."""

    number: int
    instructions: str
    choices: Sequence[str]

    def labels(self, engine: Engine) -> Sequence[str]:
        """What stands for each choice. Raises Refusal for more than there are letters."""
        if len({len(engine.text.encode(choice, bos=False)) for choice in self.choices}) == 1:
            return self.choices
        if len(self.choices) > len(ascii_uppercase):
            said = f"question {self.number} has {len(self.choices)} choices of unlike length; send joint as false"
            raise Refusal(400, said, param="joint")
        return ascii_uppercase[: len(self.choices)]

    def said(self, engine: Engine) -> str:
        """The question as the prompt has it."""
        labels = self.labels(engine)
        lettered = [f"{label}: {choice}" for label, choice in zip(labels, self.choices, strict=True) if label != choice]
        return "\n".join([f"{self.number}. {self.instructions}", *lettered])

    def form(self, engine: Engine) -> Form:
        """Its line of the answer."""
        return [f"{self.number}: ", [*self.labels(engine)], "\n"]

    def named(self, decision: Decision) -> Decision:
        """Shares by choice where they were read by letter."""
        return replace(decision, shares=dict(zip(self.choices, decision.shares.values(), strict=True)))


def _calibration(belief: Belief | None, temperature: float) -> Json | None:
    """What is known of how far such probabilities come true, where they are told as it was measured."""
    if belief is None or temperature != belief.temperature:
        return None
    told = asdict(belief)
    del told["checkpoint"], told["temperature"]
    return told


def _turns(given: str | list[Item], asked: str) -> list[dict[str, str]]:
    """The input with the question behind its last turn, if that is the user's, else as a turn of its own."""
    if isinstance(given, str):
        return [{"role": "user", "content": f"{given}\n{asked}" if asked else given}]
    turns = []
    for item in given:
        role = "system" if item.role == "developer" else item.role
        turns.append({"role": role, "content": text_of(item.content)})
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
