"""Edits of a record by an instruction, and repairs of broken ones, with ordinary keys and values.

    prompt  Edit: The city is now Rome.                   answer  {"name":"Ada","city":"Rome"}
            {"name":"Ada","city":"Paris"}

    prompt  Repair the JSON:                              answer  {"name":"Ada","age":36}
            {'name':'Ada' "age":36

What an instruction does not name comes back as it was, in the spacing that it had.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from redraft import prompts
from redraft.tasks.forms import json_of, labelled
from redraft.tasks.locales import is_abroad
from redraft.tasks.records import read_json
from redraft.tasks.repair import BREAKS
from redraft.tasks.sentences import roles
from redraft.tasks.strings import quoted
from redraft.tasks.task import Example, Score, stream_seed

Members = dict[str, str]
"""JSON of values by key."""

_SET = (
    "Set {key} to {value}.",
    "Set {key} to {value}",
    "set the {key} to {value}",
    "Change {key} to {value}.",
    "Change the {key} to {value}.",
    "Change {key} from {old} to {value}.",
    "Make {value} the {key}.",
    "Make the {key} {value}.",
    "The {key} is now {value}.",
    "The {key} is {value}, not {old}.",
    "{key} should be {value}.",
    "{key} must be {value}",
    "Update {key}: {value}",
    "Update the {key} to {value}.",
    "{key}: {value}",
    "{key} = {value}",
    "Replace {old} by {value}.",
    "Replace {old} with {value}.",
    "Use {value} as the {key}.",
    "Put {value} as {key}.",
    "Correct the {key} to {value}.",
    "It has a new {key}: {value}.",
    "Please change the {key} to {value}.",
)
_ADD = (
    "Add {key} {value}.",
    "Add {key}: {value}",
    "Add the {key} {value}.",
    "Also note the {key} {value}.",
    "Add a {key} of {value}.",
)
_DROP = (
    "Remove {key}.",
    "Drop {key}.",
    "Delete the {key}.",
    "Remove the {key}.",
    "Leave out {key}.",
    "Without the {key}",
    "Take the {key} out.",
)
_CLEAR = ("Clear {key}.", "Empty the {key}.", "Set {key} to null.", "Forget the {key}, but keep the key.")
_RENAME = (
    "Rename {key} to {value}.",
    "Call {key} {value} instead.",
    "Rename the key {key} to {value}.",
    "{key} should be called {value}.",
)


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Change:
    """Records of two to eight members and one or two changes."""

    name = "edit"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless edits about the values of one split. Raises RecipeError for an unknown split."""
        rng = Random(stream_seed(self.name, split, seed))
        while True:
            members = dict(labelled(rng, split, rng.choice((2, 2, 3, 3, 4, 5, 6, 8))))
            after, asked = dict(members), list[str]()
            for key in rng.sample(list(members), rng.choice((1, 1, 1, 2))):
                after, sentence = _change(after, key, members[key], rng, split)
                asked += [sentence] if sentence else []
            if after != members and after:
                spaced = rng.random() < 0.15
                join = rng.choice((" ", " ", " and ")) if all(not each.endswith(".") for each in asked) else " "
                yield Example(prompts.edit(join.join(asked), write(members, spaced)), write(after, spaced))

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the right JSON, however it is spaced. No parts."""
        return Score(exact=read_json(answer) == read_json(example.answer), parts={})


def write(members: Members, spaced: bool = False) -> str:
    """A record as JSON."""
    colon, comma = (": ", ", ") if spaced else (":", ",")
    return "{" + comma.join(f"{quoted(key)}{colon}{value}" for key, value in members.items()) + "}"


def _change(members: Members, key: str, old: str, rng: Random, split: str) -> tuple[Members, str]:
    kind = rng.random()
    spoken = key.replace("_", " ") if rng.random() < 0.3 else key
    if kind < 0.5:
        known = (role for role in roles().values() if key in role.names and not is_abroad(role.kind))
        role = rng.choice([role.name for role in known] or ["person"])
        value = json_of(role, rng, split)
        if _is_open(value, old):
            return members, ""
        forms = _SET if old not in ("null", "true", "false") else tuple(form for form in _SET if "{old}" not in form)
        asked = rng.choice(forms).format(key=spoken, value=_said(value), old=_said(old))
        return members | {key: value}, asked
    if kind < 0.68:
        found = {name: value for name, value in members.items() if name != key}
        return found, rng.choice(_DROP).format(key=spoken)
    if kind < 0.8:
        (name, value), *_ = labelled(rng, split, 1)
        if name in members or _is_open(value):
            return members, ""
        return members | {name: value}, rng.choice(_ADD).format(key=name, value=_said(value))
    if kind < 0.87:
        return members | {key: "null"}, rng.choice(_CLEAR).format(key=spoken)
    (name, _), *_ = labelled(rng, split, 1)
    if name in members:
        return members, ""
    found = {name if each == key else each: value for each, value in members.items()}
    return found, rng.choice(_RENAME).format(key=key, value=name)


def _is_open(value: str, old: str = "null") -> bool:
    """Whether an instruction leaves open if a value is a number or its text: what it is in place of is another kind."""
    is_text, was_text = value.startswith('"'), old.startswith('"')
    return bool(_NUMBER.fullmatch(value.strip('"'))) and is_text != was_text and not (old == "null" and not is_text)


def _said(value: str) -> str:
    """A JSON value as an instruction says it."""
    return value[1:-1] if value.startswith('"') and "\\" not in value else value


@dataclass(frozen=True)
class Mend:
    """Records of two to six members and one to three breaks."""

    name = "mend"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless broken records about the values of one split. Raises RecipeError for an unknown split."""
        rng = Random(stream_seed(self.name, split, seed))
        while True:
            members = dict(labelled(rng, split, rng.choice((2, 2, 3, 3, 4, 5, 6))))
            text = write(members, spaced=rng.random() < 0.3)
            if "'" in text or "\\" in text:
                continue
            broken = text
            for _ in range(rng.choice((1, 1, 2, 3))):
                broken = rng.choice(BREAKS)(broken, rng)
            if broken != text:
                yield Example(prompts.repair(broken), write(members))

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the right JSON, however it is spaced. No parts."""
        return Score(exact=read_json(answer) == read_json(example.answer), parts={})
