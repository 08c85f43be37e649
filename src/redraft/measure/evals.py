"""Held-out accuracy of a model on the built-in tasks, with confidence intervals."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from redraft.constraints.sources import schema_source
from redraft.diffusion.presets import narrowest
from redraft.diffusion.seed import SeedCanvas
from redraft.engine.request import DEFAULTS, Generation, Options, Request
from redraft.errors import CallerError, RequestError, UnsatisfiedError
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.operations.engine import Engine
from redraft.operations.gap import GapContext, refuse_decided
from redraft.operations.generate import extract
from redraft.operations.repair import repair
from redraft.prompts import BEGINNINGS
from redraft.tasks import Example, Score, Task
from redraft.tasks.task import share
from redraft.text import Message

MOST_FIELDS = 40  # of rows of objects, each with its share
SEEN = 50  # answers of the training split, which say how long those of a task may be


@dataclass(frozen=True)
class Evaluation:
    """One task's result over `count` held-out examples. `low` and `high` bound the exact share at 95%."""

    task: str
    count: int
    exact: float
    low: float
    high: float
    parts: dict[str, float]
    mean_steps: float
    tokens_per_forward: float
    tokens_per_sec: float
    seconds: float


@dataclass(frozen=True)
class Trial:
    """One example, answered and scored."""

    example: Example
    done: Generation
    score: Score


def evaluate(
    engine: Engine,
    task: Task,
    count: int,
    *,
    seed: int = 0,
    options: Options = DEFAULTS,
    pin: bool = False,
    progress: Progress = silent,
) -> Evaluation:
    """Answer `count` held-out examples through the chat template and score them.

    Example i is sampled with seed + i; the other `options` are the same for all, `max_tokens` is the task's `room`
    unless it is given. With `pin` what is known of each answer beforehand is pinned; raises RequestError for a task of
    whose answers nothing is.
    """
    trials = []
    most = room(engine, task) if options.max_tokens is None else None
    for i, example in zip(range(count), task.examples("held_out", seed), strict=False):
        seed_canvas = pinned(engine, task, example) if pin else options.seed_canvas
        max_tokens = options.max_tokens if most is None else _fitting(engine, example, most)
        own = replace(options, seed=seed + i, seed_canvas=seed_canvas, max_tokens=max_tokens)
        trials.append(attempt(engine, task, example, own))
        progress("example", i + 1, count)
    return summarise(f"{task.name}, clues pinned" if pin else task.name, trials)


def room(engine: Engine, task: Task) -> int | None:
    """Most tokens that a task is asked for: the checkpoint's own number, or whole canvases that hold every answer.

    None for gaps, each of which says its width itself. No example tells the length of its own answer: there is as much
    room for all of a task, by answers of the training split.
    """
    seen, most = list(islice(task.examples("train", 0), SEEN)), engine.config.model.canvas_length
    if any(one.suffix is not None for one in seen):
        return None
    longest = max((len(engine.text.encode(one.answer, bos=False)) for one in seen), default=0) + 1
    fitting = narrowest(longest, most) if longest <= most else -(-longest // most) * most
    return max(engine.config.generation.max_new_tokens, fitting)


def _fitting(engine: Engine, example: Example, most: int) -> int:
    """At most so many tokens, and no more than the whole canvases that the context has behind an example's prompt."""
    asked = engine.resolve(Request(example.prompt, chat=True, options=Options(max_tokens=1)))
    width = engine.config.model.canvas_length
    left = (engine.config.model.max_positions - len(asked.prompt)) // width * width
    return min(most, max(left, 1))


def pinned(engine: Engine, task: Task, example: Example) -> SeedCanvas:
    """The tokens of an answer that lie within what is known of it. Raises RequestError if there are none."""
    pins = tuple(
        (i, token)
        for i, (token, (start, end)) in enumerate(zip(*engine.text.places(example.answer), strict=True))
        if any(low <= start and end <= high for low, high in example.given)
    )
    if not pins:
        raise RequestError(f"nothing of an answer to {task.name} is known beforehand; pin a task with clues: sudoku")
    return SeedCanvas(pins)


def attempt(engine: Engine, task: Task, example: Example, options: Options) -> Trial:
    """Answer one example; a gap in a text at its right width. Raises RequestError for a gap and the causal mode."""
    if example.suffix is not None:
        return _filled(engine, task, example, options)
    done = engine.run(Request(example.prompt, chat=True, options=options))
    return Trial(example, done, task.score(example, done.text))


def _filled(engine: Engine, task: Task, example: Example, options: Options) -> Trial:
    refuse_decided(options, "a gap")
    before, behind = engine.text.encode(example.prompt, bos=True), engine.text.encode(example.suffix or "", bos=False)
    width = len(engine.text.encode(example.answer, bos=False))
    done = engine.run(GapContext(tuple(before), tuple(behind)).request(width, options, engine))
    tokens = done.tokens[:width]
    done = replace(done, tokens=tokens, text=engine.text.decode(list(tokens)))
    return Trial(example, done, task.score(example, done.text))


def evaluate_rows(
    engine: Engine,
    name: str,
    rows: Sequence[Sequence[Message]],
    *,
    seed: int = 0,
    options: Options = DEFAULTS,
    schema: Any = None,
    progress: Progress = silent,
) -> Evaluation:
    """Answer conversations whose last message is the right answer, each with `seed` plus its number, and score them.
    With a `schema` every answer is held to it, and nano is asked for its fields as `extract` does.

    Raises RequestError before the first is answered for one that the model cannot take.
    """
    requests, texts, done, language = [], [], [], None if schema is None else engine.language(schema_source(schema))
    by_fields = schema is not None and engine.by_fields and not options.causal
    for i, row in enumerate(rows):
        try:
            requests.append(engine.resolve(Request(row[:-1], replace(options, seed=seed + i), constraint=language)))
        except CallerError as error:
            raise type(error)(f"row {i + 1}: {error}") from None
    for i, request in enumerate(requests):
        try:
            said = _sentence(rows[i]) if by_fields else None
            own = replace(options, seed=seed + i)
            done.append(repair(engine, request) if said is None else extract(engine, said, schema, options=own))
            texts.append(done[-1].text)
        except UnsatisfiedError as error:  # counts as what it is
            texts.append(error.attempt)
        progress("row", i + 1, len(rows))
    return tally_rows(
        name,
        [(row[-1]["content"], text) for row, text in zip(rows, texts, strict=True)],
        tokens=sum(len(one.tokens) for one in done),
        steps=sum(sum(one.steps) for one in done),
        seconds=sum(one.seconds for one in done),
    )


def _sentence(row: Sequence[Message]) -> str | None:
    """The one thing that is said ahead of a row's answer, if it is a plain text and none of nano's own prompts."""
    said = row[0]["content"] if len(row) == 2 else None
    return said if isinstance(said, str) and not said.startswith(BEGINNINGS) else None


def tally_rows(name: str, pairs: Sequence[tuple[str, str]], *, tokens: int, steps: int, seconds: float) -> Evaluation:
    """As `tally`, of right answers beside those given. Where they are objects, its parts have the share of every field
    (of the MOST_FIELDS that most rows have), so that it shows which of them is hard."""
    found = tally(name, [compared(*pair) for pair in pairs], tokens=tokens, steps=steps, seconds=seconds)
    rows, right = Counter[str](), Counter[str]()
    for wanted, answer in ((_value(one), _value(other)) for one, other in pairs):
        for field in wanted if isinstance(wanted, dict) else ():
            rows[field] += 1
            with suppress(RecursionError):
                right[field] += isinstance(answer, dict) and field in answer and _same(answer[field], wanted[field])
    shares = {f"fields.{field}": right[field] / count for field, count in rows.most_common(MOST_FIELDS)}
    return replace(found, parts=found.parts | shares)


def compared(right: str, answer: str) -> Score:
    """An answer beside the right one: equal but for space around it, or as JSON; of an object, the share of fields."""
    wanted, found = _value(right), _value(answer)
    has = found if isinstance(found, dict) else {}
    try:
        if not isinstance(wanted, dict):
            return Score(right.strip() == answer.strip() or (wanted is not None and _same(wanted, found)), {})
        shared = share([name in has and _same(has[name], wanted[name]) for name in wanted])
        return Score(_same(wanted, found), {"fields": shared})
    except RecursionError:
        return Score(False, {})


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one in JSON, where 1 and 1.0 are, and true and 1 are not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(part, other[name]) for name, part in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and (one is True or one is False) == (other is True or other is False)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def summarise(name: str, trials: list[Trial]) -> Evaluation:
    """The averages of some trials of one task."""
    return tally(
        name,
        [trial.score for trial in trials],
        tokens=sum(len(trial.done.tokens) for trial in trials),
        steps=sum(sum(trial.done.steps) for trial in trials),
        seconds=sum(trial.done.seconds for trial in trials),
    )


def tally(name: str, scores: Sequence[Score], *, tokens: int, steps: int, seconds: float) -> Evaluation:
    """The averages of some scores, and what the answers took in all."""
    count = len(scores)
    right = sum(score.exact for score in scores)
    low, high = wilson(right, count)
    names = sorted({part for score in scores for part in score.parts})
    return Evaluation(
        task=name,
        count=count,
        exact=right / count,
        low=low,
        high=high,
        parts={part: sum(score.parts.get(part, 0.0) for score in scores) / count for part in names},
        mean_steps=steps / count,
        tokens_per_forward=tokens / max(1, steps),
        tokens_per_sec=tokens / max(seconds, 1e-9),
        seconds=seconds,
    )


def wilson(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95% score interval of a share (E. B. Wilson, 1927): holds at 0 and 1, where the usual one collapses."""
    z, share = 1.96, right / count
    middle = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    whole = 1 + z * z / count
    return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)


def share_of(right: int, count: int, name: str = "share") -> dict[str, float]:
    """A share by that name and its bounds at 95%, as records have them."""
    low, high = wilson(right, count)
    return {name: round(right / count, 4), "low": round(low, 4), "high": round(high, 4)}


def said(found: Mapping[str, Any], name: str = "share") -> str:
    """Such a share in words."""
    return f"{found[name]:.1%} ({found['low']:.1%} to {found['high']:.1%})"


def record(found: list[Evaluation], *, model: str, seed: int, options: Options = DEFAULTS, pin: bool = False) -> Record:
    """A benchmark record of some evaluations, named after the model and, if it is not the reference's, the sampler."""
    name = Path(model).name
    sampler = "causal" if options.causal else "pinned" if pin else options.preset or "default"
    how = "" if sampler in ("reference", "pinned") else f" ({sampler})"
    about = {"model": name, "split": "held_out", "seed": seed, "steps": options.steps, "sampler": sampler}
    return new_record(
        f"eval-{name}" + (f"-{sampler}" if how or pin else ""),
        workload=about | {"max_tokens": "the checkpoint's own, or whole canvases that hold every answer of the task"},
        figures={one.task: asdict(one) for one in found},
        summary=[
            (
                f"{one.task}, {one.count} held-out examples answered exactly by {name}{how}",
                f"{said(vars(one), 'exact')}, {one.mean_steps:.1f} forwards, "
                f"{one.tokens_per_forward:.1f} tokens per forward, {one.tokens_per_sec:.0f} tokens/s"
                + (f", clues kept {one.parts['clues_kept']:.1%}" if pin else ""),
            )
            for one in found
        ],
    )
