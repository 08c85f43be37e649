"""Measures what calibration is worth for 4-bit experts: errors of products and logits, and accuracy; writes a record.

    python scripts/calibration.py --count 400 --record benchmarks/calibration-nano.json

Chats to calibrate with are training examples of two tasks; logits and accuracy are those of held-out ones.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import torch

from redraft.cache import Prefix
from redraft.engine.engine import Engine, load
from redraft.measure.evals import evaluate
from redraft.measure.record import median, new_record, write_record
from redraft.measure.scenario import TASKS
from redraft.model.rows import Mode, Span
from redraft.shapes import Tensor
from redraft.tasks import task
from redraft.weights.calibrate import Chat
from redraft.weights.plan import PLANS
from redraft.weights.quantize import quantize_checkpoint
from redraft.weights.source import locate

CHATS, SEEN = 24, 40


def main() -> None:
    """Three checkpoints: as it is, rounded, and rounded with calibration; one record."""
    parser = argparse.ArgumentParser(description="Measure what calibration is worth for 4-bit experts.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--plan", default="int4")
    parser.add_argument("--count", type=int, default=400, help="held-out examples a task (default: 400)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder, plan = locate(arguments.model), PLANS[arguments.plan]
    engines = {"not rounded": load(folder)}
    chats = examples(engines["not rounded"], "train", CHATS)
    with tempfile.TemporaryDirectory() as place:
        rounded = quantize_checkpoint(folder, Path(place) / "rounded", plan)
        report = quantize_checkpoint(folder, Path(place) / "calibrated", plan, chats=chats)
        engines |= {plan.name: load(rounded.folder), f"{plan.name}, calibrated": load(report.folder)}
    held_out = examples(engines["not rounded"], "held_out", SEEN)
    exact = torch.cat([answered(engines["not rounded"], chat) for chat in held_out])
    products = {name: median([pair[i] for pair in report.outputs.values()]) for i, name in ((1, 1), (0, 2))}
    figures: dict[str, Any] = {}
    for number, (name, engine) in enumerate(engines.items()):
        got = torch.cat([answered(engine, chat) for chat in held_out])
        p, q = exact.log_softmax(-1), got.log_softmax(-1)
        figures[name] = {
            "product_error": products.get(number, 0.0),
            "logit_error": float((got - exact).norm() / exact.norm()),
            "divergence_nats": float((p.exp() * (p - q)).sum(-1).mean()),
            "exact": {one: evaluate(engine, task(one), arguments.count).exact for one in TASKS},
        }
        print(name, figures[name], flush=True)
    workload = {"model": folder.name, "chats": 2 * CHATS, "examples": arguments.count, "tasks": list(TASKS)}
    summary = [(f"{folder.name} in {name}", told(found, arguments.count)) for name, found in figures.items()]
    write_record(
        new_record(f"calibration-{folder.name}", workload=workload, figures=figures, summary=summary[1:]),
        arguments.record,
    )


def examples(engine: Engine, split: str, count: int) -> list[Chat]:
    """Some of each task, in turns."""
    found = []
    for pair in itertools.islice(zip(*(task(name).examples(split, 0) for name in TASKS), strict=True), count):
        for one in pair:
            prompt = engine.text.chat([{"role": "user", "content": one.prompt}])
            found.append(Chat(prompt, engine.text.encode(one.answer, bos=False)))
    return found


@torch.inference_mode()
def answered(engine: Engine, chat: Chat) -> Tensor:
    """Logits of the answer's canvas, half of it noise."""
    model, draw = engine.model, torch.Generator().manual_seed(len(chat.prompt))
    answer = torch.tensor(chat.answer)
    noisy = torch.rand(len(answer), generator=draw) < 0.5
    random = torch.randint(model.config.vocab_size, (len(answer),), generator=draw)
    prefix = Prefix(model.config.layers)
    rows = model.rows([Span(prefix, len(chat.prompt), Mode.ENCODE), Span(prefix, len(answer), Mode.DENOISE)])
    hidden = model(torch.cat([torch.tensor(chat.prompt), torch.where(noisy, random, answer)]), None, rows)
    return model.logits(hidden[len(chat.prompt) :])


def told(found: dict[str, Any], count: int) -> str:
    """One row of the record in words."""
    exact = ", ".join(f"{one} {share:.1%}" for one, share in found["exact"].items())
    return (
        f"products of experts off by {found['product_error']:.1%} in the middle, held-out logits by"
        f" {found['logit_error']:.1%} ({found['divergence_nats']:.5f} nats); {exact} of {count} exact"
    )


if __name__ == "__main__":
    main()
