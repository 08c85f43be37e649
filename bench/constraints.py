"""What a constraint gives: ways to get valid JSON beside each other, how sure a draft was that was right, and noise.

    python bench/constraints.py --count 300 --record bench/records/constraints.json

    free            no constraint; the first answer counts
    retry           no constraint; answers with further seeds until one is valid, at most RETRIES
    llguidance      a mask from that library on the model's causal mode, one token per forward
    left to right   the same automaton as ours as a mask on the causal mode
    canvas          the canvas conditioned on the language
    canvas, early   the same, ended in EARLY times the doubt: what fewer forwards cost

All answer the same prompts with the same model, seeds and prompts paired, in one run. Records, repairs and lists are
tasks that the embedded model was trained on; "off task" are prompts of another task, of which it was asked for a record
all the same, where only validity can be judged. Canvases are those of the preset `fast`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from command import arguments, finish
from llguidance_language import guided, installed
from noise import noise_trial
from projection import LARGE, TRIES, WIDE, large, share_of_step
from redraft import load
from redraft.cli.common import progress
from redraft.constraints.language import Language, ready
from redraft.constraints.sources import schema_source
from redraft.diffusion.halt import Halt, UntilEnd
from redraft.diffusion.presets import fast_policy
from redraft.diffusion.stats import Stats
from redraft.engine.request import Generation, Options, Request
from redraft.errors import UnsatisfiedError
from redraft.measure.evals import room
from redraft.measure.record import Progress, Record, new_record
from redraft.operations.engine import Engine
from redraft.operations.repair import repair
from redraft.tasks import Example, task
from redraft.tasks.lists import MOST_RECORDS
from redraft.weights.source import locate

PRESET = "fast"
RETRIES, EARLY = 5, 4
NOISE = 1000
DOUBTS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
RECORD = {
    "type": "object",
    "properties": {
        "who": {"type": "string"},
        "qty": {"type": "integer", "minimum": 1, "maximum": 999},
        "item": {"type": "string"},
    },
    "required": ["who", "qty", "item"],
    "additionalProperties": False,
}
VALUE = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": 999},
        {"type": "string"},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 1, "maxItems": 3},
    ]
}
OBJECT = {"type": "object", "additionalProperties": VALUE, "minProperties": 2, "maxProperties": 4}
ARRAY = {"type": "array", "items": RECORD, "minItems": 2, "maxItems": MOST_RECORDS}


@dataclass(frozen=True)
class PromptSet:
    """Prompts of a task, and the schema that answers are held to. `own`: the task's answers are of that schema."""

    name: str
    task: str
    schema: dict[str, Any]
    own: bool = True

    def examples(self, count: int) -> list[Example]:
        """The first held-out ones."""
        return list(islice(task(self.task).examples("held_out", 0), count))


ASKED = (
    PromptSet("records", "records", RECORD),
    PromptSet("repairs", "repair", OBJECT),
    PromptSet("lists", "lists", ARRAY),
    PromptSet("off task", "sudoku-4x4", RECORD, own=False),
)


@dataclass(frozen=True)
class Way:
    """One way's result: shares of valid and exactly right answers and of right fields, and what an answer cost.

    `forwards` are those that denoise or draw; what commits a block rides in one of them. `count` is 0 where the library
    is not installed.
    """

    way: str
    prompts: str
    count: int = 0
    valid: float = 0.0
    exact: float | None = None
    fields: float | None = None
    forwards: float = 0.0
    tokens_per_forward: float = 0.0
    milliseconds: float = 0.0


Ask = Callable[[str, int], tuple[Generation | None, int]]
"""An answer to a prompt with a seed, None if there is none, and the forwards that it took."""


def bench_constraints(folder: Path, engine: Engine, *, count: int, progress: Progress) -> Record:
    """All of it, by `count` prompts of each kind, with the engine of a folder."""
    ways, doubts = [], []
    for asked in ASKED:
        language, examples = ready(schema_source(asked.schema), engine.vocabulary), asked.examples(count)
        for name, ask in _ways(engine, language, room(engine, task(asked.task))).items():
            ways.append(Way(name, asked.name) if ask is None else _measure(name, asked, examples, ask))
            progress(f"{asked.name}, {name}", 1, 1)
        doubts += _doubts(engine, language, asked, examples) if asked.own else []
    trials = [trial for number in range(NOISE) if (trial := noise_trial(number)) is not None]
    wrong = sum(bool(trial.problems) for trial in trials)
    progress("schemas on noise", NOISE, NOISE)
    figures: dict[str, Any] = {
        "ways": [asdict(way) for way in ways],
        "doubts": _counted(doubts),
        "noise": {"trials": len(trials), "invalid": wrong, "canvases": sum(trial.canvases for trial in trials)},
        "large": large(),
        "step": share_of_step(engine, ready(schema_source(RECORD), engine.vocabulary)),
    }
    schemas = {asked.name: asked.schema for asked in ASKED}
    workload = {
        "model": folder.name,
        "prompts": count,
        "split": "held_out",
        "schemas": schemas,
        "preset": PRESET,
        "retries": RETRIES,
    }
    return new_record("constraints", workload=workload, figures=figures, summary=_summary(ways, figures))


def _ways(engine: Engine, language: Language, max_tokens: int | None) -> dict[str, Ask | None]:
    """Each way as a function of a prompt and a seed; None for one that is not installed."""
    causal, canvas = Options(causal=True, max_tokens=max_tokens), Options(preset=PRESET, max_tokens=max_tokens)

    def once(prompt: str, options: Options, held: Language | None) -> tuple[Generation, int]:
        done = engine.run(engine.resolve(Request(prompt, chat=True, options=options, constraint=held)))
        return done, sum(done.steps)

    def retry(prompt: str, seed: int) -> tuple[Generation, int]:
        forwards = 0
        for number in range(RETRIES):
            done, took = once(prompt, replace(canvas, seed=seed + 1_000_000 * number), None)
            forwards += took
            if not language.problems(done.text):
                break
        return done, forwards

    def whole(prompt: str, options: Options, halt: Halt | None = None) -> tuple[Generation | None, int]:
        request = engine.resolve(Request(prompt, chat=True, options=options, constraint=language))
        request = request if halt is None else replace(request, policy=replace(request.policy, halt=halt))
        try:
            done = repair(engine, request)
        except UnsatisfiedError:
            return None, 0
        return done, sum(done.steps)

    shipped = engine.config.generation
    sooner = fast_policy(replace(shipped, entropy_bound=EARLY * shipped.entropy_bound))
    early = UntilEnd(sooner.halt, frozenset(shipped.eos_token_ids))
    other = guided(engine, language) if installed() else None

    def theirs(prompt: str, seed: int) -> tuple[Generation | None, int]:
        try:
            return once(prompt, replace(causal, seed=seed), other)
        except UnsatisfiedError:  # the room ended within a string
            return None, 0

    return {
        "free": lambda prompt, seed: once(prompt, replace(canvas, seed=seed), None),
        "retry": retry,
        "llguidance": None if other is None else theirs,
        "left to right": lambda prompt, seed: whole(prompt, replace(causal, seed=seed)),
        "canvas": lambda prompt, seed: whole(prompt, replace(canvas, seed=seed)),
        "canvas, early": lambda prompt, seed: whole(prompt, replace(canvas, seed=seed), early),
    }


def _measure(name: str, asked: PromptSet, examples: list[Example], ask: Ask) -> Way:
    judge, times, forwards, tokens = _judge(asked.schema), [], 0, 0
    valid = exact = fields = 0.0
    for seed, example in enumerate(examples):
        began = time.perf_counter()
        done, took = ask(example.prompt, seed)
        times.append(time.perf_counter() - began)
        if done is None:
            continue
        forwards, tokens = forwards + took, tokens + len(done.tokens)
        valid += judge(done.text)
        exact += task(asked.task).score(example, done.text).exact
        fields += right_fields(example.answer, done.text) if asked.own else 0.0
    n = len(examples)
    right, parts = (exact / n, fields / n) if asked.own else (None, None)
    each = tokens / max(1, forwards)
    return Way(name, asked.name, n, valid / n, right, parts, forwards / n, each, median(times) * 1e3)


def right_fields(wanted: str, reported: str) -> float:
    """Share of the right answer's fields that an answer has right, each in the place where it should be."""
    try:
        right, got = _fields(json.loads(wanted)), _fields(json.loads(reported))
    except ValueError:
        return 0.0
    return sum(got.get(place) == value for place, value in right.items()) / len(right)


def _fields(value: object) -> dict[tuple[object, ...], str]:
    """The members of an object, or of each object of an array, as JSON, by where they are."""
    if isinstance(value, list):
        return {(i, *place): reported for i, item in enumerate(value) for place, reported in _fields(item).items()}
    members = value if isinstance(value, dict) else {}
    return {(key,): json.dumps(member) for key, member in members.items()}


def _judge(schema: dict[str, Any]) -> Callable[[str], bool]:
    """Whether a text is a valid value of a schema, by jsonschema-rs."""
    from jsonschema_rs import validator_for

    validator = validator_for(schema)

    def judge(text: str) -> bool:
        try:
            return bool(validator.is_valid(json.loads(text)))
        except ValueError:
            return False

    return judge


@dataclass(frozen=True)
class _Once:
    """A halting rule that stops after one look and notes the doubt in what it saw."""

    seen: list[float] = field(default_factory=list)
    memory: int = 0

    def __call__(self, stats: Stats, drafts: object) -> bool:
        assert stats.conditioned is not None
        self.seen.append(stats.conditioned.doubt)
        return True


def _doubts(engine: Engine, language: Language, asked: PromptSet, examples: list[Example]) -> list[tuple[float, bool]]:
    """Of each first draft the doubt that there was in it, and whether it was right."""
    found, most = [], room(engine, task(asked.task))
    for seed, example in enumerate(examples):
        options, rule = Options(preset=PRESET, seed=seed, max_tokens=most), _Once()
        request = engine.resolve(
            Request(example.prompt, chat=True, options=options, constraint=replace(language, checked=False))
        )
        done = engine.run(replace(request, policy=replace(request.policy, halt=rule)))
        found.append((rule.seen[0], task(asked.task).score(example, done.text).exact))
    return found


def _counted(doubts: list[tuple[float, bool]]) -> list[dict[str, float]]:
    """How many drafts had a doubt in each range, and how many of them were wrong."""
    inside = [
        (low, high, [right for doubt, right in doubts if low <= doubt < high])
        for low, high in pairwise((*DOUBTS, float("1e9")))
    ]
    return [{"from": low, "to": high, "drafts": len(some), "wrong": some.count(False)} for low, high, some in inside]


def _right(way: Way) -> str:
    return "" if way.exact is None else f"{way.exact:.1%} exact, {way.fields:.1%} of fields, "


def _summary(ways: list[Way], figures: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (
            f"{way.prompts}, {way.way}: {way.count} prompts",
            f"{way.valid:.1%} valid, {_right(way)}{way.forwards:.2f} forwards, "
            f"{way.tokens_per_forward:.1f} tokens per forward, {way.milliseconds:.0f} ms"
            if way.count
            else "not installed",
        )
        for way in ways
    ]
    noise, size, step = figures["noise"], figures["large"], figures["step"]
    compiled = f"{size['compile_sec']:.2f} s, {size['states']} states, {size['edges']} edges"
    sure = [f"{one['wrong']} of {one['drafts']} from {one['from']:g}" for one in figures["doubts"]]
    return [
        *rows,
        ("first drafts that were wrong, by nats of doubt", ", ".join(sure)),
        ("random schemas, tokenizers and cuts on noise", f"{noise['invalid']} of {noise['trials']} answers invalid"),
        (f"a schema of ten fields compiled for {LARGE} tokens", compiled),
        (
            f"projection of {WIDE} positions, {LARGE} tokens, one core, best of {TRIES}",
            f"{size['projection_sec']:.2f} s, beside {size['softmax_and_entropy_sec']:.2f} s of softmax and entropy; "
            f"{size['messages_sec'] * 1e3:.0f} ms of it are messages",
        ),
        (
            "added to a step of the embedded model on its whole canvas by the record schema",
            f"{step['added_ms']:.2f} ms to {step['plain_ms']:.2f} ms ({step['share']:.0%})",
        ),
    ]


def main() -> None:
    """One record."""
    asked = arguments(__doc__ or "", count=100)
    record = bench_constraints(locate(asked.model), load(asked.model), count=asked.count, progress=progress)
    finish(record, asked.record)


if __name__ == "__main__":
    main()
