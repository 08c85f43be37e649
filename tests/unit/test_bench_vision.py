"""What counts as read right in bench/vision.py: cells by their place, fields by their name."""

from __future__ import annotations

import json

import pytest

import vision

SAID = {"shop": "Melu", "items": [{"name": "tea", "price": 5}, {"name": "oil", "price": 2}], "total": 7}


@pytest.mark.parametrize(
    ("answer", "right"),
    [("12\n.4", 4), ("12\n34", 3), ("1\n.4", 3), ("12.4", 2), ("", 0), ("12\n.4\n", 4), ("12\n.45", 3)],
)
def test_a_cell_is_right_at_its_place(answer: str, right: int) -> None:
    assert vision.score("12\n.4", answer) == (right, 4)


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({}, 4),
        ({"total": 8}, 3),
        ({"items": SAID["items"][:1]}, 3),
        ({"items": [*SAID["items"], {"name": "tea", "price": 5}]}, 3),
        ({"items": SAID["items"][::-1]}, 2),
        ({"shop": 1, "items": [], "total": None}, 0),
        ({"items": [7]}, 0),
    ],
)
def test_a_field_is_right_if_it_is_equal(change: dict[str, object], right: int) -> None:
    assert vision.score(json.dumps(SAID), json.dumps(SAID | change)) == (right, 4)


def test_what_is_no_receipt_has_nothing_right() -> None:
    assert [vision.score(json.dumps(SAID), text) for text in ("{", "[]", "{}")] == [(0, 4)] * 3
