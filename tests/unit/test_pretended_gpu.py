"""Whole requests on a CUDA device that is pretended: nothing is left on the host, and a step waits once.

The tiny model has the real one's structure: both kinds of layers, routed experts, a head read as a stream. Most of it
runs on operations of torch that a GPU need not wait for; once everything goes through our kernels, under Triton's
interpreter.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.helpers import agree, listen, new_prefix, side_by_side, tiny_checkpoint, tiny_config
from torch import Tensor

pytest.importorskip("triton", reason=f"there is no triton for {sys.platform}")

from tests.pretend import CUDA, Device, Held, Mixed, layer_of_torch, pretend

from redraft.config import CheckpointConfig, read_config
from redraft.constraints.compile.limits import CompileLimits
from redraft.constraints.condition import projection
from redraft.constraints.condition.guided import MOST_FORCED
from redraft.constraints.language import Language, Vocabulary, ready
from redraft.constraints.sources import regex_source, schema_source
from redraft.diffusion.plan import Flow
from redraft.diffusion.seed import SeedCanvas
from redraft.engine import reading
from redraft.engine.engine import Core
from redraft.engine.events import Block, Event, Finished
from redraft.engine.loop import Loop
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.settings import LoopConfig
from redraft.engine.warm import warm_up
from redraft.model.gemma import DiffusionGemma
from redraft.model.gpu import graph
from redraft.model.gpu.graph import GraphPlaces
from redraft.model.gpu.kernels import CONDITION, GPU
from redraft.model.head import STRIPE, TILE, Head, read_head
from redraft.model.kernels import Kernels, attend_eager, norm_exact
from redraft.model.moe import experts_dense, experts_grouped
from redraft.model.packed import TABLE8, pack
from redraft.text import read_text
from redraft.weights.load import load_model
from redraft.weights.place import Placement
from redraft.weights.plan import PLANS
from redraft.weights.source import locate

pytestmark = pytest.mark.slow

WIDTH = 16


TORCH = Kernels(norm_exact, attend_eager, experts_dense)
GRAPHED = replace(TORCH, layer=layer_of_torch)


@dataclass(frozen=True)
class Told:
    """What each request was reported, and of each tick what the host waited for and how many canvases stepped."""

    events: list[list[Event]]
    waits: list[list[str]]
    canvases: list[int]
    operations: list[int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / "tiny"
    tiny_checkpoint(place, replace(tiny_config(), canvas_length=WIDTH))
    return place


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    with pretend(monkeypatch) as found:
        yield found


def load(folder: Path, where: str, kernels: Kernels = TORCH) -> tuple[DiffusionGemma, CheckpointConfig]:
    return load_model(folder, kernels=kernels, device=where)


def reported(
    model: DiffusionGemma, requests: Sequence[ResolvedRequest], device: Device | None, *, graphs: bool = False
) -> Told:
    """Every request to its end, side by side."""
    loop, found = Loop(model), Told([[] for _ in requests], [], [], [])
    loop.runner.places = GraphPlaces(model) if graphs else None
    for request, events in zip(requests, found.events, strict=True):
        listen(loop, request, events.append, drafts=True)
    left = True
    while left:
        before = loop.canvas_rows
        if device is not None:
            device.seen.clear()
        left = loop.tick()
        if device is not None:
            found.waits.append(list(device.seen.waits))
            found.operations.append(device.seen.operations)
        found.canvases.append((loop.canvas_rows - before) // WIDTH)
    for events in found.events:
        assert isinstance(events[-1], Finished)
        if events[-1].error is not None:
            raise events[-1].error
    return found


def requests_of(config: CheckpointConfig, count: int = 2, most: int = 40, **options: Any) -> list[ResolvedRequest]:
    """Prompts of several lengths, answers of several blocks."""
    made = [Options(max_tokens=most - 8 * i, seed=i, steps=4, **options) for i in range(count)]
    return [
        replace(build_request([2] + [9 + i] * (3 + 8 * i), one, config), eos=frozenset()) for i, one in enumerate(made)
    ]


@pytest.mark.parametrize("long", [True, False], ids=["a stream", "logits"])
def test_a_step_waits_once_whatever_rides_along(
    folder: Path, device: Device, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, commits and canvases in one forward, with drafts reported after each: one copy to the host for all."""
    if long:
        monkeypatch.setattr(reading, "LONG", 1)
    there, config = load(folder, "cuda")
    requests = requests_of(config, 3)
    found = reported(there, requests, device)
    assert agree(found.events, reported(load(folder, "cpu")[0], requests, None).events)
    assert max(found.canvases) == 3
    for waits, canvases in zip(found.waits, found.canvases, strict=True):
        assert len(waits) == min(canvases, 1), waits
        assert all(wait.startswith("a copy to the host stats.py") for wait in waits)


def test_steps_that_are_taken_alone_wait_once_for_each_canvas(folder: Path, device: Device) -> None:
    there, config = load(folder, "cuda")
    requests = requests_of(config, top_k=3)
    found = reported(there, requests, device)
    assert agree(found.events, reported(load(folder, "cpu")[0], requests, None).events)
    assert [len(waits) for waits in found.waits] == found.canvases


def language(config: CheckpointConfig) -> Language:
    pieces = [None if token < 3 else bytes([94 + token % 28]) for token in range(config.model.vocab_size)]
    return ready(regex_source("[a-d]{3,30}e"), Vocabulary(tuple(pieces), frozenset((1,)), frozenset((0, 1))))


def special(config: CheckpointConfig) -> dict[str, ResolvedRequest]:
    """One request for each thing that a step does beside the usual."""
    (usual,) = requests_of(config, 1, 24)
    (causal,) = requests_of(config, 1, 4, causal=True, logprobs=1)
    (held,) = requests_of(config, 1, 24, min_tokens=9, top_p=0.5, logit_bias=((5, 2.0),))
    pins = SeedCanvas(pins=((2, 7), (9, 8)))
    words = language(config)
    spoken = build_request([2, 9], Options(max_tokens=40, seed=1, steps=4), config, language=words)
    return {
        "pins": replace(usual, seed_canvas=pins),
        "flow": replace(usual, policy=replace(usual.policy, plan=Flow(nats=3.0, least=2))),
        "causal": causal,
        "sampling": held,
        "logprobs": replace(usual, logprobs=2),
        "language": spoken,
        "language, causal": replace(causal, language=words),
    }


@pytest.mark.parametrize("sharp", [0.0, 3.0])
def test_a_schema_held_from_left_to_right_fetches_the_rows_that_it_needs(device: Device, sharp: float) -> None:
    """All of log p was fetched at every step, 268 MB of a long vocabulary, and its argmax taken on the host."""
    pieces, texts = (None, None, *(bytes([byte]) for byte in range(256))), {"type": "string"}
    schema = {"type": "object", "properties": {"who": texts, "all": {"items": {"$ref": "#"}}}, "required": ["who"]}
    vocabulary = Vocabulary(pieces, frozenset({0}), frozenset({0, 1}))
    guide = ready(schema_source(schema), vocabulary, limits=CompileLimits(states=20))
    log_p = torch.log_softmax(torch.randn(200, 258, generator=torch.Generator().manual_seed(5)) * sharp, -1)
    wanted, there = guide.start(100)(log_p), guide.start(100)
    device.seen.clear()
    found = there(log_p.to(CUDA))
    assert device.seen.fetched < (MOST_FORCED + 2) * 258 + 2000
    assert found.draft.tolist() == wanted.draft.tolist()
    said = found.draft[:20].tolist()
    device.seen.clear()
    assert found.log_mass(said) == wanted.log_mass(said)
    assert device.seen.fetched == 20 * 258


def tokens_of(found: Told) -> list[list[int]]:
    return [event.tokens for events in found.events for event in events if isinstance(event, Block)]


# top_p asks whether it has looked at enough tokens; log-probabilities and languages are read by the host.
MOST_WAITS = {"causal": 6, "sampling": 2, "logprobs": 5, "language": 8, "language, causal": 10}


@pytest.mark.parametrize("what", ["pins", "flow", "causal", "sampling", "logprobs", "language", "language, causal"])
def test_what_is_not_usual_runs_there_too(folder: Path, device: Device, what: str) -> None:
    there, config = load(folder, "cuda")
    request = special(config)[what]
    found = reported(there, [request], device)
    expected = reported(load(folder, "cpu")[0], [request], None)
    if request.language is None:
        assert agree(found.events, expected.events)
    else:  # the sums of classes are taken in another order there
        assert tokens_of(found) == tokens_of(expected)
    assert max(len(waits) for waits in found.waits) <= MOST_WAITS.get(what, 1), found.waits


def test_messages_are_passed_there_and_a_held_step_waits_twice(
    folder: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for the likeliest text and once for the readings; once more to tell a draft, and once to tell a block."""
    there, config = load(folder, "cuda", replace(TORCH, condition=CONDITION))
    request = special(config)["language"]
    request = replace(request, max_tokens=20, policy=replace(request.policy, max_steps=2))
    found = reported(there, [request], device)
    assert tokens_of(found) == tokens_of(reported(load(folder, "cpu")[0], [request], None))
    steps = [len(waits) for waits in found.waits if waits]
    assert (min(steps), max(steps[1:])) == (3, 4), found.waits  # the first one takes the language there
    monkeypatch.setattr(projection, "MOST_ON_DEVICE", 0)
    by_the_host = reported(there, [request], device)
    assert tokens_of(by_the_host) == tokens_of(found)
    assert min(len(waits) for waits in by_the_host.waits if waits) > 4


@pytest.mark.parametrize("long", [True, False], ids=["a stream", "logits"])
def test_a_graph_of_several_canvases_is_recorded_and_replayed(
    folder: Path, device: Device, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is recorded the host may wait for nothing; replayed, it computes what single launches do."""
    if long:
        monkeypatch.setattr(reading, "LONG", 1)
    there, config = load(folder, "cuda", GRAPHED)
    requests = requests_of(config)
    plain, graphed = reported(there, requests, device), reported(there, requests, device, graphs=True)
    assert agree(graphed.events, plain.events)
    assert [len(waits) for waits in graphed.waits] == [len(waits) for waits in plain.waits]
    assert 4 * min(graphed.operations) < min(plain.operations), "nothing was replayed"


def test_a_graph_that_cannot_be_recorded_costs_speed_and_no_answer(
    folder: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, config = load(folder, "cuda", GRAPHED)
    requests = requests_of(config)
    plain = reported(there, requests, device)
    loop = Loop(there)
    assert loop.runner.places is not None, "on a GPU there are graphs by default"
    refused = RuntimeError("operation not permitted when stream is capturing")
    monkeypatch.setattr(graph.GraphedStep, "_capture", Mock(side_effect=refused))
    assert agree(side_by_side(loop, requests), plain.events)
    assert loop.runner.places is None
    assert loop.runner.no_graphs == "RuntimeError: operation not permitted when stream is capturing"


@pytest.mark.parametrize("wanted", [None, True])
def test_without_the_kernel_of_a_layer_there_are_no_graphs(folder: Path, device: Device, wanted: bool | None) -> None:
    """It may have been replaced by the self-check: that costs speed and no answer, either."""
    there, config = load(folder, "cuda")
    loop = Loop(there, LoopConfig(graphs=wanted))
    assert loop.runner.places is None
    assert loop.runner.no_graphs == "the kernel of a layer is not used"
    assert loop.admission.ledger.graphs == 0
    (request,) = requests_of(config, 1)
    assert agree(side_by_side(loop, [request]), reported(there, [request], device).events)
    assert not Loop(there, LoopConfig(graphs=False)).runner.no_graphs


def test_every_form_is_run_before_a_server_is_ready(folder: Path, device: Device) -> None:
    there, config = load(folder, "cuda", GRAPHED)
    nano = locate("nano")
    text = read_text(nano, read_config(nano))
    lines: list[str] = []
    engine = Core(there, text, config, Loop(there, text=text))
    warm_up(engine, lines.append)
    assert [line.split(" in ")[0] for line in lines[:2]] == ["warming up: 1 canvases", "warming up: 2 canvases"]
    assert engine.loop.runner.prefixes.num_bytes == 0
    assert engine.loop.runner.places is not None
    assert {count for count, _ in engine.loop.runner.places._steps} == {1, 2, 4, 8}


def test_our_kernels_are_given_what_is_on_the_device_and_recorded(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forms of a GPU, launch by launch and replayed: as few rows as there can be, for the interpreter is slow."""
    monkeypatch.setattr(reading, "LONG", 1)
    monkeypatch.setattr(graph, "_WARM_UPS", 1)
    tiny_checkpoint(tmp_path / "tiny", replace(tiny_config(), canvas_length=2))
    there, config = load(tmp_path / "tiny", "cuda", GPU)
    request = replace(build_request([2, 9], Options(max_tokens=2, seed=1, steps=3), config), eos=frozenset())
    graphed = reported(there, [request], device, graphs=True)
    assert agree(graphed.events, reported(load(tmp_path / "tiny", "cpu", GPU)[0], [request], None).events)
    assert [len(waits) for waits in graphed.waits] == [1, 1, 1]
    assert 4 * min(graphed.operations) < max(graphed.operations), "nothing was replayed"


@pytest.mark.parametrize("plan", [None, "int4"])
def test_experts_on_the_host_are_asked_for_once_a_layer(tmp_path: Path, device: Device, plan: str | None) -> None:
    """The host must know a layer's experts to copy them, and the layer before it decides: so one wait a layer."""
    tiny_checkpoint(tmp_path / "tiny", tiny_config(hidden_size=64, intermediate_size=64, moe_intermediate_size=64))
    grouped = Kernels(norm_exact, attend_eager, experts_grouped)
    near, far = (
        load_model(
            tmp_path / "tiny", device="cuda", kernels=grouped, plan=PLANS[plan] if plan else None, placement=where
        )[0]
        for where in (Placement.DEVICE, Placement.HOST)
    )
    tokens, prefix = (torch.arange(6) + 20).to(CUDA), new_prefix(far)
    device.seen.clear()
    logits = far.denoise(tokens, None, prefix)
    waits = [wait for wait in device.seen.waits if " moe.py" in wait or " offload.py" in wait]
    assert len(waits) == len(far.layers), device.seen.waits
    assert torch.equal(logits, near.denoise(tokens, None, new_prefix(near)))


@pytest.mark.parametrize("plan", [None, *PLANS])
def test_a_model_is_loaded_to_the_device_whole(tmp_path: Path, device: Device, plan: str | None) -> None:
    tiny_checkpoint(tmp_path / "tiny", tiny_config(hidden_size=64, intermediate_size=64, moe_intermediate_size=64))
    model = load_model(tmp_path / "tiny", device="cuda", plan=PLANS[plan] if plan else None)[0]
    tensors = [*model.parameters(), *model.buffers()]
    assert tensors
    assert {tensor.device for tensor in tensors} == {CUDA}
    assert all(isinstance(tensor, Held) for tensor in tensors)


def test_the_pretence_notices_what_it_is_for(device: Device) -> None:
    x = torch.arange(3.0, device="cuda")
    with pytest.raises(Mixed, match="add"):
        x + torch.ones(3)
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    for wait in (
        lambda: x.tolist(),
        lambda: bool(x.any()),
        lambda: float(x.sum()),
        lambda: x[x > 1],
        lambda: torch.equal(x, x),
        lambda: torch.tensor([1, 2], device="cuda"),
        lambda: x[torch.tensor([0])],
    ):
        device.seen.clear()
        wait()
        assert len(device.seen.waits) == 1, device.seen.waits
    device.seen.clear()
    with torch.inference_mode():
        x += torch.ones(3).to(CUDA, non_blocking=True)
    assert not device.seen.waits
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    with pytest.raises(AssertionError, match="while a graph is recorded"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        float(x.sum())
    x.fill_(7.0)
    assert y.tolist() == [2.0, 4.0, 6.0]
    graph.replay()
    assert y.tolist() == [14.0, 14.0, 14.0]


def test_samples_unpack_no_more_of_a_table_at_once_than_a_tile(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """So much is counted for it (`weights/memory.py`). Every row looks up a stripe of its own."""
    unpacked, part = list[int](), Head.part

    def noted(head: Head, tokens: slice | Tensor, dtype: torch.dtype) -> Tensor:
        found = part(head, tokens, dtype)
        unpacked.append(found[..., 0].numel())
        return found

    monkeypatch.setattr(Head, "part", noted)
    table = pack(torch.randn(20 * STRIPE, 8), TABLE8)
    there = replace(table, codes=table.codes.to(CUDA), scale=table.scale.to(CUDA))
    hidden, uniform = torch.randn(256, 8).to(CUDA), torch.rand(256).to(CUDA)
    read_head(hidden, Head(there, 30.0), torch.ones(256, 1).to(CUDA), uniform)
    assert sum(unpacked) == 20 * STRIPE + 256 * STRIPE
    assert max(unpacked) <= TILE
