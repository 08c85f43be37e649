"""Repair: a broken JSON object in, the valid one it was out.

    prompt  repair                                     answer  {"melu":417,"ok":true}
            {"melu:417,"ok":True}

An object has two to four keys, invented words; values are numbers, invented words, true, false, null or short lists of
numbers. One to three breaks are made that leave one sensible way back: a quote, colon, comma or closing bracket is
missing, quotes are single, a comma is too many, a literal is Python's. The split is by the object's first key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from redraft.tasks.records import invent, read_object
from redraft.tasks.task import Example, Score, split_of, stream_seed

_MOST_BREAKS = 3


@dataclass(frozen=True)
class RepairTask:
    """Compact objects; the prompt does not say what was broken."""

    name = "repair"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless broken objects of one split. Raises RecipeError for an unknown split."""
        return self._stream(split, Random(stream_seed(self.name, split, seed)))

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the object's text, character for character.

        Parts: `valid`, 1.0 for any JSON object; `same`, 1.0 for an object equal to the right one.
        """
        wanted, got = read_object(example.answer), read_object(answer)
        valid = bool(got) or answer.strip() == "{}"
        return Score(exact=answer == example.answer, parts={"valid": float(valid), "same": float(got == wanted)})

    def _stream(self, split: str, rng: Random) -> Iterator[Example]:
        while True:
            keys = list(dict.fromkeys(invent(rng, 2) for _ in range(rng.randint(2, 4))))
            if split_of(keys[0]) != split:
                continue
            text = json.dumps({key: _value(rng) for key in keys}, separators=(",", ":"))
            broken = text
            for _ in range(rng.randint(1, _MOST_BREAKS)):
                broken = rng.choice(BREAKS)(broken, rng)
            if broken != text:
                yield Example("repair\n" + broken, text)


def _value(rng: Random) -> object:
    kind = rng.random()
    if kind < 0.35:
        return rng.randint(0, 10 ** rng.randint(1, 3) - 1)
    if kind < 0.7:
        word = invent(rng, 2)
        return word.capitalize() if rng.random() < 0.5 else word
    if kind < 0.85:
        return rng.choice((True, False, None))
    return [rng.randint(0, 99) for _ in range(rng.randint(1, 3))]


def _drop(text: str, sought: str, rng: Random) -> str:
    """Without the first character of one of the places where `sought` stands."""
    places = [i for i in range(len(text)) if text.startswith(sought, i)]
    if not places:
        return text
    at = rng.choice(places)
    return text[:at] + text[at + 1 :]


def _comma_at_end(text: str, rng: Random) -> str:
    at = rng.choice([i for i, char in enumerate(text) if char in "]}"] or [len(text)])
    return text[:at] + "," + text[at:]


def _bare_key(text: str, rng: Random) -> str:
    places = [i for i in range(len(text)) if text[i : i + 2] == '":']
    if not places:
        return text
    end = rng.choice(places)
    start = text.rfind('"', 0, end)
    return text if start < 0 else text[:start] + text[start + 1 : end] + text[end + 1 :]


BREAKS: tuple[Callable[[str, Random], str], ...] = (
    lambda text, rng: _drop(text, '"', rng),
    lambda text, rng: _drop(text, ":", rng),
    lambda text, rng: _drop(text, ',"', rng),  # between numbers of a list the way back would be a guess
    lambda text, _: text[:-1] if text[-1:] in "]}" else text,
    lambda text, _: text.replace('"', "'"),
    _comma_at_end,
    lambda text, _: text.replace(":true", ":True").replace(":false", ":False").replace(":null", ":None"),
    _bare_key,
)
