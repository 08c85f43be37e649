"""Many requests, ours beside transformers', on one checkpoint in one process.

Passes are paired, in alternating order, after one pair that is not counted. Only useful tokens count: no padding,
nothing after the end or beyond a request's own limit. An answer is there when its last useful token has been handed
out, even if the batch goes on for others. Ours is what `redraft.load` gives, once by transformers' rules, preset
`reference`, and once as one would rather run it, preset `fast`; noise is each one's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from redraft.config import read_config
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.settings import DEFAULT_LOOP, LoopConfig
from redraft.measure.evals import share_of
from redraft.measure.process_memory import peak_mib
from redraft.measure.record import Progress, Record, new_record, percentiles_ms, silent
from redraft.measure.scenario import RATE, SCENARIOS, Material, Pass, Scenario, TimedRequest, checkpoint_of
from redraft.measure.systems import RedraftSystem, System, TransformersSystem
from redraft.measure.verify import load_reference
from redraft.operations.engine import Engine
from redraft.tasks import task
from redraft.text import Text, read_text
from redraft.weights.build import DTYPES

SIDES = ("ours", "ours_fast", "transformers")
IN_MEMORY = ("ours", "transformers")


@dataclass(frozen=True)
class SideRuns:
    """All counted passes of one side, and the jobs of each."""

    jobs: Sequence[Sequence[TimedRequest]]
    passes: Sequence[Pass]

    def figures(self, text: Text) -> dict[str, Any]:
        """Medians over passes, percentiles over all their requests, and exactness."""
        outcomes = [outcome for one in self.passes for outcome in one.outcomes]
        return {
            "tokens_per_sec": round(median([one.tokens_per_sec for one in self.passes]), 2),
            "requests_per_sec": round(median([one.requests_per_sec for one in self.passes]), 2),
            "tokens": sum(one.tokens for one in self.passes),
            "forwards": median([float(one.forwards) for one in self.passes]),
            "tokens_per_forward": round(median([one.tokens / max(1, one.forwards) for one in self.passes]), 3),
            "first_text_ms": percentiles_ms([one.first_sec for one in outcomes], 50, 95),
            "latency_ms": percentiles_ms([one.latency for one in outcomes], 50, 95),
            "exact": self.exact(text),
            "passes": [[round(one.seconds, 5), one.tokens, one.forwards] for one in self.passes],
        }

    def exact(self, text: Text) -> dict[str, Any] | None:
        """How many answers are right, of those whose right answer fits in their limit; None if there are none."""
        right = [
            task(job.task).score(job.example, text.decode(outcome.tokens)).exact
            for jobs, one in zip(self.jobs, self.passes, strict=True)
            for job, outcome in zip(jobs, one.outcomes, strict=True)
            if job.example is not None
        ]
        if not right:
            return None
        return {"right": sum(right), "of": len(right), **share_of(sum(right), len(right))}


def run_pairs(
    sides: dict[str, System],
    made: Sequence[Sequence[TimedRequest]],
    *,
    serial: bool,
    what: str = "pass",
    progress: Progress = silent,
) -> dict[str, SideRuns]:
    """Each list of jobs through every side, whose order turns round each time. The first list only warms up."""
    found: dict[str, list[Pass]] = {who: [] for who in sides}
    for i, jobs in enumerate(made):
        for who in sides if i % 2 == 0 else reversed(sides):
            found[who].append(sides[who].serve(jobs, serial=serial))
        progress(what, i, len(made) - 1)
    return {who: SideRuns(made[1:], passes[1:]) for who, passes in found.items()}


def bench_scenario(
    scenario: Scenario,
    folder: Path,
    *,
    runs: int,
    dtype: str = "float32",
    rate: float = RATE,
    progress: Progress = silent,
) -> Record:
    """One scenario, ours by two presets beside transformers', and the peaks of memory."""
    with checkpoint_of(scenario, folder) as place:
        engine = Engine.load(place, device="cpu", dtype=dtype)
        theirs, version = load_reference(place, DTYPES[dtype])
        material = Material(engine.text, engine.config, rate)
        made = [scenario.jobs(replace(material, seed=seed)) for seed in range(runs + 1)]
        sides: dict[str, System] = {"ours": ours(engine, "reference"), "ours_fast": ours(engine, "fast")}
        sides["transformers"] = TransformersSystem(theirs)
        found = run_pairs(sides, made, serial=scenario.serial, what=scenario.name, progress=progress)
        peaks = {who: peak_mib(_serve_alone, who, scenario.name, place, dtype) for who in IN_MEMORY}
    workload = _workload(scenario, folder, made[1:], dtype, rate, version)
    return _record(scenario, found, material.text, peaks, workload)


def ours(engine: Engine, preset: str, at_once: int = DEFAULT_LOOP.max_running) -> RedraftSystem:
    """The engine as it was loaded, by the rules of a preset and with the canvas that it takes."""

    def change(request: ResolvedRequest) -> ResolvedRequest:
        options = Options(max_tokens=request.max_tokens, seed=request.seed, preset=preset)
        return build_request(list(request.prompt), options, engine.config)

    return RedraftSystem(engine.model, LoopConfig(max_rows=engine.loop.scheduler.max_rows, max_running=at_once), change)


def _serve_alone(who: str, name: str, folder: Path, dtype: str) -> None:
    """One pass of a scenario, in a process whose memory is measured."""
    config, scenario = read_config(folder), SCENARIOS[name]
    jobs = scenario.jobs(Material(read_text(folder, config), config))
    side: System
    if who == "ours":
        side = RedraftSystem(Engine.load(folder, device="cpu", dtype=dtype).model)
    else:
        side = TransformersSystem(load_reference(folder, DTYPES[dtype])[0])
    side.serve(jobs, serial=scenario.serial)


def _workload(
    scenario: Scenario, folder: Path, made: Sequence[Sequence[TimedRequest]], dtype: str, rate: float, version: str
) -> dict[str, Any]:
    requests = [job.request for jobs in made for job in jobs]
    prompts, limits = [len(one.prompt) for one in requests], [one.max_tokens for one in requests]
    return {
        "scenario": scenario.about,
        "model": folder.name if scenario.positions is None else f"random, the shape of {folder.name}",
        "context": scenario.positions or read_config(folder).model.max_positions,
        "dtype": dtype,
        "paired_passes": len(made),
        "requests_per_pass": len(made[0]),
        "requests_per_sec": rate if scenario.name == "poisson" else None,
        "prompt_tokens": [min(prompts), max(prompts)],
        "max_tokens": [min(limits), max(limits)],
        "sampler": "ours and transformers: the reference rules; ours_fast: preset fast, on the canvas that it takes",
        "ours": "one loop as loaded, new for every pass; within one it keeps prefixes between requests",
        "transformers": version,
        "transformers_way": "generate on a left-padded batch of all that has arrived; each call reads its prompts anew",
    }


def _record(
    scenario: Scenario, found: dict[str, SideRuns], text: Text, peaks: dict[str, float], workload: dict[str, Any]
) -> Record:
    figures, unit = {who: side.figures(text) for who, side in found.items()}, f"{scenario.counted}_per_sec"
    rates = {who: [getattr(one, unit) for one in side.passes] for who, side in found.items()}
    ratios = {
        who: median([one / other for one, other in zip(rates[who], rates["transformers"], strict=True)])
        for who in SIDES[:-1]
    }
    speeds = " / ".join(f"{figures[who][unit]:.0f}" for who in SIDES)
    times = " and ".join(f"{ratio:.1f}" for ratio in ratios.values())
    waits = " / ".join(f"{figures[who]['latency_ms']['p95']:.0f}" for who in SIDES)
    right = [figures[who]["exact"] for who in SIDES]
    what, names = f"{scenario.about}, CPU", "ours / ours with preset fast / transformers"
    named = {"tokens": "Useful tokens", "requests": "Requests"}[scenario.counted]
    return new_record(
        f"throughput-{scenario.name}",
        workload=workload,
        figures={
            **figures,
            "ratio_of": unit,
            "ratio_median": {who: round(ratio, 3) for who, ratio in ratios.items()},
            "peak_mib": {who: round(mib, 1) for who, mib in peaks.items()},
        },
        summary=[
            (f"{named} per second, {names}: {what}", f"{speeds} ({times} times)"),
            (f"95th percentile of latency, {names}: {what}", f"{waits} ms"),
            *(
                [(f"Exact answers, {names}: {what}", " / ".join(f"{one['share']:.1%}" for one in right))]
                if all(right)
                else []
            ),
            (
                f"Peak memory of the process, ours / transformers: {what}",
                f"{peaks['ours']:.0f} / {peaks['transformers']:.0f} MiB",
            ),
        ],
    )
