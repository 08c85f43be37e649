"""The ledger of memory: its figures are those of what is allocated, and no answer is lost where memory is short."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import DATA, Shell, alone, listen, released_json, tiny_config, tiny_model

from redraft.cache import Prefix
from redraft.config import CheckpointConfig, GenerationConfig, parse_model
from redraft.engine import reading, runner
from redraft.engine.events import Event, Finished
from redraft.engine.loop import Loop
from redraft.engine.memory import Ledger, held_bytes, ledger_of
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.settings import LoopConfig
from redraft.errors import RequestError, RunError, ran_out
from redraft.measure.record import read_record
from redraft.model.fused import fuse_layers
from redraft.model.gemma import DiffusionGemma
from redraft.model.packed import INT8
from redraft.weights.build import empty_model
from redraft.weights.memory import footprint
from redraft.weights.plan import PLANS, formats

EXPERTS = {"num_experts": 6}  # layers of many experts are not fused
ERRORS = [
    torch.OutOfMemoryError("no memory"),
    MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
]


def model_of() -> DiffusionGemma:
    return tiny_model(replace(tiny_config(**EXPERTS), canvas_length=16, max_positions=4096))


def request_of(model: DiffusionGemma, seed: int, prompt: int = 40, **options: Any) -> ResolvedRequest:
    shipped = CheckpointConfig(model.config, GenerationConfig(max_denoising_steps=4, eos_token_ids=(1,)))
    asked = Options(**{"max_tokens": 32, "seed": seed} | options)
    return replace(build_request([2 + seed] * prompt, asked, shipped), eos=frozenset())


def answers(loop: Loop, requests: list[ResolvedRequest], at_once: list[int] | None = None) -> list[list[Event]]:
    found: list[list[Event]] = [[] for _ in requests]
    for request, events in zip(requests, found, strict=True):
        listen(loop, request, events.append, drafts=True)
    while loop.tick():
        loop.check()
        if at_once is not None:
            at_once.append(sum(one.opened for one in loop.scheduler.running.values()))
    return found


def failing(
    patch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception, when: Callable[[int, tuple[Any, ...]], bool]
) -> list[int]:
    """Make a function run out of memory whenever `when` says so of the call's number and arguments; notes the calls."""
    real, calls = getattr(owner, name), list[int]()

    def tried(*args: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if when(len(calls) - 1, args):
            raise error
        return real(*args, **named)

    patch.setattr(owner, name, tried)
    return calls


@pytest.mark.parametrize("room", [1, 300, 700, 3000])
def test_caches_are_counted_as_they_are_allocated(room: int) -> None:
    model = model_of()
    ledger = ledger_of(model, memory=10**12, max_rows=64, graphs=False)
    assert ledger.cache(room) == Prefix(model.config.layers, room=room).num_bytes


def test_weights_are_counted_as_they_are_allocated() -> None:
    config = tiny_config(hidden_size=64, intermediate_size=96, moe_intermediate_size=64)
    for plan in (None, "int8", "int4"):
        packed = formats(config, PLANS[plan]) if plan else {}
        model = empty_model(config, dtype=torch.bfloat16, device="cpu", packed=packed)
        storages = {
            one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in model.state_dict().values()
        }
        assert held_bytes(model) == sum(storages.values())
    fused = fuse_layers(tiny_model(), INT8)
    assert held_bytes(fused) > sum(one.nbytes for one in fused.state_dict().values()), "packed matrices of fused layers"


def test_a_request_that_never_fits_is_refused_with_what_would() -> None:
    model = model_of()
    fixed = ledger_of(model, memory=10**12, max_rows=16, graphs=False)
    some = fixed.fixed + fixed.cache(400)
    loop = Loop(model, LoopConfig(memory=some, max_rows=16))
    with pytest.raises(
        RequestError, match=r"a prompt of 40 tokens with max_tokens 900 needs .* GB are left"
    ) as refused:
        loop.submit(request_of(model, 1, max_tokens=900))
    most = int(str(refused.value).rsplit("lower max_tokens to ", 1)[1])
    loop.submit(request_of(model, 1, max_tokens=most)).abort()
    with pytest.raises(RequestError, match=f"lower max_tokens to {most}"):
        loop.submit(request_of(model, 1, max_tokens=most + 1))
    with pytest.raises(RequestError, match=r"a prompt and an answer of .* tokens together would fit"):
        loop.submit(request_of(model, 1, prompt=700))
    with pytest.raises(RequestError, match="in fewer bits or on a larger device"):
        Loop(model, LoopConfig(memory=1000, max_rows=16)).submit(request_of(model, 1))


def test_what_does_not_fit_beside_the_others_waits_its_turn() -> None:
    model = model_of()
    requests = [request_of(model, seed, prompt=40 + 260 * (seed % 2)) for seed in range(6)]
    ledger = ledger_of(model, memory=10**12, max_rows=32, graphs=False)
    loop = Loop(model, LoopConfig(memory=ledger.fixed + 2 * ledger.cache(400), max_rows=32))
    running: list[int] = []
    assert answers(loop, requests, running) == alone(model, requests)
    assert 1 < max(running) < 6
    assert not loop.admission.ledger.running
    assert loop.runner.prefixes.num_bytes <= ledger.cache(400) * 2, "prefixes have what requests leave"


def test_prefixes_give_way_to_requests() -> None:
    model = model_of()
    ledger = ledger_of(model, memory=10**12, max_rows=32, graphs=False)
    loop = Loop(model, LoopConfig(memory=ledger.fixed + ledger.cache(700), max_rows=32))
    answers(loop, [request_of(model, 1, prompt=520)])
    kept = loop.runner.prefixes.num_bytes
    answers(loop, [request_of(model, 2, prompt=560)])
    assert 0 <= loop.runner.prefixes.num_bytes <= ledger.cache(700)
    assert kept > 0
    loop.check()


@pytest.mark.parametrize("error", ERRORS, ids=lambda one: type(one).__name__)
def test_a_forward_without_memory_is_done_in_halves(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    requests = [request_of(model, seed) for seed in range(5)]
    wanted = alone(model, requests)
    loop = Loop(model, LoopConfig(max_rows=400))
    failing(monkeypatch, model, "forward", error, lambda _, args: len(args[0]) > 80)
    assert answers(loop, requests) == wanted
    assert loop.runner.shortages > 0
    assert loop.scheduler.max_rows == 400, "as wide as before when nothing runs"


@pytest.mark.parametrize("error", ERRORS, ids=lambda one: type(one).__name__)
def test_a_step_without_memory_is_taken_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    requests = [request_of(model, 1, logprobs=2), request_of(model, 2, top_k=5), request_of(model, 3)]
    wanted = alone(model, requests)
    loop = Loop(model)
    failing(monkeypatch, model, "logits", error, lambda call, _: call % 3 == 0)
    failing(monkeypatch, runner.CanvasSequence, "_block", error, lambda call, _: call == 1)
    assert answers(loop, requests) == wanted
    assert loop.runner.shortages > 2


def test_a_request_that_cannot_be_opened_waits_for_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    requests = [request_of(model, seed) for seed in range(3)]
    wanted = alone(model, requests)
    loop = Loop(model)

    def crowded(_call: int, _args: object) -> bool:
        return any(one.opened for one in loop.scheduler.running.values())

    failing(monkeypatch, runner.CanvasSequence, "open", ERRORS[0], crowded)
    running: list[int] = []
    assert answers(loop, requests, running) == wanted
    assert max(running) == 1
    assert not loop.admission.ledger.running


def test_only_the_request_without_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    requests = [request_of(model, seed, prompt=200 if seed == 1 else 40) for seed in range(3)]
    wanted = alone(model, requests)
    loop = Loop(model)
    failing(monkeypatch, model, "forward", ERRORS[0], lambda _, args: len(args[0]) > 150)
    found = answers(loop, requests)
    assert [found[0], found[2]] == [wanted[0], wanted[2]]
    end = found[1][-1]
    assert isinstance(end, Finished)
    assert isinstance(end.error, RunError)
    assert "memory ran out while the request was running; shorten the request" in str(end.error)


def test_canvases_of_a_long_vocabulary_are_read_alone_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    requests = [request_of(model, seed, logprobs=1) for seed in range(4)]
    wanted = alone(model, requests)
    rows: list[int] = []
    real = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: rows.append(len(hidden)) or real(hidden))
    together = Loop(model)
    assert answers(together, requests) == wanted
    assert max(rows) > 16, "of a short vocabulary they are read together"
    rows.clear()
    monkeypatch.setattr(runner, "NUMBERS", 16 * model.config.vocab_size)
    assert answers(Loop(model), requests) == wanted
    assert max(rows) <= 16
    assert reading.NUMBERS == 256 * 32768


def test_a_narrow_canvas_that_is_read_alone_takes_the_logits_of_its_own_rows() -> None:
    """Seven float32 tensors of its logits, once for all that run: they are read one after the other."""
    model = tiny_model(replace(tiny_config(**EXPERTS, vocab_size=32768), canvas_length=16, max_positions=4096))
    ledger = ledger_of(model, memory=10**12, max_rows=16, graphs=False)
    room = ledger.fixed + 3 * ledger.cache(300) + 7 * 4 * 4 * 32768
    at_once: list[int] = []
    narrow = [request_of(model, seed, canvas=4, max_tokens=4, logprobs=1) for seed in range(3)]
    assert answers(Loop(model, LoopConfig(memory=room, max_rows=16)), narrow, at_once) == alone(model, narrow)
    assert max(at_once) == 3
    with pytest.raises(RequestError, match="are left beside the model"):
        Loop(model, LoopConfig(memory=room - 2 * ledger.cache(300), max_rows=16)).submit(
            request_of(model, 1, max_tokens=16, logprobs=1)
        )


def test_nothing_of_a_step_is_kept_that_only_a_deadline_reads() -> None:
    """Of 262,144 tokens it is 268 MB for each."""
    model = model_of()
    loop = Loop(model)
    listen(loop, request_of(model, 1, logprobs=2), lambda _: None)
    for _ in range(3):
        loop.tick()
        assert all(one.logits is None for one in loop.scheduler.running.values())


def test_errors_of_other_kinds_are_no_shortage() -> None:
    assert ran_out(RuntimeError("CUDA error: out of memory"))
    assert ran_out(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not ran_out(RuntimeError("shapes differ"))
    assert not ran_out(ValueError("out of memory"))


def test_a_thread_that_turns_frees_what_waits() -> None:
    model = model_of()
    ledger = ledger_of(model, memory=10**12, max_rows=32, graphs=False)
    loop = Loop(model, LoopConfig(memory=ledger.fixed + ledger.cache(400), max_rows=32))
    loop.start()
    done = threading.Semaphore(0)
    for seed in range(5):
        listen(loop, request_of(model, seed), lambda event: done.release() if isinstance(event, Finished) else None)
    assert all(done.acquire(timeout=30) for _ in range(5))
    loop.stop()
    loop.check()


def test_inspect_prints_the_ledger_of_a_model_that_is_not_loaded(shell: Shell) -> None:
    shape = str(Path(__file__).parents[2] / "recipes/shapes/26b")
    asked = ["inspect", shape, "--memory", "24", "--plan", "int4", "--context", "8192", "--batch", "4", "--json"]
    found = json.loads(shell(asked).out)["ledger"]
    released = parse_model(released_json())[0]
    each = Prefix(released.layers, room=8192, dtype=torch.bfloat16, device="meta").num_bytes
    assert found["bytes"]["sequences"] == 4 * each
    assert found["bytes"]["weights"] == footprint(released, torch.bfloat16, formats(released, PLANS["int4"])).fixed
    assert "GB are left" in found["verdict"]
    assert found["bytes"]["graphs"] > 0
    on_cpu = json.loads(shell([*asked, "--device", "cpu", "--dtype", "bfloat16"]).out)["ledger"]
    assert "graphs" not in on_cpu["bytes"]
    out = shell(["inspect", shape, "--memory", "17", "--plan", "int4", "--constrained"]).out
    assert "ledger: 1 constrained requests of 8,192 tokens, in 17 GB" in out
    assert "short" in out
    assert "84 of 128 experts touched / all of them" in out
    assert "ledger: 2 requests" in shell(["inspect", "nano", "--memory", "--batch", "2"]).out
    assert "--batch is 0; it must be from 1 to 10000" in shell(["inspect", "nano", "--batch", "0"], 2).err


def test_the_vision_tower_has_its_place_before_the_first_image() -> None:
    layers = {"num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "standardize": True}
    widths = {"hidden_size": 1152, "intermediate_size": 4304, "head_dim": 72}
    vision = {"model_type": "gemma4_vision"} | layers | widths
    seeing = parse_model(released_json() | {"vision_config": vision})[0]
    shapes = json.loads((DATA / "real_26b_tensors.json").read_text())
    stored = sum(2 * prod(shape) for name, shape in shapes.items() if "vision" in name)
    need = footprint(seeing, torch.bfloat16, {})
    found = dict(Ledger(seeing, torch.bfloat16, need, memory=None, max_rows=256).lines(0))
    assert found["tower"] == stored


def test_the_rehearsal_took_what_its_ledger_said() -> None:
    figures = read_record(Path(__file__).parents[2] / "bench/records/rehearsal.json").figures
    serve = figures["serve"]
    for each in (serve, serve["prefix_memory"], serve["infill_memory"]):
        assert each["peak_over_ledger"] == pytest.approx(1, abs=0.05)
    assert serve["speed"]["share_of_peak"] >= 0.5
    assert figures["same_after_restart"]
    assert serve["prefix"] == {"hit_tokens": 512, "same": True}
    assert serve["aborted_bytes"] == 0


def test_a_bound_of_memory_is_a_number_above_zero() -> None:
    with pytest.raises(RequestError, match="memory is 0; it must be an integer of at least 1"):
        Loop(model_of(), LoopConfig(memory=0))
