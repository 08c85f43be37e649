"""Several questions about one text, decided on one canvas as a form, or on as few canvases as hold it.

Nothing is written: the probability of every choice is read off the canvas (redraft.operations.decide). Where the
choices of a question have unequal numbers of tokens, letters stand for them, which the prompt explains. A question that
has a canvas of its own is read over all spellings of its choices instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from string import ascii_uppercase

from redraft.engine.engine import Core
from redraft.engine.request import Request
from redraft.errors import RequestError
from redraft.operations.decide import Decision, Form, decide, decide_all, form_size
from redraft.options import Options
from redraft.text import Message


@dataclass(frozen=True)
class Question:
    """What to decide, and between which texts."""

    instructions: str
    choices: Sequence[str]


@dataclass
class Readings:
    """Decisions in the order of the questions, tokens of the prompts, denoising forwards."""

    found: list[Decision] = field(default_factory=list)
    tokens: int = 0
    forwards: int = 0


def decide_questions(
    engine: Core,
    conversation: Callable[[str], Sequence[Message]],
    questions: Sequence[Question],
    *,
    joint: bool = True,
    seed: int = 0,
    canvases: int = 1,
    check: Callable[[], None] = lambda: None,
) -> Readings:
    """Decide every question.

    `conversation` returns the messages that end with some instructions. With `joint`, questions share canvases. `check`
    and what is raised are as in `decide`.
    """
    read = Readings()
    # A whole canvas: what stands behind a short answer is part of what the model expects.
    options = Options(seed=seed % 2**64, max_tokens=engine.config.model.canvas_length, preset="reference")
    labels = [_labels(engine, i, question, check) for i, question in enumerate(questions, 1)] if joint else []
    for part in _parts(engine, labels, len(questions), check):
        lines = [_FormLine(i + 1, questions[at], labels[at]) for i, at in enumerate(part)] if joint else []
        alone = questions[part[0]] if len(part) == 1 else None
        text = "\n".join(line.text() for line in lines) if alone is None else alone.instructions
        request = engine.resolve(Request(conversation(text), options))
        read.tokens, read.forwards = read.tokens + len(request.prompt), read.forwards + canvases
        if alone is not None:
            read.found.append(decide(engine, request, alone.choices, canvases=canvases, check=check))
            continue
        form = [piece for line in lines for piece in _form(line.number, line.labels)]
        found = decide_all(engine, request, form, canvases=canvases, check=check)
        read.found += [line.named(decision) for line, decision in zip(lines, found, strict=True)]
    return read


def _parts(engine: Core, labels: Sequence[Sequence[str]], count: int, check: Callable[[], None]) -> list[range]:
    """Which questions share a canvas: as few canvases as hold them, each with about as many questions. Without labels
    each has its own."""
    room, sizes = engine.config.model.canvas_length, [form_size(engine, _form(count, one), check) for one in labels]
    for parts in range(1, count) if labels else ():
        cuts = [count * i // parts for i in range(parts + 1)]
        if all(sum(sizes[low:high]) < room for low, high in pairwise(cuts)):
            return [range(low, high) for low, high in pairwise(cuts)]
    return [range(i, i + 1) for i in range(count)]


def _labels(engine: Core, number: int, question: Question, check: Callable[[], None]) -> Sequence[str]:
    """What stands for each choice in a form. Raises RequestError for more choices than there are letters."""
    check()
    choices = question.choices
    if len({len(engine.text.encode(choice, bos=False)) for choice in choices}) == 1:
        return choices
    if len(choices) > len(ascii_uppercase):
        message = f"joint is true and question {number} has {len(choices)} choices of unlike length"
        raise RequestError(f"{message}; set joint to false")
    return ascii_uppercase[: len(choices)]


def _form(number: int, labels: Sequence[str]) -> Form:
    """A question's line of the answer."""
    return [f"{number}: ", [*labels], "\n"]


@dataclass(frozen=True)
class _FormLine:
    """One question of a form."""

    number: int
    question: Question
    labels: Sequence[str]

    def text(self) -> str:
        """The question as the prompt has it."""
        pairs = zip(self.labels, self.question.choices, strict=True)
        lettered = [f"{label}: {choice}" for label, choice in pairs if label != choice]
        return "\n".join([f"{self.number}. {self.question.instructions}", *lettered])

    def named(self, decision: Decision) -> Decision:
        """Shares by choice where they were read by letter."""
        return replace(decision, shares=dict(zip(self.question.choices, decision.shares.values(), strict=True)))
