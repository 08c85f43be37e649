"""Compiles every kernel that steps of the 26B model launch, and tells what the compiler made of them. It needs no GPU.

    python bench/compiled.py --record bench/records/kernels-compiled.json
    python bench/compiled.py --plans int4,fp8 --arch 80 --layers 6

A forward runs on tensors without numbers, and a driver that only takes notes stands in for a GPU's: so each kernel is
compiled for the arguments, the tile and the stages that the program itself chooses. What comes out is read by the tools
that Triton brings along. Exit code 1 if a kernel spills, leaves less than 2 KB of the shared memory that there is,
loads nothing ahead where it should, or has none of the matrix units of compute 9.0 where it should.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from redraft.config import ModelConfig, read_config
from redraft.measure.device import USUAL, filled_prefix, random_weights, read, step_of
from redraft.measure.record import Record, check_place, new_record, write_record
from redraft.model.gemma import DiffusionGemma
from redraft.model.gpu.automata import Edges, Tiles
from redraft.model.gpu.graph import FixedRows
from redraft.model.gpu.kernels import CONDITION, GPU
from redraft.model.packed import INT4_ASYM
from redraft.model.rows import Mode, Span
from redraft.weights import blocks
from redraft.weights.names import slots
from redraft.weights.plan import EIGHT_BIT_FLOATS, PLANS, Formats, PackingPlan, formats

SHAPE = Path(__file__).resolve().parents[1] / "recipes/shapes/26b"
META = torch.device("meta")
_ASYM = replace(INT4_ASYM, name="int4-g64-asym", group=64)
FORMS = PLANS | {"asym": PackingPlan("asym", _ASYM, _ASYM, _ASYM)}
"""Also 4 bits with zero points, as AWQ's and GPTQ's files have them in every layer."""
BLOCKS = {"q8_0": ("Q8_0", "Q8_0"), "q4_k": ("Q4_K", "Q5_0"), "q6_k": ("Q6_K", "Q8_0")}
"""GGUF's files by the kind of most matrices, and of those whose rows are no blocks of 256, by llama.cpp's rule."""
MATRICES = ("_gate_up", "_down", "_dense")
"""Kernels of products with weights."""
PIPELINED = (*MATRICES, "_attend")
"""Kernels that must load ahead, and use the matrix units of compute 9.0, which take 64 rows at least."""
LEFT = 2048
"""Least bytes of shared memory that a kernel leaves."""
CANVASES, PROMPTS = (1, 2, 3, 4, 6, 8, 12), (1024, 259, 100, 5)
"""Of a step and of a piece of a prompt, with odd remainders."""
_OPERATION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
STATES, KINDS, PLACES = 1025, 157, 6400
"""Of a schema of ten fields: the automaton's states and kinds of edges, and places of rows of edges (`automata.py`)."""


@dataclass(frozen=True)
class Limits:
    """Of a multiprocessor, from the CUDA programming guide: bytes of shared memory for a program and for all, warps,
    and programs."""

    program: int
    shared: int
    warps: int
    programs: int


LIMITS = {
    80: Limits(163 * 1024, 164 * 1024, 64, 32),
    86: Limits(99 * 1024, 100 * 1024, 48, 16),
    89: Limits(99 * 1024, 100 * 1024, 48, 24),
    90: Limits(227 * 1024, 228 * 1024, 64, 32),
    100: Limits(227 * 1024, 228 * 1024, 64, 32),
    120: Limits(99 * 1024, 100 * 1024, 48, 24),
}


@dataclass
class Kernel:
    """One compiled kernel; called, it notes how it would have been launched."""

    source: Any
    metadata: Any
    binary: bytes = b""
    grids: Counter[tuple[int, ...]] = field(default_factory=Counter)

    def __call__(self, x: int, y: int, z: int, *_: object) -> None:
        self.grids[x, y, z] += 1


@dataclass(eq=False)
class Driver:
    """Stands in for a GPU's: it says what the device is, and keeps what it is given."""

    arch: int
    kernels: list[Kernel] = field(default_factory=list)

    @property
    def utils(self) -> Driver:
        """What loads binaries and knows the device."""
        return self

    def get_device_properties(self, _device: int) -> dict[str, int]:
        """All that is asked for."""
        return {"max_shared_mem": LIMITS[self.arch].program}

    def launcher_cls(self, source: Any, metadata: Any) -> Kernel:
        """What a kernel is launched with; its binary follows."""
        self.kernels.append(Kernel(source, metadata))
        return self.kernels[-1]

    def load_binary(self, _name: str, binary: bytes, *_: int) -> tuple[str, str, int, int, int]:
        """Module, function, registers, spills, and the most threads."""
        self.kernels[-1].binary = binary
        return "module", "function", 0, 0, 1024

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        """The only one; kernels of another architecture are another device's."""
        return self.arch

    def get_current_stream(self, _device: int = 0) -> int:
        """The only one."""
        return 0


def main() -> None:
    """Compile, tell, judge."""
    parser = argparse.ArgumentParser(description="Compile the kernels of a step and tell what came of them.")
    every = ",".join(["none", *FORMS, *BLOCKS])
    parser.add_argument("--plans", default=every, help="plans, none for bfloat16 (default: all)")
    parser.add_argument("--arch", type=int, nargs="+", default=[*LIMITS], choices=[*LIMITS], help="default: all")
    parser.add_argument("--part", default="", help="parts of the work whose names begin so (default: all)")
    parser.add_argument("--layers", type=int, help="of the first layers alone; six have one of each kind")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write a record")
    given = parser.parse_args()
    if given.record:
        check_place(given.record)
    config, rows, bad = read_config(SHAPE).model, list[dict[str, Any]](), list[str]()
    config = replace(config, layers=config.layers[: given.layers])
    for arch in given.arch:
        notes = Driver(arch)
        driver.set_active(notes)
        for plan in given.plans.split(","):
            if refused(plan, arch):
                continue
            for what, kernels in launched(config, plan, notes, given.part):
                for kernel in kernels:
                    row = {"arch": arch, "plan": plan, "what": what, **measured(kernel, arch)}
                    rows.append(row)
                    bad += [f"{arch}, {plan}, {what}, {row['kernel']}: {why}" for why in faults(row)]
                    print(line(row), flush=True)
    if given.record:
        write_record(recorded(given, len(config.layers), rows, bad), given.record)
    if bad:
        sys.exit("\n".join(bad))


def refused(plan: str, arch: int) -> bool:
    """Whether a load refuses this plan on these cards: they have no 8-bit floats (`weights/plan.py::check_device`)."""
    form = FORMS.get(plan)
    parts = (form.experts, form.attention, form.mlp) if form else ()
    return divmod(arch, 10) < EIGHT_BIT_FLOATS and any(one is not None and one.is_float for one in parts)


def recorded(given: argparse.Namespace, layers: int, rows: list[dict[str, Any]], bad: list[str]) -> Record:
    """The record: a row for each kernel, and what is wrong with any."""
    workload = {"model": SHAPE.name, "dtype": "bfloat16", "layers": layers, "triton": triton.__version__}
    workload |= {"arch": given.arch, "plans": given.plans, "canvases": CANVASES, "prompts": PROMPTS}
    summary = []
    for arch in given.arch:
        of = [row for row in rows if row["arch"] == arch]
        claim = (
            f"{len(of)} kernels, {sum(row['spills'] > 0 for row in of)} spill, at least"
            f" {min(row['left'] for row in of):,} bytes of shared memory left"
        )
        summary.append((f"kernels of the 26B model compiled for compute {arch // 10}.{arch % 10}", claim))
    summary.append(("kernels that spill, load nothing ahead, or leave less than 2 KB", str(len(bad))))
    return new_record("kernels-compiled", workload=workload, figures={"kernels": rows, "bad": bad}, summary=summary)


def launched(config: ModelConfig, name: str, notes: Driver, part: str) -> Iterator[tuple[str, list[Kernel]]]:
    """What each part of the work launches that no part before it has, as compiled."""
    model = random_weights(config, torch.bfloat16, META, formats_of(config, name), GPU)
    known = {id(kernel) for kernel in notes.kernels}
    works: dict[str, Callable[[], object]] = {
        **{f"step of {count}": partial(stepped, model, count) for count in CANVASES},
        "graph": lambda: standing(model),
        **{f"prompt of {rows}": partial(encoded, model, rows) for rows in PROMPTS},
        "language": lambda: held(config),
    }
    for what, work in works.items():
        if not what.startswith(part):
            continue
        for kernel in notes.kernels:
            kernel.grids.clear()
        with torch.inference_mode():
            work()
        # Compiled once, a kernel serves several plans and parts of the work; it is listed with the first.
        yield what, [kernel for kernel in notes.kernels if id(kernel) not in known and kernel.grids]
        known |= {id(kernel) for kernel in notes.kernels}


def formats_of(config: ModelConfig, name: str) -> Formats:
    """The formats of a plan, or of a GGUF file."""
    if name not in BLOCKS:
        return formats(config, FORMS.get(name))
    packed, (kind, other) = formats(config, PLANS["int4"]), (blocks.KINDS[one].format for one in BLOCKS[name])
    fits = {slot.target: slot.shape[-1] % (kind.block or kind.group) == 0 for slot in slots(config)}
    return {target: kind if fits[target] else other for target in packed}


def stepped(model: DiffusionGemma, canvases: int) -> None:
    """A step of so many canvases."""
    step_of(model, canvases, USUAL)()


def standing(model: DiffusionGemma) -> None:
    """A step whose memory stands still, as a graph records it."""
    width = model.config.canvas_length
    rows = FixedRows(model, [filled_prefix(model, USUAL)], width)
    rows.place([width])
    tokens = torch.empty(width, dtype=torch.int64, device=META)
    read(model, model(tokens, torch.empty(width, model.config.hidden_size, dtype=model.dtype, device=META), rows))


def encoded(model: DiffusionGemma, rows: int) -> None:
    """A piece of a prompt."""
    context = model.rows([Span(filled_prefix(model, USUAL), rows, Mode.ENCODE)])
    model(torch.empty(rows, dtype=torch.int64, device=META), None, context)


def held(config: ModelConfig) -> None:
    """Holding a canvas to a schema."""

    def some(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    width, vocab = config.canvas_length, config.vocab_size
    log_p = some(width, vocab, dtype=torch.float32)
    CONDITION.reduce(log_p, Tiles(some(vocab), some(300), some(300), 2048))
    CONDITION.shift(log_p, some(vocab, dtype=torch.int64), some(width, KINDS, dtype=torch.float32), -80.0, -1e30)
    places, long = some(2, PLACES), torch.int64
    firsts, edges = some(STATES + 1), some(4096)
    states = some(2, STATES, dtype=long), some(2, PLACES // 4, dtype=long)
    laid = Edges(places, places, some(2, 3, 3), firsts, edges, edges, *states)
    weights, ends = some(width, KINDS, dtype=torch.float64), some(STATES, dtype=torch.bool)
    for gates in (None, some(width + 1, STATES, dtype=torch.bool)):
        CONDITION.walk(laid, weights, weights, 0, ends, gates)


def measured(kernel: Kernel, arch: int) -> dict[str, Any]:
    """What the compiler made of it, and how it is launched."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.binary)
        file.flush()
        usage, listing = (_cuobjdump(file.name, word) for word in ("--dump-resource-usage", "--dump-sass"))
    counts = Counter(_OPERATION.findall(listing))

    def of(*names: str) -> int:
        return sum(count for name, count in counts.items() if name.startswith(names))

    registers, metadata, limits = int(re.findall(r"REG:(\d+)", usage)[0]), kernel.metadata, LIMITS[arch]
    a_warp = -(-registers * 32 // 256) * 256
    fit = min(limits.programs, limits.warps // metadata.num_warps, 65536 // (a_warp * metadata.num_warps))
    constants = {kernel.source.fn.arg_names[at]: value for (at,), value in kernel.source.constants.items()}
    return {
        "kernel": kernel.source.fn.__name__,
        "tile": {name: value for name, value in constants.items() if name.startswith("BLOCK")},
        "grid": list(kernel.grids.most_common(1)[0][0]),
        "launches": sum(kernel.grids.values()),
        "warps": metadata.num_warps,
        "stages": metadata.num_stages,
        "registers": registers,
        "spills": of("LDL", "STL"),
        "shared": metadata.shared,
        "left": limits.program - metadata.shared,
        "programs": min(fit, limits.shared // (metadata.shared + 1024)),
        "wgmma": of("HGMMA", "QGMMA", "IGMMA"),
        "mma": of("HMMA", "QMMA", "IMMA"),
        "loads_ahead": of("LDGSTS", "UBLKCP", "UTMALDG"),
        "loads": of("LDG.", "LD."),
        "instructions": counts.total(),
    }


def _cuobjdump(*words: str) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return subprocess.run([str(tool), *reversed(words)], capture_output=True, text=True, check=True).stdout


def faults(row: dict[str, Any]) -> list[str]:
    """What is wrong with it."""
    found, arch = [], row["arch"]
    if row["spills"]:
        found.append(f"{row['spills']} instructions that spill registers")
    if row["left"] < LEFT:
        found.append(f"{row['shared']} bytes of shared memory, of {LIMITS[arch].program}")
    if row["kernel"] in PIPELINED and row["stages"] < 2:
        found.append("one stage, so that nothing is loaded ahead")
    if arch == 90 and row["kernel"] in PIPELINED and not row["wgmma"]:
        found.append("no wgmma")
    if arch == 90 and row["kernel"] in MATRICES and not row["loads_ahead"]:
        found.append("no loads ahead of their use")
    return found


def line(row: dict[str, Any]) -> str:
    """A row for a terminal."""
    tile = "x".join(str(size) for size in row["tile"].values())
    grid = "x".join(str(size) for size in row["grid"])
    units = f"wgmma {row['wgmma']}" if row["wgmma"] else f"mma {row['mma']}" if row["mma"] else "-"
    return (
        f"{row['arch']:3} {row['plan']:14} {row['what']:14} {row['kernel']:9} {tile:11}"
        f" {row['launches']:4} of {grid:12} {row['warps']} warps {row['stages']} stages"
        f" {row['registers']:3} registers {row['spills']} spills"
        f" {row['shared']:6} shared {row['programs']:2} at once {units:9} {row['loads_ahead']:3} ahead"
    )


if __name__ == "__main__":
    main()
