"""Measures denoising policies on held-out examples of the built-in tasks and prints Markdown tables.

    python scripts/policies.py --count 200 --seed 0 [--model nano] [--only halt] [--canvas 16]

Every policy answers the same examples with the same seeds, so rows of one table are paired. The model is small and the
tasks are short: a table tells whether a rule does harm here, not what it gains on a large model.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import torch

from redraft.config import GenerationConfig
from redraft.diffusion.accept import AnyOf, Confidence, EntropyBound, Factor, Frechet, Gate, Margin
from redraft.diffusion.check import CausalCheck
from redraft.diffusion.denoise import Policy, reference_policy
from redraft.diffusion.halt import StableAndConfident
from redraft.diffusion.plan import Flow
from redraft.diffusion.presets import PRESETS
from redraft.diffusion.schedule import FixedCooling
from redraft.engine.engine import Engine, load
from redraft.engine.request import Options
from redraft.measure.evals import Evaluation, Trial, summarise
from redraft.tasks import Task, names, task


def main() -> None:
    """Every policy on every task."""
    parser = argparse.ArgumentParser(description="Measure denoising policies on held-out examples.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--count", type=int, default=200, help="examples per task (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="which examples and which noise (default: 0)")
    parser.add_argument("--task", action="append", help="a task; repeatable (default: all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="policies whose name holds this, and the reference")
    parser.add_argument("--canvas", type=int, metavar="N", help="width of the canvases (default: the checkpoint's)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engine = load(arguments.model)
    for name in arguments.task or names():
        print(f"\n{name}, {arguments.count} held-out examples, seed {arguments.seed}:\n")
        print("| policy | exact (95%) | steps | at most | tokens per forward | per pass | gained, lost |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        table(engine, task(name), arguments)


def table(engine: Engine, one: Task, arguments: argparse.Namespace) -> None:
    """One row per policy, told as soon as it is measured. `gained` and `lost` count answers against the reference."""
    base: list[bool] = []
    for label, policy in policies(engine.config.generation).items():
        if label != "reference" and arguments.only not in label:
            continue
        trials = attempts(engine, one, policy, arguments)
        exact = [trial.score.exact for trial in trials]
        base = base or exact
        gained = sum(new and not old for new, old in zip(exact, base, strict=True))
        lost = sum(old and not new for new, old in zip(exact, base, strict=True))
        print(row(label, summarise(one.name, trials), trials, gained, lost), flush=True)


def row(label: str, found: Evaluation, trials: list[Trial], gained: int, lost: int) -> str:
    """A row of the table."""
    most = max(max(trial.done.steps) for trial in trials)
    exact = f"{found.exact:.1%} ({found.low:.1%} to {found.high:.1%})"
    passes = sum(sum(trial.done.steps) + trial.done.commits for trial in trials)
    per_pass = sum(len(trial.done.tokens) for trial in trials) / max(1, passes)
    forwards = f"{found.mean_steps:.2f} | {most} | {found.tokens_per_forward:.2f} | {per_pass:.2f}"
    return f"| {label} | {exact} | {forwards} | +{gained} -{lost} |"


def attempts(engine: Engine, one: Task, policy: Policy, arguments: argparse.Namespace) -> list[Trial]:
    """Example i with seed + i, as `redraft eval` does it."""
    trials = []
    for i, example in zip(range(arguments.count), one.examples("held_out", arguments.seed), strict=False):
        options = Options(seed=arguments.seed + i, preset="reference", canvas=arguments.canvas)
        request = engine.request(example.prompt, chat=True, options=options)
        done = engine.finish(replace(request, policy=policy))
        trials.append(Trial(example, done, one.score(example, done.text)))
    return trials


def policies(config: GenerationConfig) -> Mapping[str, Policy]:
    """What is compared; the first is what the others are compared with."""
    reference = reference_policy(config)
    bound = EntropyBound(config.entropy_bound)
    accepts = [EntropyBound(0.02), EntropyBound(0.5), EntropyBound(2.0)]
    accepts += [Confidence(0.99), Confidence(0.9), Confidence(0.7)]
    accepts += [Factor(0.25), Factor(0.75), Factor(1.5)]
    accepts += [Frechet(0.75), Frechet(0.25), Frechet(0.0)]
    accepts += [Margin(0.98), Margin(0.8), Margin(0.4)]
    accepts += [
        Gate(1, Confidence(0.9)),
        Gate(2, Confidence(0.9)),
        Gate(2, Confidence(0.9), 0.01),
        AnyOf((bound, Gate(1, Confidence(0.7)))),
    ]
    found = {"reference": reference} | {text(rule): replace(reference, accept=rule) for rule in accepts}
    for cap in (2, 3, 4):
        fixed = FixedCooling(config.t_min, config.t_max, config.max_denoising_steps)
        found[f"cap {cap}, linear"] = replace(reference, max_steps=cap)
        found[f"cap {cap}, fixed"] = replace(reference, schedule=fixed, max_steps=cap)
    for stability, confidence in ((1, 0.02), (1, 0.1), (0, 0.001), (0, 0.005), (0, 0.02)):
        halt = StableAndConfident(stability, confidence)
        found[f"halt: stability {stability}, {confidence} nats"] = replace(reference, halt=halt)
    for factor in (0.5, 0.75, 1.5):
        found[f"temperature {factor}"] = replace(reference, shaping=replace(reference.shaping, temperature=factor))
    for k, p in ((1, 1.0), (4, 1.0), (None, 0.9)):
        found[f"top_k {k}, top_p {p}"] = replace(reference, shaping=replace(reference.shaping, top_k=k, top_p=p))
    sure = config.confidence_threshold
    for steady, nats, least in product((0, 1, 2), (sure, 10 * sure), (1, 8)):
        found[f"flow: {steady} steps, {nats:g} nats, at least {least}"] = replace(
            PRESETS["fast"].policy(config), plan=Flow(steady, nats, least)
        )
    for share in (0.01, 0.1, 0.5):
        found[f"check: {share}"] = replace(PRESETS["checked"].policy(config), check=CausalCheck(share))
    return found | {f"preset {name}": one.policy(config) for name, one in PRESETS.items() if name != "reference"}


def text(rule: object) -> str:
    """A rule as its call, without the names of its fields."""
    if isinstance(rule, Gate):
        return f"Gate({rule.steps}, {text(rule.rule)}" + (")" if rule.kl is None else f", {rule.kl} nats)")
    if isinstance(rule, AnyOf):
        return f"AnyOf({', '.join(text(part) for part in rule.rules)})"
    return f"{type(rule).__name__}({', '.join(str(value) for value in vars(rule).values())})"


if __name__ == "__main__":
    main()
