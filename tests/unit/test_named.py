"""What a text has for a field by the field's name."""

from __future__ import annotations

import json
import time

import pytest

import redraft
from redraft.constraints.compile.named import named_values
from redraft.constraints.compile.stated import with_stated_choices

TEXT = "Order QT-778-B: write to office@graystone.net, or see https://docs.pinwheel.dev/a?b=1."


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("email", TEXT, ["office@graystone.net"]),
        ("contactEmail", TEXT, ["office@graystone.net"]),
        ("E-Mail Address", "a@b.co (c@d.org), e@f.de at noon!", ["a@b.co", "c@d.org", "e@f.de"]),
        ("email", "o'brien@x.com or 'bob@x.de'", ["o'brien@x.com", "bob@x.de"]),
        ("email", "联系：a@b.cn。", ["a@b.cn"]),
        ("url", TEXT, ["https://docs.pinwheel.dev/a?b=1"]),
        ("url", "See www.x.org (or https://a.b/c_(d)).", ["www.x.org", "https://a.b/c_(d)"]),
        # where one may be written in another way, anything may be meant
        ("email", "a@b.co, or c (at) d.de", []),
        ("email", "bob at example dot com, alice@x.de", []),
        ("email", "Ask @anna, or a@b.co.", []),
        ("email", "müller@x.de, a@b.co", []),
        ("email", "邮箱a@b.cn", []),
        ("url", "example.com or https://docs.x", []),
        ("url", "ftp://a.b/c or https://docs.x", []),
        ("url", "https://docs.x's front page", ["https://docs.x"]),
        ("url", "见https://a.cn/x，然后", []),
        # and where the name says something else
        ("mail", "12 Main Street; a@b.co", []),
        ("email_or_phone", TEXT, []),
        ("website", TEXT, []),
        ("phone", "I have an iPhone 15.", []),
        ("booking_reference", "XKQPLM, flight LX 318", []),
        ("name", TEXT, []),
        ("email", "nothing", []),
        ("", TEXT, []),
        ("email", "a@b.co " * 1000, []),
    ],
)
def test_values_for_a_name(name: str, text: str, wanted: list[str]) -> None:
    assert named_values(name, text) == wanted


@pytest.mark.parametrize("text", ["a" * 4096, "a@" * 2048, "www." * 1024, "(" * 4096, "a." * 2000 + "@" + "a-" * 40])
def test_a_text_that_repeats_itself_is_no_work(text: str) -> None:
    began = time.process_time()
    for name in ("email", "url"):
        named_values(name, text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("field", "held"),
    [
        ({"type": "string"}, {"type": "string", "enum": ["a@b.co"]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"], "enum": ["a@b.co"]}),
        ({"type": "string", "maxLength": 3}, {"type": "string", "maxLength": 3}),
        ({"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "string"}}),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            {"anyOf": [{"type": "string", "enum": ["a@b.co"]}, {"type": "null"}]},
        ),
    ],
)
def test_a_field_of_such_a_name_chooses_among_them(field: dict[str, object], held: dict[str, object]) -> None:
    schema = {"type": "object", "properties": {"email": field, "name": field}}
    assert with_stated_choices(schema, "Ada: a@b.co")["properties"] == {"email": held, "name": field}


@pytest.mark.parametrize(
    ("schema", "text", "wanted"),
    [
        ("name, email", "The mailbox office@graystone.net belongs to Winifred.", "office@graystone.net"),
        ("url", "Everything is explained under https://docs.pinwheel.dev", "https://docs.pinwheel.dev"),
    ],
)
def test_nano_is_not_misled_by_a_word(schema: str, text: str, wanted: str) -> None:
    """It answered "mailbox" and "under https://docs.pinwheel.dev"."""
    assert wanted in json.loads(redraft.load("nano").extract(text, schema, seed=1).text).values()


def test_null_is_no_answer_where_the_plain_name_is_asked_for() -> None:
    """Of "For questions there is help@tidewater.io and also 800-4471." nano answered null."""
    field = {"type": ["string", "null"]}
    for name, null in ("email", False), ("URL", False), ("work_email", True), ("imageUrl", True):
        schema = {"type": "object", "properties": {name: field}}
        held = with_stated_choices(schema, "Ada: a@b.co, https://a.org/b")["properties"][name]["enum"]
        assert (None in held) is null, name
        assert with_stated_choices(schema, "Ada: 3 apples") == schema


def test_null_may_be_right_where_there_are_two_or_something_depends_on_it() -> None:
    """Of a buyer with an address and a seller without nano wrote the one's for both; a guest who had to have none could
    not be answered at all."""
    field = {"type": ["string", "null"]}
    person = {"type": "object", "properties": {"name": field, "email": field}}
    two = {"type": "object", "properties": {"buyer": person, "seller": person}}
    for one in with_stated_choices(two, "Ada (ada@x.org) sells to Bob.")["properties"].values():
        assert one["properties"]["email"]["enum"] == ["ada@x.org", None]
    alone = {"type": "object", "properties": {"email": field}}
    for text in "Marta, no email. Sent from ada@x.org", "Email: n/a. Footer: ada@x.org":
        assert None in with_stated_choices(alone, text)["properties"]["email"]["enum"]
    beside = {"type": "object", "properties": {"email": field, "work email": field}}
    assert None in with_stated_choices(beside, "At work ada@x.org")["properties"]["email"]["enum"]
    guest = {"properties": {"kind": {"const": "guest"}}}
    for rule in {"if": guest, "then": {"properties": {"email": {"type": "null"}}}}, {"not": {"required": ["email"]}}:
        found = with_stated_choices({**person, **rule}, "The guest wrote to ada@x.org")["properties"]["email"]
        assert None in found["enum"]


def test_what_a_name_says_gives_way_to_the_schema() -> None:
    """Of an address that another part of the schema forbids there is none."""
    schema = {
        "type": "object",
        "properties": {"email": {"type": "string"}},
        "required": ["email"],
        "allOf": [{"properties": {"email": {"maxLength": 3}}}],
    }
    done = redraft.load("nano").extract("Ada: a@b.co", schema, seed=1)
    assert len(json.loads(done.text)["email"]) <= 3
