"""Measures the dial of a checkpoint: many settings on the same held-out examples, and those worth having kept.

Every setting answers the same examples with the same seeds. Kept are the settings of which none other was cheaper and
at least as good, so that along the dial both cost and quality rise. Tasks that the checkpoint does not know say nothing
and are left out: of its first answers under its own rules fewer than one in five are right.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median

from redraft.config import GenerationConfig
from redraft.engine.dial import Dial, Notch, Rules
from redraft.engine.request import Generation, Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.errors import RequestError
from redraft.measure.evals import room, said, share_of
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.operations.engine import Engine
from redraft.tasks import Example, Task, names, task
from redraft.weights.fingerprint import fingerprint

TASKS = (*names("nano-sudoku"), "sudoku-9x9", *names())
PROBED, KNOWN = 20, 0.2
AT_ONCE = 16
PACED, SHARES = 40, (2.0, 1.0, 0.75, 0.5)


@dataclass(frozen=True)
class TaskExamples:
    """Examples of one task, as many as a setting is tried on, and the most tokens that each is asked for."""

    task: Task
    examples: tuple[Example, ...]
    max_tokens: int | None


def candidates(config: GenerationConfig) -> list[Rules]:
    """The settings that are tried: caps, halting rules and entropy bounds around the checkpoint's own."""
    cap, bound, sure = config.max_denoising_steps, config.entropy_bound, config.confidence_threshold
    own = config.stability_threshold
    found = [Rules(steps, bound, 0, sure) for steps in (1, 2, 3, 4) if steps < cap]
    found += [Rules(cap, bound, still, scale * sure) for still in (0, 1) for scale in (0.2, 1, 4, 20)]
    found += [Rules(cap, bound, 2, sure)]
    found += [Rules(cap, scale * bound, own, sure) for scale in (0.2, 5, 20)]
    return list(dict.fromkeys([Rules(cap, bound, own, sure), *found]))


def frontier(notches: Sequence[Notch]) -> tuple[Notch, ...]:
    """The notches that none of the others beats, in order of cost; of equals the first."""
    kept: list[Notch] = []
    for notch in sorted(notches, key=lambda one: (one.forwards, -one.quality)):
        if not kept or notch.quality > kept[-1].quality:
            kept.append(notch)
    return tuple(kept)


def bench_dial(folder: Path, engine: Engine, *, count: int, progress: Progress = silent) -> tuple[Dial, Record]:
    """Measure the dial of a checkpoint with its engine. Raises RequestError if it knows none of the built-in tasks."""
    tried = candidates(engine.config.generation)
    sheets = known_tasks(engine, tried[0], count)
    if not sheets:
        raise RequestError(f"{folder} answers none of the built-in tasks ({', '.join(TASKS)}); no dial can be measured")
    measured = []
    for i, rules in enumerate(tried):
        progress("setting", i, len(tried))
        measured.append(_measure(engine, rules, sheets))
    alike = [sheet for sheet in sheets if sheet.max_tokens == sheets[0].max_tokens]
    progress("setting", len(tried), len(tried))
    dial = Dial(
        checkpoint=fingerprint(folder),
        taken=datetime.datetime.now(datetime.UTC).date().isoformat(),
        tasks=tuple(sheet.task.name for sheet in sheets),
        examples=count,
        step_ms=round(1e3 * _step_sec(engine, tried[0], alike), 4),
        notches=frontier(measured),
    )
    dtype = str(engine.model.dtype).removeprefix("torch.")
    return dial, _record(folder.name, dtype, dial, measured, _paced(engine, dial, alike, progress))


def ask(
    engine: Engine, sheet: TaskExamples, number: int, dial: Dial, seed: int, target_ms: float | None = None
) -> ResolvedRequest:
    """A request for one example of a sheet at effort 1 of a dial."""
    prompt = engine.text.chat([{"role": "user", "content": sheet.examples[number].prompt}])
    options = Options(effort=1.0, target_ms=target_ms, seed=seed, max_tokens=sheet.max_tokens)
    return build_request(prompt, options, engine.config, dial)


def only(rules: Rules) -> Dial:
    """A dial of one setting."""
    return Dial("", "", (), 0, 1.0, (Notch(rules, 0.0, 0.0, 0.0, 0.0, ()),))


def known_tasks(engine: Engine, rules: Rules, count: int) -> list[TaskExamples]:
    """`count` held-out examples of each task that the checkpoint knows, by its answers under these rules."""
    found = []
    for name in TASKS:
        one = task(name)
        stream = one.examples("held_out", 0)
        probed = TaskExamples(one, tuple(islice(stream, min(PROBED, count))), room(engine, one))
        try:
            right, _ = _answers(engine, rules, probed)
        except RequestError:  # its prompts do not fit this checkpoint
            continue
        if right >= KNOWN * len(probed.examples):
            more = islice(stream, count - len(probed.examples))
            found.append(replace(probed, examples=(*probed.examples, *more)))
    return found


def _answers(engine: Engine, rules: Rules, sheet: TaskExamples) -> tuple[int, list[Generation]]:
    asked = [ask(engine, sheet, i, only(rules), i) for i in range(len(sheet.examples))]
    done = list(engine.map(asked, at_once=AT_ONCE))
    right = [sheet.task.score(example, one.text).exact for example, one in zip(sheet.examples, done, strict=True)]
    return sum(right), done


def _measure(engine: Engine, rules: Rules, sheets: Sequence[TaskExamples]) -> Notch:
    right, done = 0, list[Generation]()
    for sheet in sheets:
        some, answers = _answers(engine, rules, sheet)
        right, done = right + some, done + answers
    steps = Counter(count for one in done for count in one.steps)
    forwards = sum(sum(one.steps) + one.commits for one in done) / len(done)
    canvases = tuple(steps[number] for number in range(max(steps, default=0) + 1))
    return Notch(rules, **share_of(right, len(done), "quality"), forwards=round(forwards, 4), canvases=canvases)


def _step_sec(engine: Engine, rules: Rules, sheets: Sequence[TaskExamples]) -> float:
    """What a step takes, prompt and all, one request at a time."""
    asked = [ask(engine, sheet, i, only(rules), 0) for sheet in sheets for i in range(len(sheet.examples[:PROBED]))]
    done = [engine.run(request) for request in asked]
    return median([one.seconds / max(1, sum(one.steps)) for one in done[1:] or done])


def _paced(engine: Engine, dial: Dial, sheets: Sequence[TaskExamples], progress: Progress) -> list[dict[str, float]]:
    """What comes of times to keep: one request at a time, and times that are shares of what effort 1 takes."""
    asked = [(sheet, i) for sheet in sheets for i in range(len(sheet.examples[:PACED]))]
    usual = median([engine.run(ask(engine, *one, dial, seed)).seconds for seed, one in enumerate(asked)])
    found = []
    for i, share in enumerate(SHARES):
        progress("target", i, len(SHARES))
        done = [engine.run(ask(engine, *one, dial, seed, 1e3 * share * usual)) for seed, one in enumerate(asked)]
        right = [
            sheet.task.score(sheet.examples[i], one.text).exact for (sheet, i), one in zip(asked, done, strict=True)
        ]
        found.append(
            {
                "target_ms": round(1e3 * share * usual, 3),
                "share_of_effort_1": share,
                "in_time": round(sum(one.seconds <= share * usual for one in done) / len(done), 4),
                "median_ms": round(1e3 * median([one.seconds for one in done]), 3),
                "exact": round(sum(right) / len(right), 4),
                "forwards": round(sum(sum(one.steps) + one.commits for one in done) / len(done), 4),
            }
        )
    progress("target", len(SHARES), len(SHARES))
    return found


def _record(name: str, dtype: str, dial: Dial, measured: Sequence[Notch], paced: Sequence[dict[str, float]]) -> Record:
    cheap, best = dial.notches[0], dial.notches[-1]
    own = measured[0]
    return new_record(
        f"dial-{name}",
        workload={
            "model": name,
            "dtype": dtype,
            "tasks": list(dial.tasks),
            "examples_per_task": dial.examples,
            "settings": "canvas fitted to the answer and ends minded, as preset fast; the same examples and seeds",
            "forwards": "per answer, commits included",
            "times": "of the tasks that are asked for as many tokens as the first; a wider canvas takes longer",
        },
        figures={
            "checkpoint": dial.checkpoint,
            "step_ms": dial.step_ms,
            "dial": [
                asdict(notch) | {"effort": round(e, 4)} for notch, e in zip(dial.notches, dial.efforts(), strict=True)
            ],
            "tried": [asdict(notch) for notch in measured],
            "targets": list(paced),
        },
        summary=[
            (f"Settings on the dial of {name}, of {len(measured)} tried", str(len(dial.notches))),
            (f"Answers of {name} exact at effort 0, and forwards per answer", _claim(cheap)),
            (f"Answers of {name} exact at effort 1, and forwards per answer", _claim(best)),
            (f"Answers of {name} exact with its own rules, and forwards per answer", _claim(own)),
        ],
    )


def _claim(notch: Notch) -> str:
    return f"{said(vars(notch), 'quality')}, {notch.forwards:.2f} forwards"
