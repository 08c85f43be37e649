"""Edits: a record and an instruction in, the changed record out.

    prompt  edit                                         answer  {"who":"Karomi","qty":52,"item":"melu"}
            {"who":"Karomi","qty":417,"item":"melu"}
            Set qty to 52.

Everything the instruction does not name must come back as it was. Words, numbers and the split are those of the
records task (`tasks/records.py`), so the two share their names and their held-out ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from redraft.tasks.records import FIELDS, draw_values, read_object, template, write
from redraft.tasks.task import Example, Score, share, split_of, stream_seed

FORMS = ("Set {key} to {value}.", "Change {key} to {value}.", "{key}: {value}", "Make {value} the {key}.")
REMOVE = ("Remove {key}.", "Drop {key}.")


@dataclass(frozen=True)
class Edits:
    """One or two fields set anew, or one removed."""

    name = "edit-records"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless edits of records about the names of one split. Raises RecipeError for an unknown split."""
        return self._stream(split, Random(stream_seed(self.name, split, seed)))

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the right text, character for character.

        Parts: `valid`, 1.0 for any JSON object; `changed` and `kept`, the shares of members that the instruction
        changes, and that it does not, which came out right (1.0 of none).
        """
        before = read_object(example.prompt.split("\n")[1])
        wanted, got = read_object(example.answer), read_object(answer)
        right = {key: wanted.get(key) == got.get(key) and (key in wanted) == (key in got) for key in before}
        changed = [ok for key, ok in right.items() if wanted.get(key) != before[key]]
        kept = [ok for key, ok in right.items() if wanted.get(key) == before[key]]
        parts = {"valid": float(bool(got)), "changed": share(changed), "kept": share(kept)}
        return Score(exact=answer == example.answer, parts=parts)

    def _stream(self, split: str, rng: Random) -> Iterator[Example]:
        while True:
            values = draw_values(rng)
            if split_of(values["who"]) != split:
                continue
            kind, fresh = rng.random(), draw_values(rng)
            count = 2 if kind < 0.25 else 1
            keys = rng.sample(tuple(FIELDS), count)
            if kind >= 0.85:
                asked = rng.choice(REMOVE).format(key=keys[0])
                after = {key: value for key, value in values.items() if key != keys[0]}
            else:
                asked = "\n".join(rng.choice(FORMS).format(key=key, value=fresh[key]) for key in keys)
                after = values | {key: fresh[key] for key in keys}
            yield Example(f"edit\n{''.join(write(values))}\n{asked}", *template(write(after)))
