"""Records: a sentence in, a compact JSON object with its three values out.

    prompt  record                                        answer  {"who":"Karomi","qty":417,"item":"melu"}
            Karomi ordered 417 crates of melu.

Names and items are invented words of consonant-vowel syllables, so an answer cannot be remembered, only copied; the
split is by name. No word of a sentence form is made of two such syllables, so an item is never mistaken for one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from redraft.tasks.task import Example, Score, split_of, stream_seed

SYLLABLES = tuple(consonant + vowel for consonant in "bdfghklmnprstvz" for vowel in "aeiou")

FORMS = (  # all six orders of the three values
    "{who} ordered {qty} crates of {item}.",
    "Send {qty} {item} to {who}.",
    "{who} wants {item}, {qty} boxes.",
    "The {item} order from {who}: {qty} crates.",
    "{qty} bags of {item} left with {who}.",
    "Pack {item} for {who}, {qty} in all.",
    "{item} x {qty} for {who}.",
    "Bill {qty} crates to {who}, all {item}.",
)

FIELDS = {"who": str, "qty": int, "item": str}  # the keys of an answer, in order


@dataclass(frozen=True)
class Records:
    """Names of two or three syllables, items of two, quantities 1 to 999 of which short ones are as common as long."""

    name = "records"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless sentences about the names of one split. Raises RecipeError for an unknown split."""
        return self._stream(split, Random(stream_seed(self.name, split, seed)))

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the right text, character for character.

        Parts: `valid`, 1.0 for JSON that is an object of just the three keys with values of the right types;
        `who`, `qty`, `item`, 1.0 for a right value in a JSON object, valid or not.
        """
        wanted, got = read_object(example.answer), read_object(answer)
        valid = got.keys() == FIELDS.keys() and all(type(got[key]) is kind for key, kind in FIELDS.items())
        right = {key: float(key in wanted and key in got and same(wanted[key], got[key])) for key in FIELDS}
        return Score(exact=answer == example.answer, parts={"valid": float(valid), **right})

    def _stream(self, split: str, rng: Random) -> Iterator[Example]:
        while True:
            who = invent(rng, rng.randint(2, 3)).capitalize()
            if split_of(who) != split:
                continue
            qty, item = draw_quantity(rng), invent(rng, 2)
            sentence = rng.choice(FORMS).format(who=who, qty=qty, item=item)
            yield Example("record\n" + sentence, *template(write({"who": who, "qty": str(qty), "item": item})))


def draw_values(rng: Random) -> dict[str, str]:
    """The three values of a record, by key."""
    who = invent(rng, rng.randint(2, 3)).capitalize()
    return {"who": who, "qty": str(draw_quantity(rng)), "item": invent(rng, 2)}


def draw_quantity(rng: Random) -> int:
    """1 to 999, of one digit as often as of two or three: drawn evenly, one in a hundred would have one."""
    return rng.randint(1, 10 ** rng.randint(1, 3) - 1)


def write(values: Mapping[str, str]) -> list[str]:
    """A record as compact JSON, in parts that are fixed and free in turn."""
    parts, before = [], "{"
    for key, value in values.items():
        quote = "" if key == "qty" else '"'
        parts += [f'{before}"{key}":{quote}', value]
        before = f"{quote},"
    return [*parts, before[:-1] + "}"]


def template(parts: Sequence[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """An answer of parts, fixed and free in turn, and where its fixed parts are."""
    ends = [sum(map(len, parts[: i + 1])) for i in range(len(parts))]
    return "".join(parts), tuple((end - len(part), end) for end, part in zip(ends[::2], parts[::2], strict=True))


def invent(rng: Random, num_syllables: int) -> str:
    """A word of that many syllables."""
    return "".join(rng.choice(SYLLABLES) for _ in range(num_syllables))


def read_object(text: str) -> dict[str, object]:
    """The JSON object that a text is; empty for every other text."""
    found = read_json(text)
    return found if isinstance(found, dict) else {}


def read_json(text: str) -> object:
    """What a text is as JSON; None for a text that is none, or that gives a key twice."""
    try:
        found: object = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError):  # a few thousand "[" exhaust the parser's stack
        return None
    return found


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def same(wanted: object, got: object) -> bool:
    """Whether two values of a record are one and the same JSON: 1, 1.0 and true are equal in Python."""
    return type(wanted) is type(got) and wanted == got
