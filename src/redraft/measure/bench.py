"""Speed of one request beside transformers, as a record.

On the same checkpoint and prompts in one process, runs are paired: each prompt is answered by one and then by the
other, in alternating order, so that a drifting machine hurts both. Both use the checkpoint's own sampler settings,
the reference rules, and their own noise, so step counts differ a little; the time per denoising step is reported
beside the time per answer. A third run of each pair is ours by the preset `fast`, which does what the reference
cannot: a canvas that fits the answer, and no step that only confirms. Peak memory is that of a process of each one's
own. `throughput.py` has the many requests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from redraft.engine.engine import Engine, load
from redraft.engine.request import Options, Request
from redraft.measure.peak import peak_mib
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.measure.scenario import TASKS, held_out
from redraft.measure.verify import load_reference


@dataclass(frozen=True)
class Pair:
    """Seconds and denoising steps of one prompt: ours, theirs, and ours by the preset `fast`."""

    ours_sec: float
    ours_steps: int
    theirs_sec: float
    theirs_steps: float
    fast_sec: float
    fast_steps: int


def bench_against(folder: Path, *, runs: int, dtype: str = "float32", progress: Progress = silent) -> Record:
    """Time `runs` paired answers after one warm-up pair, and both peaks of memory."""
    engine = load(folder, dtype=dtype)
    theirs, version = load_reference(folder, engine.model.dtype)
    requests, fast = _requests(engine, runs + 1), _requests(engine, runs + 1, preset="fast")
    pairs = []
    for i, (request, fitted) in enumerate(zip(requests, fast, strict=True)):
        pairs.append(_pair(engine, theirs, request, fitted, ours_first=i % 2 == 0))
        progress("pair", i, runs)
    peaks = {who: peak_mib(_answer_alone, who, folder, dtype) for who in ("ours", "transformers")}
    return _record(folder, pairs[1:], peaks, version, dtype, len(requests[0].prompt))


def _requests(engine: Engine, count: int, preset: str = "reference") -> list[Request]:
    return [
        engine.request(prompt, chat=True, options=Options(seed=i, preset=preset))
        for i, prompt in enumerate(held_out(count))
    ]


def _pair(engine: Engine, theirs: Any, request: Request, fitted: Request, *, ours_first: bool) -> Pair:
    found: dict[str, tuple[float, float]] = {}
    for who in ("ours", "fast", "theirs") if ours_first else ("theirs", "fast", "ours"):
        began = time.perf_counter()
        steps = _theirs(theirs, request) if who == "theirs" else _ours(engine, request if who == "ours" else fitted)
        found[who] = (time.perf_counter() - began, steps)
    (ours, ours_steps), (other, other_steps), (fast, fast_steps) = (found[who] for who in ("ours", "theirs", "fast"))
    return Pair(ours, int(ours_steps), other, other_steps, fast, int(fast_steps))


def _ours(engine: Engine, request: Request) -> float:
    return float(sum(engine.finish(request).steps))


def _theirs(theirs: Any, request: Request) -> float:
    """transformers' generate; its steps are counted as calls of the decoder."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    hook = theirs.model.decoder.register_forward_hook(count)
    torch.manual_seed(request.seed)
    prompt = torch.tensor([request.prompt])
    theirs.generate(prompt, attention_mask=torch.ones_like(prompt))
    hook.remove()
    return float(calls)


def _answer_alone(who: str, folder: Path, dtype: str) -> None:
    """Four answers, in a process whose memory is measured."""
    engine = load(folder, dtype=dtype)
    requests = _requests(engine, 4)
    if who == "ours":
        for request in requests:
            _ours(engine, request)
    else:
        theirs, _ = load_reference(folder, engine.model.dtype)
        del engine
        for request in requests:
            _theirs(theirs, request)


def _record(
    folder: Path, pairs: list[Pair], peaks: dict[str, float], version: str, dtype: str, prompt_tokens: int
) -> Record:
    ours, theirs = median([p.ours_sec for p in pairs]), median([p.theirs_sec for p in pairs])
    ratio = median([p.theirs_sec / p.ours_sec for p in pairs])
    ours_step = median([p.ours_sec / p.ours_steps for p in pairs])
    theirs_step = median([p.theirs_sec / p.theirs_steps for p in pairs])
    step_ratio = median([(p.theirs_sec / p.theirs_steps) / (p.ours_sec / p.ours_steps) for p in pairs])
    fast_ratio = median([p.theirs_sec / p.fast_sec for p in pairs])
    return new_record(
        "against-transformers",
        workload={
            "model": folder.name,
            "dtype": dtype,
            "requests": "one at a time, held-out prompts of " + " and ".join(TASKS),
            "paired_runs": len(pairs),
            "prompt_tokens_first": prompt_tokens,
            "sampler": "reference, the checkpoint's own settings, each engine its own noise",
            "transformers": version,
        },
        figures={
            "ours_ms": round(1e3 * ours, 3),
            "transformers_ms": round(1e3 * theirs, 3),
            "ratio_median": round(ratio, 3),
            "fast_ms": round(1e3 * median([p.fast_sec for p in pairs]), 3),
            "fast_ratio_median": round(fast_ratio, 3),
            "fast_steps_mean": round(sum(p.fast_steps for p in pairs) / len(pairs), 2),
            "ours_ms_per_step": round(1e3 * ours_step, 3),
            "transformers_ms_per_step": round(1e3 * theirs_step, 3),
            "ratio_per_step_median": round(step_ratio, 3),
            "ours_steps_mean": round(sum(p.ours_steps for p in pairs) / len(pairs), 2),
            "transformers_steps_mean": round(sum(p.theirs_steps for p in pairs) / len(pairs), 2),
            "peak_mib": {who: round(mib, 1) for who, mib in peaks.items()},
            "pairs": [
                [round(p.ours_sec, 5), p.ours_steps, round(p.theirs_sec, 5), p.theirs_steps, round(p.fast_sec, 5)]
                for p in pairs
            ],
        },
        summary=[
            (
                "One answer on nano, CPU, against transformers (median of paired runs)",
                f"{fast_ratio:.1f} times as fast by preset fast, {ratio:.1f} by the reference's rules and canvas",
            ),
            ("One denoising step on nano, CPU, against transformers", f"{step_ratio:.1f} times as fast"),
            (
                "Peak memory of the process, ours / transformers",
                f"{peaks['ours']:.0f} / {peaks['transformers']:.0f} MiB",
            ),
        ],
    )
