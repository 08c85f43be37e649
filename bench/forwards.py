"""Measures how many forwards right answers take: exact shares after 1, 2, 4, 8 of them, and under halting rules.

    python bench/forwards.py --count 300 --seed 7000 --record bench/records/forwards-nano-sudoku.json
    python bench/forwards.py --model nano-sudoku --model runs/nano-sudoku-finish --record FILE

Every example is answered once, on the canvases of the preset `fast`, by a canvas that does not stop before all rules
have said so; each rule is asked along the way. That is the same as an answer under each, because a halting rule decides
nothing but where a canvas ends. Several models answer the same examples with the same seeds; then the preset
`reference` and the causal mode on a quarter of them, and half as many gaps, are measured beside, for what is lost.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from redraft import load
from redraft.config import GenerationConfig
from redraft.diffusion.halt import EitherOf, Halt, StableAndConfident, Sure, UntilEnd, first_end
from redraft.diffusion.stats import Stats
from redraft.engine.request import Options, Request
from redraft.measure.evals import evaluate, room, share_of
from redraft.measure.record import new_record, write_record
from redraft.operations.engine import Engine
from redraft.shapes import Tensor
from redraft.tasks import Example, Task, names, task

FORWARDS = (1, 2, 4, 8)


def main() -> None:
    """Every model, one record."""
    parser = argparse.ArgumentParser(description="Measure exactness by forwards and by halting rule.")
    parser.add_argument("--model", action="append", help="repeatable; the first is what others are compared with")
    parser.add_argument("--task", action="append", metavar="NAME", help="repeatable (default: those of redraft eval)")
    parser.add_argument("--count", type=int, default=300, help="held-out examples per task (default: 300)")
    parser.add_argument("--seed", type=int, default=7000, help="which examples and which noise (default: 7000)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models = arguments.model or ["nano-sudoku"]
    figures = {Path(model).name: measured(load(model), arguments, ways=len(models) > 1) for model in models}
    workload = {"models": list(figures), "split": "held_out", "count": arguments.count, "seed": arguments.seed}
    workload["tokens"] = "the end token counted"
    summary = [line for name, found in figures.items() for line in told(name, found, arguments.count)]
    write_record(
        new_record(arguments.record.stem, workload=workload, figures=figures, summary=summary), arguments.record
    )


def rules(config: GenerationConfig) -> Mapping[str, Halt]:
    """What is compared; the first is the preset's before a canvas could be sure as a whole."""
    sure = config.confidence_threshold
    found: dict[str, Halt] = {f"mean below {sure:g}": StableAndConfident(0, sure)}
    found["the same twice (reference)"] = StableAndConfident(1, sure)
    found |= {f"mean below {scale * sure:g}": StableAndConfident(0, scale * sure) for scale in (2, 4, 10)}
    found |= {f"sum below {nats:g}": Sure(nats) for nats in (0.1, 0.2, 0.3, 0.5, 1.0)}
    return found | {
        f"mean below {sure:g} or sum below {nats:g}": EitherOf((StableAndConfident(0, sure), Sure(nats)))
        for nats in (0.1, 0.2, 0.3, 0.5)
    }


@dataclass
class Watch:
    """A halting rule that asks others and waits for all of them, and for the last of FORWARDS."""

    asked: Mapping[str, Halt]
    drafts: list[Tensor] = field(default_factory=list)
    stopped: dict[str, int] = field(default_factory=dict)

    @property
    def memory(self) -> int:
        """As much as any of them."""
        return max(rule.memory for rule in self.asked.values())

    def __call__(self, stats: Stats, drafts: Sequence[Tensor]) -> bool:
        self.drafts.append(stats.argmax)
        for label, rule in self.asked.items():
            if label not in self.stopped and rule(stats, drafts):
                self.stopped[label] = len(self.drafts)
        return len(self.stopped) == len(self.asked) and len(self.drafts) >= FORWARDS[-1]


def measured(engine: Engine, arguments: argparse.Namespace, *, ways: bool) -> dict[str, Any]:
    """What one model does."""
    found: dict[str, Any] = {}
    for name in arguments.task or names("nano-sudoku"):
        one = task(name)
        found[name] = by_forwards(engine, one, arguments.count, arguments.seed)
        if ways:
            for label, options in (("reference", Options(preset="reference")), ("causal", Options(causal=True))):
                found[name][label] = asdict(
                    evaluate(engine, one, arguments.count // 4, seed=arguments.seed, options=options)
                )
        print(name, found[name]["after"], flush=True)
    if ways:
        gaps = evaluate(
            engine, task("infill-python"), arguments.count // 2, seed=arguments.seed, options=Options(preset="fast")
        )
        found["infill-python"] = {"fast": asdict(gaps)}
    return found


def by_forwards(engine: Engine, one: Task, count: int, seed: int) -> dict[str, Any]:
    """Exact shares after so many forwards, and under each rule with what it took."""
    ends = frozenset(engine.config.generation.eos_token_ids)
    asked = {label: UntilEnd(rule, ends) for label, rule in rules(engine.config.generation).items()}
    after: dict[int, int] = dict.fromkeys(FORWARDS, 0)
    under: dict[str, list[tuple[bool, int, int]]] = {label: [] for label in asked}
    options = Options(preset="fast", max_tokens=room(engine, one))
    for i, example in zip(range(count), one.examples("held_out", seed), strict=False):
        watch = Watch(asked)
        request = engine.resolve(Request(example.prompt, chat=True, options=replace(options, seed=seed + i)))
        engine.run(replace(request, policy=replace(request.policy, halt=watch)))
        for forwards in FORWARDS:
            after[forwards] += read(engine, one, example, watch.drafts[forwards - 1])[0]
        for label in asked:
            forwards = watch.stopped.get(label, len(watch.drafts))
            under[label].append((*read(engine, one, example, watch.drafts[forwards - 1]), forwards))
    base = [right for right, _, _ in next(iter(under.values()))]
    return {
        "after": {str(forwards): share_of(right, count, "exact") for forwards, right in after.items()},
        "under": {label: figures(rows, base) for label, rows in under.items()},
    }


def read(engine: Engine, one: Task, example: Example, draft: Tensor) -> tuple[bool, int]:
    """Whether a draft is right, and its tokens, the end included."""
    end = first_end(draft, frozenset(engine.config.generation.eos_token_ids))
    said = draft.tolist()[:end]
    return one.score(example, engine.text.decode(said)).exact, len(said) + (end is not None)


def figures(rows: Sequence[tuple[bool, int, int]], base: Sequence[bool]) -> dict[str, float]:
    """Of one rule; `gained` and `lost` are against the first."""
    forwards = sum(taken for _, _, taken in rows)
    return share_of(sum(right for right, _, _ in rows), len(rows), "exact") | {
        "gained": sum(right and not before for (right, _, _), before in zip(rows, base, strict=True)),
        "lost": sum(before and not right for (right, _, _), before in zip(rows, base, strict=True)),
        "forwards": round(forwards / len(rows), 3),
        "tokens_per_forward": round(sum(tokens for _, tokens, _ in rows) / forwards, 3),
    }


def told(name: str, found: Mapping[str, Any], count: int) -> list[tuple[str, str]]:
    """Lines of the table of numbers: each task after so many forwards."""
    return [
        (
            f"{one}, {count} held-out examples exact by {name} after {', '.join(map(str, FORWARDS))} forwards",
            ", ".join(f"{at['exact']:.1%}" for at in figures["after"].values()),
        )
        for one, figures in found.items()
        if "after" in figures
    ]


if __name__ == "__main__":
    main()
