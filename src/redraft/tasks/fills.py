"""Templates with holes, filled from a text: a sentence of the same matter, a configuration, SQL, a table's row.

prompt  Fill in: {{name}} wants {{qty}} {{item}}.         answer  Maria wants 3 apples.
        Send 3 apples to Maria.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from redraft import prompts
from redraft.prompts import Field
from redraft.tasks.extract import ask, name_of
from redraft.tasks.sentences import Sentences, compose, domains, expand, roles, roles_of
from redraft.tasks.strings import syllables
from redraft.tasks.task import Example, Score, stream_seed

_LINES = ("{0} = {1}", "{0}: {1}", "{0}={1}", '{0} = "{1}"', "{0}\t{1}", "- {0}: {1}", "{0}: '{1}'")
_WHOLE = (
    "Dear {0},\n{1}\nBest regards",
    "[{0}] {1}",
    "{0} / {1}",
    "Hello {0}, is it {1}?",
    "UPDATE {2} SET a = '{0}' WHERE b = '{1}';",
    "SELECT {0} FROM {2} WHERE x = '{1}';",
    "curl {2}/{0}?q={1}",
    "print('{0}', '{1}')",
    "<p>{0}</p><b>{1}</b>",
    "# {0}\n\n{1}",
)


@dataclass(frozen=True)
class Fills:
    """One to four holes."""

    name = "fill"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless templates about the values of one split. Raises RecipeError for an unknown split."""
        rng = Random(stream_seed(self.name, split, seed))
        while True:
            made, domain = compose(rng, split)
            found = _sentence(made, domain, rng) if rng.random() < 0.4 else _lines(made, domain, rng)
            if found is not None:
                yield Example(prompts.fill(found[0], made.text), found[1])

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the filled template, character for character. No parts."""
        return Score(exact=answer.strip() == example.answer.strip(), parts={})


def _sentence(made: Sentences, domain: str, rng: Random) -> tuple[str, str] | None:
    """Another sentence of the domain whose slots the text knows."""
    known = {role for role in made.values if roles()[role].kind not in ("boolean", "enum")}
    some = rng.sample(domains()[domain], min(40, len(domains()[domain])))
    forms = [form for form in (expand(each, rng) for each in some) if roles_of(form) and roles_of(form) <= known]
    forms = [form for form in forms if "=" not in form]
    if not forms:
        return None
    form = rng.choice(forms).replace("{a ", "{")
    held = sorted(roles_of(form))  # a set's order is another in each process
    names = {role: name_of(role, held, made, rng, 0) for role in held}
    if None in names.values() or len(set(names.values())) < len(names):
        return None
    template, answer = form, form
    for role, name in names.items():
        template = template.replace(f"{{{role}}}", f"{{{{{name}}}}}")
        answer = answer.replace(f"{{{role}}}", made.values[role].text)
    return (template, answer) if template != answer else None


def _lines(made: Sentences, domain: str, rng: Random) -> tuple[str, str] | None:
    """Lines of keys and holes, or another form around two of them."""
    held = {
        role: value
        for role, value in made.values.items()
        if roles()[role].kind not in ("boolean", "enum", "list", "names")
    }
    found = ask(rng, Sentences(made.text, held), domain, rng.choice((1, 2, 2, 3, 4)), choices=False)
    asked = [(_hole(field), value) for field, value in found if value != "null"]
    if not asked or len(held) < len(made.values):
        return None
    plain = [(hole, value[1:-1] if value.startswith('"') else value) for hole, value in asked]
    if any("\\" in value for _, value in plain):
        return None
    if len(plain) == 2 and rng.random() < 0.5:
        form, table = rng.choice(_WHOLE), syllables(rng)
        (one, first), (two, second) = plain
        return form.format(one, two, table), form.format(first, second, table)
    form = rng.choice(_LINES)
    keys = [hole.strip("{}").partition(":")[0] for hole, _ in plain]
    filled = [
        [form.format(key, part) for key, part in zip(keys, each, strict=True)] for each in zip(*plain, strict=True)
    ]
    return "\n".join(filled[0]), "\n".join(filled[1])


def _hole(field: Field) -> str:
    kind, name = _KINDS.get(field.kind, field.kind), field.name.replace(" ", "_")
    return f"{{{{{name}}}}}" if kind == "string" else f"{{{{{name}: {kind}}}}}"


_KINDS = {"integer": "int", "boolean": "bool"}  # what `redraft fill` calls them
