"""A device card: what a device can do, what a step on it costs, and how near the two are.

First the device alone (copying, multiplying), then the model: prefill, a denoising step by canvases and by prefix, a
commit, the head alone, and what it takes to hold a canvas to a schema. Each time stands beside its floor
(`measure/roofline.py`), worked out for the rates just measured and for the experts that were really touched. Without
weights the numbers are random, which times the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from redraft.cache import Prefix
from redraft.config import ModelConfig
from redraft.constraints.condition.projection import Projection
from redraft.constraints.language import ready
from redraft.constraints.sources import schema_source
from redraft.diffusion.stats import read_logits
from redraft.errors import RequestError
from redraft.measure.partial_results import PartialResults
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.measure.roofline import Card, StepWork, encode_work, step_work
from redraft.measure.sample_schema import TEN_FIELDS, made_up_vocabulary
from redraft.model.gemma import DiffusionGemma, Layer
from redraft.model.gpu.automata import ConditionKernels, Edges, Paths, Walk
from redraft.model.gpu.graph import PLACES, GraphedStep, Placed
from redraft.model.head import LONG, Head, read_head
from redraft.model.kernels import Kernels
from redraft.model.linear import computed_in
from redraft.model.moe import AnyExperts, ExpertsForm
from redraft.model.packed import Packed
from redraft.model.rows import Mode, Span
from redraft.shapes import Float, Tensor
from redraft.weights.build import empty_model
from redraft.weights.memory import footprint, free_memory
from redraft.weights.offload import keep_on_host
from redraft.weights.place import Placement
from redraft.weights.plan import Formats, PackingPlan, formats, packed_matrices, plain_tensors

CANVASES = (1, 2, 4, 8, 16)
PREFIXES = (512, 2048, 8192, 32768, 65536)
USUAL = 2048
"""Prefix of the steps that vary in canvases; steps that vary in prefix have one canvas."""

SPOKEN = 512
"""Vocabularies from here on can spell a schema of ten fields in a canvas; below there are hardly more than bytes."""

_ROOM = 1024  # tokens for an answer: more than a canvas
_GRAPHED = (1, 2, 4, PLACES)
_COPIED = {"cuda": 2**30, "cpu": 2**26}
_SQUARE = {"cuda": 8192, "cpu": 1024}


@dataclass
class ExpertCounter:
    """Counts the experts that rows are sent to. It stands in for a form of the experts and passes everything on."""

    form: ExpertsForm
    shares: list[float] = field(default_factory=list)

    def __call__(self, experts: AnyExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The form's result."""
        self.shares.append(chosen.unique().numel() / experts.gate_up.shape[0])
        return self.form(experts, x, weights, chosen)

    @property
    def share(self) -> float:
        """The mean over layers."""
        return sum(self.shares) / len(self.shares)


def device_card(
    config: ModelConfig,
    *,
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    plan: PackingPlan | None,
    kernels: Kernels,
    placement: Placement = Placement.DEVICE,
    model: DiffusionGemma | None = None,
    canvases: Sequence[int] = CANVASES,
    prefixes: Sequence[int] = PREFIXES,
    runs: int = 10,
    progress: Progress = silent,
) -> Record:
    """Measure. Without `model` one of random numbers is made, its experts where `placement` says. Cases that do not fit
    in memory are reported as left out, and what fails as failed.

    Raises RequestError for numbers below 1, and RunError if nothing could be timed.
    """
    if min((*canvases, *prefixes, runs)) < 1:
        raise RequestError("canvases, prefixes and runs must be at least 1 each")
    card = measure_card(device, dtype, runs)
    free, given = free_memory(device), model
    model = given or random_weights(config, dtype, device, formats(config, plan), kernels, placement)
    packed = {name: held.format for name, held in packed_matrices(model).items()}
    need = footprint(config, dtype, packed, placement)
    if free is not None and given is not None:  # its weights have been taken from that already
        free += need.fixed
    usual = min(USUAL, prefixes[-1])
    cases = [(count, usual) for count in canvases]
    cases += [(1, prefix) for prefix in prefixes if (1, prefix) not in cases]
    fit = [case for case in cases if free is None or need.total(case[1], case[0]) <= free]
    fit = [case for case in fit if case[1] + config.canvas_length <= config.max_positions]
    touched = touched_share(model)
    sent = int(need.host * touched)
    timed = PartialResults()
    for number, (count, prefix) in enumerate(fit, start=1):
        work = replace(step_work(config, dtype, packed, canvases=count, prefix=prefix, touched=touched), sent=sent)
        graphs = device.type == "cuda" and placement is Placement.DEVICE and model.kernels.layer is not None
        row = partial(_row, work=work, card=card)
        for what in ("step", "graphed step") if graphs and prefix == usual and count in _GRAPHED else ("step",):
            timed.take(f"{what} of {count} behind {prefix}", partial(_step_rows, what, model, count, prefix, runs, row))
        progress("step", number, len(fit))
    timed.take("encoding", partial(_encodes, model, packed, card, touched, sent, runs))
    timed.take("head", partial(_head_rows, model, card, runs))
    timed.take("held", partial(_held_rows, config, device, kernels.condition, card, runs))
    figures = {
        "card": {"bandwidth": card.bandwidth, "matmul": card.bf16, "bus": card.bus, "memory_free": free},
        "weights": need.weights,
        "experts_touched": touched,
        **timed.figures(),
        "left_out": [list(case) for case in cases if case not in fit],
    }
    workload = {"model": name, "dtype": str(dtype), "plan": plan.name if plan else None, "runs": runs}
    workload["experts"] = placement.value
    how = f"{name}, {plan.name if plan else 'plain'}{', experts on the host' if need.host else ''}, on {card.name}"
    return new_record(f"device-{name}", workload=workload, figures=figures, summary=_summary(card, timed.rows, how))


def measure_card(device: torch.device, dtype: torch.dtype, runs: int) -> Card:
    """Bytes a copy moves per second, read and written, on the device and, of a GPU, to it; operations of a square
    matmul; medians of `runs`."""
    source = torch.ones(_COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.numel() / median(time_runs(lambda: target.copy_(source), device, runs))
    bus = None
    if device.type == "cuda":
        host = torch.ones(source.shape, dtype=torch.uint8, pin_memory=True)
        bus = host.numel() / median(time_runs(lambda: target.copy_(host, non_blocking=True), device, runs))
    size = _SQUARE[device.type]
    a, b = torch.randn(2, size, size, dtype=computed_in(dtype, device), device=device).unbind()
    multiplied = 2 * size**3 / median(time_runs(lambda: a @ b, device, runs))
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    del source, target, a, b
    torch.cuda.empty_cache()  # what they lay in is free for a model
    return Card(what, free_memory(device) or 0, copied, multiplied, bus=bus)


def time_runs(work: Callable[[], object], device: torch.device, runs: int) -> list[float]:
    """Seconds of each of `runs` runs, after two that do not count."""
    found = []
    for number in range(runs + 2):
        _wait(device)
        start = time.perf_counter()
        with torch.inference_mode():
            work()
        _wait(device)
        if number >= 2:
            found.append(time.perf_counter() - start)
    return found


def step_of(model: DiffusionGemma, canvases: int, prefix: int) -> Callable[[], object]:
    """A denoising step of several canvases, each behind a prefix of its own: forward and reading of the head."""
    width = model.config.canvas_length
    spans = [Span(filled_prefix(model, prefix), width, Mode.DENOISE) for _ in range(canvases)]
    rows = model.rows(spans)
    tokens = torch.arange(canvases * width, device=model.device) % model.config.vocab_size
    soft = torch.zeros(canvases * width, model.config.hidden_size, dtype=model.dtype, device=model.device) + 0.01
    return lambda: read(model, model(tokens, soft, rows))


def graphed_step_of(model: DiffusionGemma, canvases: int, prefix: int) -> Callable[[], object]:
    """The same step, reading included, replayed as one graph."""
    width, reads = model.config.canvas_length, model.config.vocab_size >= LONG
    prefixes = [filled_prefix(model, prefix) for _ in range(canvases)]
    step = GraphedStep(model, prefixes, width, canvases, reads=reads)
    tokens, draws = torch.arange(width) % model.config.vocab_size, torch.full((2, width), 0.6)
    soft = torch.full((width, model.config.hidden_size), 0.01, dtype=model.dtype, device=model.device)
    placed = [Placed(place, tokens, soft, draws) for place in range(canvases)]

    def run() -> object:
        hidden, reading = step(placed)
        return read(model, hidden) if reading is None else reading

    return run


def read(model: DiffusionGemma, hidden: Float[Tensor, "rows hidden"]) -> object:
    """What a step reads, as it does: a long vocabulary as a stream, a short one from its logits."""
    uniform = torch.full((hidden.shape[0],), 0.5, device=hidden.device)
    if model.config.vocab_size >= LONG:
        head = Head(model.table, model.config.logit_cap, model.dtype)
        return read_head(hidden, head, torch.full_like(uniform, 0.6)[:, None], uniform, model.kernels.head)
    return read_logits(model.logits(hidden), 0.6, lambda p: p.argmax(-1), model.soften, model.dtype)


def filled_prefix(model: DiffusionGemma, length: int) -> Prefix:
    """A cache of that length, of random keys and values."""
    room = length + 2 * model.config.canvas_length
    prefix = Prefix(model.config.layers, room=room, dtype=model.dtype, device=model.device)
    for layer in prefix.layers:
        kept = length if layer.window is None else min(length, layer.window - 1)
        shape = (layer.keys.shape[0], kept, layer.keys.shape[2])
        keys = torch.randn(shape, dtype=model.dtype, device=model.device)
        layer.restore(length, keys, keys)
    prefix.length = length
    return prefix


def touched_share(model: DiffusionGemma) -> float:
    """Share of the experts of a layer that a canvas's rows are sent to, over all layers; 1 where layers are fused."""
    layers = [layer for layer in model.layers if isinstance(layer, Layer)]
    if not layers:
        return 1.0
    counting = ExpertCounter(layers[0].kernels.experts)
    before = [layer.kernels for layer in layers]
    for layer in layers:
        layer.kernels = replace(layer.kernels, experts=counting)
    try:
        with torch.inference_mode():
            step_of(model, 1, min(64, model.config.max_positions // 2))()
    finally:
        for layer, held in zip(layers, before, strict=True):
            layer.kernels = held
    return counting.share


@torch.no_grad()
def random_weights(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    packed: Formats,
    kernels: Kernels,
    placement: Placement = Placement.DEVICE,
) -> DiffusionGemma:
    """A model of random numbers, packed ones made as codes: nothing larger than the model is ever in memory.

    Experts elsewhere than on a GPU are zeros: a processor takes minutes to draw 23 billion numbers.
    """
    model = empty_model(config, dtype=dtype, device=device, kernels=kernels, packed=packed, placement=placement)
    for tensor in plain_tensors(model).values():
        if tensor.ndim == 1 or tensor.device.type != device.type:
            tensor.fill_(float(tensor.ndim == 1))
        else:
            tensor.normal_(std=tensor.shape[-1] ** -0.5)
    for held in packed_matrices(model).values():
        # Bytes below 120 are finite as e4m3; of the other formats every byte is a number.
        codes, most = held.codes.view(torch.uint8), 120 if held.codes.dtype == torch.float8_e4m3fn else 256
        codes.random_(0, most) if codes.device.type == device.type else codes.zero_()
        held.scale.copy_(torch.tensor(2.0**-9 if held.top is None else 1.0))
        if held.top is not None:
            held.top.fill_(2.0**-7)
    model = model.eval().requires_grad_(False)
    return keep_on_host(model) if placement is Placement.HOST else model


def _step_rows(
    what: str, model: DiffusionGemma, canvases: int, prefix: int, runs: int, row: Callable[..., dict[str, Any]]
) -> list[dict[str, Any]]:
    make = graphed_step_of if what == "graphed step" else step_of
    return [row(what, canvases, prefix, time_runs(make(model, canvases, prefix), model.device, runs))]


def _encodes(
    model: DiffusionGemma, packed: Formats, card: Card, touched: float, sent: int, runs: int
) -> list[dict[str, Any]]:
    """A commit, and a chunk of prompt as long as four canvases, each behind a prefix that stands still."""
    found = []
    for what, rows in (("commit", model.config.canvas_length), ("prefill", 4 * model.config.canvas_length)):
        prefix = min(USUAL, model.config.max_positions - rows)
        context = model.rows([Span(filled_prefix(model, prefix), rows, Mode.ENCODE)])
        tokens = torch.arange(rows, device=model.device) % model.config.vocab_size
        seconds = time_runs(partial(model, tokens, None, context), model.device, runs)
        work = encode_work(model.config, model.dtype, packed, rows=rows, prefix=prefix, touched=touched)
        found.append(_row(what, 1, prefix, seconds, replace(work, sent=sent), card) | {"rows": rows})
    return found


def _head_rows(model: DiffusionGemma, card: Card, runs: int) -> list[dict[str, Any]]:
    rows, table = model.config.canvas_length, model.table
    size, held = table.shape[0] * table.shape[1], table.num_bytes if isinstance(table, Packed) else table.nbytes
    hidden = torch.randn(rows, table.shape[1], dtype=model.dtype, device=model.device)
    seconds = time_runs(lambda: read(model, hidden), model.device, runs)
    work = StepWork(held, 4 * rows * size, 0)
    return [_row("head", 1, 0, seconds, work, card)]


def _held_rows(
    config: ModelConfig, device: torch.device, given: ConditionKernels | None, card: Card, runs: int
) -> list[dict[str, Any]]:
    """Holding a canvas of noise to a schema of ten fields: with messages passed on the device, if there is a kernel for
    that, and what of it is that kernel; and with messages passed by the host. The floor is that of log-probabilities
    read twice and written once."""
    if config.vocab_size < SPOKEN:
        return []
    language = ready(schema_source(TEN_FIELDS), made_up_vocabulary(config.vocab_size))
    log_p = torch.randn(config.canvas_length, config.vocab_size, device=device).log_softmax(-1)
    kernels = given if device.type == "cuda" else None
    clocked = None if kernels is None else TimedWalk(kernels.walk, device)
    alone = None if kernels is None or clocked is None else replace(kernels, walk=clocked)
    found = []
    for what, one in {"held": kernels, "walk": alone, "held by the host": None}.items():
        if what == "held by the host" or one is not None:
            goal = language.start(_ROOM, kernels=one)
            seconds = time_runs(partial(_held, goal, log_p), device, runs)
            seconds = clocked.seconds[-runs:] if clocked is not None and what == "walk" else seconds
            found.append(_row(what, 1, 0, seconds, StepWork(3 * log_p.nbytes, 0, 0), card))
    return found


def _held(goal: Projection, log_p: Float[Tensor, "canvas vocab"]) -> object:
    """All that a step asks of a language."""
    found = goal(log_p)
    return found.shifted(), found.draft, found.doubt


@dataclass
class TimedWalk:
    """Stands in for a walk and tells how long it took, each time by itself."""

    walk: Walk
    device: torch.device
    seconds: list[float] = field(default_factory=list)

    def __call__(
        self, edges: Edges, mass: Tensor, tops: Tensor, start: int, ends: Tensor, gates: Tensor | None
    ) -> Paths:
        """The walk's result."""
        _wait(self.device)
        began = time.perf_counter()
        found = self.walk(edges, mass, tops, start, ends, gates)
        _wait(self.device)
        self.seconds.append(time.perf_counter() - began)
        return found


def _row(what: str, canvases: int, prefix: int, seconds: list[float], work: StepWork, card: Card) -> dict[str, Any]:
    middle, floor = median(seconds), work.seconds(card)
    return {
        "what": what,
        "canvases": canvases,
        "prefix": prefix,
        "ms": 1e3 * middle,
        "floor_ms": 1e3 * floor,
        "times_floor": middle / floor,
        "bytes": work.num_bytes,
        "flops": work.flops,
        "runs_ms": [1e3 * one for one in seconds],
    }


def _summary(card: Card, timed: list[dict[str, Any]], how: str) -> list[tuple[str, str]]:
    found = [
        (f"copying on {card.name}", f"{card.bandwidth / 1e9:.0f} GB/s"),
        (f"square matmul on {card.name}", f"{card.bf16 / 1e12:.2f} TFLOP/s"),
    ]
    found += [(f"copying from the host to {card.name}", f"{card.bus / 1e9:.0f} GB/s")] if card.bus else []
    for row in timed:
        found.append((f"{_case(row)} ({how})", f"{row['ms']:.2f} ms, {row['times_floor']:.1f} times the floor"))
    return found


def _case(row: dict[str, Any]) -> str:
    """One timed thing in words."""
    count, behind = row["canvases"], f"behind {row['prefix']} tokens"
    words = {
        "step": f"a step of {count} canvas{'es' if count > 1 else ''} {behind}",
        "graphed step": f"a step of {count} canvas{'es' if count > 1 else ''} {behind}, as one graph",
        "commit": f"a commit {behind}",
        "prefill": f"{row.get('rows')} tokens of prompt {behind}",
        "head": "the head of one canvas alone",
        "held": "holding one canvas to a schema of ten fields",
        "walk": "the kernel of its messages",
        "held by the host": "holding it with messages passed by the host",
    }
    return words[row["what"]]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
