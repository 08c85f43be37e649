"""One schema in every form that a caller may write it in."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jsonschema_rs
import pydantic
import pytest

from redraft.constraints.schemas import plain_schema
from redraft.errors import ConstraintError
from redraft.prompts import of_schema


@dataclasses.dataclass
class Person:
    name: str
    age: int


class Checked(pydantic.BaseModel):
    name: str
    age: int


PLAIN = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
FORMS: list[Any] = [
    PLAIN,
    json.dumps(PLAIN),
    json.dumps(PLAIN).encode(),
    f"\n {json.dumps(PLAIN)}",
    Person,
    Checked,
    "name, age int",
    "name: str, age: integer",
    "name string, age: int",
]


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_every_form_says_the_same(form: Any) -> None:
    validator = jsonschema_rs.validator_for(plain_schema(form))
    assert validator.is_valid({"name": "Alice", "age": 31})
    for wrong in ({"name": "Alice"}, {"name": "Alice", "age": "31"}, {"name": 3, "age": 31}, []):
        assert not validator.is_valid(wrong)


def test_a_name_that_begins_like_json_is_a_name() -> None:
    assert list(plain_schema("trueness, nullable int")["properties"]) == ["trueness", "nullable"]
    assert plain_schema("true") is True


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("{", "the schema is not JSON"),
        ({"x": object()}, "the schema is not JSON"),
        ("name, name", "names 'name' twice"),
        ("age itn", "'age' has type 'itn'; types: .*; did you mean 'int'"),
        ("age ,, x", "'' is no field; write fields as 'name, age int"),
        ("size S|S", "'S|S' has an empty or a repeated text"),
        (
            "name, address{street,city}",
            "'address{street' is no field; .*; an object inside another takes a JSON Schema",
        ),
        ("name, address {street int, city}", "'address' has type '{street int'; .*an object inside another takes"),
        ("name, lines [qty, x]", "'lines' has type '.qty'; .*an object inside another takes a JSON Schema"),
        ("size enum(a,b)", "'size' has type 'enum.a'; types: .*; one of some texts is a|b"),
        ("size enum(a|b)", "'size' has type 'enum.a|b.'; types: .*; one of some texts is a|b"),
        ("size (S|M|L)", "'size' has type '.S|M|L.'; types: .*; one of some texts is a|b"),
        ("size Literal['S'|'M']", "'size' has type .*; one of some texts is a|b"),
        ("city)", "'city.' is no field; .*; an object inside another takes a JSON Schema"),
        (int, "int is no dataclass and has no model_json_schema"),
    ],
)
def test_what_is_no_schema_is_refused(form: Any, said: str) -> None:
    with pytest.raises(ConstraintError, match=said.replace("|", r"\|")):
        plain_schema(form)


def test_a_datetime_is_the_format_of_that_name() -> None:
    """It was refused with the advice to write 'time'."""
    assert plain_schema("when datetime")["properties"]["when"] == {"type": "string", "format": "date-time"}


def test_choices_may_stand_in_quotes_and_a_list_is_written_behind_its_type() -> None:
    assert plain_schema("""size "S"|'M'|L""")["properties"]["size"] == {"enum": ["S", "M", "L"]}
    with pytest.raises(ConstraintError, match=r"a list of texts is str\[\]"):
        plain_schema("tags list[str]")


def test_a_type_made_of_classes_is_a_schema() -> None:
    """It said that an object of type GenericAlias is not JSON serializable."""
    for form in (list[Checked], list[Person]):
        schema = plain_schema(form)
        validator = jsonschema_rs.validator_for(schema)
        assert validator.is_valid([{"name": "Alice", "age": 31}, {"name": "Bo", "age": 3}])
        assert not validator.is_valid({"name": "Alice", "age": 31})
        assert not validator.is_valid([{"name": "Alice"}])
        assert of_schema(schema, "x") == "Extract as JSON list: name, age (integer)\nx"
    assert jsonschema_rs.validator_for(plain_schema(Checked | None)).is_valid(None)
    with pytest.raises(ConstraintError, match=r"list\[.*Elsewhere.*has no JSON Schema .*; pass one, or a class"):
        plain_schema(list[Elsewhere])


class Elsewhere:
    """Of no library that makes schemas."""
