"""Templates filled: one call for all holes, every hole seeing the text on both sides of it.

The filled text is a language, so its literals are forced and cost no steps. Holes find their own widths: the projection
weighs every alignment of the text with the canvas at once. Widths tried side by side gained nothing (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redraft.constraints.checks import Check
from redraft.constraints.compile.template import Template, read_template
from redraft.constraints.validation import Problem
from redraft.engine.mend import mended
from redraft.engine.request import Generation, Options

if TYPE_CHECKING:
    from redraft.engine.engine import Engine

ROOM = 16
"""Tokens beside the shortest filling that a hole gets, if the caller sets no limit."""


@dataclass(frozen=True)
class Filled:
    """A filled template: the text, what went into each hole (a list where a name comes more than once), the answer."""

    text: str
    values: Mapping[str, str | list[str]]
    done: Generation


def fill(
    engine: Engine,
    template: str,
    kinds: Mapping[str, Any] | None,
    *,
    prompt: str | None,
    chat: bool,
    check: Check | None,
    options: Options,
) -> Filled:
    """Fill a template's holes (constraints/compile/template.py). Without a prompt the model sees the template."""
    found = read_template(template, kinds)
    language = engine.language(found.source())
    if options.max_tokens is None:
        shipped = engine.config.generation.max_new_tokens
        shortest = int(language.automaton.to_end[0])
        options = replace(options, max_tokens=max(shipped, shortest + ROOM * len(found.holes)))
    request = engine.request(template if prompt is None else prompt, chat=chat, options=options, language=language)
    check = _both(found, check) if found.checked else check
    done = engine.finish(request) if check is None else mended(engine, request, check)
    values: dict[str, str | list[str]] = {}
    for name, text in found.values(done.text):
        before = values.get(name)
        values[name] = text if before is None else [*(before if isinstance(before, list) else [before]), text]
    return Filled(done.text, values, done)


def _both(template: Template, check: Check | None) -> Check:
    """What a validator says of the holes with a schema, and then what the caller's check does."""

    def run(text: str) -> list[Problem | str]:
        found: list[Problem | str] = [*template.problems(text)]
        return found if found or check is None else [*check(text)]

    return run
