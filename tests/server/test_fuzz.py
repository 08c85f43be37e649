"""Any JSON at all to any endpoint: an answer or a refusal in the same form, never a failure of ours, never a hang."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.conftest import Process, end, start

from hostile import ENDPOINTS

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["", "json_object", "required", "a\ud800", "<|turn>", "user", "fast", "flow", "[0-9]+"]),
)
NAMES = st.sampled_from(["type", "text", "hole", "regex", "json", "width", "at", "token", "stream", "role", "schema"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
OURS = {501, 503, 504}
"""Statuses above 499 that are promised: an answer may not be ready in the half second that a request has here."""


@pytest.fixture(scope="module")
def at() -> Iterator[Process]:
    process = start("--quiet", "--max-seconds", "0.5")
    yield process
    assert end(process) == 0


@pytest.mark.parametrize("path", ENDPOINTS)
def test_no_request_makes_the_server_fail(at: Process, path: str) -> None:
    model, base = ENDPOINTS[path]
    names = st.sampled_from(sorted({*model.model_fields, *model.neutral, "unheard_of"}))

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(names, VALUES, max_size=3))
    def ask(change: dict[str, Any]) -> None:
        body = str_of({**base, **change})
        reported = http.post(path, content=body, headers={"content-type": "application/json"})
        assert reported.status_code < 500 or reported.status_code in OURS, (body, reported.text)
        if reported.status_code >= 400:
            assert set(reported.json()["error"]) == {"message", "type", "param", "code"}

    with httpx2.Client(base_url=at.url, timeout=200) as http:
        ask()
    assert at.popen.poll() is None


def str_of(body: dict[str, Any]) -> bytes:
    """JSON with everything escaped: an unpaired surrogate can be sent so."""
    return json.dumps(body, ensure_ascii=True).encode()
