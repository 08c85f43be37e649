"""Measures rules for choosing the width of a gap: chosen on gaps of training modules, judged on held-out ones.

    python scripts/widths.py --count 100 [--model nano] --record benchmarks/widths-nano.json

Every width runs on every gap, so all rules are judged on the same canvases; the lowest score wins. A score is a
reading of a canvas, as it is or less what that reading is at that width: around noise, or on the gaps of training
modules. Sums, which stand for log-probabilities, may also have the log of how often training gaps have that width taken
off.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch

from redraft.cache import Prefix
from redraft.engine.engine import Engine, load
from redraft.engine.events import Block, Draft, Event
from redraft.engine.gap import Around
from redraft.engine.request import Options
from redraft.engine.variants import mean
from redraft.measure.evals import said, share_of
from redraft.measure.record import new_record, write_record
from redraft.model.rows import Mode, Span
from redraft.tasks import Example, task

WIDEST, STEPS = 16, 8
TRAIN_SEED = 77  # which gaps of training modules; the training run had others


@dataclass(frozen=True)
class Run:
    """One width of one gap: entropies of its positions after some steps, its text, and what other passes say of it.

    first, second, last   entropies after the first, the second and the last step
    forced                log-probability of each token of the draft on a canvas that holds the draft
    causal                the same of the draft and of the text behind it, from left to right
    agreed                share of the draft after two steps that other noise agrees with
    """

    width: int
    text: str
    first: list[float]
    second: list[float]
    last: list[float]
    forced: list[float]
    causal: list[float]
    agreed: float


Reading = Callable[[Run], float]
READINGS: Mapping[str, Reading] = {
    "mean entropy at step 1": lambda run: mean(run.first),
    "mean entropy at step 2": lambda run: mean(run.second),
    "largest entropy at step 2": lambda run: max(run.second),
    "mean entropy at the end": lambda run: mean(run.last),
    "mean surprise at the draft": lambda run: -mean(run.forced),
    "disagreement of two noises": lambda run: 1 - run.agreed,
    "width": lambda run: run.width,
}
SUMS: Mapping[str, Reading] = {
    "summed entropy at step 2": lambda run: sum(run.second),
    "summed entropy at the end": lambda run: sum(run.last),
    "summed surprise at the draft": lambda run: -sum(run.forced),
    "surprise at draft and suffix from left to right": lambda run: -sum(run.causal),
}


@dataclass(frozen=True)
class Gap:
    """A gap at every width, and what was there."""

    runs: tuple[Run, ...]
    answer: str
    width: int

    def off(self, run: Run) -> float:
        """How far a width is from the right one."""
        return abs(run.width - self.width)

    def chosen(self, score: Reading) -> tuple[bool, bool]:
        """Whether the width of the lowest score has the right text, and whether it is the right width."""
        best = min(self.runs, key=score)
        return best.text.strip() == self.answer.strip(), best.width == self.width


def rules(noise: Sequence[Gap], train: Sequence[Gap]) -> dict[str, Reading]:
    """Every reading with every correction."""
    widths = Counter(gap.width for gap in train)
    prior = {width: math.log((widths[width] + 1) / (len(train) + WIDEST)) for width in range(1, WIDEST + 1)}
    found: dict[str, Reading] = {}
    for name, reading in {**READINGS, **SUMS}.items():
        found[name] = reading
        if name != "width":
            found[f"{name} less that around noise"] = less(reading, usual(noise, reading))
            found[f"{name} less that on training gaps"] = less(reading, usual(train, reading))
    for name, reading in SUMS.items():
        found[f"{name} and the widths of training gaps"] = less(reading, prior)
    return found


def usual(gaps: Sequence[Gap], reading: Reading) -> dict[int, float]:
    """What a reading is at each width."""
    return {width: mean([reading(gap.runs[width - 1]) for gap in gaps]) for width in range(1, WIDEST + 1)}


def less(reading: Reading, what: Mapping[int, float]) -> Reading:
    """A reading less a number for its width."""
    return lambda run: reading(run) - what[run.width]


def main() -> None:
    """All rules, and the right width told, on the same gaps."""
    parser = argparse.ArgumentParser(description="Measure rules for choosing the width of a gap.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--count", type=int, default=100, help="gaps of each split (default: 100)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engine, count = load(arguments.model), arguments.count
    train = [measured(engine, one, seed) for seed, one in enumerate(islice(examples(engine, "train"), count))]
    held = [measured(engine, one, seed) for seed, one in enumerate(islice(examples(engine, "held_out"), count))]
    noise = [measured(engine, one, seed) for seed, one in enumerate(islice(unrelated(engine), max(4, count // 10)))]
    scores = rules(noise, train) | {"told": lambda _: 0.0}
    figures = {}
    for name, score in scores.items():
        rows = {split: shares(gaps, name, score) for split, gaps in (("train", train), ("held_out", held))}
        figures[name] = rows
    picked = max(scores.keys() - {"told"}, key=lambda name: (*picking(figures[name]["train"]), name))
    summary = [
        (f"gap's width {label}, {count} held-out gaps filled by {Path(arguments.model).name}", told(figures[name]))
        for label, name in (
            ("told", "told"),
            (f"by {picked}, the best on training modules", picked),
            ("by mean entropy at step 2, as infill does", "mean entropy at step 2"),
            ("by mean entropy at step 2 less that around noise", "mean entropy at step 2 less that around noise"),
            ("always 1", "width"),
        )
    ]
    name = Path(arguments.model).name
    workload = {"model": name, "count": count, "widest": WIDEST, "steps": STEPS, "picked": picked}
    write_record(new_record(f"widths-{name}", workload=workload, figures=figures, summary=summary), arguments.record)
    for figure, rows in figures.items():
        print(f"{figure}: {told(rows)}; training modules: {told({'held_out': rows['train']})}")


def examples(engine: Engine, split: str) -> Iterator[Example]:
    """Gaps of a split whose width is among those tried."""
    for one in task("infill-python").examples(split, TRAIN_SEED if split == "train" else 0):
        if 1 <= len(ids(engine, one.answer)) <= WIDEST:
            yield one


def unrelated(engine: Engine) -> Iterator[Example]:
    """Gaps between random tokens, with nothing that belongs in them."""
    rng = Random(0)
    plain = [token for token in range(engine.config.model.vocab_size) if token not in engine.text.special_ids]
    while True:
        before, behind = (engine.text.decode(rng.choices(plain, k=size)) for size in (48, 24))
        yield Example(before, "", suffix=behind)


@torch.inference_mode()
def measured(engine: Engine, example: Example, seed: int) -> Gap:
    """The gap at every width up to WIDEST."""
    around = Around(tuple(engine.text.encode(example.prompt, bos=True)), tuple(ids(engine, example.suffix or "")))
    told = every_width(engine, around, Options(seed=seed, steps=STEPS, preset="reference"))
    other = every_width(engine, around, Options(seed=seed + 10**6, steps=STEPS, preset="reference"), until=2)
    prefix = Prefix(engine.config.model.layers, room=len(around.before))
    if len(around.before) > 1:
        engine.model.encode(torch.tensor(around.before[:-1]), prefix)
    whole = Prefix(engine.config.model.layers, room=len(around.before))
    engine.model.encode(torch.tensor(around.before), whole)
    runs = []
    for width, (events, others) in enumerate(zip(told, other, strict=True), start=1):
        drafts = [event for event in events if isinstance(event, Draft)]
        block = next(event for event in events if isinstance(event, Block))
        there = [event for event in others if isinstance(event, Draft)][1].tokens[:width]
        agreed = mean([float(a == b) for a, b in zip(drafts[1].tokens, there, strict=False)])
        tokens = block.tokens[:width]
        entropies = (drafts[0].entropy[:width], drafts[1].entropy[:width], block.entropy[:width])
        forced, causal = on_canvas(engine, around, tokens, whole), from_left(engine, around, tokens, prefix)
        runs.append(Run(width, engine.text.decode(tokens), *entropies, forced, causal, agreed))
    return Gap(tuple(runs), example.answer, len(ids(engine, example.answer)))


def every_width(engine: Engine, around: Around, options: Options, until: int | None = None) -> list[list[Event]]:
    """The events of each width, which run to their end or for `until` steps."""
    told: list[list[Event]] = []
    numbers: list[int] = []
    for width in range(1, WIDEST + 1):
        told.append([])
        request = around.request(width, options, engine)
        numbers.append(engine.loop.submit(request, told[-1].append, drafts=True, behind=next(iter(numbers), None)))
    while until is not None and any(sum(isinstance(event, Draft) for event in one) < until for one in told):
        engine.loop.tick()
    for number in numbers if until else ():
        engine.loop.abort(number)
    engine.loop.drain()
    return told


def on_canvas(engine: Engine, around: Around, tokens: Sequence[int], prefix: Prefix) -> list[float]:
    """Log-probability of each token of a draft, read off a canvas that holds it."""
    request = around.request(len(tokens), Options(seed=0, preset="reference"), engine)
    assert request.seed_canvas is not None
    held = dict(request.seed_canvas.pins) | dict(enumerate(tokens))
    canvas = torch.tensor([held[i] for i in range(request.width)])
    log_p = torch.log_softmax(engine.model.denoise(canvas, None, prefix), -1)
    return log_p[torch.arange(len(tokens)), canvas[: len(tokens)]].tolist()


def from_left(engine: Engine, around: Around, tokens: Sequence[int], prefix: Prefix) -> list[float]:
    """Log-probability of each token of a draft, and of 64 behind it, in the causal mode."""
    row, model = torch.tensor([around.before[-1], *tokens, *around.behind[:64]]), engine.model
    own = Prefix(model.config.layers, room=prefix.length + len(row))
    own.take(prefix)
    hidden = model(row, None, model.rows([Span(own, len(row), Mode.ENCODE)]))
    log_p = torch.log_softmax(model.logits(hidden[:-1]), -1)
    return log_p[torch.arange(len(row) - 1), row[1:]].tolist()


def shares(gaps: Sequence[Gap], name: str, score: Reading) -> dict[str, dict[str, float]]:
    """How often a rule has the right text and the right width, with intervals at 95%."""
    if name == "told":
        rows = [gap.chosen(gap.off) for gap in gaps]
    else:
        rows = [gap.chosen(score) for gap in gaps]
    return {key: share_of(sum(row[i] for row in rows), len(rows)) for i, key in enumerate(("exact", "width"))}


def picking(found: Mapping[str, Mapping[str, float]]) -> tuple[float, float]:
    """What rules are ordered by: exact texts, then right widths."""
    return found["exact"]["share"], found["width"]["share"]


def told(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Shares of held-out gaps in words."""
    return ", ".join(f"{key} {said(one)}" for key, one in rows["held_out"].items())


def ids(engine: Engine, text: str) -> list[int]:
    """Tokens of a text."""
    return engine.text.encode(text, bos=False)


if __name__ == "__main__":
    main()
