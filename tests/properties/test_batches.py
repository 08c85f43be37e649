"""A result does not depend on its neighbours: any batch, any order of joins, leaves and aborts, gives every request the
events it has alone, bit for bit in fp32. The books of scheduler, runner and cache are checked after every forward."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from threading import Thread
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import listen, side_by_side, tiny_config, tiny_model

from redraft.config import CheckpointConfig, GenerationConfig
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.plan import Flow
from redraft.diffusion.presets import PRESETS
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.handle import Handle
from redraft.engine.loop import Loop
from redraft.engine.request import CANVAS_ONLY, Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.runner import run_alone
from redraft.engine.scheduler import Piece, Scheduler
from redraft.engine.sequence import Sequence
from redraft.engine.settings import LoopConfig
from redraft.errors import BusyError
from redraft.model.fused import fuse_layers
from redraft.model.gemma import DiffusionGemma

EOS = 1


@lru_cache
def model(num_experts: int = 8) -> DiffusionGemma:
    """A short window, and many experts: routing, grouping and sliding all depend on the rows they are given.

    With few experts the layers are the fused ones.
    """
    config = tiny_config(num_experts=num_experts, sliding_window=20, max_position_embeddings=2048)
    return fuse_layers(tiny_model(replace(config, canvas_length=40)))


def request(
    prompt: int,
    max_tokens: int,
    seed: int,
    steps: int,
    canvas: int | None = None,
    end_aware: bool = False,
    finish: Flow | None = None,
    sampler: Mapping[str, Any] = MappingProxyType({}),
) -> ResolvedRequest:
    shipped = CheckpointConfig(model().config, GenerationConfig(max_denoising_steps=6, eos_token_ids=(EOS,)))
    tokens = [(7 * seed + 3 * i) % 60 + 2 for i in range(prompt)]
    if steps == 0:
        shaping = {name: value for name, value in sampler.items() if name not in CANVAS_ONLY}
        return build_request(tokens, Options(max_tokens=max_tokens, seed=seed, causal=True, **shaping), shipped)
    options = Options(max_tokens=max_tokens, seed=seed, steps=steps, canvas=canvas, end_aware=end_aware, **sampler)
    asked = build_request(tokens, options, shipped)
    return asked if finish is None else replace(asked, policy=replace(asked.policy, plan=finish))


# An untrained model is seldom certain, so thresholds are low enough for every rule to keep some and leave some.
rules = ["entropy:9", "confidence:0.03", "factor:4", "frechet:0", "margin:0.004", "gate:1:entropy:9", "gate:2:factor:3"]
samplers = st.fixed_dictionaries(
    {},
    optional={
        "accept": st.lists(st.sampled_from(rules), min_size=1, max_size=2).map(tuple),
        "preset": st.sampled_from(sorted(PRESETS)),
        "cooling": st.integers(1, 8),
        "temperature": st.sampled_from([0.0, 0.6, 1.5]),
        "top_k": st.sampled_from([1, 5]),
        "top_p": st.sampled_from([0.3, 0.9]),
        "logit_bias": st.just(((7, 3.0), (EOS, 1.0))),
        "bad_words": st.just(((9,), (11,))),
        "min_tokens": st.just(1),
    },
)
shapes = st.tuples(
    st.one_of(st.integers(1, 40), st.integers(250, 530)),  # prompt tokens
    st.integers(1, 90),  # max_tokens
    st.integers(0, 50),  # seed
    st.integers(0, 6),  # steps; 0 stands for a causal request
    st.sampled_from([None, 16, 23]),  # canvas
    st.booleans(),  # end_aware
    st.sampled_from([None, Flow(1, 0.8, 1), Flow(0, 0.6, 2)]),
    samplers,
)


@lru_cache
def alone(asked: ResolvedRequest, num_experts: int = 8) -> list[Event]:
    return list(run_alone(model(num_experts), asked, SeededNoise(asked.seed)))


@settings(max_examples=20)
@given(
    st.lists(st.tuples(shapes, st.integers(0, 6), st.none() | st.integers(1, 5)), min_size=1, max_size=6),
    st.integers(1, 700),
    st.integers(1, 4),
    st.sampled_from([4, 8]),
)
def test_every_batch_gives_what_each_request_has_alone(
    drawn: list[tuple[tuple[int, int, int, int, int | None, bool, Flow | None, dict[str, Any]], int, int | None]],
    max_rows: int,
    max_running: int,
    num_experts: int,
) -> None:
    """Drawn: (shape of a request, the tick it arrives at, how many ticks later it is aborted, if it is)."""
    asked = [(request(*shape), arrives, leaves) for shape, arrives, leaves in drawn]
    loop = Loop(model(num_experts), LoopConfig(max_rows, max_running, 100))
    emitted = [list[Event]() for _ in asked]
    handles: dict[int, Handle] = {}
    for tick in range(10_000):
        for i, (one, arrives, leaves) in enumerate(asked):
            if arrives == tick:
                handles[i] = listen(loop, one, emitted[i].append, drafts=True)
            if leaves is not None and arrives + leaves == tick:
                handles[i].abort()
            loop.check()
        left = loop.tick()
        loop.check()
        if not left and tick > 12:
            break
    for (one, _, leaves), heard in zip(asked, emitted, strict=True):
        wanted = alone(one, num_experts)
        if heard[-1] == wanted[-1]:
            assert heard == wanted
        else:
            assert leaves is not None, "a request that nobody aborted ended otherwise"
            assert isinstance(heard[-1], Finished)
            assert heard[-1].reason == "aborted"
            assert heard[:-1] == wanted[: len(heard) - 1]
    assert loop.num_bytes == 0, "a finished request left its cache behind"


def test_no_end_token_before_min_tokens() -> None:
    short = next(
        asked
        for seed in range(200)
        if (asked := request(5, 30, seed, 3)) and sum(len(e.tokens) for e in alone(asked) if isinstance(e, Block)) < 6
    )
    held = replace(short, min_tokens=20)
    blocks = [event for event in alone(held) if isinstance(event, Block)]
    assert sum(len(block.tokens) for block in blocks) >= 20


def test_a_deadline_gives_the_best_reading_so_far() -> None:
    now = [0.0]
    loop = Loop(model(), clock=lambda: now[0])
    asked, emitted = replace(request(5, 16, 1, 5), deadline_sec=10.0), list[Event]()
    listen(loop, asked, emitted.append, drafts=True)
    loop.tick()
    loop.tick()
    now[0] = 10.0
    assert not loop.tick()
    *_, block, finished = emitted
    assert isinstance(block, Block)
    assert not block.settled
    assert block.steps == 2
    assert isinstance(finished, Finished)
    assert finished.reason == "deadline"
    loop.check()


def test_a_deadline_in_the_queue_ends_without_text() -> None:
    now = [0.0]
    loop = Loop(model(), LoopConfig(max_running=1), clock=lambda: now[0])
    first, second = list[Event](), list[Event]()
    listen(loop, request(5, 16, 1, 5), first.append)
    listen(loop, replace(request(5, 16, 2, 5), deadline_sec=1.0), second.append)
    loop.tick()
    now[0] = 2.0
    loop.drain()
    assert [type(event) for event in second] == [Finished]
    assert first == [event for event in alone(request(5, 16, 1, 5)) if isinstance(event, Block | Finished)]


def test_a_listener_may_abort_a_neighbour_in_the_same_forward() -> None:
    loop, victim, handles = Loop(model()), list[Event](), list[Handle]()
    listen(loop, request(5, 16, 1, 5), lambda event: handles[0].abort(), drafts=True)
    handles.append(listen(loop, request(6, 16, 2, 5), victim.append, drafts=True))
    loop.drain()
    loop.check()
    assert [getattr(event, "reason", None) for event in victim] == ["aborted"]


def test_a_full_queue_refuses_and_loses_nothing() -> None:
    loop, emitted = Loop(model(), LoopConfig(max_running=1, max_waiting=2)), [list[Event]() for _ in range(2)]
    for i in range(2):
        listen(loop, request(5, 8, i, 2), emitted[i].append)
    with pytest.raises(BusyError, match="2 requests are waiting"):
        loop.submit(request(5, 8, 9, 2))
    loop.drain()
    assert all(isinstance(one[-1], Finished) for one in emitted)


def test_what_is_taken_from_the_mail_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between mail and queue it counted nowhere, and others were let in beyond the bound."""
    loop, let_in = Loop(model(), LoopConfig(max_running=1, max_waiting=2)), list[bool]()
    add = loop.scheduler.add

    def ask() -> None:
        with suppress(BusyError):
            loop.submit(request(5, 8, 9, 2))

    def slowly(sequence: Sequence) -> None:
        late = Thread(target=ask, daemon=True)
        late.start()
        late.join(0.2)
        let_in.append(not late.is_alive())
        add(sequence)

    with monkeypatch.context() as patch:
        patch.setattr(loop.scheduler, "add", slowly)
        for i in range(2):
            loop.submit(request(5, 8, i, 2))
        loop._collect()
    loop.drain()
    assert let_in == [False, False]


@dataclass(eq=False)
class Counted:
    """All that a scheduler reads of a sequence."""

    number: int
    prompt_left: int
    width: int = 16
    commit_rows: int = 0
    step: int = 0
    waits: bool = False
    caller: object = None
    extra: int = 0

    @property
    def prompt_chunk(self) -> int:
        """Without images."""
        return min(self.prompt_left, 256)


def ran(batch: tuple[Piece, ...]) -> None:
    """What a forward does to the counts."""
    for piece in batch:
        piece.sequence.prompt_left -= piece.encode
        piece.sequence.step += piece.canvas > 0


def test_the_oldest_request_is_never_passed_over() -> None:
    """A long prompt waits behind a stream of canvases only until it is the oldest; its chunk then goes first."""
    scheduler = Scheduler(max_rows=64, max_running=8, max_waiting=8)
    for number in range(5):
        scheduler.add(Counted(number, 4 if number else 1000))
    scheduler.admit()
    for _ in range(4):
        batch = scheduler.next()
        assert batch[0].sequence.number == 0
        ran(batch)
        scheduler.check()


def test_a_short_request_rides_beside_long_ones_and_beside_many_of_one_caller() -> None:
    """Where a forward has room for two canvases of 32, and for the short one: neither six callers' long ones, whose
    forwards would have no room for it, nor forty short ones of one caller keep it waiting for a turn."""
    for others in (
        [Counted(number, 0, width=32, caller=number) for number in range(6)],
        [Counted(number, 0, width=16, caller="one") for number in range(40)],
    ):
        scheduler = Scheduler(max_rows=64, max_running=64, max_waiting=64)
        short = Counted(99, 0, width=16, caller="another")
        for one in (*others, short):
            scheduler.add(one)
        scheduler.admit()
        for _ in range(4):
            batch = scheduler.next()
            assert [piece.sequence for piece in batch[:2]] == [others[0], short]
            assert sum(piece.rows for piece in batch) <= 64
            ran(batch)
            scheduler.check()


def test_a_callers_short_request_goes_before_its_long_ones() -> None:
    scheduler = Scheduler(max_rows=64, max_running=64, max_waiting=64)
    others = [Counted(number, 0, width=32, caller="one") for number in range(6)]
    for one in (*others, short := Counted(99, 0, width=16, caller="one")):
        scheduler.add(one)
    scheduler.admit()
    assert [piece.sequence for piece in scheduler.next()] == [others[0], short]


def test_one_callers_many_choices_leave_places_for_others() -> None:
    scheduler = Scheduler(max_rows=64, max_running=64, max_waiting=99)
    for number in range(64):
        scheduler.add(Counted(number, 0, width=32, caller="one"))
    assert len(scheduler.admit()) == 56
    for number, caller in enumerate(["another", "third", "another"], 64):
        scheduler.add(Counted(number, 0, width=32, caller=caller))
    assert [one.number for one in scheduler.admit()] == [64, 65]
    scheduler.check()


def turns_of(sequences: list[Counted], forwards: int) -> list[set[int]]:
    """Which sequences are in each forward of a scheduler that shares rows among callers."""
    scheduler = Scheduler(max_rows=512, max_running=64, max_waiting=64, share=64)
    for one in sequences:
        scheduler.add(one)
    scheduler.admit()
    found = []
    for _ in range(forwards):
        batch = scheduler.next()
        assert 0 < sum(piece.rows for piece in batch) <= 512
        found.append({piece.sequence.number for piece in batch})
    return found


def test_beside_short_answers_a_callers_long_ones_have_every_fourth_forward() -> None:
    """A forward of a processor takes as long as it has rows: with all of them each would take ten times as long."""
    long_ones = [Counted(number, 0, width=256, caller="one") for number in range(8)]
    found = turns_of([*long_ones, Counted(9, 0, width=16, caller="another")], 9)
    assert [len(each) for each in found] == [2, 1, 1, 2, 1, 1, 1, 2, 1]  # the first time one share is saved up
    assert all(9 in each for each in found)
    short_ones = [Counted(number, 0, width=16, caller="one") for number in range(8)]
    assert [len(each) for each in turns_of([*short_ones, Counted(9, 0, width=16, caller="another")], 4)] == [5] * 4


def test_what_a_constraint_takes_counts_as_rows() -> None:
    """A canvas held to a large automaton took seconds of every forward, and other callers waited for it."""
    heavy = [Counted(number, 0, width=16, caller="one", extra=1000) for number in range(3)]
    found = turns_of([*heavy, Counted(9, 0, width=16, caller="another")], 40)
    assert all(9 in each for each in found)
    assert 2 <= sum(len(each) > 1 for each in found) <= 4
    assert max(map(len, found)) == 2
    assert [len(each) for each in turns_of(heavy, 3)] == [1] * 3, "who comes meanwhile waits for one of them"
    heavy = [Counted(number, 0, width=16, caller=number, extra=400) for number in range(3)]
    assert max(map(len, turns_of(heavy, 9))) == 1, "of each caller one was in the same forward"


def test_callers_who_ask_for_the_same_are_in_one_forward() -> None:
    for width in (16, 64, 256):
        assert turns_of([Counted(number, 0, width=width, caller=number) for number in range(2)], 3) == [{0, 1}] * 3


def test_a_little_more_than_another_costs_a_forward_now_and_then() -> None:
    found = turns_of([Counted(0, 0, width=72, caller="one"), Counted(1, 0, width=64, caller="another")], 18)
    assert all(1 in each for each in found)
    assert 15 <= sum(0 in each for each in found) < 18


def test_nobody_starves_where_a_forward_has_no_room_for_all() -> None:
    for widths in ((256,) * 5, (256, 256, 256, 16, 16), (64,) * 20, (256, *(64,) * 9, *(16,) * 9)):
        found = turns_of([Counted(n, 0, width=width, caller=n) for n, width in enumerate(widths)], 40)
        times = [sum(n in each for each in found) for n in range(len(widths))]
        assert min(times) >= 40 // len(widths)


def test_a_caller_with_many_waiting_does_not_keep_another_from_running() -> None:
    scheduler = Scheduler(max_rows=512, max_running=4, max_waiting=64)
    for number in range(10):
        scheduler.add(Counted(number, 0, caller="one"))
    assert [one.number for one in scheduler.admit()] == [0, 1, 2, 3]
    scheduler.add(Counted(10, 0, caller="another"))
    scheduler.remove(scheduler.running[2])
    assert [one.number for one in scheduler.admit()] == [10]
    scheduler.check()


@pytest.mark.parametrize("max_running", [1, 3, 8])
def test_variants_share_one_prefill_and_each_is_what_it_is_alone(max_running: int) -> None:
    loop = Loop(model(), LoopConfig(max_running=max_running))
    asked = [replace(request(300, 20, 1, 4), seed=seed) for seed in range(6)]
    assert side_by_side(loop, asked, variants=True) == [alone(one) for one in asked]


def test_variants_are_not_stranded_when_the_first_is_aborted() -> None:
    loop, emitted = Loop(model()), [list[Event]() for _ in range(3)]
    asked = [replace(request(600, 20, 1, 4), seed=seed) for seed in range(3)]
    first = listen(loop, asked[0], emitted[0].append, drafts=True)
    for one, heard in zip(asked[1:], emitted[1:], strict=True):
        listen(loop, one, heard.append, drafts=True, behind=first)
    loop.tick()
    first.abort()
    while loop.tick():
        loop.check()
    assert emitted[1:] == [alone(one) for one in asked[1:]]


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 800), st.integers(0, 9)), min_size=1, max_size=8),
    st.sampled_from([0, 100_000, 10**9]),
)
def test_a_kept_prefix_changes_no_answer(drawn: list[tuple[int, int, int]], budget: int) -> None:
    """Prompts that begin alike, in any order, under budgets of nothing, a little and plenty."""
    loop = Loop(model(), LoopConfig(prefix_bytes=budget, max_running=2))
    whole = [tuple((11 * kind + 5 * i) % 60 + 2 for i in range(800)) for kind in range(3)]
    asked = [replace(request(5, 10, seed, 2), prompt=whole[kind][:length]) for kind, length, seed in drawn]
    assert side_by_side(loop, asked) == [alone(one) for one in asked]


def test_a_repeated_prompt_is_not_encoded_again() -> None:
    loop = Loop(model())
    asked = request(600, 10, 1, 2)
    for _ in range(2):
        side_by_side(loop, [asked])
    assert loop.runner.prefixes.hits == 512, "two chunks of 256 tokens were known"


def test_an_end_aware_canvas_only_gets_narrower() -> None:
    """Within a block its width never grows, and over many seeds it does shrink; the next block starts whole again.

    The last ones may be narrower: all blocks together take no more rows than whole canvases would, for which alone
    the context was checked.
    """
    shrunk = 0
    for seed in range(40):
        drafts = [event for event in alone(request(6, 60, seed, 12, end_aware=True)) if isinstance(event, Draft)]
        emitted = 0
        for _, steps in groupby(drafts, key=lambda draft: draft.block):
            widths = [len(draft.tokens) for draft in steps]
            assert widths[0] == min(40, 80 - emitted)
            emitted += widths[-1]
            assert widths == sorted(widths, reverse=True)
            shrunk += widths[-1] < 40
    assert shrunk, "no draft ever held an end token: the test tests nothing"
