"""What nano-vision reads in held-out pictures: cells of boards, fields of receipts, and where it stops reading.

    python bench/vision.py --model runs/nano-vision --record bench/records/nano-vision.json

The model is trained by `recipes/vision`. Boards that are moved by a given number of pixels show what it takes that a
character stands in the square of one soft token: the training moves them by up to 2.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch

from redraft import load
from redraft.engine.request import Options, Request
from redraft.errors import RedraftError
from redraft.measure.record import Record, check_place, new_record, write_record
from redraft.operations.engine import Engine
from redraft.tune.train import LOG

DRAWN = Path(__file__).resolve().parents[1] / "recipes" / "vision" / "drawn.py"
SEED = 20  # of the pictures; the probes of the training have another
EVERY = 50  # steps
MOVED = tuple(range(5))
PARTS = {"boards": "cells", "receipts": "fields"}
SCHEMA = {
    "type": "object",
    "properties": {
        "shop": {"type": "string"},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "price": {"type": "integer"}},
                "required": ["name", "price"],
                "additionalProperties": False,
            },
        },
        "total": {"type": "integer"},
    },
    "required": ["shop", "items", "total"],
    "additionalProperties": False,
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Read:
    """What was read of many pictures: parts right and in all, whole pictures right, mean forwards."""

    right: int
    parts: int
    whole: int
    pictures: int
    forwards: float

    def claim(self, part: str, picture: str) -> str:
        """One claim."""
        whole = f"{self.whole / self.pictures:.1%} of {picture}"
        return f"{self.right / self.parts:.1%} of {part}, {whole}, {self.forwards:.1f} forwards each"


def main() -> int:
    """Read, record, print."""
    parser = argparse.ArgumentParser(description="What nano-vision reads in held-out pictures.")
    parser.add_argument("--model", default="runs/nano-vision")
    parser.add_argument("--boards", type=int, default=300, help="boards (default: 300)")
    parser.add_argument("--receipts", type=int, default=100, help="receipts (default: 100)")
    parser.add_argument("--causal", type=int, default=100, help="of the boards, read by the causal mode (default: 100)")
    parser.add_argument("--moved", type=int, default=30, help="boards for each distance (default: 30)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="write the record to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        check_place(arguments.record)
        found = measure(load(arguments.model), learnt(Path(arguments.model)), arguments)
        write_record(found, arguments.record)
    except RedraftError as error:
        print(f"vision: {error}", file=sys.stderr)
        return error.exit_code
    print(found)
    return 0


def learnt(folder: Path) -> dict[str, float]:
    """Nats of a canvas's position behind every fiftieth step of the training, from its log."""
    rows = map(json.loads, (folder / LOG).read_text(encoding="utf-8").splitlines())
    return {str(row["step"]): round(row["denoise"], 4) for row in rows if row["step"] % EVERY == 0}


def measure(engine: Engine, nats: dict[str, float], arguments: argparse.Namespace) -> Record:
    """The record of one model, whose training had these losses."""
    drawn = runpy.run_path(str(DRAWN))
    boards = list(islice(drawn["boards"]("held_out", SEED), arguments.boards))
    receipts = list(islice(drawn["receipts"]("held_out", SEED), arguments.receipts))
    found = {
        "boards": read(engine, boards),
        "boards, causal": read(engine, boards[: arguments.causal], causal=True),
        "receipts": read(engine, receipts),
        "receipts, with a schema": read(engine, receipts, schema=SCHEMA),
    }
    rng = Random(SEED)
    moved = {n: read(engine, [_moved(drawn, n, rng) for _ in range(arguments.moved)]) for n in MOVED}
    said = []
    for label, each in found.items():
        what = label.partition(",")[0]
        said.append((f"nano-vision, {each.pictures} held-out {label}: read right", each.claim(PARTS[what], what)))
    off = ", ".join(f"{each.right / each.parts:.1%} by {n}" for n, each in moved.items())
    return new_record(
        "nano-vision",
        workload={
            "boards": arguments.boards,
            "causal": arguments.causal,
            "receipts": arguments.receipts,
            "moved": arguments.moved,
            "seed": SEED,
            "parameters": sum(value.numel() for value in engine.model.parameters()),
        },
        figures={label: vars(each) for label, each in found.items()}
        | {"moved": {n: vars(x) for n, x in moved.items()}},
        summary=[
            *said,
            ("nano-vision, cells right in boards that are moved by so many pixels both ways", off),
            ("nano-vision, nats behind steps of its training", ", ".join(f"{x:.3f} at {n}" for n, x in nats.items())),
        ],
    )


def read(engine: Engine, rows: Iterable[Row], *, causal: bool = False, schema: Any = None) -> Read:
    """Every picture asked about once, by the checkpoint's own sampler or one token after another."""
    rows = list(rows)
    asked = [
        Request(row["messages"][:-1], Options(seed=i, causal=causal, max_tokens=96), schema=schema)
        for i, row in enumerate(rows)
    ]
    answers = list(engine.map(asked, at_once=8))
    pairs = [score(row["messages"][-1]["content"], answer.text) for row, answer in zip(rows, answers, strict=True)]
    return Read(
        right=sum(right for right, _ in pairs),
        parts=sum(parts for _, parts in pairs),
        whole=sum(right == parts for right, parts in pairs),
        pictures=len(pairs),
        forwards=sum(sum(answer.steps) for answer in answers) / len(answers),
    )


def score(wanted: str, answer: str) -> tuple[int, int]:
    """Parts right and in all: cells of a board, by place; shop, items in their order and total of a receipt."""
    if not wanted.startswith("{"):
        lines, read = wanted.split("\n"), answer.strip().split("\n")
        cells = [(i, j) for i, line in enumerate(lines) for j in range(len(line))]
        right = sum(i < len(read) and read[i][j : j + 1] == lines[i][j] for i, j in cells)
        return max(0, right - (len(answer.strip()) > len(wanted))), len(cells)  # a cell too many is a mistake, too
    fields = fields_of(json.loads(wanted))
    try:
        found = fields_of(json.loads(answer))
    except (ValueError, TypeError, KeyError, AttributeError):
        return 0, len(fields)
    right = sum(found.get(name) == value for name, value in fields.items())
    return max(0, right - (len(found) > len(fields))), len(fields)  # and so is an item that nobody bought


def fields_of(receipt: dict[str, Any]) -> dict[str, Any]:
    """A receipt's fields by name."""
    items = {f"item {i}": (item["name"], item["price"]) for i, item in enumerate(receipt["items"])}
    return {"shop": receipt["shop"], "total": receipt["total"], **items}


def _moved(drawn: dict[str, Any], pixels: int, rng: Random) -> Row:
    """A board that is moved by so many pixels each way."""
    image, page = drawn["board"](rng, moved=(rng.choice((-pixels, pixels)), rng.choice((-pixels, pixels))))
    found: Row = drawn["asked"](image, drawn["BOARD"], "\n".join(line[:6] for line in page))
    return found


if __name__ == "__main__":
    sys.exit(main())
