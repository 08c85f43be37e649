"""Whatever a stranger sends as a schema, a grammar or a template is a language or a refusal of one line."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from redraft.constraints.compile.grammar import compile_grammar
from redraft.constraints.compile.keywords import KEYWORDS
from redraft.constraints.compile.limits import CompileLimits
from redraft.constraints.compile.schema import compile_schema
from redraft.constraints.compile.template import read_template
from redraft.constraints.sources import choices_source
from redraft.constraints.validation import schema_problems
from redraft.errors import ConstraintError
from schema_suite import written

FEW = CompileLimits(states=2_000, seconds=600.0)
"""States bound the time here, so that a slow machine answers as a quick one does."""

TYPES = ["string", "integer", "number", "boolean", "null", "object", "array"]
WORDS = [keyword.name for keyword in KEYWORDS if keyword.name not in ("pattern", "patternProperties")]  # a process each
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(TYPES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.fixed_dictionaries({}, optional={"type": st.sampled_from(TYPES), "const": VALUES}),
    lambda inner: (
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), max_size=2, unique=True),
                **dict.fromkeys(("items", "additionalProperties", "not", "if", "then", "contains"), inner),
                **dict.fromkeys(("properties", "$defs"), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
                **dict.fromkeys(("anyOf", "allOf", "oneOf", "prefixItems"), st.lists(inner, max_size=2)),
                **dict.fromkeys(("minimum", "maximum", "multipleOf"), st.integers(-9, 9) | st.floats()),
                **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), st.integers(-1, 9)),
                "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
                "$ref": st.sampled_from(["#", "#/$defs/a", "#a", "https://example.com/x", "#/%", "b"]),
                "$id": st.text(max_size=2),
                "$schema": st.text(max_size=2),
            },
        )
        | st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=2)
    ),
    max_leaves=4,
)


def refusal(error: ConstraintError) -> None:
    assert "\n" not in str(error)
    assert str(error)


@given(schema=SCHEMAS)
@settings(max_examples=60)
def test_a_schema_of_anything_is_a_language_or_refused(schema: Any) -> None:
    """What it writes without a check, the validator takes; with one, the validator can at least read it."""
    try:
        found = compile_schema(schema, depth=2, spaces=False, limits=FEW)
    except ConstraintError as error:
        refusal(error)
        return
    validator = Draft202012Validator(schema, validate_formats=True, offline=True)
    for text in written(found.dfa, 2, seed=0, step=30):
        value = json.loads(text)
        assert found.checked or validator.is_valid(value), text
        assert bool(schema_problems(schema, text)) != validator.is_valid(value)


MARKS = ["start:", "a:", "start", "a", "|", "(", ")", "*", "+", "?", '"x"', '"\\q"', '"', "\n", "//", " ", "é", "{2}"]


@given(grammar=st.lists(st.sampled_from(MARKS), max_size=12).map("".join))
def test_a_grammar_of_anything_is_a_language_or_refused(grammar: str) -> None:
    try:
        assert not compile_grammar(grammar, limits=FEW).is_empty
    except ConstraintError as error:
        refusal(error)


HOLES = [
    *(
        "{{",
        "}}",
        "{{a}}",
        "{{:}}",
        "{{a: nope}}",
        "{{a: int(5..1)}}",
        "{{a: int(1..)}}",
        "{{a: int(}}",
        "{{b: enum(|)}}",
    ),
    *("{{a: number(nan..1)}}", "{{a: string(-1..3)}}", "{{é: bool}}", "{", "}", ":", "x", "\n", "\ud800", "{{:}}"),
]
KINDS: st.SearchStrategy[Any] = st.sampled_from(
    ["int", "string(1..4)", "enum(", {"type": "integer", "minimum": 3}, {"not": {}}, 5, None]
)


@settings(max_examples=30)
@given(st.lists(st.sampled_from(HOLES), max_size=5).map("".join), st.dictionaries(st.sampled_from("ab"), KINDS))
def test_a_template_of_anything_is_a_language_or_refused(template: str, kinds: dict[str, Any]) -> None:
    try:
        dfa = read_template(template, kinds).source().compile(FEW).dfa
        assert not dfa.is_empty
    except ConstraintError as error:
        refusal(error)


@settings(max_examples=30)
@given(st.lists(st.text(max_size=4), max_size=3), st.booleans())
def test_choices_of_anything_are_a_language_or_refused(choices: list[str], any_case: bool) -> None:
    try:
        dfa = choices_source(choices, any_case=any_case).compile(FEW).dfa
    except ConstraintError as error:
        refusal(error)
        return
    assert all(dfa.matches(choice.encode()) for choice in choices)
