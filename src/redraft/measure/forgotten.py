"""What a tuned model has forgotten: tasks that the model it began from answers, and that it answers less often.

Only of the package's models it is known what they were trained for; of others nothing is said.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from redraft.measure.evals import evaluate
from redraft.measure.record import Progress, silent
from redraft.operations.engine import Engine
from redraft.options import Options
from redraft.tasks import names, task
from redraft.weights.source import EMBEDDED

COUNT, LESS = 24, 0.3
"""Examples of each task, and by how much the share of right answers has to fall: with so few, chance takes less."""


@dataclass(frozen=True)
class Forgotten:
    """A task, and the shares of right answers before the training and behind it."""

    task: str
    before: float
    after: float


def old_tasks(start: str, trained: Collection[str]) -> list[str]:
    """The tasks of a start, if it is a model of the package, that were not trained again."""
    return [name for name in names(start) if name not in trained] if start in EMBEDDED else []


def forgotten(
    start: str, before: Engine, after: Engine, trained: Collection[str], *, progress: Progress = silent
) -> list[Forgotten]:
    """The tasks of a start that were not trained again and are answered less often now, the most forgotten first."""
    old, found = old_tasks(start, trained), []
    for number, name in enumerate(old):
        progress("old task", number, len(old))
        then, now = (
            evaluate(engine, task(name), COUNT, options=Options(preset="fast")).exact for engine in (before, after)
        )
        if then - now > LESS:
            found.append(Forgotten(name, then, now))
    progress("old task", len(old), len(old))
    return sorted(found, key=lambda one: one.after - one.before)
