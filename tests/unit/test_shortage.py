"""What the engine does where memory is short, and that it goes on as before when it is not any more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import alone, listen, tiny_config, tiny_model

from redraft.cache import Prefix
from redraft.config import CheckpointConfig, GenerationConfig, read_config
from redraft.engine.causal import CausalSequence
from redraft.engine.events import Event, Finished, PromptRead
from redraft.engine.loop import Loop
from redraft.engine.memory import Ledger
from redraft.engine.prefixes import Chain, Prefixes
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.runner import Runner
from redraft.engine.sequence import CanvasSequence
from redraft.engine.settings import LoopConfig
from redraft.errors import RequestError
from redraft.model.gemma import DiffusionGemma
from redraft.model.gpu.graph import PATIENCE, GraphedStep, GraphPlaces
from redraft.model.rows import Mode, Span
from redraft.weights.memory import footprint
from redraft.weights.plan import fitting_plans

WIDTH = 7


@pytest.fixture
def model() -> DiffusionGemma:
    return tiny_model(replace(tiny_config(), canvas_length=WIDTH, max_positions=100_000))


def request_of(
    model: DiffusionGemma, seed: int, *, tokens: int = 28, prompt: int = 9, **options: Any
) -> ResolvedRequest:
    shipped = CheckpointConfig(model.config, GenerationConfig(max_denoising_steps=4, eos_token_ids=(1,)))
    made = build_request([2] * prompt, Options(max_tokens=tokens, seed=seed, **options), shipped)
    return replace(made, eos=frozenset())


def with_places(model: DiffusionGemma, **config: Any) -> Loop:
    """A loop whose canvases step at places, as on a GPU."""
    loop = Loop(model, LoopConfig(**config))
    loop.runner.places = GraphPlaces(model)
    return loop


def heard(loop: Loop, *requests: ResolvedRequest) -> list[list[Event]]:
    """The lists that the events of requests come to."""
    found: list[list[Event]] = [[] for _ in requests]
    for request, events in zip(requests, found, strict=True):
        listen(loop, request, events.append, drafts=True)
    return found


def reason(events: list[Event]) -> tuple[str, str]:
    (last,) = [event for event in events if isinstance(event, Finished)]
    return last.reason, str(last.error or "")


def out_of_memory(patch: pytest.MonkeyPatch, owner: Any, name: str, times: int) -> list[int]:
    """Let the first calls of a method run out of memory; notes all."""
    real, calls = getattr(owner, name), list[int]()

    def tried(*args: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if len(calls) <= times:
            raise MemoryError
        return real(*args, **named)

    patch.setattr(owner, name, tried)
    return calls


def test_a_lone_request_does_not_step_for_those_that_have_ended(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood at the last of eight places: all were computed to its end, behind the others' prompts."""
    loop, seen, real = with_places(model, max_rows=16 * WIDTH), [], GraphedStep.__call__

    def call(step: GraphedStep, canvases: Any) -> Any:
        found = real(step, canvases)
        seen.append((len(canvases), [prefix.length for prefix in step.rows.prefixes]))
        return found

    monkeypatch.setattr(GraphedStep, "__call__", call)
    requests = [request_of(model, seed, tokens=WIDTH, prompt=60) for seed in range(7)]
    last = request_of(model, 9, tokens=12 * WIDTH)
    found = heard(loop, *requests, last)
    loop.drain()
    assert found[-1:] == alone(model, [last])
    alone_there = [lengths for count, lengths in seen if count == 1]
    assert len(alone_there) > 2 * PATIENCE
    assert all(max(lengths[:-1], default=0) == 0 for lengths in alone_there), "places behind ended prompts"
    assert [len(lengths) for lengths in alone_there[PATIENCE:]] == [1] * (len(alone_there) - PATIENCE)


def test_a_small_request_in_a_large_place_is_counted_with_it(model: DiffusionGemma) -> None:
    loop = with_places(model)
    heard(loop, request_of(model, 1, tokens=WIDTH, prompt=20_000))
    loop.drain()
    heard(loop, request_of(model, 2, tokens=42))
    loop.tick()
    ledger, places = loop.admission.ledger, loop.runner.places
    assert places is not None
    held = sum(prefix.num_bytes for prefix in places.prefixes)
    assert held == loop.num_bytes == sum(one.cache for one in ledger.running.values()) + ledger.standing


def test_a_request_is_refused_by_what_it_needs_and_not_by_what_is_rounded(model: DiffusionGemma) -> None:
    """A prompt of 131,000 needs 3.2 GB of a card's 4.4, and was refused since its place would have 5.8."""
    shape = read_config(Path(__file__).parents[2] / "recipes" / "shapes" / "26b")
    with torch.device("meta"):
        large = DiffusionGemma(shape.model).to(torch.bfloat16)
    need = footprint(shape.model, torch.bfloat16, dict(fitting_plans(shape.model))["int4"])
    ledger = Ledger(shape.model, torch.bfloat16, need, memory=int(23.3e9), max_rows=3072, graphs=True)
    runner = Runner(large, Prefixes(shape.model.layers, 2), graphs=True)
    sequence = CanvasSequence(request=build_request([2] * 131_000, Options(max_tokens=256), shape))
    exact, placed = (runner.demand(sequence, ledger, placed=placed) for placed in (False, True))
    assert ledger.fits(exact)
    assert not ledger.fits(placed)
    ledger.check(exact, 131_000, 256)

    fixed = Loop(model).admission.ledger.fixed
    room = Ledger.cache(Loop(model).admission.ledger, 5000)
    loop = with_places(model, memory=fixed + room, max_rows=WIDTH)
    assert loop.admission.ledger.fixed <= fixed
    request = request_of(model, 1, prompt=4500)
    found = heard(loop, request)
    loop.drain()
    assert found == alone(model, [request])
    assert loop.runner.places is not None
    assert not loop.runner.places.prefixes


def test_a_graph_without_memory_is_left_out_until_a_request_has_ended(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was tried at each step, which dropped every kept prefix and made forwards narrower for good."""
    loop = with_places(model, max_rows=12 * WIDTH)
    calls = out_of_memory(monkeypatch, GraphedStep, "__call__", 10**9)
    requests = [request_of(model, seed, tokens=14) for seed in range(4)]
    found = heard(loop, *requests)
    loop.drain()
    assert found == alone(model, requests)
    assert 1 <= len(calls) <= len(requests)
    assert loop.runner.shortages == 0
    assert loop.scheduler.max_rows == 12 * WIDTH


def test_forwards_that_go_well_are_widened_again(model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stayed narrow for as long as anything ran."""
    monkeypatch.setattr("redraft.engine.admission.PATIENCE", 4)
    loop = Loop(model, LoopConfig(max_rows=4 * WIDTH))
    heard(loop, *(request_of(model, seed, tokens=20 * WIDTH) for seed in range(4)))
    loop.tick()
    out_of_memory(monkeypatch, DiffusionGemma, "__call__", 1)
    loop.tick()
    assert loop.scheduler.max_rows <= 2 * WIDTH
    for _ in range(8):  # twice as many as before it was too wide
        assert loop.scheduler.max_rows <= 2 * WIDTH
        loop.tick()
    for _ in range(8):
        loop.tick()
    assert loop.scheduler.max_rows == 4 * WIDTH
    assert len(loop.scheduler.running) == 4


def test_a_passing_shortage_is_forgotten(model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken at that moment was all that there was from then on: longer prompts were refused for good."""
    loop = Loop(model, LoopConfig(memory=10**9))
    first = heard(loop, request_of(model, 1))
    loop.tick()
    out_of_memory(monkeypatch, Runner, "_open", 2)
    second = heard(loop, request_of(model, 2))
    loop.tick()
    assert loop.admission.ledger.short is not None
    loop.drain()
    third = heard(loop, request_of(model, 3, prompt=2000))
    loop.drain()
    assert [reason(*found) for found in (first, second, third)] == [("length", "")] * 3
    assert loop.admission.ledger.short is None


@pytest.mark.parametrize(("owner", "name"), [(Runner, "_open"), (CanvasSequence, "look")])
def test_a_variant_does_not_wait_for_a_request_that_waits_for_it(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Nothing ran any more: the first had been put back into the queue, and the second stood behind it."""
    loop = Loop(model, LoopConfig(memory=10**9))
    out_of_memory(monkeypatch, owner, name, 2)
    requests, found = [request_of(model, seed, tokens=14) for seed in (1, 2)], [[], []]
    ahead = listen(loop, requests[0], found[0].append, drafts=True)
    listen(loop, requests[1], found[1].append, drafts=True, behind=ahead)
    for _ in range(200):
        if not loop.tick():
            break
    assert found == alone(model, requests)


def test_a_request_that_is_put_back_keeps_nothing_of_its_own(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept its prefix, another was given the same, and the end of the first emptied the other's."""
    loop, requests = with_places(model), [request_of(model, seed, prompt=20 + seed) for seed in (3, 4)]
    out_of_memory(monkeypatch, CanvasSequence, "look", 2)
    found: list[list[Event]] = [[], []]
    first, second = (
        listen(loop, *both, drafts=True) for both in zip(requests, (one.append for one in found), strict=True)
    )
    while second.sequence.blocks < 1:
        loop.tick()
    assert not first.sequence.opened or first.sequence.prefix is not second.sequence.prefix
    loop.abort(first.sequence)
    loop.drain()
    assert found[1:] == alone(model, requests[1:])


def test_a_variant_without_memory_for_its_images_ends_alone(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that ran ended with it."""
    loop, requests = Loop(model), [request_of(model, seed, prompt=20) for seed in (1, 2)]
    other, first, second = [], [], []
    free = request_of(model, 5)
    listen(loop, free, other.append, drafts=True)
    ahead = listen(loop, requests[0], first.append, drafts=True)
    listen(loop, requests[1], second.append, drafts=True, behind=ahead)
    out_of_memory(monkeypatch, Prefix, "take", 10**9)
    real = CanvasSequence.look

    def look(one: CanvasSequence) -> None:
        if one.request.seed == 2 and one.opened and loop.forwards:
            raise MemoryError
        real(one)

    monkeypatch.setattr(CanvasSequence, "look", look)
    loop.drain()
    assert [other, first] == alone(model, [free, requests[0]])
    assert reason(second)[0] == "error"
    assert "memory ran out" in reason(second)[1]


def test_a_deadline_without_memory_for_the_draft_is_that_requests_own(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    loop = Loop(model, clock=lambda: now[0])
    free = request_of(model, 1)
    other, late = heard(loop, free, request_of(model, 2, deadline_sec=1.0))
    loop.tick()
    loop.tick()
    out_of_memory(monkeypatch, CanvasSequence, "cut_short", 10**9)
    now[0] = 2.0
    loop.drain()
    assert reason(late) == ("deadline", "")
    assert [other] == alone(model, [free])


def test_a_causal_request_without_memory_to_draw_ends_with_that(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would have drawn from was gone: it made no more progress, and ended with an error of torch."""
    loop, free = Loop(model), request_of(model, 2, tokens=14)
    failed, other = heard(loop, request_of(model, 1, tokens=5, causal=True), free)
    out_of_memory(monkeypatch, CausalSequence, "_draw", 2)
    loop.drain()
    assert reason(failed)[0] == "error"
    assert "memory ran out while the request was running" in reason(failed)[1]
    assert [other] == alone(model, [free])


def test_a_prompt_is_not_heard_twice(model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 tokens there were 16 log-probabilities, where memory had run out behind them."""
    loop = Loop(model)
    out_of_memory(monkeypatch, CausalSequence, "_draw", 1)
    (found,) = heard(loop, request_of(model, 1, tokens=2, causal=True, logprobs=0, read_prompt=True))
    loop.drain()
    assert [len(event.logprobs) for event in found if isinstance(event, PromptRead)] == [8]


def test_a_place_whose_buffer_has_grown_takes_a_kept_prefix() -> None:
    """It raised: a forward had made tensors that only forwards may write to."""
    config = replace(tiny_config(sliding_window=128), canvas_length=256, max_positions=4096)
    model = tiny_model(config)
    runner = Runner(model, Prefixes(config.layers, 4))
    runner.places = places = GraphPlaces(model)
    shipped = CheckpointConfig(config, GenerationConfig(max_denoising_steps=4, eos_token_ids=(1,)))
    request = build_request([2] * 800, Options(max_tokens=256), shipped)
    prefix = places.prefix(CanvasSequence(request=request).room, [])
    assert prefix is not None
    with torch.inference_mode():
        for canvas in (0, 0, 256):
            rows = model.rows([Span(prefix, 256, Mode.ENCODE), *[Span(prefix, 256, Mode.DENOISE)] * (canvas > 0)])
            rows.tables(0)  # as a layer's kernel does
            rows.commit()
            runner.prefixes.keep(Chain(request.prompt), prefix)
    sequence = CanvasSequence(request=request)
    assert runner.open(sequence)
    assert sequence.prefix is prefix
    assert sequence.read == 768


def test_what_would_fit_is_what_is_admitted(model: DiffusionGemma) -> None:
    loop = with_places(model, max_rows=WIDTH)
    ledger = loop.admission.ledger
    ledger.memory = ledger.fixed + ledger.cache(3000)
    with pytest.raises(RequestError, match=r"lower max_tokens to \d+"):
        loop.submit(request_of(model, 1, tokens=9000))
    most = ledger.longest(ledger.cache(3000)) - 2 * WIDTH - 9
    (found,) = heard(loop, request_of(model, 1, tokens=most // 100))
    loop.drain()
    assert reason(found) == ("length", "")
