"""Hostile requests grown from the table of bounds: what they are answered, and what a bystander notices."""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from random import Random

import pytest

from hostile import ENDPOINTS, bodies, hurried, measured


def test_cases_reach_every_endpoint_and_both_sides_of_every_bound() -> None:
    cases = list(islice(bodies(Random(1)), 400))
    assert {path for path, _ in cases} == set(ENDPOINTS)
    said = b"".join(body for _, body in cases)
    for edge in (b"9223372036854775808", b"18446744073709551616", b"NaN", b"1e400", b"\\ud800", b"65"):
        assert edge in said
    assert any(len(body) > 100_000 for _, body in cases)
    assert any(body.count(b"[") + body.count(b"{") > 300 for _, body in cases)
    assert json.loads(cases[0][1])


@pytest.mark.slow
def test_hostile_requests_are_answered_and_leave_nothing() -> None:
    """The short form of bench/hostile.py; times are for a machine that does nothing else, so they are in its record."""
    with hurried() as (url, pid):
        found = asyncio.run(measured(url, pid, 200, 1))
    assert not {status for status in found["statuses"] if int(status) >= 500} - {"503", "504"}
    assert sum(found["statuses"].values()) == 200, found["wrong"]
    assert "descriptors stayed open" not in found["broken"]
