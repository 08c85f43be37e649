"""What tests of training share: the shape of a small model, and what is compared of two runs."""

from __future__ import annotations

import json
from pathlib import Path

from redraft.tune.train import LOG

SHAPE = """
[model]
hidden_size = 32
intermediate_size = 24
moe_intermediate_size = 16
num_heads = 4
num_kv_heads = 2
num_full_kv_heads = 1
head_dim = 8
full_head_dim = 16
num_experts = 4
top_k_experts = 2
layers = ["sliding", "full", "sliding", "full"]
window = 16
max_positions = 128
canvas_length = 24
"""


def rows(folder: Path) -> list[dict[str, float]]:
    """The log of a run without what differs from run to run."""
    found = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found]
