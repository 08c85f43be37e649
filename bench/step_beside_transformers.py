"""Times a denoising step of one canvas beside transformers': same shape, same device, one after the other.

    python bench/step_beside_transformers.py --model recipes/shapes/26b --device cuda --record step-26b.json

Weights are random in both, which times the same: nothing here is about answers. A step is the forward behind a prefix
and what the sampler reads of the logits: sample, argmax, entropy, and the soft embedding or what it is made from. Ours
comes first and is written down at once, so that a transformers without the model, or without room, costs no more than
itself; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from redraft.config import read_config
from redraft.measure.device import random_weights, step_of, time_runs
from redraft.measure.record import new_record, write_record
from redraft.weights.defaults import kernels_of
from redraft.weights.source import locate


def main() -> None:
    """Ours, then theirs, one record."""
    parser = argparse.ArgumentParser(description="Time a denoising step beside transformers'.")
    parser.add_argument("--model", default="recipes/shapes/26b", help="a folder with a config.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--prefix", type=int, default=2048, help="tokens before the canvas (default: 2048)")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    device, dtype, folder = torch.device(arguments.device), getattr(torch, arguments.dtype), locate(arguments.model)
    what = f"a step of one canvas of {folder.name} behind {arguments.prefix} tokens, {arguments.dtype}, {device.type}"
    workload = {"model": folder.name, "dtype": arguments.dtype, "prefix": arguments.prefix, "device": str(device)}
    found: dict[str, dict[str, Any]] = {}
    for name, make in (("redraft", _ours), ("transformers", _theirs)):
        started = time.perf_counter()
        found[name] = _timed(partial(make, folder, device, dtype, arguments.prefix), device, arguments.runs)
        print(f"{name}: {found[name]['ms']:.2f} ms ({time.perf_counter() - started:.0f} s in all)", flush=True)
        if name == "transformers":
            workload["transformers"] = version(name)
        summary = [(what, _claim(found))]
        write_record(
            new_record(f"step-{folder.name}", workload=workload, figures=found, summary=summary), arguments.record
        )


def _timed(make: Callable[[], Callable[[], object]], device: torch.device, runs: int) -> dict[str, Any]:
    """Of one side, whose memory is free again behind it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = time_runs(make(), device, runs)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    gc.collect()
    torch.cuda.empty_cache()
    return {"ms": 1e3 * median(seconds), "runs_ms": [1e3 * one for one in seconds], "peak_bytes": peak}


def _claim(found: dict[str, dict[str, Any]]) -> str:
    ours = found["redraft"]["ms"]
    if "transformers" not in found:
        return f"{ours:.1f} ms, transformers not timed"
    theirs = found["transformers"]["ms"]
    return f"{ours:.1f} ms, transformers {theirs:.1f} ms: {theirs / ours:.1f} times as fast"


def _ours(folder: Path, device: torch.device, dtype: torch.dtype, prefix: int) -> Callable[[], object]:
    model = random_weights(read_config(folder).model, dtype, device, {}, kernels_of(device))
    return step_of(model, 1, prefix)


def _theirs(folder: Path, device: torch.device, dtype: torch.dtype, prefix: int) -> Callable[[], object]:
    import transformers

    config: Any = transformers.DiffusionGemmaConfig.from_pretrained(folder)
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
