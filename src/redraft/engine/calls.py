"""Tool calls as a model writes them, read into JSON: a whole answer under a constraint, or Gemma's own notation.

<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>    →    weather, {"city": "Oslo", "days": 3}
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from redraft.constraints.compile.tool_calls import QUOTE

CALL = re.compile(r"\s*call:([\w.:-]+)\s*(\{.*)", re.DOTALL)
# What the notation has otherwise than JSON: strings between marks, bare keys, and a comma behind the last of several.
# JSON's own strings are matched, too, so that nothing inside them is. The spaces at a key's end are cut off afterwards:
# a pattern that leaves them out tries all ways to share them, for minutes if there are thousands.
STRING = re.escape(QUOTE) + "(.*?)" + re.escape(QUOTE)
PLAIN = r'"(?:[^"\\]|\\.)*"'
KEY = r'([{,])\s*([^\s":{}\[\],][^":{}\[\],]*):'
OTHERWISE = re.compile(rf"{STRING}|{PLAIN}|{KEY}|,(?=\s*[}}\]])", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """A call as it was `written` between its marks, and read: `name` is None for a text that is no call."""

    written: str
    name: str | None = None
    arguments: Any = None


def read_call(written: str) -> ToolCall:
    """One call, read."""
    found = CALL.fullmatch(written)
    if found is None:
        return ToolCall(written)
    try:
        arguments = json.loads(OTHERWISE.sub(_as_json, found[2]), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return ToolCall(written)
    return ToolCall(written, found[1], arguments)


def _as_json(part: re.Match[str]) -> str:
    said, before, key = part.groups()
    if before is not None:
        return f"{before}{json.dumps(key.rstrip())}:"
    if said is not None:
        return json.dumps(said)
    return "" if part[0] == "," else part[0]


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"{number} is not of JSON")
