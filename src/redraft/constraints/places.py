"""Where the parts of a JSON text stand, of which a code block may be around it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from redraft.constraints.compile.values import json_key

Span = tuple[int, int]
FENCE = "```"
_DECODER = json.JSONDecoder()


def unfenced(text: str) -> str:
    """A JSON text without the Markdown code block that it may stand in."""
    return text[_opened(text) :].removesuffix("\n```") if text.startswith(FENCE) else text


def span_of(text: str, path: Sequence[str | int]) -> Span:
    """Where the value at a path of a JSON text stands, white space and a code block around it not counted."""
    start = _skip(text, _opened(text))
    for step in path:
        start = {key: at for key, _, at in _members(text, start)}.get(step, start)  # of a key given twice, the last
    return start, _DECODER.raw_decode(text, start)[1]


def plain_spans(text: str) -> dict[tuple[str | int, ...], Span]:
    """Where each plain value of a JSON text stands, or empty list, by its path; of a key given twice, the last."""
    found, stack = dict[tuple[str | int, ...], Span](), [(tuple[str | int, ...](), _skip(text, _opened(text)))]
    while stack:
        path, at = stack.pop()
        inner = {key: begin for key, _, begin in _members(text, at)} if text[at] in "{[" else {}
        stack += [((*path, key), begin) for key, begin in reversed(inner.items())]
        if not inner and text[at] != "{":
            found[path] = at, _DECODER.raw_decode(text, at)[1]
    return found


def _opened(text: str) -> int:
    """Where the text within a code block begins; 0 without one."""
    return text.find("\n") + 1 if text.startswith(FENCE) else 0


def path_in(value: Any, steps: Sequence[str | int]) -> list[str | int] | None:
    """The path in a value that the library means: it has a number for a key of digits, and leaves out empty keys."""
    if not steps:
        return []
    ways = list[tuple[Any, Sequence[str | int]]]()
    if isinstance(value, dict):
        ways = [way for way in ((str(steps[0]), steps[1:]), ("", steps)) if way[0] in value]
    elif isinstance(value, list) and steps[0] in range(len(value)):
        ways = [(steps[0], steps[1:])]
    for step, rest in ways:
        if (found := path_in(value[step], rest)) is not None:
            return [step, *found]
    return None


def repeated(text: str, start: int) -> Span | None:
    """The first key of an object, or item of a list, that stands before it already."""
    seen = set[Hashable]()
    for key, first, at in _members(text, start):
        name = json_key(key if text[start] == "{" else _DECODER.raw_decode(text, at)[0])
        if name in seen:
            return first, _DECODER.raw_decode(text, first)[1]
        seen.add(name)
    return None


def _members(text: str, start: int) -> Iterator[tuple[str | int, int, int]]:
    """The members of the object or list at `start`: its key or place, and where that and its value begin."""
    at, count = _skip(text, start + 1), 0
    while text[at] not in "}]":
        key, first = count, at
        if text[start] == "{":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        yield key, first, at
        at = _skip(text, _DECODER.raw_decode(text, at)[1])
        at, count = _skip(text, at + 1) if text[at] == "," else at, count + 1


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\n\r":
        at += 1
    return at
