"""Times a denoising step of one canvas beside transformers': same shape, same device, one after the other.

    python scripts/step_beside_transformers.py --model recipes/shapes/26b --device cuda --record step-26b.json

Weights are random in both, which times the same: nothing here is about answers. A step is the forward behind a prefix
and what the sampler reads of the logits: sample, argmax, entropy, and the soft embedding or what it is made from.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from redraft.cli.kernels import kernels_for
from redraft.config import read_config
from redraft.measure.device import random_weights, step_of, time_runs
from redraft.measure.record import new_record, write_record
from redraft.weights.source import locate


def main() -> None:
    """Theirs, then ours, one record."""
    parser = argparse.ArgumentParser(description="Time a denoising step beside transformers'.")
    parser.add_argument("--model", default="recipes/shapes/26b", help="a folder with a config.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--prefix", type=int, default=2048, help="tokens before the canvas (default: 2048)")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    device, dtype, folder = torch.device(arguments.device), getattr(torch, arguments.dtype), locate(arguments.model)
    found = {}
    for name, make in (("transformers", _theirs), ("redraft", _ours)):
        started = time.perf_counter()
        step = make(folder, device, dtype, arguments.prefix)
        seconds = time_runs(step, device, arguments.runs)
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        found[name] = {"ms": 1e3 * median(seconds), "runs_ms": [1e3 * one for one in seconds], "peak_bytes": peak}
        print(f"{name}: {found[name]['ms']:.2f} ms ({time.perf_counter() - started:.0f} s in all)", flush=True)
        del step
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
    ours, theirs = (found[name]["ms"] for name in ("redraft", "transformers"))
    what = f"a step of one canvas of {folder.name} behind {arguments.prefix} tokens, {arguments.dtype}, {device.type}"
    claim = f"{ours:.1f} ms, transformers {theirs:.1f} ms: {theirs / ours:.1f} times as fast"
    workload = {"model": folder.name, "dtype": arguments.dtype, "prefix": arguments.prefix, "device": str(device)}
    workload |= {"transformers": transformers.__version__}
    record = new_record(f"step-{folder.name}", workload=workload, figures=found, summary=[(what, claim)])
    write_record(record, arguments.record)


def _ours(folder: Path, device: torch.device, dtype: torch.dtype, prefix: int) -> Callable[[], object]:
    model = random_weights(read_config(folder).model, dtype, device, {}, kernels_for(str(device)))
    return step_of(model, 1, prefix)


def _theirs(folder: Path, device: torch.device, dtype: torch.dtype, prefix: int) -> Callable[[], object]:
    config = transformers.DiffusionGemmaConfig.from_pretrained(folder)
    with device:
        model: Any = transformers.DiffusionGemmaForBlockDiffusion._from_config(config, dtype=dtype)
    model = model.eval().requires_grad_(False)
    text = config.text_config
    cache = transformers.DynamicCache(config=text)
    tokens = torch.arange(prefix, device=device)[None] % text.vocab_size
    canvas = torch.arange(config.canvas_length, device=device)[None] % text.vocab_size
    with torch.inference_mode():
        model.model.encoder.language_model(input_ids=tokens, past_key_values=cache)
    before = torch.zeros(1, config.canvas_length, text.vocab_size, dtype=dtype, device=device)

    def step() -> object:
        out = model(past_key_values=cache, decoder_input_ids=canvas, self_conditioning_logits=before)
        z = out.logits.float() / 0.6
        p = torch.softmax(z, dim=-1)
        sample = torch.multinomial(p[0], 1)
        entropy = -(p * torch.log_softmax(z, dim=-1)).sum(-1)
        return sample, z.argmax(-1), entropy, z.to(dtype)

    return step


if __name__ == "__main__":
    main()
