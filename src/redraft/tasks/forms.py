"""Forms: lines of labels and values in, a record out; ten fields and more in long ones. And drills in copying.

    prompt  Extract as JSON: order_number, Ship To            answer  {"order_number":"AB-12","Ship To":"Maria"}
            Order no: AB-12; Phone: 030 1234; Ship To: Maria

Labels are names of a role, or made words; a field asks by the label or by another name of the same role.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from redraft import prompts
from redraft.prompts import Field
from redraft.tasks.extract import join, judge, typed
from redraft.tasks.records import read_json
from redraft.tasks.sentences import common_roles, roles
from redraft.tasks.strings import Value, foreign, quoted, said, scramble, syllables
from redraft.tasks.task import Example, Score, split_of, stream_seed
from redraft.tasks.values import KINDS, draw

_LAYOUTS = (  # a line, and what stands between lines
    *(("{}: {}", "\n"), ("{}: {}", "\n"), ("{} = {}", "\n"), ("{}: {}", "; "), ("{}={}", ", "), ("{}: {}", ", ")),
    *(
        ("The {} is {}.", " "),
        ("{1} is the {0}.", " "),
        ("Its {} is {}.", " "),
        ("a {} of {}", ", "),
        ("Use {1} as {0}.", " "),
    ),
    *(("{} is {}", ", "), ("| {} | {} |", "\n"), ("{}\t{}", "\n"), ("{}={}", " "), ("- {}: {}", "\n"), ("{} {}", "\n")),
)
_SINGLE = ("person", "company", "city", "goods", "email", "code", "title", "url", "file", "address", "phone")


@dataclass(frozen=True)
class Form:
    """Two to eight labels, of which one to five are asked for; with `long`, ten to sixteen, all of them asked for."""

    long: bool = False

    @property
    def name(self) -> str:
        """What recipes and the command line call it."""
        return "forms-long" if self.long else "forms"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless forms about the values of one split. Raises RecipeError for an unknown split."""
        rng = Random(stream_seed(self.name, split, seed))
        while True:
            yield _form(rng, split, self.long)

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: every value is right, however the JSON is spaced. Parts: `fields`, the share that is."""
        wanted, got = read_json(example.answer), read_json(answer)
        fields = judge(wanted, got)
        alike = isinstance(wanted, dict) and isinstance(got, dict) and wanted.keys() == got.keys()
        return Score(exact=fields == 1.0 and alike, parts={"fields": fields})


def _form(rng: Random, split: str, long: bool) -> Example:
    count = rng.randint(10, 16) if long else rng.randint(2, 8)
    made = rng.random() < (0.1 if long else 0.3)
    rows = dict[str, tuple[str, Value, str]]()  # by the name asked for: label, value, role
    taken = set[str]()
    while len(rows) < count:
        role = rng.choice(common_roles())
        if role.kind in ("boolean", "enum", "list", "names"):
            continue
        name, label = rng.choice(role.names), rng.choice(role.names)
        if made:
            name = label = syllables(rng, 1, 3)
        elif rng.random() < 0.7:
            label = name
        if taken & ({name} if made else set(role.names)):
            continue
        taken |= {name, *(() if made else role.names)}
        kind = rng.choice(_SINGLE) if made and rng.random() < 0.5 else role.kind
        value = said(scramble(rng)) if made and rng.random() < 0.4 else draw(kind, rng, split)
        rows[name] = (_styled(label, rng), value, role.name if kind == role.kind else "person")
    layout, between = rng.choice(_LAYOUTS)
    text = between.join(layout.format(label, value.text) for label, value, _ in rows.values())
    asked = list(rows) if long else rng.sample(list(rows), min(len(rows), rng.randint(1, 5)))
    if rng.random() < 0.3:
        rng.shuffle(asked)
    fields = []
    for name in asked:
        kind, json_value = typed(rows[name][2], rows[name][1], rng, choices=True)
        fields.append((Field(name, kind), json_value))
    return Example(prompts.extract([field for field, _ in fields], text), join(tuple(fields)))


def _styled(label: str, rng: Random) -> str:
    spaced = label.replace("_", " ")
    return rng.choice((label, label, spaced, spaced.capitalize(), spaced.title(), spaced.upper()))


@dataclass(frozen=True)
class Copy:
    """`Repeat: ` and one string or a few: copying alone, of every kind of value."""

    name = "copy"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless strings of one split. Raises RecipeError for an unknown split."""
        rng = Random(stream_seed(self.name, split, seed))
        made = (scramble, foreign, syllables)
        while True:
            parts = []
            for _ in range(rng.choice((1, 1, 2, 3, 4))):
                if rng.random() < 0.4:
                    parts.append(rng.choice(made)(rng))
                else:
                    parts.append(draw(rng.choice(KINDS), rng, split).text)
            text = rng.choice((" ", " ", ", ", "; ")).join(parts)
            if split_of(text) == split:
                yield Example("Repeat: " + text, text)

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the text, character for character. No parts."""
        return Score(exact=answer == example.answer, parts={})


def labelled(rng: Random, split: str, count: int) -> tuple[tuple[str, str], ...]:
    """Names of fields and the JSON of their values, as records of people are: for edits and repairs."""
    found, taken = list[tuple[str, str]](), set[str]()
    while len(found) < count:
        role = rng.choice(common_roles())
        name = rng.choice(role.names) if rng.random() < 0.9 else syllables(rng, 1, 3)
        if taken & {name, *role.names}:
            continue
        taken |= {name, *role.names}
        found.append((name, json_of(role.name, rng, split)))
    return tuple(found)


def json_of(role: str, rng: Random, split: str) -> str:
    """The JSON of a new value of a role."""
    known = roles()[role]
    if known.kind == "boolean":
        return rng.choice(("true", "false"))
    if known.kind == "enum":
        return quoted(rng.choice(known.choices))
    value = draw(known.kind, rng, split)
    return "null" if rng.random() < 0.04 else typed(role, value, rng)[1]
