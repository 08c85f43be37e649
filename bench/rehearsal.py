"""Rehearses the 26B model on a CPU: made, quantized, loaded and served within bounded memory, each in its own process.

    python bench/rehearsal.py --layers 3 --folder /tmp/rehearsal --record bench/records/rehearsal.json
    python bench/rehearsal.py --layers 30 --streamed --plan int4-g64 --folder /tmp/rehearsal

    make       a checkpoint with the released names, shapes and dtypes, of random numbers, tensor by tensor
    quantize   to 4 bit in a stream, as `redraft quantize` does
    serve      one block under a schema, a prompt that is kept, an infill, an abort; peak memory beside the ledger
    restart    the same block once more, in a new process

`--layers 30` is the whole model: 52 GB of disk for the one folder, 16 for the other. With `--streamed` plain numbers
are made while the quantizer reads them, and only the packed folder is on the disk. With fewer layers the depth alone is
cut: every matrix, the vocabulary of 262,144 and the number of experts are the released model's. Numbers are random, so
the answers mean nothing; what is checked is that they are valid, and the same after a restart. Exit code 1 if not, or
if a peak is further than 5% from the ledger. The folders are kept, and what each stage found lies beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import redraft
from redraft.config import read_config
from redraft.engine.loop import Loop
from redraft.engine.memory import held_bytes
from redraft.engine.request import Options, Request
from redraft.engine.settings import LoopConfig
from redraft.engine.warm import warm_up
from redraft.measure.device import step_of
from redraft.measure.process_memory import peak_here_mib, resident_mib
from redraft.measure.record import check_place, new_record, write_record
from redraft.measure.roofline import step_work
from redraft.measure.sample_schema import TEN_FIELDS, made_up_vocabulary
from redraft.model.linear import computed_in
from redraft.operations.engine import Engine
from redraft.shapes import Tensor
from redraft.weights.plan import find_plan, formats
from redraft.weights.quantize import quantize_checkpoint
from redraft.weights.shards import TensorHeader, index_json, write_shard
from redraft.weights.source import Stored, WeightSource

HERE = Path(__file__).resolve().parents[1]
NAMES = HERE / "tests/data/real_26b_tensors.json"
SHAPE = HERE / "recipes/shapes/26b/config.json"
WHOLE = 30
"""Layers of the released model."""
MIB, POOL = 2**20, 2**24
PROMPT = "Describe the order as an object with the fields of the form. "
WITHIN = 0.05


def main() -> int:
    """Every stage, one record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3, metavar="N", help="of 30 (default: 3)")
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoints go; kept there")
    parser.add_argument("--plan", default="int4", help="what to quantize to (default: int4)")
    parser.add_argument("--steps", type=int, default=4, metavar="N", help="of a block (default: 4)")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--device", default="cpu", help="of serving (default: cpu)")
    parser.add_argument("--streamed", action="store_true", help="no plain checkpoint on the disk")
    parser.add_argument(
        "--only", choices=("prepare", "serve", "restart"), help="up to serving, from there on, or the end alone"
    )
    parser.add_argument("--record", type=Path, metavar="FILE")
    given = parser.parse_args()
    if not 1 <= given.layers <= WHOLE:
        parser.error(f"--layers is {given.layers}; it must be from 1 to {WHOLE}")
    if given.record is not None:
        check_place(given.record)
    plain, packed = given.folder / f"{given.layers}-layers", given.folder / f"{given.layers}-layers-{given.plan}"
    figures = prepared(given, plain, packed)
    if given.only == "prepare":
        return 0
    found = packed.with_suffix(".serve.json")
    if given.only != "restart":
        found.write_text(json.dumps(apart(serve, packed, given.plan, given.steps, given.threads, given.device)))
    figures["serve"] = json.loads(found.read_text())
    figures["restart"] = apart(restart, packed, given.steps, given.threads, given.device)
    figures["whole_model"] = "run" if given.layers == WHOLE else "not run"
    same = figures["serve"]["tokens"] == figures["restart"].pop("tokens")
    figures["same_after_restart"] = same
    summary = said(figures, given.layers)
    names = ("layers", "plan", "steps", "threads", "device", "streamed")
    workload = {name: getattr(given, name) for name in names}
    record = new_record("rehearsal", workload=workload, figures=figures, summary=summary)
    if given.record is not None:
        write_record(record, given.record)
    print(record)
    served = figures["serve"]
    parts = (served, served["prefix_memory"], served["infill_memory"])
    return int(not same or any(abs(part["peak_over_ledger"] - 1) > WITHIN for part in parts))


def prepared(given: argparse.Namespace, plain: Path, packed: Path) -> dict[str, Any]:
    """Both checkpoints, made unless they are there; what making them took."""
    figures: dict[str, Any] = {}
    stages: list[tuple[Callable[..., dict[str, Any]], Path, tuple[object, ...]]] = [
        (make, plain, (plain, given.layers, given.streamed)),
        (quantize, packed, (plain, packed, given.plan, given.layers if given.streamed else 0)),
    ]
    for stage, made, inputs in stages:
        kept = made.with_suffix(f".{stage.__name__}.json")
        if not made.exists():
            kept.write_text(json.dumps(apart(stage, *inputs, given.threads)))
        if kept.exists():
            figures[stage.__name__] = json.loads(kept.read_text())
    return figures


def said(figures: dict[str, Any], layers: int) -> list[tuple[str, str]]:
    """What may be quoted."""
    served, speed = figures["serve"], figures["serve"]["speed"]
    lines = [
        ("rehearsed", f"{layers} of {WHOLE} layers, every matrix and the vocabulary of the released shapes"),
        ("the whole model", figures["whole_model"]),
        ("peak memory of serving", f"{served['peak_mib']:,.0f} MiB, ledger {served['ledger_mib']:,.0f} MiB"),
        ("peak over ledger", f"{served['peak_over_ledger']:.3f}"),
        ("of a kept prompt", f"{served['prefix_memory']['peak_over_ledger']:.3f}"),
        ("of an infill", f"{served['infill_memory']['peak_over_ledger']:.3f}"),
        (
            "a plain step of one canvas",
            f"{speed['step_sec']:.2f} s, {speed['share_of_peak']:.0%} of the matmul peak in {speed['computed_in']}",
        ),
        ("a step under a schema", f"{served['schema_step_sec']:.2f} s"),
        ("the same answer after a restart", str(figures["same_after_restart"])),
    ]
    for stage in ("make", "quantize"):
        if stage in figures:
            lines.append((f"peak memory of {stage}", f"{figures[stage]['peak_mib']:,.0f} MiB"))
    return lines


def apart(stage: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    """Run a stage in a process of its own."""
    print(f"{stage.__name__} …", file=sys.stderr, flush=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(stage, arguments)


def make(folder: Path, layers: int, streamed: bool, threads: int) -> dict[str, Any]:
    """Write the checkpoint; if it is streamed, all but its weights."""
    torch.set_num_threads(threads)
    began, beside = time.monotonic(), folder.with_name(f".{folder.name}.making")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    source = Made(beside, layers)
    shards: dict[str, list[TensorHeader]] = {}
    for i, entries in enumerate([] if streamed else runs(layers)):
        name = f"model-{i + 1:05}-of-{layers + 1:05}.safetensors"
        shards[name] = [TensorHeader(stored, torch.bfloat16, tuple(shape)) for stored, shape in entries]
        write_shard(beside / name, shards[name], (part for one in shards[name] for part in source.parts(one.name)))
    if shards:
        (beside / "model.safetensors.index.json").write_text(json.dumps(index_json(shards)))
    config = json.loads(SHAPE.read_text())
    kinds = config["text_config"]["layer_types"]
    config["text_config"]["layer_types"] = [kinds[i] for i in chosen(layers)]
    config["text_config"]["num_hidden_layers"] = layers
    (beside / "config.json").write_text(json.dumps(config))
    (beside / "tokenizer.json").write_text(json.dumps(tokenizer(config["text_config"]["vocab_size"])))
    beside.rename(folder)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return {"bytes": size, "seconds": time.monotonic() - began, "peak_mib": peak_here_mib()}


def chosen(layers: int) -> list[int]:
    """Which of the released layers: the first ones, and the last one, which has full attention, as it must."""
    return [*range(layers - 1), WHOLE - 1]


def runs(layers: int) -> Iterator[list[tuple[str, list[int]]]]:
    """Names and shapes of the released text tensors, a layer at a time, and the rest."""
    names = {name: shape for name, shape in json.loads(NAMES.read_text()).items() if "vision" not in name}
    rest = {name: shape for name, shape in names.items() if ".layers." not in name}
    yield list(rest.items())
    for own, real in enumerate(chosen(layers)):
        found = {name: shape for name, shape in names.items() if f".layers.{real}." in name}
        yield [(name.replace(f".layers.{real}.", f".layers.{own}."), shape) for name, shape in found.items()]


class Made(WeightSource):
    """The checkpoint's tensors, made as they are read. Numbers are random, of variance 1 / fan-in; norms and scalars
    are 1. A row is a run of one pool, from a place that its tensor's name and its number decide."""

    def __init__(self, folder: Path, layers: int) -> None:
        self.folder = folder
        entries = [entry for run in runs(layers) for entry in run]
        self.tensors = {name: Stored(name, tuple(shape), "BF16", folder / "config.json") for name, shape in entries}
        self.pool = torch.randn(POOL, generator=torch.Generator().manual_seed(0))

    def read(self, name: str) -> Tensor:
        """One tensor."""
        return self.read_rows(name, slice(None))

    def read_rows(self, name: str, rows: slice) -> Tensor:
        """Part of one tensor, along its first axis."""
        shape = self.tensors[name].shape
        places = torch.arange(shape[0])[rows]
        if len(shape) == 1:
            return torch.ones(len(places), dtype=torch.bfloat16)
        inner, each = shape[-1], math.prod(shape[1:-1])
        places = (places[:, None] * each + torch.arange(each)).flatten()
        starts = (places * 7_654_321 + zlib.crc32(name.encode())) % (POOL - inner)
        found: Tensor = (self.pool[starts[:, None] + torch.arange(inner)] * inner**-0.5).to(torch.bfloat16)
        return found.view(-1, *shape[1:])

    def parts(self, name: str) -> Iterator[Tensor]:
        """One tensor, a run of at most half a pool at a time."""
        shape = self.tensors[name].shape
        few = max(1, POOL // 2 // math.prod(shape[1:]))
        yield from (self.read_rows(name, slice(start, start + few)) for start in range(0, shape[0], few))


def tokenizer(size: int) -> dict[str, Any]:
    """A tokenizer of so many tokens: ends, bytes and made-up words. It spells texts character by character."""
    special = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 50: "<end50>", 106: "<turn|>"}
    words = [piece.decode().replace(" ", "▁") for piece in made_up_vocabulary(size).pieces[258:] if piece]
    letters = [chr(code) for code in range(33, 127)]
    pieces = iter(dict.fromkeys(["▁", *letters, *(f"<0x{byte:02X}>" for byte in range(256)), *words]))
    vocab = {special[i] if i in special else next(pieces): i for i in range(size)}
    spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": token} | flags for i, token in special.items()],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "decoder": {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True, "unk_token": "<unk>"},
    }


def quantize(folder: Path, target: Path, plan: str, made: int, threads: int) -> dict[str, Any]:
    """Quantize in a stream, `made` layers from numbers that are made meanwhile."""
    torch.set_num_threads(threads)
    began = time.monotonic()
    source = Made(folder, made) if made else None
    found = quantize_checkpoint(folder, target, find_plan(plan), source=source)
    return {"bytes": found.bytes_after, "seconds": time.monotonic() - began, "peak_mib": peak_here_mib()}


def opened(folder: Path, threads: int, device: str) -> tuple[Engine, float, float]:
    """The engine, resident MiB before the load, and its seconds."""
    torch.set_num_threads(threads)
    (torch.ones(512, 512) @ torch.ones(512, 512)).sum()  # libraries that every process loads
    base, began = resident_mib() or 0.0, time.monotonic()
    engine = redraft.load(folder, device=device, dtype="bfloat16", loop=LoopConfig(max_rows=256), report=reported)
    warm_up(engine, reported)
    return engine, base, time.monotonic() - began


def block(steps: int) -> Request:
    """One block under a schema."""
    return Request(PROMPT, Options(max_tokens=256, steps=steps, seed=1), schema=TEN_FIELDS)


def serve(folder: Path, plan: str, steps: int, threads: int, device: str) -> dict[str, Any]:
    """Load, and answer as a server does."""
    engine, base, seconds = opened(folder, threads, device)
    figures: dict[str, Any] = {"base_mib": base, "load_sec": seconds, "loaded_mib": resident_mib()}
    began = time.monotonic()
    request = engine.resolve(block(steps))
    figures["constraint_sec"] = time.monotonic() - began
    on_gpu = engine.model.device.type == "cuda"
    # The compiled language counts to the process.
    base = figures["base_mib"] = 0.0 if on_gpu else base + (resident_mib() or 0.0) - figures["loaded_mib"]
    began = time.monotonic()
    answer, memory = watched(engine, base, lambda: engine.run(request))
    figures["schema_step_sec"] = (time.monotonic() - began) / max(1, sum(answer.steps))
    json.loads(answer.text)
    figures |= {"tokens": list(answer.tokens), "steps": sum(answer.steps)} | memory
    reported(json.dumps({name: value for name, value in figures.items() if name != "tokens"}))
    figures["prefix"], figures["prefix_memory"] = watched(engine, base, lambda: kept_prefix(engine))
    reported(json.dumps(figures["prefix_memory"]))
    filled, figures["infill_memory"] = watched(engine, base, lambda: infill(engine))
    reported(json.dumps(figures["infill_memory"]))
    figures["infill_characters"] = len(filled.gap)
    figures["aborted_bytes"] = abort(engine)
    figures["speed"] = speed(engine, plan)
    engine.loop.check()
    return figures


def watched(engine: Engine, base: float, work: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """What some work of the engine's loop returns, and its peak of memory beside the most that the ledger held."""
    loop, most, uses, tick = engine.loop, 0, dict[str, float](), engine.loop.tick

    def noted() -> bool:
        nonlocal most, uses
        busy = tick()
        if taken(loop) > most:
            most, uses = taken(loop), lines(loop)
        return busy

    on_gpu = engine.model.device.type == "cuda"
    if on_gpu:  # what was taken before, as by loading, is not what this takes
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")
    loop.tick = noted  # type: ignore[method-assign]  # the loop turns by its own `tick`, and has no observer of it
    try:
        found = work()
    finally:
        del loop.tick
    peak, ledger = torch.cuda.max_memory_reserved() / MIB if on_gpu else peak_here_mib(), base + most / MIB
    return found, {"peak_mib": peak, "ledger_mib": ledger, "lines_mib": uses, "peak_over_ledger": peak / ledger}


def infill(engine: Engine) -> Any:
    """A short gap."""
    return engine.infill("The invoice of ", " was paid.", max_tokens=24, seed=3, options=Options(steps=2))


def reported(line: str) -> None:
    """A line of a load."""
    print(line, file=sys.stderr, flush=True)


def taken(loop: Loop) -> int:
    """The ledger's sum now, with kept prefixes."""
    return sum(size for _, size in loop.admission.ledger.lines(loop.runner.prefixes.num_bytes))


def lines(loop: Loop) -> dict[str, float]:
    """The ledger in MiB."""
    return {use: size / MIB for use, size in loop.admission.ledger.lines(loop.runner.prefixes.num_bytes)}


def kept_prefix(engine: Engine) -> dict[str, Any]:
    """A long prompt twice: the second time its beginning is known, and the answer is the same."""
    prompt = [2] + [100 + i % 90 for i in range(540)]
    request = Request(prompt, Options(max_tokens=32, steps=1, seed=5))
    first, before = engine.run(request), engine.loop.runner.prefixes.hits
    again = engine.run(request)
    return {"hit_tokens": engine.loop.runner.prefixes.hits - before, "same": first.tokens == again.tokens}


def abort(engine: Engine) -> int:
    """Bytes that are left of a request that was aborted after its first step."""
    handle = engine.submit(Request(PROMPT, Options(max_tokens=64, steps=4, seed=2)))
    engine.loop.tick()
    handle.abort()
    engine.loop.tick()
    return engine.loop.num_bytes


@torch.inference_mode()
def speed(engine: Engine, plan: str) -> dict[str, float | str]:
    """A plain step beside the arithmetic that it needs and the fastest product of this machine in its format."""
    model = engine.model
    form = computed_in(model.dtype, model.device)
    fastest = matmul_flops(form, model.device)
    step = step_of(model, 1, 256)
    step()
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        step()
        wait(model.device)
        seconds.append(time.perf_counter() - began)
    work = step_work(model.config, model.dtype, formats(model.config, find_plan(plan)), prefix=256)
    fastest = max(fastest, matmul_flops(form, model.device))
    return {
        "step_sec": min(seconds),
        "flops": work.flops,
        "computed_in": str(form).removeprefix("torch."),
        "matmul_gflops": fastest / 1e9,
        "share_of_peak": work.flops / min(seconds) / fastest,
        "held_bytes": held_bytes(model),
    }


def wait(device: torch.device) -> None:
    """Until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def matmul_flops(dtype: torch.dtype, device: torch.device) -> float:
    """Operations per second of the fastest of a few square products."""
    best = 0.0
    for size in (1024, 2048):
        a, b = (torch.randn(size, size).to(device, dtype) for _ in range(2))
        for _ in range(6):
            began = time.perf_counter()
            a @ b
            wait(device)
            best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def restart(folder: Path, steps: int, threads: int, device: str) -> dict[str, Any]:
    """The same block in a new process."""
    engine, _base, seconds = opened(folder, threads, device)
    answer = engine.run(block(steps))
    return {"load_sec": seconds, "tokens": list(answer.tokens)}


if __name__ == "__main__":
    read_config(SHAPE.parent)
    sys.exit(main())
