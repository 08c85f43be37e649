"""Our own speed, as records: as load, prefix and rows grow, where a forward's time goes, what steps are spent on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from redraft.cache import Prefix
from redraft.diffusion.canvas import fresh
from redraft.diffusion.denoise import Policy, reference_policy, step
from redraft.diffusion.noise import SeededNoise
from redraft.engine.engine import Engine, load
from redraft.engine.events import Draft
from redraft.engine.loop import Loop
from redraft.engine.scheduler import PREFILL_CHUNK
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.measure.scenario import TASKS, Material, plain, random_checkpoint
from redraft.measure.throughput import ours, run_pairs
from redraft.model.gemma import DiffusionGemma
from redraft.model.rows import Mode, Span
from redraft.weights.build import DTYPES
from redraft.weights.load import load_model
from redraft.weights.source import EMBEDDED, locate

AT_ONCE = (1, 2, 4, 8, 16, 32, 64)
PREFIXES = (256, 512, 1024, 2048, 4096, 8192, 16_384)
POSITIONS = 32_768
CANVASES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PROFILED = (1, 8, 32)
BEHIND = 64
"""Prefix tokens of each canvas where only the number of canvases matters."""
NEAR = 0.9
EXAMPLES = 200
PHASES = ("ramp", "body", "drain", "confirm")
MATMULS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})
ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


def bench_scaling(
    folder: Path, *, runs: int, dtype: str = "float32", count: int = EXAMPLES, progress: Progress = silent
) -> Record:
    """Throughput by concurrent requests, a step by prefix, matmuls against the machine's peak, steps by phase."""
    engine = load(folder, device="cpu", dtype=dtype)
    material = Material(engine.text, engine.config)
    load_figures = _by_load(engine, material, runs, progress)
    with random_checkpoint(locate(EMBEDDED), POSITIONS) as place:
        model, config = load_model(place, dtype=DTYPES[dtype])
        steps = _by_prefix(model, reference_policy(config.generation), max(runs, 3), progress)
    matmuls = _matmuls(engine.model, max(runs, 3))
    phases = phase_figures(_drafts(engine.model, material, count))
    fastest = max(load_figures, key=lambda one: one["tokens_per_sec"])
    return new_record(
        "scaling",
        workload={
            "model": folder.name,
            "dtype": dtype,
            "runs": runs,
            "requests": "held-out prompts of " + " and ".join(TASKS) + ", preset fast, so many at a time",
            "prefix": f"a random model of nano's shape, context {POSITIONS}, window {model.config.window}",
            "step": "one canvas: forward, readings, acceptance, next canvas",
            "phases": f"{count} held-out examples",
        },
        figures={"by_load": load_figures, "by_prefix": steps, "matmuls": matmuls, "phases": phases},
        summary=[
            (
                f"Useful tokens per second, one / {fastest['at_once']} at a time, {folder.name}, preset fast, CPU",
                f"{load_figures[0]['tokens_per_sec']:.0f} / {fastest['tokens_per_sec']:.0f}",
            ),
            (
                f"A denoising step behind {PREFIXES[0]} / {PREFIXES[-1]} tokens, random model of nano's shape, CPU",
                f"{steps[0]['ms']:.2f} / {steps[-1]['ms']:.2f} ms",
            ),
        ],
    )


def _by_load(engine: Engine, material: Material, runs: int, progress: Progress) -> list[dict[str, Any]]:
    found = []
    for i, at_once in enumerate(AT_ONCE):
        progress("requests at a time", i, len(AT_ONCE))
        made = [plain(replace(material, seed=seed), max(16, 2 * at_once)) for seed in range(runs + 1)]
        figures = run_pairs({"ours": ours(engine, "fast", at_once)}, made, serial=False)["ours"].figures(material.text)
        kept = ("tokens_per_sec", "requests_per_sec", "forwards", "tokens_per_forward", "exact")
        found.append({"at_once": at_once, "requests": len(made[0]), **{name: figures[name] for name in kept}})
    return found


@torch.inference_mode()
def _by_prefix(model: DiffusionGemma, policy: Policy, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Milliseconds of a step while one prefix grows."""
    prefix = Prefix(model.config.layers, room=PREFIXES[-1] + BEHIND, dtype=model.dtype, device=model.device)
    draw = torch.Generator().manual_seed(0)
    found = []
    for i, length in enumerate(PREFIXES):
        progress("prefix", i, len(PREFIXES))
        while prefix.length < length:
            model.encode(torch.randint(model.config.vocab_size, (PREFILL_CHUNK,), generator=draw), prefix)
        ms = 1e3 * median(_step_times(model, prefix, policy, runs))
        found.append({"prefix": length, "ms": round(ms, 4)})
    return found


def _step_times(model: DiffusionGemma, prefix: Prefix, policy: Policy, runs: int) -> list[float]:
    """Seconds of the second step of one canvas, again and again; the first ones warm up."""
    noise, width = SeededNoise(0), model.config.canvas_length
    rows = model.rows([Span(prefix, width, Mode.DENOISE)])
    first = fresh(noise, 0, width, model.config.vocab_size)
    canvas = step(first, model.logits(model(first.tokens, None, rows)), model, policy, noise)
    times = []
    for _ in range(runs + 2):
        began = time.perf_counter()
        step(canvas, model.logits(model(canvas.tokens, canvas.soft, rows)), model, policy, noise)
        times.append(time.perf_counter() - began)
    return times[2:]


@torch.inference_mode()
def _forward_of(model: DiffusionGemma, canvases: int) -> Callable[[], object]:
    """A forward over so many canvases, each behind a prefix of its own."""
    width, vocab = model.config.canvas_length, model.config.vocab_size
    draw = torch.Generator().manual_seed(0)
    prefixes = [Prefix(model.config.layers, dtype=model.dtype, device=model.device) for _ in range(canvases)]
    for prefix in prefixes:
        model.encode(torch.randint(vocab, (BEHIND,), generator=draw), prefix)
    rows = model.rows([Span(prefix, width, Mode.DENOISE) for prefix in prefixes])
    tokens = torch.randint(vocab, (canvases * width,), generator=draw)
    soft = torch.randn(canvases * width, model.config.hidden_size, generator=draw).to(model.dtype)
    return lambda: model.logits(model(tokens, soft, rows))


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@torch.inference_mode()
def _matmuls(model: DiffusionGemma, runs: int) -> dict[str, Any]:
    """Where a forward's time goes, and how near its matmuls come to what this machine can do in float32."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    peak = 2 * 1024**3 / min(_seconds(lambda: a @ b) for _ in range(runs))
    forwards = [_profiled(_forward_of(model, canvases), runs, peak) for canvases in PROFILED]
    width = model.config.canvas_length
    rows = [{"rows": width * n, **one} for n, one in zip(PROFILED, forwards, strict=True)]
    return {"peak_gflops": round(peak / 1e9, 2), "forwards": rows}


def _profiled(forward: Callable[[], object], runs: int, peak: float) -> dict[str, float]:
    """Shares of operator time, and the arithmetic of matmuls per second as a share of `peak`.

    The arithmetic counted is that of matrix products outside attention, whose fused operator reports none.
    """
    seconds = median([_seconds(forward) for _ in range(runs + 2)][2:])
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as found:
        for _ in range(runs):
            forward()
    events = found.key_averages()
    busy = sum(event.self_cpu_time_total for event in events)
    in_matmuls = sum(event.self_cpu_time_total for event in events if event.key in MATMULS)
    in_attention = sum(event.self_cpu_time_total for event in events if event.key == ATTENTION)
    flops = sum(event.flops for event in events if event.key in MATMULS)
    return {
        "ms": round(1e3 * seconds, 4),
        "matmul_share": round(in_matmuls / busy, 4),
        "attention_share": round(in_attention / busy, 4),
        "matmuls_of_peak": round(flops / (in_matmuls * 1e-6) / peak, 4),
        "forward_of_peak": round(flops / runs / seconds / peak, 4),
    }


def _drafts(model: DiffusionGemma, material: Material, count: int) -> list[list[Draft]]:
    """The drafts of every canvas of some held-out examples, in order."""
    loop, canvases = Loop(model), list[list[Draft]]()
    for job in plain(material, count):
        found: dict[int, list[Draft]] = {}

        def listen(event: object, found: dict[int, list[Draft]] = found) -> None:
            if isinstance(event, Draft):
                found.setdefault(event.block, []).append(event)
                if event.step == 1:
                    canvases.append(found[event.block])

        loop.submit(job.request, listen, drafts=True)
    loop.drain()
    return canvases


def phase_of(draft: Draft, *, last: bool) -> str:
    """Which part of a canvas's life a step belongs to.

    ramp: under a tenth of the positions accepted. drain: over nine tenths, and not settled. confirm: the last step,
    when the reading did not change. body: everything else.
    """
    share = sum(draft.accepted) / len(draft.accepted)
    if last and not any(draft.changed):
        return "confirm"
    if share < 0.1:
        return "ramp"
    return "drain" if share > 0.9 else "body"


def phase_figures(canvases: Sequence[Sequence[Draft]]) -> dict[str, Any]:
    """Steps by phase: in all, per canvas, as shares, and by the step's number."""
    by_step: dict[int, Counter[str]] = {}
    for drafts in canvases:
        for draft in drafts:
            by_step.setdefault(draft.step, Counter())[phase_of(draft, last=draft is drafts[-1])] += 1
    total = sum(by_step.values(), Counter[str]())
    steps = max(1, total.total())
    return {
        "canvases": len(canvases),
        "steps": {phase: total[phase] for phase in PHASES},
        "share": {phase: round(total[phase] / steps, 4) for phase in PHASES},
        "per_canvas": {phase: round(total[phase] / max(1, len(canvases)), 3) for phase in PHASES},
        "by_step": {str(number): {p: by_step[number][p] for p in PHASES} for number in sorted(by_step)},
    }


def bench_knee(
    folder: Path, *, runs: int, dtype: str = "float32", plan: str | None = None, progress: Progress = silent
) -> Record:
    """Time of a forward by its rows, all sizes in turn `runs` times, and where more rows stop paying."""
    model = load(folder, device="cpu", dtype=dtype, plan=plan).model  # as an engine runs it
    width = model.config.canvas_length
    forwards = {canvases * width: _forward_of(model, canvases) for canvases in CANVASES}
    times: dict[int, list[float]] = {rows: [] for rows in forwards}
    with torch.inference_mode():
        for i in range(runs + 1):
            progress("round", i, runs)
            for rows, forward in forwards.items():
                times[rows].append(_seconds(forward))
    speed = {rows: rows / median(found[1:]) for rows, found in times.items()}
    at = knee(speed)
    table = [
        {"rows": rows, "ms": round(1e3 * rows / found, 4), "rows_per_sec": round(found, 1)}
        for rows, found in speed.items()
    ]
    return new_record(
        "knee",
        workload={
            "model": folder.name,
            "dtype": dtype,
            "plan": plan,
            "runs": runs,
            "forward": f"canvases of {width} rows, each behind {BEHIND} tokens, with logits, without sampling",
        },
        figures={"by_rows": table, "knee_rows": at, "near": NEAR},
        summary=[
            (
                f"Rows per forward from which {folder.name} gets {NEAR:.0%} of its best rows per second, CPU",
                f"{at} rows, {speed[at]:.0f} of {max(speed.values()):.0f} rows per second",
            )
        ],
    )


def knee(speed: dict[int, float]) -> int:
    """The fewest rows whose speed is within a tenth of the best."""
    best = max(speed.values())
    return min(rows for rows, found in speed.items() if found >= NEAR * best)
