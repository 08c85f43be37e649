"""Tool calls as a model writes them, read into JSON: a whole answer under a constraint, or Gemma's own notation.

<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>    →    weather, {"city": "Oslo", "days": 3}
"""

from __future__ import annotations

import json
import re
from typing import Any

QUOTE = '<|"|>'
NAME = re.compile(r"\s*call:([\w.:-]+)\s*")
PLAIN = re.compile(r"[^,{}\[\]]+")
KEY = re.compile(r"\s*([^:{}\[\],]+?)\s*:")


def read_call(text: str) -> tuple[str, Any] | None:
    """Name and arguments of one call; None for a text that is none."""
    name = NAME.match(text)
    if name is None:
        return None
    try:
        value, end = _value(text, name.end(), 0)
    except (ValueError, IndexError):
        return None
    return (name[1], value) if not text[end:].strip() and isinstance(value, dict) else None


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > 32:
        raise ValueError("nested too deeply")
    at += len(text[at:]) - len(text[at:].lstrip())
    if text.startswith(QUOTE, at):
        end = text.index(QUOTE, at + len(QUOTE))
        return text[at + len(QUOTE) : end], end + len(QUOTE)
    if text[at] == "{":
        return _object(text, at + 1, depth + 1)
    if text[at] == "[":
        return _array(text, at + 1, depth + 1)
    found = PLAIN.match(text, at)
    if found is None:
        raise ValueError("a value is missing")
    return json.loads(found[0]), found.end()


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    while text[at:].lstrip()[0] != "}":
        key = KEY.match(text, at)
        if key is None:
            raise ValueError("a key is missing")
        found[key[1].replace(QUOTE, "")], at = _value(text, key.end(), depth)
        at = _comma(text, at, "}")
    return found, text.index("}", at) + 1


def _array(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    found = []
    while text[at:].lstrip()[0] != "]":
        value, at = _value(text, at, depth)
        found.append(value)
        at = _comma(text, at, "]")
    return found, text.index("]", at) + 1


def _comma(text: str, at: int, end: str) -> int:
    rest = text[at:].lstrip()
    at = len(text) - len(rest)
    if rest[0] == ",":
        return at + 1
    if rest[0] != end:
        raise ValueError("a comma is missing")
    return at
