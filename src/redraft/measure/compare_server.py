"""The model at hand beside another server, on the same prompts and in turn, as a record.

The order alternates, so that a machine that drifts hurts both. What is timed is what a user waits for, from the
question to the whole answer: here in the process by the preset `fast`, there with HTTP between and by its own rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from redraft.engine.request import Options, Request
from redraft.errors import RequestError
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.measure.remote import Reply
from redraft.operations.engine import Engine


def bench_beside(
    engine: Engine,
    asked: Callable[[str, int], Reply],
    prompts: Sequence[str],
    *,
    where: str,
    progress: Progress = silent,
) -> Record:
    """Answer each prompt here and, by `asked` with the same seed, there; the first also once before, untimed."""
    if not prompts:
        raise RequestError("there are no prompts to compare on; write one a line")
    _here(engine, prompts[0], 0)
    asked(prompts[0], 0)
    ours, theirs = list[Reply](), list[Reply]()
    for i, prompt in enumerate(prompts):
        for side in ("here", "there") if i % 2 == 0 else ("there", "here"):
            if side == "here":
                ours.append(_here(engine, prompt, i))
            else:
                theirs.append(asked(prompt, i))
        progress("prompt", i + 1, len(prompts))
    return _record(engine, ours, theirs, where)


def _here(engine: Engine, prompt: str, seed: int) -> Reply:
    began = time.monotonic()
    done = engine.run(Request(prompt, Options(seed=seed, preset="fast"), chat=True))
    return Reply(
        done.text, done.finish, len(done.tokens), sum(done.steps), time.monotonic() - began, done.first_text_sec
    )


def _record(engine: Engine, ours: list[Reply], theirs: list[Reply], where: str) -> Record:
    name = "a folder" if engine.folder is None else engine.folder.name
    ms = [round(1e3 * median([one.seconds for one in side]), 3) for side in (ours, theirs)]
    ratio = median([there.seconds / here.seconds for here, there in zip(ours, theirs, strict=True)])
    same = sum(here.text == there.text for here, there in zip(ours, theirs, strict=True))
    figures: dict[str, object] = {"here_ms": ms[0], "there_ms": ms[1], "ratio_median": round(ratio, 3), "same": same}
    for side, replies in (("here", ours), ("there", theirs)):
        figures[f"{side}_first_text_ms"] = round(1e3 * median([one.first_sec for one in replies]), 3)
        known = [one.tokens for one in replies if one.tokens is not None]
        per_sec = round(sum(known) / sum(one.seconds for one in replies), 1) if len(known) == len(replies) else None
        figures[f"{side}_tokens_per_sec"] = per_sec
        figures[f"{side}_pairs_ms"] = [round(1e3 * one.seconds, 3) for one in replies]
    return new_record(
        "beside",
        workload={
            "model": name,
            "there": where,
            "prompts": len(ours),
            "requests": "one at a time, as chats",
            "sampler here": "fast",
        },
        figures=figures,
        summary=[
            (f"{len(ours)} prompts answered by {name} here / at {where}", f"{ms[0]:.1f} / {ms[1]:.1f} ms, medians"),
            ("An answer there takes, as a multiple of here (median of pairs)", f"{ratio:.2f}"),
            ("Answers that are the same text", f"{same} of {len(ours)}"),
        ],
    )
