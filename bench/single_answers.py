"""Speed of one request beside transformers, as a record.

    python bench/single_answers.py --count 30 --record bench/records/against-transformers.json

On the same checkpoint and prompts in one process, runs are paired: each prompt is answered by one and then by the
other, in alternating order, so that a drifting machine hurts both. Both use the checkpoint's own sampler settings,
the reference rules, and their own noise, so step counts differ a little; the time per denoising step is reported
beside the time per answer. A third run of each pair is ours by the preset `fast`, which does what the reference
cannot: a canvas that fits the answer, and no step that only confirms. Peak memory is that of a process of each one's
own. `redraft bench` measures many requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from command import arguments, finish
from redraft.cli.common import progress
from redraft.engine.request import Options, Request, ResolvedRequest
from redraft.measure.process_memory import peak_mib
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.measure.scenario import TASKS, held_out
from redraft.measure.verify import load_reference
from redraft.operations.engine import Engine
from redraft.weights.source import locate

WHO = ("ours", "fast", "transformers")


@dataclass(frozen=True)
class TimedAnswer:
    """Seconds and denoising steps of one answer."""

    seconds: float
    steps: int

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.seconds / self.steps


def bench_against(folder: Path, *, runs: int, dtype: str = "float32", progress: Progress = silent) -> Record:
    """Time `runs` paired answers after one warm-up pair, and both peaks of memory."""
    engine = Engine.load(folder, device="cpu", dtype=dtype)
    theirs, version = load_reference(folder, engine.model.dtype)
    requests, fast = _requests(engine, runs + 1), _requests(engine, runs + 1, preset="fast")
    answer: dict[str, Callable[[int], int]] = {
        "ours": lambda i: _ours(engine, requests[i]),
        "fast": lambda i: _ours(engine, fast[i]),
        "transformers": lambda i: _theirs(theirs, requests[i]),
    }
    found: dict[str, list[TimedAnswer]] = {who: [] for who in WHO}
    for i in range(runs + 1):
        for who in WHO if i % 2 == 0 else reversed(WHO):
            began = time.perf_counter()
            steps = answer[who](i)
            found[who].append(TimedAnswer(time.perf_counter() - began, steps))
        progress("pair", i, runs)
    counted = {who: side[1:] for who, side in found.items()}
    peaks = {who: peak_mib(_answer_alone, who, folder, dtype) for who in ("ours", "transformers")}
    return _record(folder, counted, peaks, version, dtype, len(requests[0].prompt))


def _requests(engine: Engine, count: int, preset: str = "reference") -> list[ResolvedRequest]:
    return [
        engine.resolve(Request(prompt, chat=True, options=Options(seed=i, preset=preset)))
        for i, prompt in enumerate(held_out(count))
    ]


def _ours(engine: Engine, request: ResolvedRequest) -> int:
    return sum(engine.run(request).steps)


def _theirs(theirs: Any, request: ResolvedRequest) -> int:
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
    return calls


def _answer_alone(who: str, folder: Path, dtype: str) -> None:
    """Four answers, in a process whose memory is measured."""
    engine = Engine.load(folder, device="cpu", dtype=dtype)
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
    folder: Path,
    found: dict[str, list[TimedAnswer]],
    peaks: dict[str, float],
    version: str,
    dtype: str,
    prompt_tokens: int,
) -> Record:
    ours, fast, theirs = (found[who] for who in WHO)
    ratio = median([other.seconds / one.seconds for one, other in zip(ours, theirs, strict=True)])
    fast_ratio = median([other.seconds / one.seconds for one, other in zip(fast, theirs, strict=True)])
    step_ratio = median([other.step / one.step for one, other in zip(ours, theirs, strict=True)])
    figures: dict[str, Any] = {
        who: {
            "ms": round(1e3 * median([one.seconds for one in side]), 3),
            "ms_per_step": round(1e3 * median([one.step for one in side]), 3),
            "steps_mean": round(sum(one.steps for one in side) / len(side), 2),
            "runs": [[round(one.seconds, 5), one.steps] for one in side],
        }
        for who, side in found.items()
    }
    ratios = {"ratio_median": ratio, "fast_ratio_median": fast_ratio, "ratio_per_step_median": step_ratio}
    figures |= {name: round(value, 3) for name, value in ratios.items()}
    figures["peak_mib"] = {who: round(mib, 1) for who, mib in peaks.items()}
    return new_record(
        "against-transformers",
        workload={
            "model": folder.name,
            "dtype": dtype,
            "requests": "one at a time, held-out prompts of " + " and ".join(TASKS),
            "paired_runs": len(ours),
            "prompt_tokens_first": prompt_tokens,
            "sampler": "reference, the checkpoint's own settings, each engine its own noise; fast: preset fast",
            "transformers": version,
        },
        figures=figures,
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


def main() -> None:
    """One record."""
    given = arguments(__doc__ or "", count=30)
    finish(bench_against(locate(given.model), runs=given.count, progress=progress), given.record)


if __name__ == "__main__":
    main()
