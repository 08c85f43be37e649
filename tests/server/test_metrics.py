"""Figures for Prometheus against what the forwards themselves carried and what the answers say of themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import USER, Inside, inside

import redraft
from redraft.engine.runner import Runner
from redraft.server.http.settings import Settings

USER = {"messages": USER, "canvas": {"width": 32}}


@pytest.fixture
def fresh() -> Iterator[Inside]:
    """A server on an engine of its own, so that its counts begin at nothing."""
    engine = redraft.load("nano-sudoku")
    engine.loop.start()
    yield from inside(engine, Settings())
    engine.loop.stop()


def figures(at: Inside) -> dict[str, float]:
    """Samples by name, those with labels under the first label's value, too."""
    families = text_string_to_metric_families(httpx2.get(at.url + "/metrics", timeout=100).text)
    samples = [sample for family in families for sample in family.samples]
    return {".".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


@pytest.mark.parametrize("way", ["close", "keep-alive"])
def test_a_stream_that_is_read_to_its_end_is_no_client_that_left(fresh: Inside, way: str) -> None:
    with httpx2.Client(headers={"connection": way}, timeout=100) as client:
        for seed in range(3):
            body = USER | {"seed": seed, "stream": True}
            assert client.post(fresh.base + "/chat/completions", json=body).text.endswith("[DONE]\n\n")
    time.sleep(0.3)
    assert figures(fresh)["redraft_disconnects_total"] == 0


def test_rows_forwards_and_steps_are_those_that_ran(fresh: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Any] = []
    run = Runner.run

    def seen(self: Runner, batch: Any) -> Any:
        batches.append(batch)
        return run(self, batch)

    monkeypatch.setattr(Runner, "run", seen)
    bodies: list[dict[str, Any]] = [USER | {"seed": 7}, USER | {"n": 3, "max_tokens": 40, "ignore_eos": True}]
    bodies += [USER | {"seed": 2, "canvas": {"causal": True}}]
    told = [httpx2.post(fresh.base + "/chat/completions", json=body, timeout=100).json() for body in bodies]
    found = figures(fresh)
    assert found["redraft_forwards_total"] == len(batches) > 10
    assert found["redraft_rows_total.encode"] == sum(piece.encode for batch in batches for piece in batch)
    assert found["redraft_rows_total.denoise"] == sum(piece.canvas for batch in batches for piece in batch)
    steps = [count for one in told for choice in one["choices"] for count in choice["canvas"]["steps"]]
    assert found["redraft_steps_per_block_count"] == len(steps)
    assert found["redraft_steps_per_block_sum"] == sum(steps) == sum(one["usage"]["steps"] for one in told)
    assert found["redraft_tokens_total"] == sum(one["usage"]["completion_tokens"] for one in told)
    assert found["redraft_prompt_tokens_total"] == sum(one["usage"]["prompt_tokens"] for one in told)
    rates = [choice["canvas"]["tokens_per_forward"] for one in told for choice in one["choices"]]
    assert found["redraft_tokens_per_forward_count"] == len(rates)
    assert found["redraft_tokens_per_forward_sum"] == pytest.approx(sum(rates), abs=0.01)
    assert found["redraft_first_text_seconds_count"] == len(rates)
