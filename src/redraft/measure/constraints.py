"""What a constraint gives and costs: four ways to get a valid record beside each other, noise, and time by vocabulary.

    free            no constraint; the first answer counts
    retry           no constraint; answers with further seeds until one is valid, at most RETRIES
    left to right   the same automaton as a mask on the model's causal mode, one token per forward
    canvas          the canvas conditioned on the language

All four answer the same prompts with the same model, seeds and prompts paired, in one run. The records are the task
that the embedded model was trained on; "off task" are prompts of another task, of which it was asked for a record all
the same, where only validity can be judged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from redraft.constrain.language import Language, Vocabulary, ready
from redraft.constrain.project import Projection
from redraft.constrain.sources import schema_source
from redraft.engine.engine import Engine, load
from redraft.engine.request import Generation, Options
from redraft.measure.noise import noise_trial
from redraft.measure.record import Progress, Record, median, new_record
from redraft.tasks import Example, task

OWN, OTHER = "records", "off task"
RETRIES = 5
NOISE = 1000
TRIES = 5
LARGE, WIDE = 262_144, 256
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
TEN = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"},
        "name": {"type": "string"},
        "note": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "born": {"type": "string", "format": "date"},
        "active": {"type": "boolean"},
        "colour": {"enum": ["red", "green", "blue"]},
        "score": {"type": "number"},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    },
    "required": ["id", "name", "age", "active"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Way:
    """One way's result: shares of valid and exactly right answers and of right fields, and what an answer cost.

    `forwards` are those that denoise or draw; what commits a block rides in one of them.
    """

    way: str
    prompts: str
    count: int
    valid: float
    exact: float | None
    fields: float | None
    forwards: float
    tokens_per_forward: float
    milliseconds: float


def bench_constraints(folder: Path, *, count: int, dtype: str, progress: Progress) -> Record:
    """All of it, by `count` prompts of either kind."""
    engine = load(folder, dtype=dtype)
    language = ready(schema_source(RECORD), engine.vocabulary)
    own = list(islice(task("records").examples("held_out", 0), count))
    other = list(islice(task("sudoku-4x4").examples("held_out", 0), count))
    ways = []
    for prompts, examples in ((OWN, own), (OTHER, other)):
        for name, answer in _ways(engine, language).items():
            ways.append(_measure(name, prompts, examples, answer))
            progress(f"{prompts}, {name}", 1, 1)
    trials = [trial for number in range(NOISE) if (trial := noise_trial(number)) is not None]
    wrong = sum(bool(trial.problems) for trial in trials)
    progress("schemas on noise", NOISE, NOISE)
    figures: dict[str, Any] = {
        "ways": [asdict(way) for way in ways],
        "noise": {"trials": len(trials), "invalid": wrong, "canvases": sum(trial.canvases for trial in trials)},
        "large": _large(),
        "step": _share_of_step(engine, language),
    }
    workload = {"model": folder.name, "prompts": count, "split": "held_out", "schema": RECORD, "retries": RETRIES}
    return new_record("constraints", workload=workload, figures=figures, summary=_summary(ways, figures))


def _ways(engine: Engine, language: Language) -> dict[str, Callable[[str, int], tuple[Generation, int]]]:
    """Each way as a function of a prompt and a seed: the answer, and the forwards it took."""

    def once(prompt: str, options: Options, held: Language | None) -> tuple[Generation, int]:
        done = engine.finish(engine.request(prompt, chat=True, options=options, language=held))
        return done, sum(done.steps)

    def retry(prompt: str, seed: int) -> tuple[Generation, int]:
        forwards = 0
        for number in range(RETRIES):
            done, took = once(prompt, Options(seed=seed + 1_000_000 * number), None)
            forwards += took
            if not language.problems(done.text):
                break
        return done, forwards

    return {
        "free": lambda prompt, seed: once(prompt, Options(seed=seed), None),
        "retry": retry,
        "left to right": lambda prompt, seed: once(prompt, Options(seed=seed, causal=True), language),
        "canvas": lambda prompt, seed: once(prompt, Options(seed=seed), language),
    }


def _measure(
    name: str, prompts: str, examples: list[Example], answer: Callable[[str, int], tuple[Generation, int]]
) -> Way:
    held, times, forwards, tokens = ready_to_judge(), [], 0, 0
    valid = exact = fields = 0.0
    records = task("records")
    for seed, example in enumerate(examples):
        began = time.perf_counter()
        done, took = answer(example.prompt, seed)
        times.append(time.perf_counter() - began)
        forwards, tokens = forwards + took, tokens + len(done.tokens)
        valid += held(done.text)
        score = records.score(example, done.text)
        exact += score.exact
        fields += sum(score.parts[key] for key in ("who", "qty", "item")) / 3
    n = len(examples)
    right, parts = (exact / n, fields / n) if prompts == OWN else (None, None)
    return Way(name, prompts, n, valid / n, right, parts, forwards / n, tokens / forwards, median(times) * 1e3)


def ready_to_judge() -> Callable[[str], bool]:
    """Whether a text is a valid record, by jsonschema-rs."""
    from jsonschema_rs import validator_for

    validator = validator_for(RECORD)

    def judge(text: str) -> bool:
        try:
            return bool(validator.is_valid(json.loads(text)))
        except ValueError:
            return False

    return judge


def _large() -> dict[str, float]:
    """Seconds at a vocabulary of 262,144 made-up tokens and a canvas of 256, on this processor; the best of TRIES
    runs of what is repeated."""
    source = np.random.default_rng(0)
    pieces: dict[bytes, None] = {bytes([byte]): None for byte in range(256)}
    letters = [chr(c) for c in (*range(97, 123), *range(65, 91), *range(0x430, 0x450), *range(0x4E00, 0x5E00))]
    while len(pieces) < LARGE - 2:
        low, high = ((0, 52), (0, 26), (52, 84), (84, len(letters)))[source.integers(4)]
        word = "".join(letters[i] for i in source.integers(low, high, source.integers(1, 9)))
        pieces[(" " * int(source.integers(2)) + word).encode()] = None
    vocabulary = Vocabulary((None, None, *pieces), frozenset({0}), frozenset({0, 1}))
    began = time.perf_counter()
    assert len(vocabulary.trie.parent) > LARGE
    tree = time.perf_counter() - began
    began = time.perf_counter()
    language = ready(schema_source(TEN), vocabulary)
    compiled = time.perf_counter() - began
    logits = torch.randn(WIDE, LARGE, generator=torch.Generator().manual_seed(0))
    goal = language.start(WIDE)
    goal(torch.log_softmax(logits, -1)).shifted()  # what is worked out once for a language
    plain, projected = [], []
    for _ in range(TRIES):
        began = time.perf_counter()
        log_p = torch.log_softmax(logits, -1)
        (log_p.exp() * log_p).sum(-1)
        plain.append(time.perf_counter() - began)
        began = time.perf_counter()
        found = goal(log_p)
        _ = found.shifted(), found.draft
        projected.append(time.perf_counter() - began)
    return {
        "trie_sec": tree,
        "compile_sec": compiled,
        "states": language.automaton.states,
        "classes": language.automaton.classes,
        "edges": len(language.automaton.src),
        "softmax_and_entropy_sec": min(plain),
        "projection_sec": min(projected),
    }


def _share_of_step(engine: Engine, language: Language) -> dict[str, float]:
    """Milliseconds of a step of the embedded model with and without the language, pairs of runs, medians."""
    prompt = next(iter(task("records").examples("held_out", 1))).prompt
    plain = engine.request(prompt, chat=True, options=Options(seed=1))
    plain = replace(plain, policy=replace(plain.policy, max_steps=8, halt=_Never()))
    held = replace(plain, language=language)
    times: dict[str, list[float]] = {"plain": [], "held": []}
    for _ in range(30):
        for name, request in (("plain", plain), ("held", held)):
            began = time.perf_counter()
            done = engine.finish(request)
            times[name].append((time.perf_counter() - began) * 1e3 / sum(done.steps))
    added = median([held - plain for held, plain in zip(times["held"], times["plain"], strict=True)])
    goal = Projection(language.wiring, 0, engine.config.model.canvas_length)
    shape = engine.config.model.canvas_length, engine.config.model.vocab_size
    log_p = torch.log_softmax(torch.randn(*shape, generator=torch.Generator().manual_seed(0)), -1)
    alone = []
    for _ in range(50):
        began = time.perf_counter()
        found = goal(log_p)
        _ = found.shifted(), found.draft
        alone.append((time.perf_counter() - began) * 1e3)
    return {"plain_ms": median(times["plain"]), "held_ms": median(times["held"]), "added_ms": added,
            "projection_ms": median(alone), "edges": len(language.automaton.src)}  # fmt: skip


@dataclass(frozen=True)
class _Never:
    """A halting rule that never halts, so that both runs take as many steps."""

    memory: int = 0

    def __call__(self, stats: object, drafts: object) -> bool:
        return False


def _right(way: Way) -> str:
    return "" if way.exact is None else f"{way.exact:.1%} exact, {way.fields:.1%} of fields, "


def _summary(ways: list[Way], figures: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (
            f"{way.prompts}, {way.way}: {way.count} prompts",
            f"{way.valid:.1%} valid, {_right(way)}{way.forwards:.1f} forwards, "
            f"{way.tokens_per_forward:.1f} tokens per forward, {way.milliseconds:.0f} ms",
        )
        for way in ways
    ]
    noise, large, step = figures["noise"], figures["large"], figures["step"]
    compiled = f"{large['compile_sec']:.2f} s, {large['states']} states, {large['edges']} edges"
    return [
        *rows,
        ("random schemas, tokenizers and cuts on noise", f"{noise['invalid']} of {noise['trials']} answers invalid"),
        (f"a schema of ten fields compiled for {LARGE} tokens", compiled),
        (
            f"projection of {WIDE} positions, {LARGE} tokens, one core, best of {TRIES}",
            f"{large['projection_sec']:.2f} s, beside {large['softmax_and_entropy_sec']:.2f} s of softmax and entropy",
        ),
        (
            "added to a step of the embedded model by the record schema",
            f"{step['added_ms']:.2f} ms to {step['plain_ms']:.2f} ms ({step['added_ms'] / step['plain_ms']:.0%})",
        ),
    ]
