"""Every form of forward that a server will need, run once before it is ready: on a GPU the first run of each compiles
kernels for seconds and records graphs, and no request should wait for that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from redraft.engine.engine import Core
from redraft.engine.request import Options, Request
from redraft.errors import RedraftError

LANES = (1, 2, 4, 8, 12)
"""Canvases of a forward: a graph for each of the first four, and more than have one."""
PROMPTS = (5, 16, 100, 256, 300)
"""Tokens of a prompt: one chunk or two, with remainders that are multiples of 16 or not."""
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def warm_up(engine: Core, report: Callable[[str], None]) -> None:
    """Run every form on a GPU, with a line for each; elsewhere nothing is compiled. What fails is reported: requests of
    that form will fail, too."""
    if engine.model.device.type != "cuda":
        return
    for what, requests in forms(engine):
        began = time.monotonic()
        try:
            for handle in [engine.submit(one) for one in requests]:
                handle.result()
        except RedraftError as error:
            report(f"warming up: {what} failed ({error})")
        else:
            report(f"warming up: {what} in {time.monotonic() - began:.1f} s")
    if engine.loop.runner.no_graphs:
        report(f"steps are launched one by one, because a graph could not be recorded ({engine.loop.runner.no_graphs})")
    engine.loop.runner.prefixes.clear()


def forms(engine: Core) -> Iterator[tuple[str, list[Request]]]:
    """What is run, in words and as requests."""
    start, width = engine.text.bos_token_id, engine.config.model.canvas_length

    def asked(prompt: int, seed: int, blocks: int = 1, logprobs: int | None = None) -> Request:
        return Request([start] * prompt, Options(max_tokens=blocks * width, steps=2, seed=seed, logprobs=logprobs))

    for lanes in LANES:
        yield f"{lanes} canvases", [asked(PROMPTS[0], seed, 2) for seed in range(lanes)]
    for prompt in PROMPTS[1:]:
        yield f"a prompt of {prompt} tokens", [asked(prompt, 0)]
    yield "log-probabilities", [asked(PROMPTS[0], 0, logprobs=1)]
    yield "a schema", [Request([start] * PROMPTS[0], Options(max_tokens=width, steps=2, seed=0), schema=SCHEMA)]
