"""Drafts, references and ignored keywords, judged by a validator of the schema's own draft."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema_rs
import pytest

from redraft.constraints.compile.dialect import URIS, closed
from redraft.constraints.compile.schema import compile_schema
from redraft.constraints.validation import schema_problems
from redraft.errors import ConstraintError
from schema_suite import written

D4, D6, D7 = (f"http://json-schema.org/draft-0{year}/schema#" for year in (4, 6, 7))
D19 = "https://json-schema.org/draft/2019-09/schema"
CLASSES = {
    D4: jsonschema_rs.Draft4Validator,
    D6: jsonschema_rs.Draft6Validator,
    D7: jsonschema_rs.Draft7Validator,
    D19: jsonschema_rs.Draft201909Validator,
}
PAIR = {"items": [{"type": "boolean"}, {"type": "null"}], "additionalItems": False, "minItems": 2, "type": "array"}


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"$schema": D4, "type": "integer", "minimum": 3, "exclusiveMinimum": True}, "4", "3"),
        ({"$schema": D4, "type": "integer", "minimum": 3, "exclusiveMinimum": False}, "3", "2"),
        ({"$schema": D4, "type": "integer", "const": 3}, "4", '"3"'),
        ({"$schema": D6, "const": 3}, "3", "4"),
        ({"$schema": D7, **PAIR}, "[true,null]", "[true,null,1]"),
        ({"$schema": D19, **PAIR}, "[true,null]", "[null,null]"),
        ({"$schema": D7, "definitions": {"a": {"type": "null"}}, "$ref": "#/definitions/a", "type": "string"},
         "null", '"a"'),
        ({"$schema": D7, "type": "boolean", "prefixItems": 3, "unevaluatedItems": "so"}, "true", "3"),
        ({"$schema": D7, "$id": "http://x.y/a/b", "definitions": {"c": {"$id": "d", "type": "null"}},
          "allOf": [{"$ref": "http://x.y/a/d"}]}, "null", "3"),
        ({"$schema": D4, "id": "http://x.y/a/b", "definitions": {"c": {"id": "#d", "type": "null"}},
          "allOf": [{"$ref": "#d"}]}, "null", "3"),
    ],
)  # fmt: skip
def test_a_schema_is_read_by_its_own_draft(schema: Any, inside: str, outside: str) -> None:
    found, validator = compile_schema(schema), CLASSES[schema["$schema"]](schema, validate_formats=True)
    assert found.dfa.matches(inside.encode())
    assert validator.is_valid(json.loads(inside))
    assert not found.dfa.matches(outside.encode())
    assert not validator.is_valid(json.loads(outside))
    assert all(validator.is_valid(json.loads(text)) for text in written(found.dfa, 10, seed=1))


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        (PAIR, "[true,null]", "[true,null,1]"),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, "4", "3"),
        ({"definitions": {"a": {"type": "null"}}, "allOf": [{"$ref": "#/definitions/a"}]}, "null", "1"),
        ({"$defs": {"a": {"$anchor": "b", "type": "null"}}, "$ref": "#b"}, "null", "1"),
        ({"$id": "http://x.y/z", "$defs": {"a": {"type": "null"}}, "$ref": "z#/$defs/a"}, "null", "1"),
        ({"$id": "http://x.y/z", "$defs": {"a": {"$id": "w", "$ref": "#/$defs/q", "$defs": {"q": {"type": "null"}}}},
          "$ref": "w"}, "null", "1"),
    ],
)  # fmt: skip
def test_where_nothing_is_said_older_forms_and_names_are_read(schema: Any, inside: str, outside: str) -> None:
    found = compile_schema(schema)
    assert found.dfa.matches(inside.encode())
    assert schema_problems(schema, inside) == []
    assert not found.dfa.matches(outside.encode())
    assert schema_problems(schema, outside) != []


def test_keywords_that_the_standard_does_not_define_are_ignored_and_listed() -> None:
    """OpenAPI, MCP and Gemini write these into every schema of a tool; half of real schemas were refused for them."""
    schema = {
        "type": "object",
        "discriminator": {"propertyName": "kind"},
        "x-order": 3,
        "strict": True,
        "propertyOrdering": ["a"],
        "properties": {"a/b": {"type": "string", "maxlength": 3, "nullable": True, "example": "x", "enumNames": []}},
        "required": ["a/b"],
        "additionalProperties": False,
    }
    found = compile_schema(schema)
    assert set(found.ignored) == {
        "/discriminator",
        "/x-order",
        "/strict",
        "/propertyOrdering",
        "/properties/a~1b/maxlength (maxLength?)",
        "/properties/a~1b/nullable",
        "/properties/a~1b/example",
        "/properties/a~1b/enumNames",
    }
    assert found.dfa.matches(b'{"a/b":"abcd"}')
    assert not found.checked


def test_formats_that_nobody_knows_are_listed_and_others_kept() -> None:
    schema = {"properties": {"a": {"format": "uuid4"}, "b": {"format": "colour"}, "c": {"format": "idn-email"}}}
    found = compile_schema(schema)
    assert found.ignored == ("/properties/b/format/colour",)
    assert found.checked, "the validator knows idn-email"
    assert not compile_schema({"type": "string", "format": "uuid4"}).dfa.matches(b'"x"')


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"]
)
@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("iri", "https://example.com", "not-an-iri"),
        ("uuid", "12345678-1234-4234-8234-123456789abc", "12345678"),
        ("duration", "P3D", "three days"),
        ("json-pointer", "/a/0", "a/0"),
        ("uri-template", "/{id}", "/{id"),
    ],
)
def test_a_format_is_judged_even_where_its_draft_had_not_got_it(draft: str, name: str, good: str, bad: str) -> None:
    """By the RFCs' own forms. A schema of draft 4 that says iri means it: MaskBench has one."""
    schema = {"$schema": draft, "type": "object", "properties": {"a": {"type": "string", "format": name}}}
    assert schema_problems(schema, json.dumps({"a": good})) == []
    assert schema_problems(schema, json.dumps({"a": bad}))


@pytest.mark.parametrize("name", [*URIS.values(), "https://json-schema.org/draft-07/schema"])
@pytest.mark.parametrize("within", [None, 4, 7, 2019])
def test_a_public_meta_schema_is_known_by_its_name(name: str, within: int | None) -> None:
    """Also that of another draft than the schema's own."""
    schema = {"properties": {"s": {"$ref": name}}} | ({} if within is None else {"$schema": URIS[within]})
    assert compile_schema(schema).checked
    assert not schema_problems(schema, '{"s": {"type": "string"}}')
    for wrong in ('{"s": {"type": 3}}', '{"s": {"properties": {"a": {"type": 3}}}}'):
        assert schema_problems(schema, wrong)


def test_another_address_leads_out_of_the_document() -> None:
    with pytest.raises(ConstraintError, match="leads out of the document"):
        compile_schema({"$ref": "http://json-schema.org/draft-09/schema"})


@pytest.mark.parametrize(
    ("schemas", "checked"),
    [
        ([{"type": "string"}, {"type": "integer"}], False),
        ([{"type": "number"}, {"type": "integer"}], True),
        ([{"const": 1}, {"const": 2}], False),
        ([{"properties": {"k": {"const": "a"}}, "required": ["k"], "type": "object"},
          {"properties": {"k": {"const": "b"}}, "type": "object"}], False),
        ([{"properties": {"k": {"const": "a"}}, "type": "object"},
          {"properties": {"k": {"const": "b"}}, "type": "object"}], True),
        ([{"type": "object", "required": ["a"]},
          {"type": "object", "properties": {}, "additionalProperties": False}], False),
        ([{"enum": ["a", 1]}, {"enum": [1.0]}], True),
    ],
)  # fmt: skip
def test_one_of_is_exact_where_its_schemas_exclude_each_other(schemas: list[Any], checked: bool) -> None:
    assert compile_schema({"oneOf": schemas}).checked == checked


@pytest.mark.parametrize("own", [{"$id": "http://q/"}, {}])
def test_a_name_of_two_schemas_is_refused_where_a_reference_means_it(own: dict[str, str]) -> None:
    """As two tools may have, each in its own schema; that they are equal is no harm."""

    def tool(kind: str) -> dict[str, Any]:
        part = {"type": kind} if own else {"$id": "http://q/", "type": kind}
        target = "#/$defs/a" if own else "http://q/"
        return own | {"properties": {"a": {"$ref": target}}, "required": ["a"], "$defs": {"a": part}}

    with pytest.raises(ConstraintError, match="may mean two schemas: 'http://q/' names both; name them apart"):
        compile_schema({"anyOf": [tool("boolean"), tool("integer")]})
    compile_schema({"anyOf": [tool("integer"), tool("integer")]})


@pytest.mark.parametrize("inner", [{"prefixItems": [{"type": "boolean"}]}, {"const": 3333}])
def test_a_part_of_another_draft_is_refused(inner: dict[str, Any]) -> None:
    whole = {"$schema": "http://json-schema.org/draft-04/schema#", "$ref": "#/definitions/a"}
    part = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "http://z/", **inner}
    with pytest.raises(ConstraintError, match="schema at #/definitions/a is of another draft than the document"):
        compile_schema(whole | {"definitions": {"a": part}})


def test_a_name_of_thousands_of_parts_is_compared_once() -> None:
    """The first may be as large as all that are inside it: each comparison would write it out anew."""
    parts = {f"p{i}": {"$anchor": "a", "type": "integer"} for i in range(3000)}
    began = time.monotonic()
    compile_schema({"$anchor": "a", "properties": {"x": {"type": "integer"}}, "$defs": parts, "default": "x" * 10**6})
    assert time.monotonic() - began < 5


DOTTED = {
    r"^.+$": "é",
    r"^a.b$": "a.b",
    r"^(?=.*[A-Z]).{3,}$": "xXx",
    r"^\S+\.\S+$": "x.y",
    r"^[^\s.]+$": "x-y",
    r"^.*\$\{\{(.|[\r\n])*\}\}.*$": "a${{x}}",
}


@pytest.mark.parametrize("draft", [*URIS.values(), None])
def test_patterns_with_dots_are_patterns_in_every_draft(draft: str | None) -> None:
    """The meta-schemas up to draft 7 took how they are spelled for the validator for no regular expression."""
    named = {} if draft is None else {"$schema": draft}
    for pattern, text in DOTTED.items():
        schema = {**named, "type": "string", "pattern": pattern}
        compile_schema({**named, "patternProperties": {pattern: {"type": "integer"}}})
        assert compile_schema(schema).dfa.matches(json.dumps(text, ensure_ascii=False).encode())
        assert schema_problems(schema, json.dumps(text)) == []
        assert schema_problems(schema, '""') != []


OPEN_ITEM = {"properties": {"a": {"type": "null"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "shut"),
    [
        (OPEN_ITEM, True),
        ({"items": {"$ref": "#/$defs/x"}, "$defs": {"x": OPEN_ITEM}}, True),
        ({"anyOf": [OPEN_ITEM, {"type": "null"}]}, True),
        ({"allOf": [OPEN_ITEM]}, True),
        ({"allOf": [OPEN_ITEM, {"properties": {"b": {}}}]}, False),
        ({"properties": {"b": {}}, "anyOf": [OPEN_ITEM, {"type": "null"}]}, False),
        ({**OPEN_ITEM, "additionalProperties": {"type": "null"}}, False),
        ({**OPEN_ITEM, "patternProperties": {"^b": {}}}, False),
        ({**OPEN_ITEM, "required": ["a", "b"]}, False),
        ({"items": {**OPEN_ITEM, "minProperties": 2}}, False),
    ],
)
def test_an_object_is_closed_if_nothing_else_speaks_of_its_keys(schema: Any, shut: bool) -> None:
    """Held from left to right, records had keys that nobody had declared."""
    before = json.dumps(schema)
    assert (closed(schema) != schema) == shut
    assert json.dumps(schema) == before
    inside = {"a": None}
    value = [inside] if "items" in schema else inside
    extra = [{**inside, "b": None}] if "items" in schema else {**inside, "b": None}
    judge = jsonschema_rs.validator_for(closed(schema))
    assert shut <= judge.is_valid(value)
    assert judge.is_valid(extra) != shut


def test_an_object_that_is_listed_is_not_closed() -> None:
    listed = {"properties": {"a": {"type": "integer"}}, "enum": [{"a": 1, "b": 2}]}
    assert closed(listed) == listed
