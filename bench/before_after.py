"""Two versions of the code on the same requests: what a change costs or gains, and how much of that is noise.

    git worktree add --detach ../before REVISION
    taskset -c 0 python bench/before_after.py --before ../before --record bench/records/before-after-nano.json

Three processes keep a model loaded: `before`, the same code `again`, and `after`, the working tree. They take turns
with the same requests, in an order that changes each round, and never run side by side. What `again` takes beside
`before` is the noise. Processor time is read from the system, beside the time on the clock: other work on the machine
does not add to it. The models are the older version's nano, and one of random numbers whose canvases do not settle
before the cap on steps.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from stream_client import Link, stream_chat

PRESETS = ("reference", "fast")
SIDES = ("before", "again", "after")
LOADS: Mapping[str, Mapping[int, int]] = {"nano": {1: 12, 8: 32}, "random": {1: 1, 8: 8}}
"""Requests of one turn, by model and by how many are under way."""

WIDER = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "moe_intermediate_size": 480,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 8,
    "layer_types": ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(12)],
    "per_layer_config": {str(i): {"head_dim": 128, "num_key_value_heads": 2} for i in (5, 11)},
}
"""What makes nano's shape one of 180 million parameters; its tokenizer stays."""

WIDTH = 16
"""Tokens of the random model's canvases."""

Batch = Sequence[Mapping[str, Any]]
"""Bodies of chat requests, which all name one preset."""

Turn = Callable[[Batch, int], list[str]]
"""Answers requests, so many at a time, and returns the texts."""


def work(folder: str) -> None:
    """The process of one version: answers the batches that stdin brings. Uses only what both versions have."""
    import torch

    import redraft
    from redraft.engine.request import Options, Request

    torch.set_num_threads(1)
    engine: Any = redraft.load(folder, device="cpu", dtype="float32")

    def asked(body: Mapping[str, Any]) -> Any:
        options = Options(
            max_tokens=body["max_tokens"], seed=body["seed"], steps=body["max_steps"], preset=body["canvas"]["preset"]
        )
        if hasattr(engine, "request"):  # before the redesign
            return engine.request(body["messages"], options=options)
        return Request(body["messages"], options)

    print("ready", flush=True)
    for line in sys.stdin:
        batch, at_once = json.loads(line)
        found = engine.map([asked(body) for body in batch], at_once=at_once)
        print(json.dumps([one.text for one in found]), flush=True)


@contextmanager
def in_python(sources: Path, folder: str) -> Iterator[tuple[Turn, int]]:
    """One version, called from Python, and its process."""
    with _begun(sources, str(Path(__file__).resolve()), "--work", folder) as worker:

        def turn(batch: Batch, at_once: int) -> list[str]:
            worker.write(json.dumps([batch, at_once]))
            return list(json.loads(worker.read()))

        yield turn, worker.process.pid


@contextmanager
def over_http(sources: Path, folder: str) -> Iterator[tuple[Turn, int]]:
    """One version's server, asked for streams over connections that stay, and its process."""
    flags = ("--device", "cpu", "--threads", "1", "--quiet", "--port", "0")
    with _begun(sources, "-m", "redraft", "serve", folder, *flags) as server:
        port = int(server.first.rpartition(":")[2])

        def turn(batch: Batch, at_once: int) -> list[str]:
            return asyncio.run(_streams(port, batch, at_once))

        yield turn, server.process.pid


async def _streams(port: int, batch: Batch, at_once: int) -> list[str]:
    gate, links = asyncio.Semaphore(at_once), list[Link]()

    async def one(body: Mapping[str, Any]) -> str:
        async with gate:
            reply = await stream_chat("127.0.0.1", port, body, links=links)
            assert (reply.status, reply.order) == (200, True), reply
            return reply.text

    texts = await asyncio.gather(*map(one, batch))
    for _, writer in links:
        writer.close()
    return list(texts)


class Child:
    """A process that is spoken with in lines; `first` is the one that it begins with."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.first = self.read()

    def read(self) -> str:
        """The next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, f"{self.process.args!r} ended"
        return line

    def write(self, line: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@contextmanager
def _begun(sources: Path, *words: str) -> Iterator[Child]:
    """A Python process with the sources of one version, once it has printed a line."""
    environment = {**os.environ, "PYTHONPATH": str(sources / "src"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, *words],
        text=True,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield Child(process)
        finally:
            process.terminate()


def processor_seconds(process: int) -> float:
    """Processor time of all threads of a process, from Linux."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def compare(way: Callable[..., Any], trees: Mapping[str, Path], model: str, folder: str, rounds: int) -> dict[str, Any]:
    """Every load by every preset, all sides in turn. The first round is not counted."""
    cases = [(preset, at_once) for preset in PRESETS for at_once in LOADS[model]]
    times = {case: {side: list[tuple[float, float]]() for side in SIDES} for case in cases}
    equal = dict.fromkeys(cases, 0)
    orders = list(permutations(SIDES))
    with ExitStack() as stack:
        running = {side: stack.enter_context(way(trees[side], folder)) for side in SIDES}
        for number in range(rounds + 1):
            for case in cases:
                batch = _bodies(model, *case, seed=number)
                texts = {}
                for side in orders[number % len(orders)]:
                    turn, process = running[side]
                    before, began = processor_seconds(process), time.perf_counter()
                    texts[side] = turn(batch, case[1])
                    taken = time.perf_counter() - began, processor_seconds(process) - before
                    if number:
                        times[case][side].append(taken)
                equal[case] += number > 0 and texts["before"] == texts["after"]
            print(f"{model}, {way.__name__}: round {number} of {rounds}", file=sys.stderr, flush=True)
    return {
        f"{preset}, {at_once} at a time": _figures(times[preset, at_once], len(batch_of(model, at_once)))
        | {"rounds_with_equal_texts": equal[preset, at_once]}
        for preset, at_once in cases
    }


def batch_of(model: str, at_once: int) -> range:
    """The numbers of the requests of a turn."""
    return range(LOADS[model][at_once])


def _bodies(model: str, preset: str, at_once: int, seed: int) -> list[dict[str, Any]]:
    from redraft.tasks import task

    examples = [task(name).examples("held_out", seed) for name in ("records", "sudoku-4x4")]
    return [
        {
            "messages": [{"role": "user", "content": next(examples[i % 2]).prompt}],
            "seed": 1000 * seed + i,
            "max_tokens": WIDTH if model == "random" else 32,
            "max_steps": 2 if model == "random" else 48,
            "canvas": {"preset": preset},
        }
        for i in batch_of(model, at_once)
    ]


def _figures(times: Mapping[str, Sequence[tuple[float, float]]], requests: int) -> dict[str, Any]:
    found: dict[str, Any] = {"rounds": len(times["before"]), "requests_per_turn": requests}
    for which, name in enumerate(("clock", "processor")):
        seconds = {side: [one[which] for one in times[side]] for side in SIDES}
        found[f"{name}_ms"] = {side: round(1e3 * median(seconds[side]) / requests, 3) for side in SIDES}
        for side in SIDES[1:]:
            ratios = [ours / theirs for ours, theirs in zip(seconds[side], seconds["before"], strict=True)]
            low, middle, high = quantiles(ratios, n=4)
            found[f"{name}_ratio_{side}"] = {"median": round(middle, 4), "quartiles": [round(low, 4), round(high, 4)]}
    return found


def random_checkpoint(nano: Path, folder: Path) -> int:
    """Write the model of random numbers, and return how many."""
    from redraft.config import GenerationConfig, parse_model
    from redraft.files import copy_files
    from redraft.weights.build import random_model
    from redraft.weights.save import save_model
    from redraft.weights.source import TEXT_FILES

    shape = json.loads((nano / "config.json").read_text())
    shape["text_config"] |= WIDER
    model = random_model(parse_model(shape | {"canvas_length": WIDTH})[0], 0)
    save_model(model, folder, generation=GenerationConfig(eos_token_ids=(1, 5)))
    copy_files(TEXT_FILES, nano, folder)
    return sum(tensor.numel() for tensor in model.parameters())


def _summary(figures: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for what, cases in figures.items():
        for case, one in cases.items():
            after, noise = one["processor_ratio_after"], one["processor_ratio_again"]
            yield (
                f"Processor time of an answer after the redesign / before, {what}: {case}",
                f"{after['median']:.3f} (the old code beside itself: {noise['median']:.3f}, quartiles"
                f" {noise['quartiles'][0]:.3f} to {noise['quartiles'][1]:.3f})",
            )


def main() -> None:
    """One record."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", metavar="MODEL", help="be one of the processes")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="a checkout of the older version")
    parser.add_argument("--rounds", type=int, default=12, metavar="N", help="counted rounds (default: 12)")
    parser.add_argument("--model", default="nano", choices=tuple(LOADS), help="which of them (default: nano)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the record to this file")
    given = parser.parse_args()
    if given.work is not None:
        work(given.work)
        return
    if given.before is None or given.rounds < 2:
        parser.error("give --before, and at least 2 rounds")

    from redraft.measure.record import new_record, write_record

    after, figures = Path(__file__).resolve().parents[1], dict[str, dict[str, Any]]()
    trees = {"before": given.before, "again": given.before, "after": after}
    old = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=given.before, capture_output=True, text=True, check=True
    ).stdout.strip()
    with TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = place  # nobody's measured settings
        model, nano, parameters = given.model, given.before / "src" / "redraft" / "assets" / "nano", None
        folder = str(nano)
        if model == "random":
            folder, parameters = place, random_checkpoint(nano, Path(place))
        workload = {"before": old, "rounds": given.rounds, "parameters_of_random": parameters}
        for way in (in_python, over_http):
            figures[f"{model}, {way.__name__}"] = compare(way, trees, model, folder, given.rounds)
            record = new_record(
                f"before-after-{model}", workload=workload, figures=figures, summary=list(_summary(figures))
            )
            if given.record is not None:  # as far as it is: what follows takes minutes
                write_record(record, given.record)
    print(record)


if __name__ == "__main__":
    main()
