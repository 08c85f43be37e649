"""Figures for Prometheus against what the forwards themselves carried and what the answers say of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import RECORD, Inside, inside

import redraft
from redraft.diffusion.noise import SeededNoise
from redraft.engine.events import Block
from redraft.engine.request import Options, Request
from redraft.engine.runner import Runner, run_alone
from redraft.model.gemma import DiffusionGemma
from redraft.operations.engine import Engine
from redraft.server.http.settings import Settings

USER = {"messages": [{"role": "user", "content": RECORD}], "canvas": {"width": 32}}


@pytest.fixture
def fresh() -> Iterator[Inside]:
    """A server on an engine of its own, so that its counts begin at nothing."""
    engine = redraft.load("nano")
    engine.loop.start()
    yield from inside(engine, Settings())
    engine.loop.stop()


def figures(at: Inside) -> dict[str, float]:
    """Samples by name, those with labels under the first label's value, too."""
    families = text_string_to_metric_families(httpx2.get(at.url + "/metrics", timeout=100).text)
    samples = [sample for family in families for sample in family.samples]
    return {".".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


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


def test_gaps_and_edits_are_counted_like_other_answers(fresh: Inside) -> None:
    region = "<|code_to_edit|>Send 3<|/code_to_edit|> vune"
    bodies = {
        "edit/completions": {"messages": [{"role": "user", "content": region}], "seed": 1},
        "completions": {"prompt": "record\nSend", "suffix": "vune", "max_tokens": 4, "n": 2, "seed": 1},
    }
    told = [httpx2.post(f"{fresh.base}/{path}", json=body, timeout=100).json() for path, body in bodies.items()]
    found = figures(fresh)
    for name in ("prompt_tokens", "completion_tokens"):
        counted = found[f"redraft_{name.removeprefix('completion_')}_total"]
        assert counted == sum(one["usage"][name] for one in told) > 0
    assert found["redraft_steps_per_block_sum"] == sum(one["usage"]["steps"] for one in told)


@pytest.mark.parametrize(
    "options",
    [
        Options(seed=7),
        Options(seed=7, preset="fast"),
        Options(seed=3, canvas=16, max_tokens=40, min_tokens=40),
        Options(seed=3, preset="flow", max_tokens=60),
        Options(seed=7, causal=True),
    ],
    ids=str,
)
def test_wasted_rows_are_those_that_no_token_came_of(monkeypatch: pytest.MonkeyPatch, options: Options) -> None:
    """Counted again from the plain twin: every canvas that the network saw, less each told token once a step."""
    engine: Engine = redraft.load("nano")
    request = engine.resolve(Request(RECORD, chat=True, options=options))
    engine.run(request)
    seen, denoise = [0], DiffusionGemma.denoise

    def counted(self: DiffusionGemma, canvas: torch.Tensor, soft: Any, prefix: Any) -> torch.Tensor:
        seen.append(len(canvas))
        return denoise(self, canvas, soft, prefix)

    monkeypatch.setattr(DiffusionGemma, "denoise", counted)
    blocks = [one for one in run_alone(engine.model, request, SeededNoise(request.seed)) if isinstance(one, Block)]
    assert engine.loop.canvas_rows == sum(seen)
    if options.preset == "flow":  # a token's own steps: what it took is no multiple of anything
        assert 0 < engine.loop.wasted_rows == sum(seen) - sum(block.rows for block in blocks) < sum(seen)
    elif options.causal:
        assert engine.loop.wasted_rows == sum(seen) == 0
    else:
        assert engine.loop.wasted_rows == sum(seen) - sum(len(block.tokens) * block.steps for block in blocks)


def test_what_is_given_up_is_wasted() -> None:
    engine = redraft.load("nano")
    request = engine.resolve(Request("go on", options=Options(seed=1, canvas=32, max_tokens=300, min_tokens=300)))
    events = engine.submit(request, drafts=True).events()
    for _ in range(5):
        next(events)
    events.close()
    told = engine.loop.canvas_rows - engine.loop.wasted_rows
    assert engine.loop.canvas_rows >= 5 * 32 - 32
    assert told == 0
