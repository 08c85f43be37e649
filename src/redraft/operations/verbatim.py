"""Strings that are copied out of a text where nobody asked for it: only if nothing else becomes harder by it."""

from __future__ import annotations

import json
from typing import Any

from redraft.constraints.compile.dialect import draft_of, nodes
from redraft.constraints.compile.limits import OutOfReachError
from redraft.constraints.language import Language, Source
from redraft.constraints.sources import copying, replaced
from redraft.engine.engine import Core
from redraft.engine.request import Options


def held_to(engine: Core, source: Source, text: str, options: Options, verbatim: bool | None) -> Language:
    """The language of a schema's source for an answer out of a text: its strings are parts of the text if `verbatim`,
    and if that is None for a model that is asked by fields, where nothing becomes harder by it and no width is given.

    Raises ConstraintError for a schema that cannot be kept, and with `verbatim` for a text too long to copy from.
    """
    if verbatim:
        return engine.language(copying(source, text))
    if verbatim is None and engine.by_fields and options.canvas is None:
        return copied_or_free(engine, source, text, options.max_tokens)
    return engine.language(source)


def copied_or_free(engine: Core, source: Source, text: str, max_tokens: int | None) -> Language:
    """The language of a schema's source, strings of which are parts of a text.

    They are free where some part of the schema is left to a validator, since of few strings perhaps none satisfies it
    (not so for lists whose elements differ, which can be shorter); where the text is too long to copy from; and where
    each answer would be longer than `max_tokens`. Raises ConstraintError for a schema that cannot be kept.
    """
    free = engine.language(source)
    if free.held != "exact":
        alike = _without_unique(json.loads(source.text))
        if alike is None or engine.language(replaced(source, alike)).held != "exact":
            return free
    try:
        found = engine.language(copying(source, text))
    except OutOfReachError:
        return free
    return found if max_tokens is None or found.shortest <= max_tokens else free


def _without_unique(schema: Any) -> Any | None:
    """A schema, changed in place, whose lists may have an element twice; None if none differs by that, or one needs
    several elements."""
    found = False
    for node, _ in nodes(schema, draft_of(schema)):
        if "contains" in node or node.get("minItems", 0) > 1:
            return None
        found |= node.pop("uniqueItems", False)
    return schema if found else None
