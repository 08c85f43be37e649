"""The page docs/devices.md: what the 26B model needs of which card, computed, and what has been measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from redraft.config import ModelConfig, read_config
from redraft.measure.record import Record, read_record
from redraft.measure.roofline import CARDS, Card, step_work
from redraft.weights.memory import GIGABYTE, footprint
from redraft.weights.place import Placement
from redraft.weights.plan import EIGHT_BIT_FLOATS, PLANS, Formats, Plan, formats

SHAPE = Path("recipes") / "shapes" / "26b"
USUAL = 2048
HEAD = """# Devices

<!-- Written by bench/generate.py from the memory plan and the floor; take a device record, then run `make docs`. -->

Which card runs the 26B model, in which numbers, and how fast a step can be there. **Computed** figures follow from the
model's shapes and the vendors' data sheets (`weights/memory.py`, `measure/roofline.py`); they are bounds and no
promises. **Measured** ones come from records in `bench/records/`. What is in neither column is not known.

A step takes at least as long as reading its weights and caches once, or as its arithmetic, whichever is more. Every
expert is counted as touched; routing that touches fewer is faster. Contexts are those of one request, its canvas
included, and end at the model's own limit of 262,144 tokens.

"""

TAIL = """
## Experts elsewhere

`--offload experts` (`load(experts="host")`) keeps the experts in the processor's memory and copies those that rows are
sent to, one ahead of the one that multiplies, into two places on the card. A canvas is sent to nearly all of them, so a
step takes at least as long as reading them over the bus: 45.7 GB at the 25 GB/s of PCIe 4.0 x16 are 1.8 s in bfloat16,
0.5 s in int4 (computed). Answers are those of experts on the card, bit for bit in float32 (tested on a CPU).

Several GPUs, one model in each: not in this version.

## A step

What a step decides by is a few numbers a position: argmax, sample, entropy, and the likeliest probabilities if a rule
asks. They are copied to the host at once for all canvases of a forward, 12 to 20 bytes a position, and the rules run
there; soft embeddings stay on the device. Back go tokens, and the temperature and the uniform of each sample, without a
wait. So the host waits for a GPU once a step, whatever prompts and commits ride along. Steps that are taken alone, for
pins, changed distributions, languages or log-probabilities, wait once for each canvas, twice if it is held to a
language, and a few times more where log-probabilities are read.

`LoopConfig(graphs=True)`, or `--graphs`, lets a GPU repeat the steps of up to eight canvases as one graph, forward and
reading of the head together, with one graph for 1, 2, 4 and 8 places. Where a canvas stands is a number on the device,
so one capture serves all blocks of a request, and the next request in the same buffers. Narrower canvases and places
where nobody steps are filled up with dead rows, which nothing sees. Not in the graph: acceptance, stopping and
renoising, which a caller chooses; forwards that encode; a head that goes by the logits. It is refused with experts
elsewhere.

The next step is launched when the flags of the last one are known, and not one step late: late flags would hide the
host's part of a step, and cost every canvas one forward more than it needs. Which is dearer is not measured;
[decision 8](decisions/0008-who-decides-on-a-gpu.md) computes from how many steps a canvas it would pay.

All of this is tested on a CUDA device that is pretended (`tests/pretend.py`): tensors that say they are there, with
true numbers. It fails where tensors of both sides meet, counts what the host waits for, and records and replays graphs.

## Held to a language

Tokens are summed by class where the logits are, a kernel passes the messages of the [constraint](constraints.md) there,
too, and adds the bias; of a canvas only its likeliest text and a few sums come to the host, in one copy. What it takes
on an H100 is **estimated** and not measured, for a canvas of 256, 262,144 tokens and a schema of ten fields (1,025
states, 30,840 edges, which merge to 4,185 of 157 kinds):

| part | what bounds it | ms |
|---|---|---|
| tokens to classes | 268 MB of log-probabilities read once, small classes from whole sectors | 0.1 |
| the walk, three ways at once | 256 positions in turn, 2,500 to 4,400 cycles each | 0.4 to 0.65 |
| the way back | 256 times four reads that wait for each other | 0.15 |
| bias added | 268 MB read and written | 0.2 |
| all between, about a hundred operations of torch | their launches, half of them behind a kernel | 0.3 to 0.4 |
| together | | 1.1 to 1.5 |

The lower figure of the walk is its instructions, as compiled, on one multiprocessor; the higher one waits for every
read. A tenth of a step is 1.5 ms in bfloat16, 0.8 in 8 bits and 0.5 in 4 (the floors above): by this estimate a
language adds no more than a tenth in bfloat16, and more than that in fewer bits. What cannot be avoided are the three
passes over the log-probabilities, 0.24 ms, so there is room; launches as one graph are what to try first when it can be
measured. Not counted is what a step pays for going by its logits at all, which a stream never makes. A stream could sum
tokens by class on its way, but what is sampled and fed back is conditioned on the messages, which are there when it has
ended: a second pass would compute the logits once more, 0.38 ms of an H100's arithmetic, where keeping them is 268 MB
written and read, 0.16 ms (both computed). A sample from the k likeliest tokens goes by the logits, too; a stream keeps
the two likeliest probabilities, all that a rule asks. `redraft bench --device-card` times a canvas held, the walk by
itself, and messages on the host.

## Measuring

```
bench/gpu_session.sh OUT
```

runs all of the following on one GPU in half an hour at most, each part with a limit of its own, and leaves a small file
for each in OUT, and `all.tar.gz` of them; run again, it goes on with the parts that are missing. `LIMIT=540` ends it in
time, `TRAIN=recipes/nano-gpu.toml` trains first, `SMALL=1` runs every part on a CPU with next to nothing to do. By
hand:

```
python -m pytest -q -m gpu tests/gpu
redraft bench --device-card --model recipes/shapes/26b --device cuda --dtype bfloat16 --record device-26b.json
redraft bench --device-card --model recipes/shapes/26b --device cuda --dtype bfloat16 --plan int4 \\
  --record device-26b-int4.json
python bench/step_beside_transformers.py --device cuda --record step-26b.json
python bench/tiles.py --record tiles.json
redraft eval --model nano --device cuda --task records --task sudoku-4x4 --task lists --count 100 --json
```

The folder holds the released model's shape and no weights; the command makes random ones in the plan's format, measures
copying and multiplying, then prefill, steps of 1 to 16 canvases and behind 512 to 65,536 tokens, steps as one graph, a
commit, the head alone, and holding a canvas to a schema, and tells each as a multiple of its floor. With a checkpoint
for `--model` it measures that, a packed one, too. `--offload experts` is honoured: the floor of a step is then that of
the bus, which is measured as well. A shape that does not fit, or a format that the card cannot compute with, is refused
before anything is made, with what would fit. What fails is named in the record, beside driver and versions, and an
interrupt keeps what has been measured. Records named `device-*.json` in `bench/records/` fill the column "measured"
above, but those of experts on the host.

## What has not been run

No GPU was at hand while this was built. The kernels in `model/triton/` are held to their twins under Triton's
interpreter, in float32 and, where the interpreter can, in half precision, and compile for compute 8.9 and 9.0;
`pytest -m gpu` repeats the comparison natively and has not been run.

Not measured: every time and every peak of memory on a GPU; how fast a checkpoint of 50 GB comes from a disk to a device
(tensor by tensor, the next one read when the last is there); what 8 and 4 bits cost a model larger than nano in right
answers; which tiles are the fastest (`bench/tiles.py` tries some); the share of experts that real text touches;
bfloat16 inside the kernels' products; how much is lost where the units for 8-bit floats add up in fewer bits than
float32; the capture of graphs; copies that overlap with products; NCCL; transformers on the same card, which
`bench/step_beside_transformers.py` times at the same shape.
"""

COMPILED = """
## What the compiler makes of the kernels

Compiled for compute {arch} by Triton {version} as forwards of this model launch them, under every plan: steps of 1 and
8 canvases, a step as a graph, 1,024 tokens of prompt, a language (`bench/compiled.py`, record `kernels-compiled`).
At once: programs that a multiprocessor has room for. Units: wgmma are those of compute 9.0, mma the older ones, which
tiles of fewer than 64 rows have. Ahead: instructions that load what is not needed yet.

"""


PROCESSOR = """
## On a processor

Measured (record `plans-nano`): nano in each format beside plain float32, one thread of {processor}. Logits are off by
the norm of the difference over that of the logits; exact are {count} held-out answers of each of {tasks}.

"""


def page(root: Path) -> str:
    """The whole page."""
    config = read_config(root / SHAPE).model
    records = [read_record(path) for path in sorted((root / "bench" / "records").glob("device-*.json"))]
    parts = [HEAD, "## What fits\n\n", *_memory(config), "\n## How fast a step can be\n\n", *_floors(config, records)]
    compiled = read_record(root / "bench" / "records" / "kernels-compiled.json")
    plans = read_record(root / "bench" / "records" / "plans-nano.json")
    return "".join([*parts, *_plans(config), *_processor(plans), *_compiled(compiled), TAIL])


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
    yield "\nSo `--plan int8` is worth asking for on a processor from twice nano's width on; nano gains memory by it,\n"
    yield "if little time. Nothing is packed unless it is asked for. What 4 bits cost a larger model is not measured.\n"


def _compiled(record: Record) -> Iterator[str]:
    """The kernels by name, each with the range of what its forms have."""
    yield COMPILED.format(arch=record.workload["arch"] / 10, version=record.workload["triton"])
    columns = {"registers": "registers", "spills": "spills", "shared": "shared memory", "programs": "at once"}
    yield f"| kernel | forms | {' | '.join(columns.values())} | units | ahead |\n{'|---' * 8}|\n"
    kernels = record.figures["kernels"]
    for name in dict.fromkeys(row["kernel"] for row in kernels):
        rows = [row for row in kernels if row["kernel"] == name]
        units = [unit for unit in ("wgmma", "mma") if any(row[unit] for row in rows)]
        figures = " | ".join(_range([row[column] for row in rows]) for column in columns)
        ahead = _range([row["loads_ahead"] for row in rows])
        yield f"| `{name.lstrip('_')}` | {len(rows)} | {figures} | {', '.join(units)} | {ahead} |\n"


def _range(values: list[int]) -> str:
    return f"{min(values):,}" if min(values) == max(values) else f"{min(values):,} to {max(values):,}"


def _plans_of(config: ModelConfig) -> list[tuple[str, Plan | None, Formats]]:
    return [("bfloat16", None, {}), *((name, plan, formats(config, plan)) for name, plan in PLANS.items())]


def _memory(config: ModelConfig) -> Iterator[str]:
    yield "Computed: longest context of one request, and canvases of 8,192 tokens at once. Where the card is too\n"
    yield 'small, "host" is the context with `--offload experts`.\n\n'
    names = [name for name, _, _ in _plans_of(config)]
    yield f"| card | {' | '.join(names)} |\n{'|---' * (len(names) + 1)}|\n"
    for card in CARDS:
        yield (
            f"| {card.name} | " + " | ".join(_fit(config, card, packed) for _, _, packed in _plans_of(config)) + " |\n"
        )


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


def _floors(config: ModelConfig, records: list[Record]) -> Iterator[str]:
    yield "Computed: the floor of a denoising step behind 2,048 tokens, in milliseconds, with 1 canvas and with 8.\n"
    yield "Measured: the step of one canvas.\n\n"
    yield "| card | plan | 1 canvas | 8 canvases | measured |\n|---|---|---|---|---|\n"
    for card in CARDS:
        for name, plan, packed in _plans_of(config):
            if _refused(card, packed) or footprint(config, torch.bfloat16, packed).longest_context(card.memory) is None:
                continue
            one, eight = (
                step_work(config, torch.bfloat16, packed, canvases=count, prefix=USUAL).seconds(card, plan)
                for count in (1, 8)
            )
            yield f"| {card.name} | {name} | {1e3 * one:.1f} | {1e3 * eight:.1f} | {_measured(card, name, records)} |\n"


def _measured(card: Card, plan: str, records: list[Record]) -> str:
    words = card.name.split(" ")
    name = " ".join(words[:2]) if words[0] == "RTX" else words[0]
    for record in records:
        if record.workload.get("experts", "device") != "device":
            continue
        if name in str(record.machine.get("gpu")) and (record.workload["plan"] or "bfloat16") == plan:
            for row in record.figures["timed"]:
                if (row["what"], row["canvases"], row["prefix"]) == ("step", 1, USUAL):
                    return f"{row['ms']:.1f}"
    return "not measured"


def _plans(config: ModelConfig) -> Iterator[str]:
    yield "\n## Bytes\n\nComputed: weights in memory, in GB of 10^9 bytes, the vision tower left out.\n\n"
    parts = list(footprint(config, torch.bfloat16, {}).weights)
    yield "| plan | " + " | ".join(parts) + " | all |\n|---" + "|---" * (len(parts) + 1) + "|\n"
    for name, _, packed in _plans_of(config):
        need = footprint(config, torch.bfloat16, packed)
        sizes = " | ".join(f"{need.weights[part] / GIGABYTE:.2f}" for part in parts)
        yield f"| {name} | {sizes} | {need.fixed / GIGABYTE:.2f} |\n"
    need = footprint(config, torch.bfloat16, {})
    yield (
        f"\nBeside them: {need.token:,} bytes a token of context, {need.request / 1e6:.0f} MB a request and"
        f" {need.canvas / 1e6:.0f} MB a canvas in the\nforward. 8-bit floats (fp8, nvfp4) need compute capability"
        f" {'.'.join(map(str, EIGHT_BIT_FLOATS))}.\n"
    )
