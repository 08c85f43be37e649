"""The vision tower of the released shape with random numbers, beside transformers' on the same numbers: one picture.

    python bench/vision_tower.py --record bench/records/vision-tower.json [--tokens 280]

Both sides share the 2.3 GB of float32. Norms of queries and keys are scaled so that scores are of size 1: with larger
ones attention picks single patches, and in 27 random layers last bits decide which.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from redraft.errors import RedraftError
from redraft.images.config import ImageConfig, VisionConfig
from redraft.images.pixels import Picture, prepare
from redraft.measure.record import Record, check_place, new_record, write_record
from redraft.model.vision import VisionTower
from redraft.shapes import Tensor
from redraft.weights.names import VISION_PREFIXES
from redraft.weights.vision import random_tower, stored_tensors

SHAPE = VisionConfig(1152, 4304, 27, 16, 16, 72, standardize=True)
TEXT_SIZE = 2816


def main() -> int:
    """Compare, record, print."""
    parser = argparse.ArgumentParser(description="Compare the vision tower with transformers at its released shape.")
    parser.add_argument("--tokens", type=int, default=280, metavar="N", help="soft tokens at most (default: 280)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="write the record to this file")
    arguments = parser.parse_args()
    try:
        check_place(arguments.record)
        found = measure(arguments.tokens)
        write_record(found, arguments.record)
    except RedraftError as error:
        print(f"vision_tower: {error}", file=sys.stderr)
        return error.exit_code
    print(found)
    return 0


def measure(tokens: int) -> Record:
    """The record of one comparison."""
    ours, theirs, seconds = soft_tokens(tokens)
    off, width = float((ours - theirs).abs().max()), float(theirs.max() - theirs.min())
    shape = "27 layers of width 1152, random numbers, float32"
    return new_record(
        "vision-tower",
        workload={"tower": shape, "picture": "310x200, uniform noise", "soft_tokens": len(ours)},
        figures={"largest_difference": off, "range": width, "seconds_ours_and_theirs": seconds},
        summary=[
            (
                f"soft tokens of the released tower's shape ({shape}) beside transformers', a picture of {len(ours)}"
                " tokens: largest difference",
                f"{off:.1e} in a range of {width:.1f}",
            )
        ],
    )


@torch.no_grad()
def soft_tokens(most: int) -> tuple[Tensor, Tensor, list[float]]:
    """Soft tokens of one picture, ours and theirs, and the processor seconds of each."""
    config = ImageConfig(SHAPE, begin=0, placeholder=1, end=2, most_tokens=most)
    noise = np.random.default_rng(0).integers(0, 256, (200, 310, 3), np.uint8)
    picture = prepare(Image.fromarray(noise), config)
    tower = random_tower(SHAPE, TEXT_SIZE, 0).eval()
    for name, weight in tower.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            weight.fill_(SHAPE.head_dim**-0.25)
    began = time.process_time()
    ours = tower(torch.from_numpy(picture.patches()), picture.columns)
    between = time.process_time()
    theirs = run_theirs(tower, picture)
    return ours, theirs, [round(between - began, 1), round(time.process_time() - between, 1)]


def run_theirs(tower: VisionTower, picture: Picture) -> Tensor:
    """transformers on the same memory. Its projection is in another class; it is two lines."""
    model = their_tower(tower)
    pixels, places = torch.from_numpy(picture.patches())[None], torch.from_numpy(picture.positions())[None]
    out = model(pixels, places).last_hidden_state
    unit = torch.nn.functional.rms_norm(out, out.shape[-1:], eps=SHAPE.norm_eps)
    return unit @ tower.projection.weight.T


def their_tower(tower: VisionTower) -> Any:
    """Gemma 4's vision model with our numbers under their stored names, every one of them used."""
    import transformers

    keys = transformers.Gemma4VisionConfig(
        hidden_size=SHAPE.hidden_size,
        intermediate_size=SHAPE.intermediate_size,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        head_dim=SHAPE.head_dim,
        standardize=SHAPE.standardize,
    )
    keys._attn_implementation = "eager"
    with torch.device("meta"):
        model = transformers.Gemma4VisionModel(keys)
    prefix = VISION_PREFIXES[0]
    named = {name.removeprefix(prefix): t for name, t in stored_tensors(tower).items() if name.startswith(prefix)}
    model.load_state_dict(named, strict=True, assign=True)
    model.encoder.rotary_emb = type(model.encoder.rotary_emb)(keys)  # its frequencies are not stored
    return model.eval()


if __name__ == "__main__":
    sys.exit(main())
