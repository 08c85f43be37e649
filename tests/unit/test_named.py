"""What a text has for a field by the field's name."""

from __future__ import annotations

import json
import time

import pytest

import redraft
from redraft.constraints.compile.named import named_values
from redraft.constraints.compile.stated import with_stated_choices

TEXT = "Order QT-778-B: write to office@graystone.net, or see https://docs.pinwheel.dev/a?b=1. Tel. (555) 010-4455."


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("email", TEXT, ["office@graystone.net"]),
        ("contactMail", TEXT, ["office@graystone.net"]),
        ("E-Mail Address", "a@b.co (c@d.org), e@f.de!", ["a@b.co", "c@d.org", "e@f.de"]),
        ("email", "a@b.co, or c (at) d.de", []),
        ("email", "Ask @anna, or a@b.co.", []),
        ("url", TEXT, ["https://docs.pinwheel.dev/a?b=1"]),
        ("website", "See www.x.org, or x.org.", ["www.x.org"]),
        ("order_id", "What happened to QT-778-B?", ["QT-778-B"]),
        ("phone", "Call (555) 010-4455!", ["(555) 010-4455", "010-4455"]),
        ("phone_number", "Call 030 5557 210, room 12.", ["030 5557", "030 5557 210", "5557 210"]),
        ("phone", "I have an iPhone 15.", []),  # a thing, perhaps
        ("flight_number", "Flight LX 318 leaves.", ["LX 318", "318"]),
        ("ticketNo", "Ticket #8812. 3 more", ["8812", "#8812", "3"]),
        ("ticket", "Business class, seat 3B", []),
        ("reference", "Dr. Brown, 2019 to 2023", []),
        ("room number", "Room seven, for 3", []),  # in words
        ("user_id", "tom_k, port 8", []),  # a word, perhaps
        ("no", "Room 7", []),
        ("name", TEXT, []),
        ("email", "nothing", []),
        ("", TEXT, []),
        ("phone", "1 " * 3000, []),
    ],
)
def test_values_for_a_name(name: str, text: str, wanted: list[str]) -> None:
    assert named_values(name, text) == wanted


@pytest.mark.parametrize("text", ["a" * 4096, "a@" * 2048, "www." * 1024, "(" * 4096, "a." * 2000 + "@" + "a-" * 40])
def test_a_text_that_repeats_itself_is_no_work(text: str) -> None:
    began = time.process_time()
    for name in ("email", "url", "phone"):
        named_values(name, text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("field", "held"),
    [
        ({"type": "string"}, {"type": "string", "enum": ["a@b.co"]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"], "enum": ["a@b.co", None]}),
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
        ("order_id, city", "What happened to QT-778-B? It should be in Lugano by now.", "QT-778-B"),
    ],
)
def test_nano_is_not_misled_by_a_word(schema: str, text: str, wanted: str) -> None:
    """It answered "mailbox", "under https://docs.pinwheel.dev" and "happened"."""
    assert wanted in json.loads(redraft.load("nano").extract(text, schema, seed=1).text).values()


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
