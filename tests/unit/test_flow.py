"""A canvas that slides over its text, against a plain loop over absolute positions."""

import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import listen, tiny_config, tiny_model

from redraft.cache import Prefix
from redraft.config import CheckpointConfig, GenerationConfig
from redraft.diffusion.noise import START, SeededNoise, TapeNoise
from redraft.diffusion.plan import Flow
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.loop import Loop
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.runner import run_alone
from redraft.errors import RequestError
from redraft.model.gemma import DiffusionGemma

WIDTH, CAP, BOUND = 12, 5, 0.5
SHIPPED = GenerationConfig(max_denoising_steps=CAP, eos_token_ids=(), entropy_bound=BOUND, confidence_threshold=1.2)


@lru_cache
def model() -> DiffusionGemma:
    return tiny_model(replace(tiny_config(sliding_window=9), canvas_length=WIDTH))


def flowing(seed: int, max_tokens: int, flow: Flow) -> ResolvedRequest:
    shipped = CheckpointConfig(model().config, SHIPPED)
    asked = build_request([2, 17, 31, 44, 5], Options(seed=seed, max_tokens=max_tokens), shipped)
    return replace(asked, policy=replace(asked.policy, plan=flow))


@torch.inference_mode()
def plainly(request: ResolvedRequest, flow: Flow) -> list[tuple[list[int], list[int], int]]:
    """Tokens, settled_at and steps of each block: every position on its own, by its place in the answer."""
    noise, network, vocab = SeededNoise(request.seed), model(), request.vocab
    prefix = Prefix(network.config.layers, dtype=network.dtype, device=network.device)
    network.encode(torch.tensor(request.prompt), prefix)
    last = -(-request.max_tokens // WIDTH) * WIDTH
    shown = [int(noise.tokens(0, START, 1, vocab, place)) for place in range(last)]
    read: list[list[int]] = [[] for _ in range(last)]
    soft = torch.zeros(last, network.config.hidden_size)
    reported, start, number, counted = [], 0, 0, 0
    while True:
        end, number = min(start + WIDTH, last), number + 1
        places = range(start, end)
        logits = network.denoise(torch.tensor(shown[start:end]), soft[start:end] if number > 1 else None, prefix)
        warmth = [SHIPPED.t_min + (SHIPPED.t_max - SHIPPED.t_min) * (CAP - len(read[p])) / CAP for p in places]
        law = torch.softmax(logits / torch.tensor(warmth)[:, None], -1)
        nats = torch.distributions.Categorical(probs=law).entropy()
        spent, kept = 0.0, set()
        for i in sorted(range(len(places)), key=lambda i: float(nats[i])):
            if spent <= BOUND:
                kept.add(i)
            spent += float(nats[i])
        soft[start:end] = network.soften(law)
        for i, place in enumerate(places):
            drawn = int(noise.sample(0, number, law[i : i + 1], place))
            shown[place] = drawn if i in kept else int(noise.tokens(0, number, 1, vocab, place))
            read[place].append(int(law[i].argmax()))
        gone = _gone([read[p] for p in places], nats.tolist(), flow)
        if not gone:
            continue
        gone = min(gone, request.max_tokens - start)
        tokens = [read[place][-1] for place in range(start, start + gone)]
        since = [_since(read[place]) for place in range(start, start + gone)]
        reported.append((tokens, since, number - counted))
        start, counted = start + gone, number
        if start == request.max_tokens:
            return reported
        network.encode(torch.tensor(tokens), prefix)


def _gone(read: list[list[int]], nats: list[float], flow: Flow) -> int:
    """How many positions may leave."""
    halted = all(len(one) > 1 and one[-1] == one[-2] for one in read) and math.fsum(nats) / len(nats) < 1.2
    if halted:
        return len(read)
    lead = 0
    for one, unsure in zip(read, nats, strict=True):
        still = len(one) > flow.steady and len(set(one[-flow.steady - 1 :])) == 1 and unsure < flow.nats
        if not still and len(one) < CAP:
            break
        lead += 1
    return lead if lead >= min(flow.least, len(read)) or len(read[0]) >= CAP else 0


def _since(read: list[int]) -> int:
    changes = [number for number in range(1, len(read)) if read[number] != read[number - 1]]
    return changes[-1] + 1 if changes else 1


@settings(max_examples=25)
@given(
    st.integers(0, 10_000),
    st.integers(1, 40),
    st.builds(Flow, st.integers(0, 2), st.sampled_from([0.2, 0.8]), st.integers(1, 4)),
)
def test_a_flowing_canvas_equals_a_plain_loop_over_positions(seed: int, max_tokens: int, flow: Flow) -> None:
    request = flowing(seed, max_tokens, flow)
    events = list(run_alone(model(), request, SeededNoise(seed), drafts=False))
    blocks = [event for event in events if isinstance(event, Block)]
    assert [(block.tokens, block.settled_at, block.steps) for block in blocks] == plainly(request, flow)
    assert isinstance(events[-1], Finished)
    assert events[-1].commits == len(blocks) - 1


def test_canvases_do_slide_here() -> None:
    """Else the test above would say nothing."""
    request = flowing(1, 40, Flow(0, 0.6, 1))
    sizes = [len(e.tokens) for e in run_alone(model(), request, SeededNoise(1)) if isinstance(e, Block)]
    assert sum(sizes) == 40
    assert len(sizes) > 4


def test_noise_of_a_position_does_not_depend_on_where_the_canvas_begins() -> None:
    noise = SeededNoise(5)
    law = torch.rand(20, 64)
    assert torch.equal(noise.tokens(0, 3, 20, 64)[7:15], noise.tokens(0, 3, 8, 64, 7))
    assert torch.equal(noise.sample(0, 3, law)[7:15], noise.sample(0, 3, law[7:15], 7))
    tape = TapeNoise({(0, 1): (torch.arange(20), torch.arange(20) + 20)})
    assert tape.tokens(0, 1, 3, 64, 5).tolist() == [25, 26, 27]
    assert tape.sample(0, 1, law[5:8], 5).tolist() == [5, 6, 7]


def test_nothing_is_begun_behind_a_drafted_end() -> None:
    """A canvas whose draft holds an end token only gets shorter as its beginning leaves."""
    seen = 0
    for seed in range(20):
        request = replace(flowing(seed, 40, Flow(0, 0.6, 1)), eos=frozenset(range(40, 44)))
        events = list(run_alone(model(), request, SeededNoise(seed)))
        for before, reported, after in zip(events, events[1:], events[2:], strict=False):
            slid = isinstance(before, Draft) and isinstance(reported, Block) and isinstance(after, Draft)
            if slid and request.eos & set(before.tokens):
                seen += 1
                assert len(after.tokens) == len(before.tokens) - len(reported.tokens)
    assert seen > 3, "hardly a canvas slid with an end token in its draft"


def test_a_deadline_tells_what_has_been_read_and_no_noise() -> None:
    """Just after a canvas has slid, its last positions have not been read once."""
    now = [0.0]
    loop, reported = Loop(model(), clock=lambda: now[0]), list[Event]()
    request = replace(flowing(1, 40, Flow(0, 0.6, 1)), deadline_sec=10.0)
    listen(loop, request, reported.append, drafts=True)
    while not any(isinstance(event, Block) for event in reported):
        loop.tick()
    read = next(event for event in reversed(reported) if isinstance(event, Draft))
    first = next(event for event in reported if isinstance(event, Block))
    assert 0 < len(first.tokens) < WIDTH
    now[0] = 10.0
    loop.drain()
    last, finished = reported[-2:]
    assert isinstance(last, Block)
    assert first.tokens + last.tokens == read.tokens
    assert not last.settled
    assert isinstance(finished, Finished)
    assert finished.reason == "deadline"


@pytest.mark.parametrize("make", [lambda: Flow(-1), lambda: Flow(nats=0.0), lambda: Flow(least=0)])
def test_meaningless_settings_are_refused(make: object) -> None:
    with pytest.raises(RequestError):
        make()  # type: ignore[operator]
