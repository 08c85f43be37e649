"""Templates filled: one call for all holes, every hole seeing the text on both sides of it.

The filled text is a language, so its literals are forced and cost no steps. Holes find their own widths: the projection
weighs every alignment of the text with the canvas at once. Widths tried side by side gained nothing (docs/decisions).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from redraft import prompts
from redraft.constraints.checks import Check
from redraft.constraints.compile.limits import DEFAULT_LIMITS, time_limit
from redraft.constraints.compile.stated import unstated
from redraft.constraints.compile.template import Template, read_template
from redraft.constraints.compile.verbatim import as_text
from redraft.constraints.validation import Problem
from redraft.engine.engine import Core
from redraft.engine.fields import of_spans
from redraft.engine.request import DEFAULTS, Generation, Options, Request
from redraft.errors import ConstraintError, RedraftError, RequestError, UnsatisfiedError
from redraft.operations.read_back import SURE, Opinion, reads_back, second_opinion
from redraft.operations.repair import repair

_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,15})(?:\.\d{1,15})?", re.ASCII)
ROOM = 16
"""Tokens beside the shortest filling that a hole gets, if the caller sets no limit."""


@dataclass(frozen=True)
class Filled:
    """A filled template: the text, what went into each hole (a list where a name comes more than once), the answer.
    `guesses` are the names of holes of which that is a guess; None if it was not read back."""

    text: str
    values: Mapping[str, str | list[str]]
    done: Generation
    guesses: tuple[str, ...] | None = None


def fill(
    engine: Core,
    template: str,
    kinds: Mapping[str, Any] | None = None,
    *,
    source: str | None = None,
    prompt: str | None = None,
    chat: bool = False,
    check: Check | None = None,
    seed: int | None = None,
    read_back: bool | None = None,
    verbatim: bool | None = None,
    options: Options = DEFAULTS,
) -> Filled:
    """A template with its typed holes filled (redraft.constraints.compile.template), all else byte for byte.

    `kinds` types holes that the template leaves bare; a `check` is as in `generate`. The model is shown the template
    and the `source`, a text with what belongs in the holes; or a prompt of the caller's; or else the template itself.
    With `read_back` it gives a second opinion on what it filled in (`redraft.operations.read_back`); with `verbatim`
    what goes into the holes of a string or a line, or is a string of a schema's, is a part of the source. None means as
    the shell does: both for nano, `verbatim` only with a source out of which the holes can be filled.
    Raises ConstraintError for a template that cannot be compiled, RequestError for a source beside a prompt, and for
    `verbatim` without a source.
    """
    if source is not None:
        as_text(source, "source")
    if not isinstance(kinds, Mapping | None):
        raise RequestError(f"kinds is {kinds!r:.80}; it must be a mapping from names of holes")
    if source is not None and (prompt is not None or chat):
        raise RequestError("source was given with prompt or chat; it has a prompt of its own: leave them out")
    if verbatim and source is None:
        raise RequestError("verbatim was given without source, the text that holes are copied from; give one")
    options = options if seed is None else replace(options, seed=seed)
    shown = source if source is not None else template if prompt is None else prompt
    if isinstance(shown, str) and shown.strip():
        # Over the context it is refused at once, not behind seconds of compiling.
        engine.resolve(Request(shown, replace(options, max_tokens=1, min_tokens=0), chat=chat))
    again = reads_back(engine, read_back)
    fill_in = partial(_filled, engine, template, kinds, source, prompt, chat, check, again, options)
    if verbatim is not None or source is None or not engine.by_fields:
        return fill_in(verbatim=bool(verbatim))
    with suppress(ConstraintError):  # perhaps because of what can be copied, which nobody asked for
        return fill_in(verbatim=True)
    return fill_in(verbatim=False)


def _filled(
    engine: Core,
    template: str,
    kinds: Mapping[str, Any] | None,
    source: str | None,
    prompt: str | None,
    chat: bool,
    check: Check | None,
    read_back: bool,
    options: Options,
    *,
    verbatim: bool,
) -> Filled:
    """The template filled, by arguments that leave nothing open."""
    with time_limit(DEFAULT_LIMITS):  # one for all of its holes
        found = read_template(template, kinds, source if verbatim and source is not None else "")
    language = engine.language(found.source())
    if options.max_tokens is None:
        shipped = engine.config.generation.max_new_tokens
        shortest = int(language.automaton.to_end[0])
        options = replace(options, max_tokens=max(shipped, shortest + ROOM * len(found.holes)))
    check = _both(found, check) if found.checked else check
    shown = template if prompt is None else prompt
    if source is not None:
        shown, chat = prompts.fill(found.bare, source), True
    request = engine.resolve(Request(shown, options, chat=chat, constraint=language, check=check))
    done, guesses = repair(engine, request), None
    if read_back:
        with suppress(RedraftError):  # it is filled all the same
            opinion = second_opinion(engine, request, done)
            done, guesses = opinion.done, _guesses(engine, found, opinion, source)
    if problems := found.problems(done.text):
        raise UnsatisfiedError(done.text, [problem.reason for problem in problems])
    values: dict[str, str | list[str]] = {}
    for name, text in found.values(done.text):
        before = values.get(name)
        values[name] = text if before is None else [*(before if isinstance(before, list) else [before]), text]
    return Filled(done.text, values, done, guesses)


def _guesses(engine: Core, template: Template, opinion: Opinion, source: str | None) -> tuple[str, ...]:
    """The names of holes of which the value is a guess: something else was nearly as likely at one of the tokens when
    it was read back, or it is a number, date or time that is not stated."""
    values, done = template.values(opinion.done.text), opinion.done
    likely = of_spans(engine.text, done, opinion.log_p, template.spans(done.text))
    typed = {str(i): json.loads(text) if _NUMBER.fullmatch(text) else text for i, (_, text) in enumerate(values)}
    odd = unstated(typed, opinion.asked if source is None else source)
    found = (
        name
        for i, ((name, _), nats) in enumerate(zip(values, likely, strict=True))
        if math.exp(min(nats, default=0.0)) < SURE or str(i) in odd
    )
    return tuple(dict.fromkeys(found))


def _both(template: Template, check: Check | None) -> Check:
    """What a validator says of the holes with a schema, and then what the caller's check does."""

    def run(text: str) -> list[Problem | str]:
        found: list[Problem | str] = [*template.problems(text)]
        return found if found or check is None else [*check(text)]

    return run
