"""`redraft verify`: compare a checkpoint, run by this code, with transformers."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from redraft.cli.common import Commands, command, load_engine, print_json
from redraft.cli.flags import model_flags
from redraft.errors import RunError

EPILOG = """Both are shown the same canvas and the same previous logits at every step, so differences cannot add up.
transformers also runs with eager attention and with eager experts, which should change nothing: the
difference of those runs is the noise, and ours fails beyond three times as much. Differences are shares of
the logits' spread, of the median position and of the ninth decile.
Needs transformers: pip install transformers==5.23.0

example:
  redraft verify nano"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "verify", "compare a checkpoint's logits with transformers'", run, epilog=EPILOG)
    model_flags(parser, positional=True)
    parser.add_argument(
        "--prompt",
        default="Extract as JSON: who, item\nSend 3 apples to Maria.",
        help="the prompt (default: a sentence)",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="cap on denoising steps")
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Compare and judge: exit 1 if the difference is beyond what transformers' own rounding explains."""
    from redraft.measure.verify import MULTIPLE, verify
    from redraft.weights.source import locate

    engine = load_engine(arguments)
    found = verify(engine, locate(arguments.model), arguments.prompt, seed=arguments.seed, max_steps=arguments.steps)
    limit = found.limit
    if arguments.json:
        print_json(asdict(found) | {"limit": asdict(limit), "agrees": found.agrees})
    else:
        print(f"transformers {found.transformers}, {found.dtype}; differences as shares of the logits' spread:")
        print("            median    9th decile  noise     9th decile  largest   argmax equal")
        for one in found.passes:
            print(
                f"  {one.name:<9} {one.ours.median:.2e}  {one.ours.ninth_decile:.2e}    {one.noise.median:.2e}"
                f"  {one.noise.ninth_decile:.2e}    {one.largest:.2e}  {one.argmax:.0%}"
            )
        print(
            f"all passes: {found.ours.median:.2e} and {found.ours.ninth_decile:.2e};"
            f" allowed are {limit.median:.2e} and {limit.ninth_decile:.2e}"
        )
    if not found.agrees:
        raise RunError(
            f"logits differ by {found.ours.median:.2e} of their spread (ninth decile {found.ours.ninth_decile:.2e}) and"
            f" {MULTIPLE:.0f} times transformers' own noise is {limit.median:.2e} ({limit.ninth_decile:.2e}): this"
            " checkpoint does not run here as it does in transformers"
        )
    return 0
