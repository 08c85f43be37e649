"""An instruction in the words that its clauses are read in (`edit_clauses`).

Use web1 as the host, and the retries to 10      Set host to web1, and max_retries to 10
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from redraft.operations.edit_clauses import ASKING, PLAIN_WORDS, SPOKEN, named_by
from redraft.operations.edit_member import shared, words_of

LEAST_NAMED = 3
"""Letters of the longest of some words that stand for the key that has them."""
_UNNAMED = (
    r"((?:^(?:please )?|,? and |, |[.;] )(?:(?:set|change|update|put|switch|bump|upgrade|raise|lower|increase|decrease)"
    r" )?(?:the )?(?<! to ))([a-z][\w-]*(?: [a-z][\w-]*){0,2})(?= (?:from \S+ )?to \S)"
    r"|(\bas (?:the )?)([a-z][\w-]*)(?=$|[.!,]| and )"
)
"""Where the words of a key may stand in a clause that sets it."""
_OTHERWISE = (
    (r"(?:\buse |(?<=\band ))(\S+) as (?:the )?({0})(?![\w-])", r"set \2 to \1"),
    (
        r"\b(?:scale (?:it )?(?:up |down )?to|(?:we now )?have|run with|use|run|with|allow) (?:only )?"
        r"(-?\d[\d.]*|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty) ({0})(?=[.!,;]|$| and | please)",
        r"set \2 to \1",
    ),
    (r"\bgive (?:the )?({0}) (?:the )?value (?=\S)", r"set \1 to "),
    (r"\bassign (\S+) to (?:the )?({0})(?![\w-])", r"set \2 to \1"),
    (r"\bpoint (?:the )?({0}) at (?=\S)", r"set \1 to "),
    (r"\buse (\S+) instead of (\S+?)(?: (?:for|in) (?:the )?({0}))(?![\w-])", r"replace \2 with \1 in \3"),
    (r"\buse (\S+) instead of (\S+?)(?=[.!]?$)", r"replace \2 with \1"),
)
"""Other ways to set and to replace, of keys by their patterns."""
_COUNTED = re.compile(r"^\d+[.)] ")
_BREAK = re.compile(r"[.;,]?\s*\n\s*(?:\d+[.)] )?")
"""Where a line of it begins, which may be counted."""


def on_one_line(instruction: str) -> str:
    """An instruction with signs for the ends of its lines, which are not counted any more."""
    return _BREAK.sub("; ", _COUNTED.sub("", instruction.strip()))


def spread(members: Mapping[str, str], instruction: str) -> str:
    """An instruction in plainer words: keys by their names where words of one alone are said ("the retries"), a clause
    for each of several keys that get one value, and "set" and "replace" for other ways to say so."""
    keys = sorted(members, key=len, reverse=True)
    named = "|".join(named_by(key) for key in keys)

    def by_name(found: re.Match[str]) -> str:
        head, words = (found[1], found[2]) if found[2] else (found[3], found[4])
        said = words_of(words)
        meant = [key for key in keys if shared(" ".join(said), words_of(json.loads(key))) == len(said)]
        whole = any(re.fullmatch(named_by(key), words, re.IGNORECASE) for key in keys)
        is_plain = not said or not said.isdisjoint(SPOKEN | PLAIN_WORDS) or max(map(len, said)) < LEAST_NAMED
        return found[0] if whole or is_plain or len(meant) != 1 else f"{head}{json.loads(meant[0])}"

    instruction = re.sub(_UNNAMED, by_name, instruction, flags=re.IGNORECASE)
    for form, plain in _OTHERWISE:
        instruction = re.sub(form.format(named), plain, instruction, flags=re.IGNORECASE)
    one = rf"(?:the )?(?:{named})"
    many = re.compile(
        rf"({ASKING}(?:set|change|update|make)) (?:both )?({one}(?:(?:, (?:and )?| and ){one})+) to ", re.IGNORECASE
    )
    instruction = on_one_line(instruction)
    found = many.match(instruction)
    if found is None:
        return instruction
    value = instruction[found.end() :]
    ones = re.split(r", (?:and )?| and ", found[2])
    return ", ".join(f"{found[1] if not i else 'set'} {one} to {value.rstrip('.')}" for i, one in enumerate(ones))
