"""The page docs/devices.md: what the 26B model needs of which card, computed, and what has been measured."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from redraft.config import ModelConfig, read_config
from redraft.measure.record import Record, read_record
from redraft.measure.roofline import CARDS, TOUCHED, Card, step_work
from redraft.weights.memory import GIGABYTE, footprint
from redraft.weights.place import Placement
from redraft.weights.plan import EIGHT_BIT_FLOATS, PLANS, Formats, formats

SHAPE = Path("recipes") / "shapes" / "26b"
USUAL = 2048
HEAD = """# Devices

<!-- Written by bench/generate.py from the memory plan and the floor; take a device record, then run `make docs`. -->

Which card runs the 26B model in which format, and how fast a step can be there. **Computed** figures follow from the
model's shapes and the vendors' data sheets (`weights/memory.py`, `measure/roofline.py`). They are bounds, not promises.
**Measured** figures come from records in `bench/records/`.

"""

FLOOR = """
## How fast a step can be

Computed: the least time of a denoising step behind 2,048 tokens, in milliseconds. A step takes at least as long as
reading its weights and caches once, or as its arithmetic, whichever is more. A cell has three numbers:

1. one canvas that touches {touched} of the {experts} experts of each layer, about as many as a canvas of real text
   touches by Google's report (arXiv 2608.00146);
2. one canvas that touches all of them;
3. eight canvases together, all experts touched.

A cell is empty where the weights do not fit on the card, or the card cannot compute with the format.

"""

STEPS = """
## Measured on an {gpu}

Record [steps-26b](../bench/records/steps-26b.json): steps behind 2,048 tokens, replayed as one graph, with the reading
of the head; medians of eight runs. Weights are random, and send rows to other experts than a text would, by format to
many or few: so formats cannot be compared with each other. The floor is that of the experts that were touched, at the
data sheet's rates of {card}.{note}

| format | experts touched | one canvas, ms | times the floor | eight, ms | times the floor |
|---|---|---|---|---|---|
{rows}
Where the time of bfloat16 goes, in milliseconds:

| part | one canvas | eight |
|---|---|---|
{parts}
The experts of one canvas are read at {rate:.1f} TB/s. If it touched {touched} of {experts}, as one of real text does,
and all else took as long, a step would take {text:.1f} ms. With the 19.7 tokens a forward that Google reports, of the
model in FP8, that is {speed:,.0f} tokens a second for one user, without encoding and the host (**computed**, no text
was generated). What others measured is on the [page that compares](comparison.md). Experts of int4 are read at less
than half of that speed: unpacking them, not memory, is probably their bound.

What else was tried on this card, and what it mended, is in the [log](log.md#gpus). Not measured: steps launched one by
one, prompts and commits, transformers on the same card, a soak.
"""

LAUNCHED = """
Computed (record `launches`): the least time of a step by this program's launches, in milliseconds, and how many times
the floor that is; one canvas, then eight. Each launch has the card's full rate, and two microseconds lie between two of
them (assumed). The floor lets one launch read weights while another multiplies. Here one follows the other: of eight
canvases the experts' products wait for memory, all others for the matrix units. So eight canvases cannot come as near
to the floor as one, and a step in few bits is short enough for its launches to count. A packed table (`-e8`) is
unpacked in each step: it saves memory and costs time. [Decision 14](decisions/0014-launches-and-floors.md) says what
follows.

"""

TAIL = """
## Experts on the host

`--offload experts` (`load(experts="host")`) keeps the experts in the processor's memory and copies those that are
needed, one ahead of the one that multiplies. A step then takes at least as long as reading its experts over the bus:
45.7 GB at the 25 GB/s of PCIe 4.0 x16 are 1.8 s in bfloat16 and 0.5 s in int4 (computed, all experts touched). Answers
equal those of experts on the card, bit for bit in float32 (tested on a CPU). The host waits once a layer, to learn
which experts its rows chose: the layer before decides that, so it cannot be known sooner. Meanwhile the bus is
idle: for attention, dense MLP and router of one layer, some 0.2 ms of a canvas at an RTX 4090's peak, beside 11 ms for
84 experts of int4 at 25 GB/s (computed). To read the routing before the dense MLP is launched would save a third of
these 2% at most. To send what the last step chose before this step's choice is known would save more, and bytes are
then sent in vain: whether that pays is to be measured on a card, and was not.

One model on several GPUs is not supported. Start one server on each GPU instead.

## What a step launches

On a GPU a layer is fifteen launches, and one more where it joins halves of the keys, however many sequences its rows
belong to (`src/redraft/model/gpu/layer.py`).
A whole step of the 26B model in bfloat16 takes fewer than 600 launches for one canvas and fewer than 800 for eight;
images included. `tests/unit/test_launches.py` counts them; torch's own splitting of sums is not among them. A bound of
their time from below is computed by `bench/launches.py`. What the compiler makes of each kernel, with its registers,
shared memory and matrix units, is in the record
[kernels-compiled](../bench/records/kernels-compiled.json).

A step is decided by a few numbers per position: argmax, sample, entropy, and the largest probabilities if a rule needs
them. They are copied to the host once for all canvases of a forward, 12 to 20 bytes per position. Acceptance, stopping
and renoising run there. Soft embeddings stay on the device. So the host waits for the GPU once per step. Canvases with
pins, constraints, a changed distribution or log-probabilities take their step alone and wait at least once each.

By default the steps of up to eight canvases are replayed as one CUDA graph: the forward and the reading of the head.
One capture serves all blocks of a request and later requests in the same buffers. Where few canvases go on behind many,
they move to the first places after eight steps, and a smaller graph is recorded. Encoding and steps that need logits
run outside the graph. Where a graph cannot be recorded, or the kernel of a layer is not used, steps are launched one by
one, and a server says why.
`LoopConfig(graphs=False)`, or `--no-graphs`, leaves graphs out, as experts on the host do.

On a card not seen before a load compares each kernel with plain torch at the checkpoint's shapes, in every tile that
forwards use (`engine/kernel_check.py`). One that disagrees or fails is replaced and named, by the load and by `redraft
doctor`.

[Decision 8](decisions/0008-who-decides-on-a-gpu.md) says why the host decides and not the GPU.

These paths are tested on a simulated CUDA device (`tests/pretend.py`), which computes true numbers on the CPU. It fails
where tensors of both devices meet, counts the host's waits, and records and replays graphs. An engine with its thread,
training but for its backward pass, and the tests that need a GPU run there, too.

## A constraint on a GPU

Log-probabilities are summed by token class next to the logits, a kernel passes the [constraint's](constraints.md)
messages there and adds the bias. One copy brings the likeliest text and a few sums to the host. The cost on an H100 is
**estimated**, for a canvas of 256, 262,144 tokens and a schema of ten fields (1,025 states, 30,840 edges, merged to
4,185 of 157 kinds):

| part | bound by | ms |
|---|---|---|
| tokens to classes | reading 268 MB of log-probabilities once | 0.1 |
| messages, three at once | 256 positions in turn, 2,500 to 4,400 cycles each | 0.4 to 0.65 |
| likeliest text | 256 times four dependent reads | 0.15 |
| bias | reading and writing 268 MB | 0.2 |
| about a hundred small operations | their launches | 0.3 to 0.4 |
| together | | 1.1 to 1.5 |

That is less than a tenth of the floor of a step in bfloat16 with all experts touched, and more than a tenth in fewer
bits. `redraft bench --device-card` times it.

## Measuring

<!-- not run: it needs a GPU -->
```sh
bench/gpu_session.sh OUT
```

This runs everything below on one GPU in at most half an hour. Each part has its own time limit and writes one file into
OUT; `all.tar.gz` there holds them all. Run it again to continue with the missing parts. `LIMIT=540` bounds the seconds,
`TRAIN=recipes/nano.toml` trains first, `SMALL=1` tries every part on a CPU. By hand:

<!-- not run: it needs a GPU -->
```sh
python -m pytest -q -m gpu tests/gpu
redraft bench --device-card --model recipes/shapes/26b --device cuda --dtype bfloat16 --record device-26b.json
redraft bench --device-card --model recipes/shapes/26b --device cuda --dtype bfloat16 --plan int4 \\
  --record device-26b-int4.json
python bench/steps.py --record steps-26b.json
python bench/step_beside_transformers.py --device cuda --record step-26b.json
python bench/tiles.py --record tiles.json
redraft eval --model nano-sudoku --device cuda --task records --task sudoku-4x4 --task lists --count 100 --json
```

`recipes/shapes/26b` has the released model's shape and no weights; the command fills it with random ones in the plan's
format. It measures copying, multiplying, prefill, steps of 1 to 16 canvases behind 512 to 65,536 tokens, steps as a
graph, a commit, the head and a constraint, each beside its floor. Pass a checkpoint as `--model` to measure that. A
shape that does not fit, and a format that the card cannot compute with, are refused before anything is allocated, with
what would fit. Put the record into `bench/records/` as `device-NAME.json`, and its step appears on this page.

## Not measured

Any card but an H200; real weights, and so the speed of an answer; loading 50 GB from a disk; right answers in 8 and 4
bits of a model larger than nano; rounding inside the kernels' products; copies beside products;
transformers on the same card (`bench/step_beside_transformers.py` times it).
"""

PROCESSOR = """
## On a processor

Measured (record `plans-nano-sudoku`): nano-sudoku in each format beside float32, one thread of {processor}. "Logits off
by" is the norm of the difference over the norm of the logits. "Exact" is the share of {count} held-out answers to
{tasks} each.

"""


def page(root: Path) -> str:
    """The whole page."""
    config = read_config(root / SHAPE).model
    records = [read_record(path) for path in sorted((root / "bench" / "records").glob("device-*.json"))]
    measured = [*_steps(config, read_record(root / "bench" / "records" / "steps-26b.json")), *_measured(records)]
    plans = read_record(root / "bench" / "records" / "plans-nano-sudoku.json")
    parts = [HEAD, "## What fits\n\n", *_memory(config), *_floors(config)]
    launches = read_record(root / "bench" / "records" / "launches.json")
    return "".join([*parts, *_launched(config, launches), *measured, *_plans(config), *_processor(plans), TAIL])


def _processor(record: Record) -> Iterator[str]:
    """What the formats cost in accuracy, and what they save, where it could be measured."""
    tasks, kept = record.workload["tasks"], record.figures
    named = " and ".join(tasks)
    yield PROCESSOR.format(processor=record.machine["processor"], count=record.workload["examples"], tasks=named)
    yield f"| plan | MB | logits off by | {' | '.join(f'{task} exact' for task in tasks)} | ms a step |\n"
    yield f"{'|---' * (4 + len(tasks))}|\n"
    for name in ("none", *PLANS):
        row = kept[name]
        exact = " | ".join(f"{row['exact'][task]:.1%}" for task in tasks)
        yield f"| {name} | {row['bytes'] / 1e6:.2f} | {row['logit_error']:.1%} | {exact} | {row['step_ms']:.1f} |\n"
    yield "\n| a model of random numbers | ms a step in float32 | in int8 |\n|---|---|---|\n"
    for name in (name for name in kept if "wide" in name):
        yield f"| {name} as nano | {kept[name]['float32']:.1f} | {kept[name]['int8']:.1f} |\n"
    yield "\nOn a processor `--plan int8` pays from twice nano's width on. nano saves memory by it and little time.\n"
    yield "Without `--plan` nothing is packed.\n"


def _plans_of(config: ModelConfig) -> list[tuple[str, Formats]]:
    return [("bfloat16", {}), *((name, formats(config, plan)) for name, plan in PLANS.items())]


def _memory(config: ModelConfig) -> Iterator[str]:
    yield "Computed: the longest context of one request, its canvas included, up to the model's limit of 262,144\n"
    yield "tokens; then how many requests of 8,192 tokens fit at once. "
    yield '"host" is the context with `--offload experts`,\nwhere the card is too small without.\n\n'
    names = [name for name, _ in _plans_of(config)]
    yield f"| card | {' | '.join(names)} |\n{'|---' * (len(names) + 1)}|\n"
    for card in CARDS:
        yield (f"| {card.name} | " + " | ".join(_fit(config, card, packed) for _, packed in _plans_of(config)) + " |\n")


def _fit(config: ModelConfig, card: Card, packed: Formats) -> str:
    if _refused(card, packed):
        return "refused"
    need = footprint(config, torch.bfloat16, packed)
    context = need.longest_context(card.memory)
    if context is None:
        context = footprint(config, torch.bfloat16, packed, Placement.HOST).longest_context(card.memory)
        return "no" if context is None else f"host: {context:,}"
    return f"{context:,}; {need.most_canvases(card.memory, 8192)}"


def _refused(card: Card, packed: Formats) -> bool:
    return card.fp8 is None and any(form.is_float for form in packed.values())


def _floors(config: ModelConfig) -> Iterator[str]:
    """A row for each card, a column for each plan."""
    yield FLOOR.format(touched=TOUCHED, experts=config.num_experts)
    plans = _plans_of(config)
    yield f"| card | {' | '.join(name for name, _ in plans)} |\n{'|---' * (len(plans) + 1)}|\n"
    for card in CARDS:
        yield f"| {card.name} | {' | '.join(_floor(config, card, packed) for _, packed in plans)} |\n"


def _floor(config: ModelConfig, card: Card, packed: Formats) -> str:
    if _refused(card, packed) or footprint(config, torch.bfloat16, packed).longest_context(card.memory) is None:
        return ""
    work = partial(step_work, config, torch.bfloat16, packed, prefix=USUAL)
    steps = work(canvases=1, touched=TOUCHED / config.num_experts), work(canvases=1), work(canvases=8)
    return " / ".join(f"{1e3 * step.seconds(card):.1f}" for step in steps)


def _launched(config: ModelConfig, record: Record) -> Iterator[str]:
    """A row for each card, a column for each plan."""
    found = {(row["card"], row["plan"], row["canvases"]): row for row in record.figures["rows"]}
    plans = _plans_of(config)
    yield LAUNCHED
    yield f"| card | {' | '.join(name for name, _ in plans)} |\n{'|---' * (len(plans) + 1)}|\n"
    for card in CARDS:
        cells = []
        for name, packed in plans:
            rows = [found[card.name, name, count] for count in (1, 8)] if _floor(config, card, packed) else []
            cells.append("; ".join(f"{row['least_ms']:.1f}, {row['least_ms'] / row['floor_ms']:.2f}" for row in rows))
        yield f"| {card.name} | {' | '.join(cells)} |\n"


PARTS = {
    "experts": ("_gate_up", "_down", "_place"),
    "attention": ("_attend", "_join"),
    "other matrices, the head's included": ("nvjet", "void cublas"),
}


def _steps(config: ModelConfig, record: Record) -> Iterator[str]:
    """Steps of each plan, and the parts of those in bfloat16."""
    named = record.machine["gpu"].removeprefix("NVIDIA ").split()[0]
    card = next((card for card in CARDS if named in card.name), None)
    if card is None:
        raise ValueError(f"{named} has no row in measure/roofline.py::CARDS, whose rates its steps are put beside")
    rows = []
    for plan, found in record.figures.items():
        form = None if plan == "none" else PLANS[plan]
        packed = formats(config, form)
        cells = [plan if form else "bfloat16", f"{found['experts_touched']:.0%}"]
        for count, step in found["steps"].items():
            share = found["experts_touched"]
            work = step_work(config, torch.bfloat16, packed, canvases=int(count), prefix=USUAL, touched=share)
            cells += [f"{step['ms']:.1f}", f"{step['ms'] / 1e3 / work.seconds(card):.2f}"]
        rows.append(f"| {' | '.join(cells)} |\n")
    one, eight = (_parts(record.figures["none"]["steps"][count]) for count in ("1", "8"))
    parts = [f"| {name} | {one[name]:.1f} | {eight[name]:.1f} |\n" for name in one]
    whole, all_experts = record.figures["none"]["steps"]["1"]["ms"], footprint(config, torch.bfloat16, {}).weights
    text = whole - one["experts"] * (1 - TOUCHED / config.num_experts)
    yield STEPS.format(
        gpu=record.machine["gpu"],
        card=card.name,
        rows="".join(rows),
        parts="".join(parts),
        rate=all_experts["experts"] / one["experts"] / 1e9,
        touched=TOUCHED,
        experts=config.num_experts,
        text=text,
        speed=19.7 / text * 1e3,
        note=f" {record.workload['note']}" if "note" in record.workload else "",
    )


def _parts(step: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of each part, and what lies between kernels."""
    spent = dict.fromkeys([*PARTS, "all other kernels"], 0.0)
    for name, _, microseconds in step["kernels"]:
        part = next((part for part, names in PARTS.items() if name.startswith(names)), "all other kernels")
        spent[part] += microseconds / 1e3
    return spent | {"between kernels": step["ms"] - sum(spent.values())}


def _measured(records: list[Record]) -> Iterator[str]:
    """A row for each record of a GPU that holds the experts: its step of one canvas behind the usual prefix."""
    rows = [
        f"| {record.machine['gpu']} | {record.workload['plan'] or 'bfloat16'} | {row['ms']:.1f} |\n"
        for record in records
        if record.machine.get("gpu") and record.workload.get("experts", "device") == "device"
        for row in record.figures["timed"]
        if (row["what"], row["canvases"], row["prefix"]) == ("step", 1, USUAL)
    ]
    if rows:
        yield f"\nMeasured: a step of one canvas behind {USUAL:,} tokens.\n\n| GPU | plan | ms |\n|---|---|---|\n"
        yield from rows


def _plans(config: ModelConfig) -> Iterator[str]:
    yield "\n## Bytes\n\nComputed: weights in memory, in GB of 10^9 bytes, without the vision tower.\n\n"
    parts = list(footprint(config, torch.bfloat16, {}).weights)
    yield "| plan | " + " | ".join(parts) + " | all |\n|---" + "|---" * (len(parts) + 1) + "|\n"
    for name, packed in _plans_of(config):
        need = footprint(config, torch.bfloat16, packed)
        sizes = " | ".join(f"{need.weights[part] / GIGABYTE:.2f}" for part in parts)
        yield f"| {name} | {sizes} | {need.fixed / GIGABYTE:.2f} |\n"
    need = footprint(config, torch.bfloat16, {})
    yield (
        f"\nAlso needed: {need.token:,} bytes per token of context, {need.request / 1e6:.0f} MB per request and"
        f" {need.canvas / 1e6:.0f} MB per canvas in the\nforward. 8-bit floats (fp8, nvfp4) need compute capability"
        f" {'.'.join(map(str, EIGHT_BIT_FLOATS))}.\n"
    )
