"""Training throughput beside a plain loop over transformers' modules: same objective, model, samples and noise.

    python bench/tuning_speed.py --steps 6 --record bench/records/tuning-speed.json
    python bench/tuning_speed.py --device cuda --batch 1024 --steps 20 --record bench/records/tuning-speed-cuda.json

One sample is a 4x4 puzzle with its answer. Both loops encode it once, guess for the same half of the canvases and
denoise. The plain loop does it as the published recipes do: one corruption behind each clean pass, on the canvas the
model ships with. Ours is measured so, too, then with a matching canvas, with several corruptions behind a clean pass,
and in bfloat16. Loops take turns, so that other load on the machine meets all of them.

The share of the matmul peak is what torch's own counter finds a step multiplies, over its seconds and over the rate of
one large square matmul in the same numbers, measured just before. Canvases a second are what to compare loops by: one
that wastes arithmetic has a fine share.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from redraft.measure.device import measure_card
from redraft.measure.record import new_record, write_record
from redraft.tasks import Sudoku
from redraft.tune.base import Base, read_base
from redraft.tune.data import Feed
from redraft.tune.objective import Batch, Corruption, corrupt, losses
from redraft.tune.recipe import DataRecipe, ObjectiveRecipe, Recipe, TrainRecipe


@dataclass(frozen=True)
class TrainingStep:
    """A way to train: the canvases of a step, the numbers it multiplies, and the step."""

    canvases: int
    dtype: torch.dtype
    step: Callable[[int], None]


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description="Training throughput beside transformers.")
    parser.add_argument("--steps", type=int, default=6, help="steps of each loop (default: 6)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: 1)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--batch", type=int, default=32, help="puzzles of a step (default: 32)")
    parser.add_argument("--record", type=Path, help="also write a benchmark record to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device, batch = torch.device(arguments.device), arguments.batch
    peaks = {dtype: measure_card(device, dtype, 3).bf16 for dtype in (torch.float32, torch.bfloat16)}
    with tempfile.TemporaryDirectory() as folder:
        base = read_base(recipe(1.0, 1, batch), Path(folder))
        loops = {"transformers, plain loop": plain(base, Path(folder), device, batch)}
        loops["redraft, the same batches"] = ours(base, 0.0, 1, device, batch)
        loops["redraft, matching canvas"] = ours(base, 1.0, 1, device, batch)
        loops["redraft, matching canvas, 3 corruptions"] = ours(base, 1.0, 3, device, batch)
        loops["redraft, matching canvas, 3 corruptions, bfloat16"] = ours(base, 1.0, 3, device, batch, torch.bfloat16)
        work = {name: counted(loop) for name, loop in loops.items()}
        seconds = timed(loops, device, arguments.steps)
    figures: dict[str, Any] = {"matmul_peak": {str(dtype): peak for dtype, peak in peaks.items()}}
    for name, loop in loops.items():
        rates = [loop.canvases / each for each in seconds[name]]
        share = work[name] / median(seconds[name]) / peaks[loop.dtype]
        figures[name] = {"canvases_per_sec": median(rates), "share_of_matmul_peak": share, "runs": rates}
    summary = reported({name: figures[name] for name in loops}, device)
    for figure, value in summary:
        print(f"{figure}: {value}")
    if arguments.record:
        workload = {
            "model": "nano-sudoku",
            "batch": batch,
            "steps": arguments.steps,
            "canvas": base.config.canvas_length,
        }
        workload |= {"device": str(device)}
        write_record(
            new_record(arguments.record.stem, workload=workload, figures=figures, summary=summary), arguments.record
        )


def reported(figures: dict[str, dict[str, Any]], device: torch.device) -> list[tuple[str, str]]:
    """The lines of the record, loop by loop."""
    slowest = figures["transformers, plain loop"]["canvases_per_sec"]
    where = "" if device.type == "cpu" else f" on {device.type}"
    lines = []
    for name, found in figures.items():
        rate, share = found["canvases_per_sec"], found["share_of_matmul_peak"]
        value = f"{rate:.1f} canvases/s, {rate / slowest:.1f} times, {share:.1%} of the matmul peak"
        lines.append((f"Training nano-sudoku on 4x4 Sudoku{where}, {name}", value))
    return lines


def counted(loop: TrainingStep) -> int:
    """Operations of the matmuls of a step, forward and backward, as torch counts them. It also warms up."""
    with FlopCounterMode(display=False) as counter:
        loop.step(0)
    return int(counter.get_total_flops())


def timed(loops: dict[str, TrainingStep], device: torch.device, steps: int) -> dict[str, list[float]]:
    """Seconds of each step of each loop."""
    found: dict[str, list[float]] = {name: [] for name in loops}
    for step in range(1, steps + 1):
        for name, loop in loops.items():
            began = time.monotonic()
            loop.step(step)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            found[name].append(time.monotonic() - began)
            print(f"\rstep {step}/{steps}  {name:<60}", end="", flush=True)
    print()
    return found


def recipe(fit_share: float, draws: int, batch: int) -> Recipe:
    """nano-sudoku on 4x4 Sudoku."""
    return Recipe(
        name="speed",
        start="nano-sudoku",
        data=DataRecipe(tasks={"sudoku-4x4": 1.0}, fit_share=fit_share),
        objective=ObjectiveRecipe(draws=draws),
        train=TrainRecipe(steps=1, batch_size=batch),
    )


def batch_of(base: Base, wanted: Recipe, step: int) -> Batch:
    """One step's samples; a puzzle's tokens do not differ in number, so there is one batch."""
    feed = Feed(wanted, base)
    examples = islice(Sudoku().examples("train", step), wanted.train.batch_size)
    (batch,) = feed.pack([feed.row(example, Random(step), base.config.canvas_length) for example in examples])
    return batch


def ours(
    base: Base, fit_share: float, draws: int, device: torch.device, size: int, dtype: torch.dtype = torch.float32
) -> TrainingStep:
    """The trainer's step."""
    wanted = recipe(fit_share, draws, size)
    model = base.model().to(device).requires_grad_(True).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(number: int) -> None:
        batch = batch_of(base, wanted, number)
        noise = corrupt(batch, base.config.vocab_size, torch.Generator().manual_seed(number))
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype is torch.bfloat16):
            total = losses(model, batch.to(device), noise.to(device)).total
        total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return TrainingStep(size * draws, dtype, step)


def plain(base: Base, folder: Path, device: torch.device, size: int) -> TrainingStep:
    """The same step with transformers' modules, as their documentation would have it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    base.save(base.model(), folder)
    theirs: Any = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(folder)
    theirs = theirs.to(device).train()
    optimizer = torch.optim.AdamW(theirs.parameters(), fused=True)
    wanted = recipe(0.0, 1, size)

    def step(number: int) -> None:
        batch = batch_of(base, wanted, number)
        noise = corrupt(batch, base.config.vocab_size, torch.Generator().manual_seed(number))
        plain_loss(theirs, batch.to(device), noise.to(device)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return TrainingStep(size, torch.float32, step)


def plain_loss(theirs: Any, batch: Batch, noise: Corruption) -> torch.Tensor:
    """Both losses of a batch whose prompts are equally long."""
    from transformers import DynamicCache

    config = theirs.config.text_config
    cap, start = config.final_logit_softcapping, int(batch.start[0])
    cache = DynamicCache(config=config)
    hidden = theirs.model.encoder.language_model(input_ids=batch.clean, past_key_values=cache).last_hidden_state
    logits = torch.tanh(theirs.lm_head(hidden[:, :-1]) / cap) * cap
    encode = F.cross_entropy(logits.flatten(0, 1), batch.clean[:, 1:].flatten())
    cache.crop(start - batch.clean.shape[1])  # negative: tokens to forget
    canvas = {"past_key_values": cache, "decoder_input_ids": noise.canvas}
    with torch.no_grad():
        guess = theirs(**canvas).logits
    said = theirs(**canvas, self_conditioning_logits=guess, self_conditioning_mask=noise.conditioned).logits
    return encode + F.cross_entropy(said.flatten(0, 1), batch.target.flatten())


if __name__ == "__main__":
    main()
