"""JSON Schema to language, driven by the official test suite and judged by a validator that is not ours."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.constraints.compile.automaton import intersect
from redraft.constraints.compile.dialect import draft_of, reached, validated_as
from redraft.constraints.compile.keywords import CARE, FORMATS, KEYWORDS
from redraft.constraints.compile.limits import CompileLimits
from redraft.constraints.compile.merge import Schema
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.compile.schema import Compiled, compile_schema
from redraft.constraints.validation import schema_problems, verdicts
from redraft.errors import ConstraintError
from schema_suite import compact, written

EVERY = int(os.environ.get("SUITE_EVERY", "16"))  # of the suite's groups; SUITE_EVERY=1 goes through all of them
IPV6 = whole_match(FORMATS["ipv6"])
SUITE = Path(__file__).resolve().parents[1] / "data" / "json_schema_suite"


def groups() -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """(name, schema, tests) of every group of the suite."""
    for path in sorted(SUITE.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8"))[::EVERY]:
            yield f"{path.stem}: {group['description']}", group["schema"], group["tests"]


@lru_cache(maxsize=1)
def compiled() -> dict[str, Compiled | str]:
    """Every group's language, or why it was refused."""
    found: dict[str, Compiled | str] = {}
    for name, schema, _ in groups():
        try:
            found[name] = compile_schema(schema, depth=2, spaces=False, limits=CompileLimits(seconds=600.0))
        except ConstraintError as error:
            found[name] = str(error)
    return found


def test_everything_written_for_a_schema_of_the_suite_satisfies_it() -> None:
    """100% of what is guaranteed; a schema with keywords that are checked afterwards says that it has some."""
    wrong = []
    for name, schema, _ in groups():
        found = compiled()[name]
        if isinstance(found, Compiled) and not found.checked:
            validator = jsonschema_rs.validator_for(schema)
            for text in written(found.dfa, 6, seed=len(name), step=30):
                if not validator.is_valid(json.loads(text)):
                    wrong.append((name, text))
    assert wrong == []


def test_no_invalid_instance_of_the_suite_is_in_a_language_that_promises_it() -> None:
    wrong, reached = [], Counter[bool]()
    for name, _, tests in groups():
        found = compiled()[name]
        if isinstance(found, str):
            continue
        for test in tests:
            held = found.dfa.matches(compact(test["data"]))
            if test["valid"]:
                reached[held] += 1
            elif held and not found.checked:
                wrong.append((name, test["description"]))
    assert wrong == []
    assert reached[True] > 10 * reached[False], "most valid instances can be written as Python writes them"


def test_refusals_name_what_is_refused_and_are_few() -> None:
    refused = {name: why for name, why in compiled().items() if isinstance(why, str)}
    for name, why in refused.items():
        schema = next(schema for other, schema, _ in groups() if other == name)
        assert any(part in why for part in ("no JSON value satisfies", "leads out", "names nothing")), (name, why)
        if "no JSON value satisfies" in why:
            tests = next(tests for other, _, tests in groups() if other == name)
            assert not any(test["valid"] for test in tests), (name, schema)
    assert len(refused) < len(compiled()) / 5


def test_every_keyword_of_the_draft_has_a_row() -> None:
    """The vocabularies' own meta-schemas, as an independent package carries them, list the keywords."""
    used = {word for _, schema, _ in groups() if isinstance(schema, dict) for word in schema}
    inside = {"foo", "bar", "$defs"}
    assert {word for word in used if word not in CARE} <= inside | {"custom", "unknown", "unknown_keyword"}
    assert len({keyword.name for keyword in KEYWORDS}) == len(KEYWORDS)
    words = {"$anchor", "$comment", "$defs", "$dynamicAnchor", "$dynamicRef", "$id", "$ref", "$schema", "$vocabulary",
             "additionalProperties", "allOf", "anyOf", "const", "contains", "contentEncoding", "contentMediaType",
             "contentSchema", "default", "dependentRequired", "dependentSchemas", "deprecated", "description", "else",
             "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxContains",
             "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems", "minLength",
             "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern", "patternProperties", "prefixItems",
             "properties", "propertyNames", "readOnly", "required", "then", "title", "type", "unevaluatedItems",
             "unevaluatedProperties", "uniqueItems", "writeOnly"}  # fmt: skip
    assert words <= CARE.keys()


@given(
    st.lists(st.sampled_from(["", "", "0", "1", "ab", "FFff", "12345", "g"]), max_size=9), st.booleans(), st.booleans()
)
def test_ipv6_is_what_pythons_own_reader_takes(groups: list[str], begins: bool, ends: bool) -> None:
    """Only eight groups were taken, so that `::1` contradicted the format."""
    text = "::" * begins + ":".join(groups) + "::" * ends
    try:
        ipaddress.IPv6Address(text)
        right = True
    except ValueError:
        right = False
    assert IPV6.matches(text.encode()) == right


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("email", "customerservicedepartment@acme.com no_reply_do_not_answer@a.com a.b.c.d@x.de o'neil@x.com A@X.COM"),
        ("email", "x@mail.eu.corp.acme.com"),
        ("duration", "P1Y P6M P1Y6M PT1H30M PT1M30S P1DT2H30M P2W"),
        ("hostname", "db01 ip-10-0-0-1 DB01.example.com"),
        ("uri", "http://db1:5432/ http://intranet-server/x https://user:pw@example.com/ hdfs://a/b"),
        ("json-pointer", "/a~1b"),
        ("ipv6", "::ffff:192.0.2.1"),
        ("uuid", "6BA7B810-9DAD-11D1-80B4-00C04FD430C8"),
        ("date-time", "2024-05-01T10:00:00.123456789Z"),
    ],
)
def test_a_format_has_what_people_write(name: str, texts: str) -> None:
    """A model that may not write an address writes another one, and nobody says so."""
    dfa = compile_schema({"type": "string", "format": name}).dfa
    validator = jsonschema_rs.validator_for({"format": name}, validate_formats=True)
    for text in texts.split():
        assert validator.is_valid(text), text
        assert dfa.matches(json.dumps(text).encode()), text


@pytest.mark.parametrize(
    ("schema", "states"),
    [
        ({"type": "string", "format": "email", "maxLength": 254}, 400),
        ({"type": "string", "format": "uri", "maxLength": 255}, 400),
        ({"type": "integer", "multipleOf": 9999}, 400),
        ({"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}, 400),
        ({"type": "string", "pattern": "a^b|c"}, 400),
    ],
)
def test_what_takes_too_many_states_is_left_to_the_validator(schema: dict[str, Any], states: int) -> None:
    """An address has fewer characters anyway. The others were written from left to right, and badly."""
    found = compile_schema(schema)
    assert len(found.dfa) < states
    assert found.checked == (schema.get("format") != "email")


def test_numbers_have_all_their_digits_where_fewer_would_do_no_good() -> None:
    """Between 0 and 1e-7 is no decimal of six places; of what is checked all the same 15 digits hold no more."""
    items: Any = {"type": "number", "minimum": -123.456, "maximum": 9876.54}
    tiny = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-7}
    found = compile_schema({"type": "array", "items": items, "prefixItems": [tiny], "minItems": 900, "maxItems": 900})
    assert found.dfa.step(0, b"[0.00000005") >= 0
    many = compile_schema({"type": "integer", "multipleOf": 9973})
    assert many.checked
    assert many.dfa.matches(str(9973 * 10**14).encode())


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 2500},
        {"type": "array", "items": {"type": "number"}, "minItems": 1024, "maxItems": 1024},
        {"properties": {name: {"type": "integer", "multipleOf": 1000} for name in "abcd"}, "required": [*"abcd"]}
        | {"type": "object"},
    ],
)
def test_numbers_have_fewer_digits_where_they_would_take_too_many_states(schema: dict[str, Any]) -> None:
    found = compile_schema(schema)
    assert not found.checked
    validator = jsonschema_rs.validator_for(schema)
    assert all(validator.is_valid(json.loads(text)) for text in written(found.dfa, 5, seed=1, step=2000))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_is_what_a_validator_takes_it_for(name: str) -> None:
    validator = jsonschema_rs.validator_for({"format": name}, validate_formats=True)
    for text in written(whole_match(FORMATS[name]), 40, seed=1, step=30):
        assert validator.is_valid(text), text


@pytest.mark.parametrize(
    "names",
    [
        {"enum": ["id", "bbb"], "minLength": 3, "pattern": "^b"},
        {"allOf": [{"enum": ["id", "bbb", "b"]}, {"pattern": "^b"}]},
        {"enum": ["id", "bbb"], "maxLength": 2},
        {"const": "id", "format": "date"},
        {"enum": ["id", 5], "type": "integer"},
    ],
)
def test_listed_keys_satisfy_what_stands_beside_their_list(names: object) -> None:
    schema = {"type": "object", "propertyNames": names, "properties": {"id": {}}, "additionalProperties": {"const": 0}}
    dfa, validator = compile_schema(schema).dfa, jsonschema_rs.validator_for(schema, validate_formats=True)
    for key in ("id", "bbb", "b"):
        assert dfa.matches(b'{"%s":0}' % key.encode()) == validator.is_valid({key: 0}), key


@pytest.mark.parametrize(
    ("least", "more", "checked"),
    [
        (2, {"patternProperties": {"^z$": {"type": "integer"}}}, True),
        (2, {"additionalProperties": True}, True),
        (1, {"additionalProperties": True}, False),
        (2, {"additionalProperties": False}, False),
        (2, {"additionalProperties": True, "required": ["a"]}, False),
        (3, {"additionalProperties": True, "required": ["a"]}, True),
    ],
)
def test_a_key_that_repeats_counts_once(least: int, more: dict[str, Any], checked: bool) -> None:
    """{"z":2,"z":2} was held to be an object of two properties."""
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "minProperties": least}
    assert compile_schema({**schema, **more}).checked == checked


OPEN = {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 9}


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"items": OPEN, "contains": {"const": 5}}, {"[4]": False, "[5]": True, "[0,5]": False}),
        ({**OPEN, "not": {"const": 5}}, {"4": True, "5": False, "0": False}),
        ({"items": OPEN, "uniqueItems": True}, {"[4,4]": False, "[4]": True, "[0]": False}),
        ({"minimum": 3, "exclusiveMinimum": False, "const": 3}, {"3": True}),
        ({"properties": {"b": OPEN, "c": {"$ref": "#/d/X"}}, "d": {"X": OPEN}}, {'{"c":0}': False, '{"c":4}': True}),
        ({"items": [OPEN], "additionalItems": {"$ref": "#/items/0"}}, {"[4,0]": False, "[4,4]": True}),
        ({"items": OPEN, "id": "#/properties/a"}, {"[4]": True, "[0]": False}),
        ({"items": OPEN, "required": [], "not": False, "additionalItems": False}, {"[4]": True}),
        ({"items": {"anyOf": [OPEN, {"exclusiveMinimum": 20}]}}, {"[4,21]": True, "[20]": False}),
        (
            {"id": "urn:x", "items": {"$ref": "urn:x#/definitions/y"}, "definitions": {"y": OPEN}},
            {"[4]": True, "[0]": False},
        ),
    ],
)
def test_a_boolean_bound_takes_no_newer_word_away(schema: object, texts: dict[str, bool]) -> None:
    """One such bound, and no word that is newer than draft 4 was judged any more."""
    assert {text: not schema_problems(schema, text) for text in texts} == texts


def test_a_boolean_bound_of_one_tool_leaves_the_others_theirs() -> None:
    """No `$id` was read any more, so the references of other tools led nowhere."""
    x = {"type": "array", "items": {"type": "integer"}, "contains": {"const": 5}}
    tools = [{"$id": "urn:tool:f", **OPEN}, {"$id": "urn:tool:g", "$ref": "#/$defs/x", "$defs": {"x": x}}]
    found, schema = compile_schema({"anyOf": tools}), {"anyOf": tools}
    assert [found.dfa.matches(text) for text in (b"0", b"4", b"[4]", b"[5]")] == [False, True, True, True]
    assert [not schema_problems(schema, text) for text in ("0", "4", "[4]", "[5]")] == [False, True, False, True]


@pytest.mark.parametrize(
    "old",
    [
        {"type": "object", "properties": {"p": {"items": [{"const": "Z"}]}}, "required": ["p"]},
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "required": ["p"],
         "properties": {"p": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "required": ["p"],
         "properties": {"p": {"$ref": "#foo"}}, "definitions": {"q": {"$id": "#foo", "type": "integer"}}},
    ],
)  # fmt: skip
def test_forms_of_an_old_schema_leave_a_new_one_beside_it_as_it_is(old: dict[str, Any]) -> None:
    """A validator of the old one's draft knows no prefixItems, nor what else the new one says."""
    pair = {"items": {"enum": [0]}, "maxItems": 2, "if": {"prefixItems": [{"const": 1}]}, "else": {"minItems": 2}}
    new = {"type": "object", "properties": {"q": pair}, "required": ["q"], "additionalProperties": False}
    schema = {"anyOf": [{"$id": "urn:old", **old}, {"$id": "urn:new", **new}]}
    assert compile_schema(schema).dfa.matches(b'{"q":[0]}')
    assert [not schema_problems(schema, text) for text in ('{"q":[0]}', '{"q":[0,0]}')] == [False, True]


@pytest.mark.parametrize(
    ("values", "beside", "kept"),
    [
        ([{"x": 0}, {"x": 1, "y": 2}, {"x": "a"}], {"properties": {"x": {"type": "integer"}}}, [0, 1]),
        ([{"x": 0}, {"x": 1, "y": 2}], {"properties": {"x": True}, "additionalProperties": False}, [0]),
        ([{"x": 0}, {"x": 1, "y": 2}], {"$ref": "#/$defs/P"}, [0]),
        ([{"x": 0}, "none"], {"properties": {"x": {}}, "unevaluatedProperties": False}, [0, 1]),
        ([{"x": 0}, {"xx": 0}], {"propertyNames": {"minLength": 2}}, [1]),
        ([{"x": 0}, {"x": 0, "n": 1}], {"required": ["n"]}, [1]),
        ([[1], [2, 3], ["a"]], {"prefixItems": [{"type": "integer"}], "items": False}, [0]),
        ([[1], ["a"]], {"items": {"type": "string"}}, [1]),
    ],
)
def test_listed_values_are_those_that_the_rest_allows(values: list[Any], beside: Schema, kept: list[int]) -> None:
    """A closing false was read without the properties beside it, which then were none."""
    closed = {"P": {"properties": {"x": True}, "additionalProperties": False}}
    schema = {"enum": values, **beside, "$defs": closed}
    assert kept == [i for i, value in enumerate(values) if not verdicts(schema, value)]
    dfa = compile_schema(schema).dfa
    written = [json.dumps(value, separators=(",", ":")).encode() for value in values]
    assert kept == [i for i, text in enumerate(written) if dfa.matches(text)]


@pytest.mark.parametrize("place", ["$defs", "components"])
def test_where_only_a_reference_leads_a_schema_is_read_as_elsewhere(place: str) -> None:
    """OpenAPI's components are no place of JSON Schema's: patterns there were Unicode's, and old bounds refused."""
    whole = {
        "$ref": f"#/{place}/A",
        place: {"A": {"type": "string", "allOf": [{"pattern": "^é$"}, {"pattern": r"\bé\b"}]}},
    }
    assert schema_problems(whole, '"é"')
    bounds = {"properties": {"n": {"type": "integer", "exclusiveMaximum": True, "maximum": 5}}, "type": "object"}
    for more in ({}, {"dependentRequired": {"a": ["b"]}}):
        schema = {"$ref": f"#/{place}/A", place: {"A": bounds | more}}
        assert [compile_schema(schema).dfa.matches(b'{"n":%d}' % n) for n in (4, 5)] == [True, False]
        assert [not schema_problems(schema, f'{{"n":{n}}}') for n in (4, 5)] == [True, False]


def test_nobody_trips_over_what_no_answer_needs() -> None:
    """A number of 5,000 digits was too long for Python, and a place that holds no schema was refused."""
    long = {"$defs": {"x": {"$ref": "#/prefixItems/" + "1" * 5000}, "y": {"$ref": "#/examples/0"}}, "type": "null"}
    assert validated_as(long | {"prefixItems": [{}], "examples": [{"properties": 5}]})[0] == 2020
    named = {
        "patternProperties": {"^a.b$": {"type": "string"}},
        "properties": {"x": {"$ref": "#/patternProperties/%5Ea.b$"}},
    }
    assert [not schema_problems(named, text) for text in ('{"x":"a"}', '{"x":1}')] == [True, False]
    old = {
        "properties": {
            "a": {"$ref": "#/additionalItems"},
            "b": {"minimum": 1, "exclusiveMinimum": True},
            "c": {"const": 1},
        }
    }
    old |= {"items": {"type": "number"}, "additionalItems": {"type": "string"}}
    assert [not schema_problems(old, text) for text in ('{"a":"a"}', '{"a":1}')] == [True, False]


def test_references_to_one_another_are_followed_once() -> None:
    """Each was walked anew, with all below it: 40 of them over 20,000 schemas took 3.6 s."""
    inner: dict[str, Any] = {"allOf": [{} for _ in range(5000)]}
    for _ in range(40):
        inner = {"not": inner}
    refs = [{"$ref": "#/x" + "/not" * depth} for depth in range(40)]
    began = time.monotonic()
    assert len(list(reached({"$defs": {"r": {"allOf": refs}}, "x": inner}, draft_of({})))) == 5000 + 40 + 1 + 40 + 2
    assert time.monotonic() - began < 5


def test_only_pointers_into_lists_are_moved_in_mixed_drafts() -> None:
    old = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "dependentRequired": {}}
    named = {"$defs": {"i": {"$id": "http://ex.com/items/1", "type": "integer"}}, "properties": {"b": old}}
    named["properties"]["a"] = {"$ref": "http://ex.com/items/1"}
    assert [not schema_problems(named, text) for text in ('{"a":1}', '{"a":"x"}')] == [True, False]
    rest = {"items": [True], "additionalItems": {"const": "x"}}
    moved = {"properties": {"a": rest, "b": old, "c": {"$ref": "#/properties/a/additionalItems"}}}
    assert [not schema_problems(moved, text) for text in ('{"c":"x"}', '{"c":1}')] == [True, False]


def test_look_aheads_at_a_beginning_are_held_together() -> None:
    compiled = compile_schema({"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d)(?!.*xx)[A-Za-z\d]{4,6}$"})
    assert not compiled.checked
    texts = ("aaA1", "aaa1", "AAAA", "xxA1", "xyxA1x", "A1")
    assert [compiled.dfa.matches(json.dumps(text).encode()) for text in texts] == [True, *[False] * 3, True, False]


def test_a_pointer_into_a_list_of_items_leads_there_in_mixed_drafts() -> None:
    """The schema is rewritten with prefixItems, so the validator found nothing under items."""
    pair = {"items": [{"minimum": 0, "exclusiveMinimum": True}], "dependentRequired": {"x": ["y"]}}
    schema = {"properties": {"a": pair, "b": {"$ref": "#/properties/a/items/0"}}}
    assert [not schema_problems(schema, text) for text in ('{"b":1}', '{"b":0}', '{"a":[0]}')] == [True, False, False]
    assert compile_schema(schema).dfa.matches(b'{"b":1}')


def test_a_key_of_digits_or_none_is_found_in_the_answer() -> None:
    """The library's path has 0 for "0" and nothing for "": the walk came to another value, and failed in it."""
    inner = {"type": "object", "properties": {"a": {"items": {"maximum": 1}}}}
    schema = {"properties": {"0": inner, "": inner, "b": {"properties": {"": inner}}}}
    for text in ('{"0":{"a":[0,2]},"a":"xy"}', '{"a":"xy","":{"a":[0,2]}}', '{"b":{"":{"a":[2]}},"a":[7]}'):
        at = text.index("2")
        assert [problem.span for problem in schema_problems(schema, text)] == [(at, at + 1)], text


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"patternProperties": {"^.*$": {"type": "integer"}}, "additionalProperties": True}, {"a\rb": "x"}),
        ({"patternProperties": {"^a.b$": {"type": "integer"}}, "properties": {"a\rb": True}}, {"a\rb": "x"}),
        ({"type": "string", "pattern": "^(?!.*x)[a-z\\s]*$"}, "\rx"),
        ({"type": "string", "pattern": "^(?=.*x)[a-z\\s]*$"}, "\rx"),
    ],
)
def test_what_a_pattern_must_not_match_is_as_wide_as_anybody_reads_it(schema: object, value: object) -> None:
    """A dot is not \\r to ECMA, and is to Rust and to Python."""
    assert not compile_schema(schema).dfa.matches(json.dumps(value).encode())


def test_a_hostname_is_no_longer_than_a_name_may_be() -> None:
    assert intersect(whole_match(FORMATS["hostname"]), whole_match(".{254,400}")).is_empty


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": "string", "minLength": 5, "maxLength": 2}, "no JSON value satisfies"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "no JSON value satisfies"),
        ({"properties": {"a": {"$dynamicRef": "#x"}}}, "'#x' names nothing"),
        ({"type": "text"}, "schema at #/type is no JSON Schema"),
        ({"$ref": "https://example.com/x"}, "leads out of the document"),
        ({"$ref": "#/$defs/none"}, "names nothing"),
        ({"minLength": "3"}, "schema at #/minLength is no JSON Schema"),
        ({"patternProperties": {"(?=a)": {"type": "null"}}}, "look-around"),
        ({"pattern": "("}, "cannot be made into an automaton"),
        ({"properties": [1]}, "it must be a JSON dict"),
        ([1], "must be an object, true or false"),
        ({"type": "string", "minLength": 5000}, "minLength is 5000"),
        ({"multipleOf": 0}, "no JSON Schema"),
        ({"type": "string", "pattern": "^a@b$", "format": "email"}, 'or a "format" whose rarer forms are not written'),
        ({"enum": 5}, "schema at #/enum is no JSON Schema"),
        ({"properties": {"a": {"required": [1]}}}, "schema at #/properties/a/required/0 is no JSON Schema"),
        ({"pattern": 5}, "is no JSON Schema"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "no JSON value satisfies"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused_by_name(schema: Any, complaint: str) -> None:
    with pytest.raises(ConstraintError) as error:
        compile_schema(schema)
    assert complaint in str(error.value)


def test_a_schema_that_explodes_is_refused() -> None:
    wide = {"type": "array", "minItems": 400, "maxItems": 400, "items": {"type": "string", "maxLength": 400}}
    with pytest.raises(ConstraintError, match=r"states|seconds"):
        compile_schema(wide, limits=CompileLimits(states=5000, seconds=5.0))


def test_recursion_goes_to_its_depth_and_no_deeper() -> None:
    tree = {"$defs": {"n": {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
                            "required": ["c"], "additionalProperties": False}}, "$ref": "#/$defs/n"}  # fmt: skip
    dfa = compile_schema(tree, depth=3).dfa
    nested = '{"c":[]}'
    for _ in range(2):
        nested = '{"c":[' + nested + "]}"
    assert dfa.matches(nested.encode())
    assert not dfa.matches(('{"c":[' + nested + "]}").encode())


def test_habits_of_writing_are_admitted() -> None:
    """An earlier experiment elsewhere lost a quarter of its accuracy because only compact text was allowed."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array"}}, "required": ["a"]}
    dfa, compact = compile_schema(schema).dfa, compile_schema(schema, spaces=False).dfa
    value = {"a": 1, "b": [1, "x"]}
    for indent in (None, 1, 2, 4):
        assert dfa.matches(json.dumps(value, indent=indent).encode())
    assert dfa.matches(b'{"a":1,"b":[1,"x"]}')
    assert compact.matches(b'{"a":1,"b":[1,"x"]}')
    assert not compact.matches(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"allOf": [{"pattern": "a.{13}$"}, {"pattern": "^.{13}b"}, {"pattern": "b.{15}$"}]}, "states|counts"),
        ({"$ref": "#/allOf/²", "allOf": [True]}, "names nothing"),
        ({"$ref": "#/enum", "enum": [1]}, "must be an object"),
        ({"pattern": "^[^+--]$"}, "-- in a class"),
        ({"anyOf": [{"type": "integer"}, {"not": {"$ref": "https://example.com/x"}}]}, "is no JSON Schema: .*disabled"),
        ({"type": "null", "items": {"$ref": "#a"}}, "is no JSON Schema: .*'a' does not exist"),
        ({"type": "null", "not": {"$schema": "no uri"}}, "is no JSON Schema: Invalid URI"),
        ({"type": "integer", "not": {"pattern": "["}}, "is no JSON Schema: .*no pattern, or too large"),
        (
            {"$ref": "#/$defs/0", "$defs": {str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(30)}
             | {"30": True}},
            "alternatives|seconds",
        ),
    ],
)  # fmt: skip
def test_schemas_that_would_never_be_ready_or_name_no_schema_are_refused(schema: Any, complaint: str) -> None:
    with pytest.raises(ConstraintError, match=complaint):
        compile_schema(schema)


def test_nothing_is_fetched_for_a_schema() -> None:
    """Not for the draft that it names, nor for references in parts that only the validator reads."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        where = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        kept = {"$schema": where, "type": "integer", "not": {"const": 1}}
        assert schema_problems(kept, "2") == []
        assert compile_schema(kept).checked
        for part in ("not", "if", "contains"):
            for run in (compile_schema, lambda schema: schema_problems(schema, "1")):
                with pytest.raises(ConstraintError, match="is no JSON Schema"):
                    run({part: {"$ref": where}, "then": True})
        with contextlib.suppress(TimeoutError):
            asked.append(listening.accept())
    assert not asked


def test_what_a_reference_names_is_a_schema_wherever_it_stands() -> None:
    assert compile_schema({"$ref": "#/default", "default": {"type": "string", "not": {"const": "a"}}}).checked
    assert compile_schema({"type": "integer", "minimum": 10**400}).dfa.matches(b"1" + b"0" * 400)


def test_a_pattern_that_no_automaton_can_keep_is_left_to_the_validator() -> None:
    schema = {"type": "string", "pattern": "^[ab](?<!b)$"}
    found = compile_schema(schema)
    assert found.checked
    assert found.dfa.matches(b'"b"')
    assert schema_problems(schema, '"a"') == []
    assert schema_problems(schema, '"b"') != []


@pytest.mark.parametrize(
    "pattern", ["^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$", "^(?!ab\\.|1).*", "^(?!a[)]?$).*$", "^(?=.*[0-9])[a-z0-9]{2,5}$"]
)
def test_a_pattern_may_look_ahead_from_its_beginning(pattern: str) -> None:
    """The first is pydantic's for a decimal: a validator that mended it afterwards gave up on what models wrote."""
    found = compile_schema({"type": "string", "pattern": pattern})
    assert not found.checked
    for text in ("", ".", "+.", "1.5", "-0", "12", "ab.x", "xab.", "a", "a)", "ab1", "abc", "b7"):
        assert found.dfa.matches(f'"{text}"'.encode()) == (re.search(pattern, text) is not None), text


def test_properties_that_are_declared_once_stand_once() -> None:
    """A state for each set of optional properties, or for each number of them, made thirty of them too many."""
    wide = {f"key{i}": {"type": "integer"} for i in range(60)}
    one, two = (
        {"type": "object", "properties": dict([*wide.items()][:n]), "additionalProperties": False} for n in (30, 60)
    )
    sizes = [len(compile_schema(schema).dfa) for schema in (one, two)]
    assert sizes[1] < 2.5 * sizes[0]
    assert sizes[1] < 60 * 100
    nested: Any = {"type": "integer"}
    for _ in range(8):
        nested = {"type": "object", "properties": {"a": nested, "b": {"type": "null"}}, "additionalProperties": False}
    assert len(compile_schema(nested).dfa) < 1000, "a pair has one way in, however many have been written before it"


@pytest.mark.parametrize(
    ("more", "checked"),
    [
        ({"items": {"enum": ["a", "b", "cd", 1]}}, False),
        ({"items": {"enum": ["a", "b", "cd"]}, "minItems": 2}, False),
        ({"items": {"enum": ["a", "b", 1, 1.0]}, "maxItems": 2}, True),  # of 1.0 the drafts say different things
        ({"items": {"type": ["boolean", "null"]}, "minItems": 1}, False),
        ({"items": {"anyOf": [{"const": "a"}, {"type": "boolean"}]}}, False),
        ({"allOf": [{"items": {"enum": ["a", "b"]}, "uniqueItems": False}, {"uniqueItems": True}]}, False),
        ({"items": {"enum": ["a", "b"]}, "maxItems": 1}, False),
        ({"items": {"type": "integer", "minimum": 1, "maximum": 2}}, True),
        ({"items": {"enum": [f"v{i}" for i in range(20)]}}, True),
        ({"items": {"enum": [f"v{i}" for i in range(20)]}, "maxItems": 2}, False),
        ({"prefixItems": [{"const": "a"}], "items": {"enum": ["a", "b"]}}, True),
    ],
)
def test_few_values_that_must_differ_are_held_to_it(more: Schema, checked: bool) -> None:
    """A list such as the days of a week was written with one of them twice, and repaired."""
    schema = {"type": "array", "uniqueItems": True, **more}
    found, validator = compile_schema(schema), jsonschema_rs.validator_for(schema)
    assert found.checked == checked
    values = ["a", "b", "cd", 1, True, False, None, "v1", "v19"]
    for count in range(4):
        for value in map(list, itertools.product(values, repeat=count)):
            matches, valid = found.dfa.matches(json.dumps(value).encode()), validator.is_valid(value)
            assert matches == valid or (checked and matches), value


def test_values_that_must_differ_need_enough_of_them() -> None:
    with pytest.raises(ConstraintError, match="no JSON value satisfies"):
        compile_schema({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 3})


def test_lists_that_are_too_many_in_every_order_are_checked_instead() -> None:
    """Thirty lists of days, each with 3,775 states, had no automaton any more."""
    days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    open_days = {"type": "array", "items": {"enum": days}, "uniqueItems": True}
    names = [f"d{i}" for i in range(30)]
    many = compile_schema({"type": "object", "properties": dict.fromkeys(names, open_days), "required": names})
    assert many.checked
    assert not compile_schema({"type": "object", "properties": {"d": open_days}}).checked


def test_addresses_that_are_too_many_are_written_freely() -> None:
    names = [f"m{i}" for i in range(20)]
    schema = {"type": "object", "properties": {name: {"type": "string", "format": "email"} for name in names}}
    for count in (40, 300):
        text = " ".join(f"some.body{i}@a{i}.example.org" for i in range(count))
        free = json.dumps({"m0": "any@where.org"}).encode()
        assert compile_schema(schema, verbatim=text).dfa.matches(free) == (count == 300)
