"""Training throughput beside a plain loop over transformers' modules: same objective, model, samples and noise.

    python scripts/tuning_speed.py --steps 6 --record benchmarks/tuning-speed.json

One sample is a 4x4 puzzle with its answer. Both loops encode it once, guess for the same half of the canvases and
denoise. The plain loop does it as the published recipes do: one corruption behind each clean pass, on the canvas the
model ships with. Ours is measured so, too, then with a matching canvas, with several corruptions behind a clean pass,
and in bfloat16. Loops take turns, so that other load on the machine meets all of them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.nn import functional as F

from redraft.measure.record import median, new_record, write_record
from redraft.tasks import Sudoku
from redraft.tune.base import Base, read_base
from redraft.tune.data import Feed
from redraft.tune.objective import Batch, Corruption, Noise, corrupt, losses
from redraft.tune.recipe import DataRecipe, ObjectiveRecipe, Recipe, TrainRecipe

BATCH = 32


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description="Training throughput beside transformers.")
    parser.add_argument("--steps", type=int, default=6, help="steps of each loop (default: 6)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: 1)")
    parser.add_argument("--record", type=Path, help="also write a benchmark record to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        base = read_base(recipe(1.0, 1), Path(folder))
        loops = {"transformers, plain loop": plain(base, Path(folder))}
        loops["redraft, the same batches"] = ours(base, 0.0, 1, bfloat16=False)
        loops["redraft, matching canvas"] = ours(base, 1.0, 1, bfloat16=False)
        loops["redraft, matching canvas, 3 corruptions"] = ours(base, 1.0, 3, bfloat16=False)
        loops["redraft, matching canvas, 3 corruptions, bfloat16"] = ours(base, 1.0, 3, bfloat16=True)
        rates: dict[str, list[float]] = {name: [] for name in loops}
        for step in range(arguments.steps + 1):
            for name, (canvases, loop) in loops.items():
                began = time.monotonic()
                loop(step)
                if step:
                    rates[name].append(canvases / (time.monotonic() - began))
                print(f"\rstep {step}/{arguments.steps}  {name:<60}", end="", flush=True)
    print()
    figures = {name: {"canvases_per_sec": median(found), "runs": found} for name, found in rates.items()}
    slowest = median(rates["transformers, plain loop"])
    summary = [
        (f"Training nano on 4x4 Sudoku, {name}", f"{median(found):.1f} canvases/s, {median(found) / slowest:.1f} times")
        for name, found in rates.items()
    ]
    for figure, value in summary:
        print(f"{figure}: {value}")
    if arguments.record:
        workload = {"model": "nano", "batch": BATCH, "steps": arguments.steps, "canvas": base.config.canvas_length}
        write_record(new_record("tuning-speed", workload=workload, figures=figures, summary=summary), arguments.record)


def recipe(fit_share: float, draws: int) -> Recipe:
    """nano on 4x4 Sudoku."""
    return Recipe(
        name="speed",
        start="nano",
        data=DataRecipe(tasks={"sudoku-4x4": 1.0}, fit_share=fit_share),
        objective=ObjectiveRecipe(draws=draws),
        train=TrainRecipe(steps=1, batch_size=BATCH),
    )


def batch_of(base: Base, wanted: Recipe, step: int) -> Batch:
    """One step's samples; a puzzle's tokens do not differ in number, so there is one batch."""
    feed = Feed(wanted, base)
    examples = islice(Sudoku().examples("train", step), BATCH)
    (batch,) = feed.pack([feed.row(example, Random(step), base.config.canvas_length) for example in examples])
    return batch


def ours(base: Base, fit_share: float, draws: int, *, bfloat16: bool) -> tuple[int, Callable[[int], None]]:
    """Canvases of a step, and the step."""
    wanted = recipe(fit_share, draws)
    model = base.model().requires_grad_(True).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(number: int) -> None:
        batch = batch_of(base, wanted, number)
        noise = corrupt(batch, base.config.vocab_size, torch.Generator().manual_seed(number), Noise())
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            total = losses(model, batch, noise).total
        total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return BATCH * draws, step


def plain(base: Base, folder: Path) -> tuple[int, Callable[[int], None]]:
    """The same step with transformers' modules, as their documentation would have it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    base.save(base.model(), folder)
    theirs = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(folder).train()
    optimizer = torch.optim.AdamW(theirs.parameters(), fused=True)
    wanted = recipe(0.0, 1)

    def step(number: int) -> None:
        batch = batch_of(base, wanted, number)
        noise = corrupt(batch, base.config.vocab_size, torch.Generator().manual_seed(number), Noise())
        plain_loss(theirs, batch, noise).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return BATCH, step


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
