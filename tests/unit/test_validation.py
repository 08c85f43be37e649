"""A validator's verdicts: the same in a process of its own, and within bounds whatever the schema."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.helpers import BYTES, holding

from redraft.constraints import validation
from redraft.constraints.compile.dialect import URIS
from redraft.constraints.compile.limits import UNTIL, TimeLimitError
from redraft.constraints.compile.schema import compile_schema
from redraft.constraints.language import ready
from redraft.constraints.sources import schema_source
from redraft.constraints.validation import MOST_LEVELS, check_readable, schema_problems, verdicts
from redraft.errors import ConstraintError, DeadlineError


def fanned(levels: int, how: str) -> dict[str, Any]:
    """A schema of a few bytes a level, each of which applies the next one twice to the same value."""

    def twice(name: str) -> dict[str, Any]:
        parts = [{"$ref": name}, {"$ref": name}]
        return {"dependentSchemas": dict(zip("ab", parts, strict=True))} if how == "dependent" else {how: parts}

    defs = {f"d{i}": twice(f"#/$defs/d{i + 1}") for i in range(levels)} | {f"d{levels}": {"required": ["c"]}}
    keys = {"a": {"const": 1}, "b": {"const": 2}}
    return {"$defs": defs, "type": "object", "properties": keys, "required": ["a", "b"], "$ref": "#/$defs/d0"}


@pytest.mark.parametrize("how", ["dependent", "allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("levels", [13, 30])
def test_references_that_branch_take_neither_time_nor_memory(how: str, levels: int) -> None:
    """Thirty levels took 21 GB and the server with them."""
    began = time.monotonic()
    assert schema_problems(fanned(levels, how), '{"a":1,"b":2}')
    assert time.monotonic() - began < validation.JUDGE_SEC + 3
    began = time.monotonic()
    assert schema_problems(fanned(levels, how), '{"a":1,"b":2}')
    assert time.monotonic() - began < validation.JUDGE_SEC, "what took too long is known for a while"


BACK = [{"pattern": rf"^(a*)*\1b{i}"} for i in range(1500)]
LARGE = [{"pattern": rf"^[\p{{L}}\p{{N}}]{{20}}{i}$"} for i in range(1500)]
TOO_LARGE = [{"pattern": r"^[\p{L}\p{N}]{200}$"}]


@pytest.mark.parametrize(
    "schema",
    [
        {"const": "a" * 30, "not": {"anyOf": BACK}},
        {"enum": [[f"{'a' * 30}{i}" for i in range(50)]], "items": {"not": {"anyOf": BACK[:100]}}},
        {"enum": ["a" * 30, "b"], "allOf": BACK[:100]},
        {"enum": [f"{'a' * 30}{i}" for i in range(100)], "allOf": BACK[:1] * 400},
        {"const": "a", "not": {"anyOf": LARGE}},
        {"const": "a", "not": {"anyOf": TOO_LARGE}},
        {"enum": [r"[\p{L}\p{N}]{200}" + str(i) for i in range(100)], "format": "regex"},
    ],
    ids=["search back", "in a list", "beside a list", "one often", "large", "too large", "as values"],
)
def test_patterns_stop_no_other_thread(schema: dict[str, Any]) -> None:
    """The library holds Python's lock while it builds them and while they search: a request took a minute of everybody,
    and gigabytes."""
    gaps, over = [0.0], threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not over.wait(0.01):
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticking = threading.Thread(target=tick)
    ticking.start()
    began = time.monotonic()
    for judge in (lambda: compile_schema(schema), lambda: schema_problems(schema, json.dumps(["a" * 30] * 50))):
        with contextlib.suppress(ConstraintError):
            judge()
    took = time.monotonic() - began
    over.set()
    ticking.join()
    assert took < 3 * validation.JUDGE_SEC + 5
    assert max(gaps) < 5, "not the minute that it took"


def test_a_caller_who_has_no_time_learns_so_and_nothing_is_kept(tmp_path: Path) -> None:
    """It was refused for good: the refusal was kept on disk."""
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    many = {"type": "object", "properties": {f"k{i}": {"type": "string", "pattern": f"^{i}$"} for i in range(17)}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "_JUDGE", "import time; time.sleep(60)")
        patch.setattr(validation, "LEAST_SEC", 0.1)
        for work in (lambda: verdicts(schema, {}), lambda: ready(schema_source(many), BYTES, kept_in=tmp_path)):
            with holding(UNTIL, time.monotonic() + 1.0), pytest.raises(DeadlineError):
                work()
    assert ready(schema_source(many), BYTES, kept_in=tmp_path).holds([byte + 2 for byte in b"{}"])


def test_a_schema_of_references_is_read_without_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging by it may take exponential time, reading it does not: each request waited 2 s for a process."""
    monkeypatch.setattr(validation, "_elsewhere", lambda *_: pytest.fail("a process was begun"))
    check_readable(fanned(30, "allOf"))
    check_readable({"patternProperties": {"^x-": {"type": "integer"}}})
    with pytest.raises(ConstraintError, match="gone"):
        check_readable({"$ref": "#/$defs/gone"})
    with pytest.raises(pytest.fail.Exception):
        check_readable(fanned(30, "allOf") | {"unevaluatedProperties": False})  # 3 GB in this process


@pytest.mark.parametrize(
    ("schema", "held"),
    [
        ({"$schema": URIS[4], "minimum": 1, "exclusiveMinimum": True, "enum": [1, 2]}, "2"),
        ({"$schema": URIS[7], "type": "string", "format": "uuid", "enum": ["x", "0" * 36]}, None),
        ({"$schema": URIS[6], "type": "string", "format": "duration", "enum": ["x", "P1D"]}, '"P1D"'),
    ],
)
def test_what_stands_beside_a_list_is_read_by_the_schemas_own_draft(schema: dict[str, Any], held: str | None) -> None:
    if held is None:
        with pytest.raises(ConstraintError, match="no JSON value satisfies"):
            compile_schema(schema)
        return
    dfa = compile_schema(schema).dfa
    assert [dfa.matches(json.dumps(value).encode()) for value in schema["enum"]] == [False, True]


SCHEMAS: list[tuple[Any, list[Any]]] = [
    (fanned(3, "allOf"), [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, {"a": 1}]),
    ({"type": "object", "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}}, [{"next": {"v": 1.5}}, {}]),
    ({"$ref": "#node", "$defs": {"n": {"$anchor": "node", "type": "string"}}}, ["a", 1]),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "string", "format": "date"}, ["2026-01-02", "x"]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^a+$"}, ["a", "b", 1]),
    (True, [1]),
    (False, [1]),
]


@pytest.mark.parametrize(("schema", "values"), SCHEMAS)
def test_verdicts_are_the_same_in_a_process_of_its_own(
    schema: Any, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for most in (validation.MOST_PARTS, 0):
        monkeypatch.setattr(validation, "MOST_PARTS", most)
        if most:
            here = [verdicts(schema, value) for value in values]
    assert [verdicts(schema, value) for value in values] == here
    if "draft-04" not in str(schema):
        assert [not found for found in here] == [Draft202012Validator(schema).is_valid(value) for value in values]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('{"items":' * 320 + "{}" + "}" * 320, f"nests too deeply: over {MOST_LEVELS} levels"),
        ({"$id": "http://[::1", "type": "null", "$ref": "//[x"}, "is no URL"),
        ({"type": "integer", "multipleOf": 9973, "minimum": 1, "maximum": 10**30}, "narrow"),
    ],
)
def test_what_a_library_does_not_read_is_refused_by_name(schema: Any, said: str) -> None:
    with pytest.raises(ConstraintError, match=said):
        ready(schema_source(schema), BYTES)


def _doubling(times: int) -> dict[str, Any]:
    """Definitions of which each names the next one twice."""
    found: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(times)}
    return found | {f"d{times}": {"type": "integer"}}


def test_what_branches_is_judged_apart_wherever_its_references_begin() -> None:
    """Below a name of its own, and in a property that is called as a keyword is."""
    inner = {"$id": "http://o/", "$ref": "#/$defs/d0", "$defs": _doubling(30)}
    moved = {"$ref": "#/$defs/x", "$defs": {"x": inner}}
    called = {"properties": {"definitions": {"$ref": "#/$defs/d0"}}, "$defs": _doubling(30)}
    began = time.monotonic()
    for schema, value in ((moved, 1), (called, {"definitions": 1})):
        assert verdicts(schema, value) == [([], validation.TOO_MUCH)]
    called["properties"]["definitions"]["unevaluatedProperties"] = False
    with pytest.raises(TimeLimitError):
        check_readable(called)
    assert time.monotonic() - began < 15


def test_values_of_a_schema_are_no_parts_of_it() -> None:
    """A word within them is no name, and so nothing has to be judged apart."""
    schema = {
        "properties": {"a": {"$ref": "#/$defs/b"}},
        "default": {"id": "x"},
        "$defs": {"b": {"enum": [{"id": "y"}]}},
    }
    assert validation._cost(schema)[0] < 10
