"""Lists of records: longer answers, of which a canvas writes all parts at once.

    lists       list                                     [{"who":"Karomi","qty":417,"item":"melu"},
                Karomi ordered 417 crates of melu.        {"who":"Bako","qty":3,"item":"sola"}]
                Send 3 sola to Bako.

    edit-lists  edit                                     {"who":"Karomi","qty":417,"item":"melu"}
                {"who":"Karomi","qty":417,"item":"melu"}  {"who":"Bako","qty":52,"item":"sola"}
                {"who":"Bako","qty":3,"item":"sola"}
                Set qty of Bako to 52.

The array is one line. Words, numbers and sentences are those of the records task (`tasks/records.py`), and so is the
split: every name of a list belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from redraft.errors import RecipeError
from redraft.tasks.records import FIELDS, FORMS, draw_values, read_json, read_object, same, template, write
from redraft.tasks.task import Example, Score, share, split_of, stream_seed

MOST_RECORDS = 4
MOST_LONG = 8

Values = dict[str, str]  # of one record, by key

SET = (
    "Set {key} of {who} to {value}.",
    "Change {key} of {who} to {value}.",
    "{who} {key}: {value}",
    "Make {value} the {key} of {who}.",
)
REMOVE = ("Remove {who}.", "Drop {who}.")


@dataclass(frozen=True)
class Lists:
    """Two to `most` sentences to one JSON array."""

    most: int = MOST_RECORDS

    def __post_init__(self) -> None:
        if self.most < 2:
            raise RecipeError(f"most is {self.most}; a list has at least 2 records")

    @property
    def name(self) -> str:
        """ "lists", or "lists-8"."""
        return "lists" if self.most == MOST_RECORDS else f"lists-{self.most}"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless lists about the names of one split. Raises RecipeError for an unknown split."""
        return _stream(split, Random(stream_seed(self.name, split, seed)), self.most, _dictated)

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the right text, character for character.

        Parts: `valid`, 1.0 for a JSON array of one object or more; `records`, the share of records that came out right
        and in their place.
        """
        wanted, got = _read_array(example.answer), _read_array(answer)
        right = [i < len(got) and _same_record(record, got[i]) for i, record in enumerate(wanted)]
        return Score(exact=answer == example.answer, parts={"valid": float(bool(got)), "records": share(right)})


@dataclass(frozen=True)
class EditLists:
    """Two to eight records, a line each, of which one gets one or two values anew, or goes."""

    name = "edit-lists"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless edits of lists about the names of one split. Raises RecipeError for an unknown split."""
        return _stream(split, Random(stream_seed(self.name, split, seed)), MOST_LONG, _edited)

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the right text, character for character.

        Parts: `valid`, 1.0 where every line is a JSON object; `lines`, the share of lines that came out right and in
        their place.
        """
        wanted, got = example.answer.split("\n"), answer.split("\n")
        right = [i < len(got) and got[i] == line for i, line in enumerate(wanted)]
        valid = all(map(read_object, got))
        return Score(exact=answer == example.answer, parts={"valid": float(valid), "lines": share(right)})


def _stream(
    split: str, rng: Random, most: int, make: Callable[[list[Values], Values, Random], Example]
) -> Iterator[Example]:
    """Lists of different names, each made an example together with the values of one more record."""
    while True:
        count, drawn = rng.randint(2, most) + 1, dict[str, Values]()
        while len(drawn) < count:
            values = draw_values(rng)
            if split_of(values["who"]) == split:
                drawn.setdefault(values["who"], values)
        *records, fresh = drawn.values()
        yield make(records, fresh, rng)


def _dictated(records: list[Values], _: Values, rng: Random) -> Example:
    sentences = [rng.choice(FORMS).format(**values) for values in records]
    return Example("\n".join(["list", *sentences]), *template(_join(records, "[", ",", "]")))


def _edited(records: list[Values], fresh: Values, rng: Random) -> Example:
    at, kind = rng.randrange(len(records)), rng.random()
    who, after = records[at]["who"], list(records)
    if kind >= 0.85:
        asked = rng.choice(REMOVE).format(who=who)
        del after[at]
    else:
        keys = rng.sample(tuple(FIELDS), 2 if kind < 0.25 else 1)
        asked = "\n".join(rng.choice(SET).format(who=who, key=key, value=fresh[key]) for key in keys)
        after[at] = records[at] | {key: fresh[key] for key in keys}
    before = "".join(_join(records, "", "\n", ""))
    return Example(f"edit\n{before}\n{asked}", *template(_join(after, "", "\n", "")))


def _join(records: Sequence[Values], start: str, between: str, end: str) -> list[str]:
    """Records behind each other, in parts that are fixed and free in turn."""
    parts, before = list[str](), start
    for values in records:
        first, *rest, last = write(values)
        parts += [before + first, *rest]
        before = last + between
    return [*parts, before.removesuffix(between) + end]


def _read_array(text: str) -> list[dict[str, object]]:
    """The objects of the JSON array that a text is; empty for every other text."""
    found = read_json(text)
    return found if isinstance(found, list) and all(isinstance(item, dict) for item in found) else []


def _same_record(wanted: dict[str, object], got: dict[str, object]) -> bool:
    return got.keys() == wanted.keys() and all(same(value, got[key]) for key, value in wanted.items())
