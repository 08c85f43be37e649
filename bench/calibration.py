"""Measures what `redraft quantize --calibrate` gives: int4 with and without it, beside the plain checkpoint.

    python bench/calibration.py --record bench/records/calibration-nano.json [--chats 48] [--count 400]

The chats are of the training split. Logits are those of held-out prompts with their answers, read from left to right;
the divergence is from the plain checkpoint's distributions to those of the rounded one.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from redraft import load
from redraft.cache import Prefix
from redraft.measure.evals import evaluate
from redraft.measure.record import new_record, write_record
from redraft.measure.scenario import TASKS
from redraft.operations.engine import Engine
from redraft.shapes import Float, Tensor
from redraft.tasks import task
from redraft.weights.calibrate import Chat
from redraft.weights.plan import PLANS
from redraft.weights.quantize import quantize_checkpoint

PLAIN, LABELS = "not rounded", ("int4, calibrated", "int4")
READ = 20


def main() -> None:
    """All three, one record."""
    parser = argparse.ArgumentParser(description="Measure what calibration gives int4.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--chats", type=int, default=48, help="chats to calibrate with (default: 48)")
    parser.add_argument("--count", type=int, default=400, help="held-out examples per task (default: 400)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engine, name = load(arguments.model), Path(arguments.model).name
    assert engine.folder is not None
    exact, plain = scores(engine, arguments.count), log_p(engine)
    figures = {PLAIN: {"product_error": 0.0, "logit_error": 0.0, "divergence_nats": 0.0, "exact": exact}}
    with TemporaryDirectory() as place:
        found = [chats(engine, "train", arguments.chats), []]
        folders = [Path(place) / label for label in LABELS]
        reports = [
            quantize_checkpoint(engine.folder, folder, PLANS["int4"], chats=some)
            for folder, some in zip(folders, found, strict=True)
        ]
        errors = zip(*reports[0].outputs.values(), strict=True)  # of the same rows with calibration, and without
        for label, folder, products in zip(LABELS, folders, errors, strict=True):
            rounded = load(folder)
            told = log_p(rounded)
            figures[label] = {
                "product_error": median(products),
                "logit_error": float((told - plain).norm() / plain.norm()),
                "divergence_nats": float((plain.exp() * (plain - told)).sum(-1).mean()),
                "exact": scores(rounded, arguments.count),
            }
    summary = [(f"{name} in {label}", said(figures[label], arguments.count)) for label in reversed(LABELS)]
    workload = {"model": name, "chats": arguments.chats, "examples": arguments.count, "tasks": list(TASKS)}
    record = new_record(f"calibration-{name}", workload=workload, figures=figures, summary=summary)
    write_record(record, arguments.record)
    print(record)


def chats(engine: Engine, split: str, count: int) -> list[Chat]:
    """Chats of the tasks in turn."""
    streams = [islice(task(name).examples(split, 1), count // len(TASKS)) for name in TASKS]
    return [
        Chat(engine.text.chat([{"role": "user", "content": one.prompt}]), engine.text.encode(one.answer, bos=False))
        for pair in zip(*streams, strict=True)
        for one in pair
    ]


@torch.inference_mode()
def log_p(engine: Engine) -> Float[Tensor, "rows vocab"]:
    """Log-probabilities behind every token of some held-out chats."""
    found = []
    for chat in chats(engine, "held_out", READ):
        ids = torch.tensor([*chat.prompt, *chat.answer])
        prefix = Prefix(engine.model.config.layers, room=len(ids))
        found.append(torch.log_softmax(engine.model.logits(engine.model.encode(ids, prefix)).float(), dim=-1))
    return torch.cat(found)


def scores(engine: Engine, count: int) -> dict[str, float]:
    """The exact share of each task."""
    return {name: evaluate(engine, task(name), count).exact for name in TASKS}


def said(found: dict[str, Any], count: int) -> str:
    """One line."""
    exact = ", ".join(f"{name} {share:.1%}" for name, share in found["exact"].items())
    return (
        f"products of experts off by {found['product_error']:.1%} in the middle, held-out logits by "
        f"{found['logit_error']:.1%} ({found['divergence_nats']:.5f} nats); {exact} of {count} exact"
    )


if __name__ == "__main__":
    main()
