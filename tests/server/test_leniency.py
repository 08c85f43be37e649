"""What clients do that the letter of the interface does not ask for, and that they were turned away for."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.server.conftest import RECORD, Process

TURN = [{"role": "user", "content": RECORD}]


def asked(server: Process, path: str = "/v1/chat/completions", **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{server.url}{path}", json={"messages": TURN} | fields, timeout=120)


def content(reply: httpx2.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def test_a_base_url_may_lack_its_version(server: Process) -> None:
    assert content(asked(server, "/chat/completions", seed=1)) == content(asked(server, seed=1))
    assert httpx2.get(f"{server.url}/models").json() == httpx2.get(f"{server.url}/v1/models").json()
    assert asked(server, "/chat/nothing").status_code == 404


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_p": 0}, {"top_p": 1e-6}])
def test_who_asks_for_no_chance_gets_the_same_again(server: Process, fields: dict[str, Any]) -> None:
    """A canvas begins as noise, so without a seed even temperature 0 would differ from call to call."""
    turn = [{"role": "user", "content": "a question that no model in the package was ever asked"}]
    one, two = (asked(server, messages=turn, max_tokens=64, **fields) for _ in range(2))
    assert content(one) == content(two)
    assert content(one) == content(asked(server, messages=turn, max_tokens=64, seed=0, **fields))


@pytest.mark.parametrize("most", [1024, 4096, 2**20])
def test_more_tokens_than_there_is_room_for_are_what_there_is_room_for(server: Process, most: int) -> None:
    """Several clients send 1,024 or more whatever the model; the models in the package have 1,024 in all."""
    reply = asked(server, max_tokens=most, seed=1)
    assert content(reply) == content(asked(server, max_tokens=256, seed=1))
    long = [{"role": "user", "content": "a " * 400}]
    assert asked(server, messages=long, max_tokens=most, seed=1).status_code == 200
