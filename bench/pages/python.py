"""Regions of docs/python.md: the calls and what they return, from signatures and docstrings, and the errors."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import redraft
from pages.claims import table
from redraft.constraints import sources
from redraft.engine.answer import Delta
from redraft.engine.handle import Handle
from redraft.operations.decide import Decision
from redraft.operations.edit import Edit
from redraft.operations.fill import Filled
from redraft.operations.infill import Infill
from redraft.operations.variants import Variant

ON_ENGINE = (
    *("generate", "stream", "extract", "extract_many", "fill", "infill", "infill_all", "edit", "variants", "decide"),
    *("decide_all", "map", "submit", "language", "within"),
)
MAKERS = ("schema_source", "regex_source", "choices_source", "grammar_source")
WAITING = ("result", "aresult", "events", "aevents", "deltas", "adeltas", "abort")
RESULTS = (redraft.Generation, Delta, Filled, Infill, Edit, Variant, Decision)
GLUE = "\xa0"
"""A space at which `textwrap` ends no line."""
SHOWN = (bool, int, float, str, type(None))
"""Defaults that are written out; any other is its type's own."""


def calls() -> str:
    """Load, and every call on an engine."""
    engine = redraft.Engine
    made = [("redraft.load", engine.load), *((f"engine.{name}", getattr(engine, name)) for name in ON_ENGINE)]
    return _listed(made)


def requests() -> str:
    """What a call may set, and what answers are held to."""
    made = [("redraft.Request", redraft.Request), *((name, getattr(sources, name)) for name in MAKERS)]
    return _listed(made)


def handles() -> str:
    """What `submit` returns."""
    return _listed([(f"handle.{name}", getattr(Handle, name)) for name in WAITING])


def results() -> str:
    """What calls return, with its fields and properties."""
    rows = [(f"`{kind.__name__}`", first_sentence(kind), _names(kind)) for kind in RESULTS]
    return table(("result", "what it is", "has"), rows)


def errors() -> str:
    """Every error that a caller can catch, with what it is a kind of."""
    kinds = [getattr(redraft, name) for name in redraft.__all__ if name.endswith("Error")]
    rows = [(f"`{kind.__name__}`", f"`{kind.__base__.__name__}`", first_sentence(kind)) for kind in kinds]
    return table(("error", "is a", "when"), rows)


def first_sentence(thing: Any) -> str:
    """The first sentence of the docstring's first paragraph."""
    said = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", said)[0]


def _listed(made: list[tuple[str, Callable[..., Any]]]) -> str:
    return "\n\n".join(f"{first_sentence(call)}\n\n```text\n{_signature(name, call)}\n```" for name, call in made)


def _signature(name: str, call: Callable[..., Any]) -> str:
    """The call as it is written, the engine left out, over as many lines as it needs."""
    found = inspect.signature(call)
    given = [each.replace(default=_Default(each.default)) if each.default is not each.empty else each
             for each in found.parameters.values() if each.name not in ("self", "cls", "engine")]  # fmt: skip
    returned = found.return_annotation if not inspect.isclass(call) else found.empty
    said = str(found.replace(parameters=given, return_annotation=returned)).replace("'", "")
    lines = textwrap.wrap(name + _held_together(said), 118, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines).replace(GLUE, " ")


def _held_together(said: str) -> str:
    """A signature in which a line may end behind a parameter alone."""
    depth, found = 0, ""
    for at, one in enumerate(said):
        depth += (one in "([") - (one in ")]")
        found += GLUE if one == " " and (said[at - 1] != "," or depth > 1) else one
    return found


class _Default:
    """A default as a reader would write it."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        value = self._value
        if isinstance(value, SHOWN) or value == ():
            return repr(value).replace("'", '"')
        return "..." if callable(value) else f"{type(value).__name__}()"


def _names(kind: type) -> str:
    fields = [each.name for each in dataclasses.fields(kind)]
    return ", ".join(f"`{name}`" for name in (*fields, *_properties(kind)))


def _properties(kind: type) -> Iterator[str]:
    yield from (name for name, value in vars(kind).items() if isinstance(value, property))
