"""`redraft verify`: compare a checkpoint, run by this code, with transformers."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from redraft.cli.common import Commands, command, load_engine, model_flags, print_json

EPILOG = """Both are shown the same canvas and the same previous logits at every step, so differences cannot add up.
Needs transformers: pip install transformers==5.23.0

example:
  redraft verify nano"""

LIMIT = {"float32": 2e-4, "bfloat16": 1.0}
"""Largest |Δlogit| that rounding explains: in bfloat16 another matmul order moves a logit by a few of its last bits."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "verify", "compare a checkpoint's logits with transformers'", run, epilog=EPILOG)
    model_flags(parser, positional=True)
    parser.add_argument("--prompt", default="sudoku\n1..4\n..1.\n..42\n4...", help="the prompt (default: a Sudoku)")
    parser.add_argument("--steps", type=int, metavar="N", help="cap on denoising steps")
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Compare and judge: exit 1 if the largest difference is beyond what rounding explains."""
    from redraft.errors import RunError
    from redraft.measure.verify import verify
    from redraft.weights.defaults import dtype_name
    from redraft.weights.source import locate

    engine = load_engine(arguments)
    dtype = dtype_name(engine.model.dtype)
    found = verify(engine, locate(arguments.model), arguments.prompt, seed=arguments.seed, max_steps=arguments.steps)
    if arguments.json:
        print_json(asdict(found) | {"largest": found.largest})
    else:
        print(f"transformers {found.transformers}, {dtype}, largest |Δlogit| by pass:")
        print(f"  encode    {found.encode:.2e}")
        for one in found.steps:
            print(f"  step {one.step:>3}  {one.logits:.2e}  argmax equal at {one.argmax:.0%} of positions")
        print(f"largest: {found.largest:.2e}")
    if not found.largest <= LIMIT[dtype]:
        raise RunError(
            f"the largest |Δlogit| is {found.largest:.2e}, over {LIMIT[dtype]:.0e} for {dtype}: "
            "this checkpoint does not run here as it does in transformers"
        )
    return 0
