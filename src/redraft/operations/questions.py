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
    for part in _parts(engine, questions, joint=joint):
        lines = [_FormLine(i + 1, questions[at]) for i, at in enumerate(part)]
        alone = questions[part[0]] if len(part) == 1 else None
        text = "\n".join(line.text(engine) for line in lines) if alone is None else alone.instructions
        request = engine.resolve(Request(conversation(text), options))
        read.tokens, read.forwards = read.tokens + len(request.prompt), read.forwards + canvases
        if alone is not None:
            read.found.append(decide(engine, request, alone.choices, canvases=canvases, check=check))
            continue
        form = [piece for line in lines for piece in line.form(engine)]
        found = decide_all(engine, request, form, canvases=canvases, check=check)
        read.found += [line.named(decision) for line, decision in zip(lines, found, strict=True)]
    return read


def _parts(engine: Core, questions: Sequence[Question], *, joint: bool) -> list[range]:
    """Which questions share a canvas: as few canvases as hold them, each with about as many questions."""
    count, room = len(questions), engine.config.model.canvas_length
    sizes = [form_size(engine, _FormLine(count, one).form(engine)) for one in questions] if joint else []
    for parts in range(1, count) if joint else ():
        cuts = [count * i // parts for i in range(parts + 1)]
        if all(sum(sizes[low:high]) < room for low, high in pairwise(cuts)):
            return [range(low, high) for low, high in pairwise(cuts)]
    return [range(i, i + 1) for i in range(count)]


@dataclass(frozen=True)
class _FormLine:
    """One question of a form."""

    number: int
    question: Question

    def labels(self, engine: Core) -> Sequence[str]:
        """What stands for each choice. Raises RequestError for more choices than there are letters."""
        choices = self.question.choices
        if len({len(engine.text.encode(choice, bos=False)) for choice in choices}) == 1:
            return choices
        if len(choices) > len(ascii_uppercase):
            message = f"joint is true and question {self.number} has {len(choices)} choices of unlike length"
            raise RequestError(f"{message}; set joint to false")
        return ascii_uppercase[: len(choices)]

    def text(self, engine: Core) -> str:
        """The question as the prompt has it."""
        pairs = zip(self.labels(engine), self.question.choices, strict=True)
        lettered = [f"{label}: {choice}" for label, choice in pairs if label != choice]
        return "\n".join([f"{self.number}. {self.question.instructions}", *lettered])

    def form(self, engine: Core) -> Form:
        """Its line of the answer."""
        return [f"{self.number}: ", [*self.labels(engine)], "\n"]

    def named(self, decision: Decision) -> Decision:
        """Shares by choice where they were read by letter."""
        return replace(decision, shares=dict(zip(self.question.choices, decision.shares.values(), strict=True)))
