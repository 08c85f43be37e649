"""`POST /v1/decisions`: questions about a text, answered by the shares of their choices (operations/questions.py)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Request, Response
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from redraft.constraints.compile.limits import PREPARING, READING, UNTIL, is_gone
from redraft.engine.vision import decoded_once
from redraft.errors import ConstraintError, DeadlineError
from redraft.operations.decide import Belief, Decision, read_belief
from redraft.operations.questions import Question, Readings, decide_questions
from redraft.server.http.body import BOOKKEEPING, Body, Flag, Int, Name, Seed, Str
from redraft.server.http.errors import ApiError
from redraft.server.http.routing import answers, router_of_bodies
from redraft.server.http.service import Service, note_prompts, service_of
from redraft.server.limits import BOUNDS, within
from redraft.server.openai.fields import Parts, Temperature, text_of
from redraft.server.openai.images import contents_of
from redraft.server.openai.replies import Json
from redraft.server.openai.response_fields import Item

router = router_of_bodies(streams=False)

Text = Annotated[str, Field(strict=True), within("option")]
YES, NO = "yes", "no"


class ScoredOption(Body):
    """One choice."""

    inert = frozenset({"description"})

    value: Flag | Text


def _option(sent: object) -> object:
    return {"value": sent} if isinstance(sent, str) else sent


class Level(Body):
    """One level of a score."""

    inert = frozenset({"description"})

    label: Text


Option = Annotated[ScoredOption, BeforeValidator(_option, json_schema_input_type=ScoredOption | Text)]


class Asking(Body):
    """What every question has."""

    instructions: Str | Parts = Field(description="the question")
    name: Name | None = Field(default=None, description="what its answer is called in the reply")

    @property
    def said(self) -> str:
        """The instructions as one text."""
        return text_of(self.instructions, "questions")


class Predicate(Asking):
    """Whether something is so."""

    type: Literal["predicate"]


class ChoiceQuestion(Asking):
    """Which of some values."""

    type: Literal["choice"]
    choices: Annotated[list[Option], within("options")] = Field(
        description="texts, or objects with a `value`; at least two"
    )


class ScoreQuestion(Asking):
    """How far along ordered levels; the first counts 0."""

    type: Literal["score"]
    levels: Annotated[list[Level], within("options")] = Field(description="objects with a `label`, lowest first")


Asked = Annotated[Predicate | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


def _few_options(sent: object) -> object:
    """Counted before any of them is read: a short text takes long to be one."""
    asked = [one for one in sent if isinstance(one, dict)] if isinstance(sent, list) else []
    lists = [one[name] for one in asked for name in ("choices", "levels") if isinstance(one.get(name), list)]
    count, most = sum(map(len, lists)), int(BOUNDS["all_options"].most)
    if count > most:
        said = "its questions have {count} choices and levels; at most {most} in all"
        raise PydanticCustomError("too_long", said, {"count": count, "most": most})
    return sent


class Decisions(Body):
    """`POST /v1/decisions`."""

    inert: ClassVar[frozenset[str]] = BOOKKEEPING

    model: Name | None = None
    input: Str | Annotated[list[Item], within("messages")] = Field(description="a text, or turns of text and images")
    questions: Annotated[list[Asked], within("questions"), BeforeValidator(_few_options)] = Field(
        description="predicates, choices and scores"
    )
    joint: Flag | None = Field(default=None, description="false: a canvas for each question, not one for all (true)")
    temperature: Annotated[Temperature, Field(gt=0)] | None = Field(
        default=None, description="what the logs of shares are divided by; left out, the checkpoint's own, or 1"
    )
    seed: Seed | None = Field(default=None, description="of the noise (0)")
    canvases: Annotated[Int, within("canvases")] | None = Field(
        default=None, description="canvases of other noise to average over, 1 to 64 (1)"
    )


@router.post("/v1/decisions", response_model=None)
@answers
async def decisions(request: Request, body: Decisions) -> Response | Json:
    """Answer questions about a text."""
    service = service_of(request)
    service.check_name(body.model)
    canvases = 1 if body.canvases is None else body.canvases
    if (readings := len(body.questions) * canvases) > BOUNDS["readings"].most:
        most = int(BOUNDS["readings"].most)
        why = f"canvases is {canvases}: times {len(body.questions)} questions these are {readings}; at most {most}"
        raise ApiError(400, why, param="canvases", code="invalid_value")
    names = [one.name for one in body.questions if one.name is not None]
    if twice := sorted(name for name in set(names) if names.count(name) > 1):
        raise ApiError(400, f"two questions are named {twice[0]!r}; rename one", param="questions")
    turns = await service.on_thread(request, _turns, service, body.input)
    said = [part for turn in turns for part in _texts(turn["content"])]
    note_prompts(request, said + [one.said for one in body.questions])
    with service.enter(1, request):
        read = await service.on_thread(request, _read, service, body, turns, in_turn=False)
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
            {"type": question.type, "name": question.name, "log_mass": round(found.log_mass, 4)}
            | _answer(question, found.at(temperature))
            for question, found in zip(body.questions, read.found, strict=True)
        ],
        "usage": usage,
        "temperature": temperature,
        "calibration": _calibration(belief, temperature),
    }


def _read(service: Service, body: Decisions, turns: list[Turn]) -> Readings:
    """Every question read, by turns of the callers: no batch has these forwards. Raises ApiError if the time is up."""
    until = UNTIL.get()
    try:
        with decoded_once(), ExitStack() as reading:
            if not all(isinstance(turn["content"], str) for turn in turns):
                with PREPARING.turn(secrets.token_hex(), counted=False):
                    service.engine.chat_prompt(turns)  # its images are decoded before others wait for this
            turn = reading.enter_context(READING.turn(secrets.token_hex(), counted=False))

            def check() -> None:
                if is_gone() or (until is not None and time.monotonic() > until):
                    raise DeadlineError("the time was up")
                READING.give_way(turn)

            return decide_questions(
                service.engine,
                partial(_asking, turns),
                [Question(one.said, [*_choices(one)]) for one in body.questions],
                joint=body.joint is not False,
                seed=body.seed or 0,
                canvases=body.canvases or 1,
                check=check,
            )
    except ConstraintError as error:  # of a constraint that nobody sent
        long = "; shorten its choices" if "shortest valid answer" in str(error) else ""
        said = f"a question cannot be answered on a canvas ({str(error).partition(';')[0]}){long}"
        raise ApiError(400, said, param="questions", code="invalid_value") from None
    except DeadlineError:
        if is_gone():
            raise
        late = "the time was up before every question was decided; send fewer questions, choices or canvases"
        raise ApiError(504, late, code="deadline") from None


def _calibration(belief: Belief | None, temperature: float) -> Json | None:
    """The measured calibration, where the probabilities are at the temperature of the measurement."""
    if belief is None or temperature != belief.temperature:
        return None
    found = asdict(belief)
    del found["checkpoint"], found["temperature"]
    return found


Turn = dict[str, Any]


def _turns(service: Service, given: str | list[Item]) -> list[Turn]:
    """The input as messages. Raises RequestError for an image that is none."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    contents = contents_of([item.content for item in given], service.settings.fetcher)
    roles = ["system" if item.role == "developer" else item.role for item in given]
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]


def _texts(content: str | list[Json]) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


def _asking(turns: list[Turn], asked: str) -> list[Turn]:
    """The input with the question behind its last turn, if that is the user's, else as a turn of its own."""
    if not turns or turns[-1]["role"] != "user":
        return [*turns, {"role": "user", "content": asked}]
    last = turns[-1]["content"]
    content = f"{last}\n{asked}" if isinstance(last, str) else [*last, {"type": "text", "text": f"\n{asked}"}]
    return [*turns[:-1], {"role": "user", "content": content}]


def _choices(question: Predicate | ChoiceQuestion | ScoreQuestion) -> Mapping[str, Any]:
    """What may be answered, and what each answer stands for. Raises ApiError if two are one."""
    if isinstance(question, Predicate):
        return {YES: True, NO: False}
    if isinstance(question, ScoreQuestion):
        pairs: list[tuple[str, Any]] = [(level.label, i) for i, level in enumerate(question.levels)]
    else:
        pairs = [(_spelt(option.value), option.value) for option in question.choices]
    if len(dict(pairs)) < len(pairs) or not all(text for text, _ in pairs):
        said = f"a question has choices that are empty or equal: {[text for text, _ in pairs]}"
        raise ApiError(400, said[:500], param="questions")
    return dict(pairs)


def _spelt(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _answer(question: Predicate | ChoiceQuestion | ScoreQuestion, decision: Decision) -> Json:
    values, shares = _choices(question), decision.shares
    if isinstance(question, Predicate):
        return {"probability": shares[YES]}
    best, pairs = decision.best, [(text, values[text], share) for text, share in shares.items()]
    if isinstance(question, ChoiceQuestion):
        probabilities = [{"value": value, "probability": share} for _, value, share in pairs]
        return {"choice": values[best], "confidence": shares[best], "probabilities": probabilities}
    levels = [{"label": text, "value": value, "probability": share} for text, value, share in pairs]
    return {"score": sum(v * share for _, v, share in pairs), "confidence": shares[best], "probabilities": levels}
