"""`redraft generate -n 20`: several answers to one prompt, alike ones merged, the likeliest first."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from redraft.cli.common import print_json
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.engine.request import Generation, ResolvedRequest
    from redraft.operations.engine import Engine
    from redraft.operations.variants import Variant


def variant_flags(parser: argparse.ArgumentParser) -> None:
    """How many answers, and how many are worth finishing."""
    parser.add_argument(
        "-n",
        "--variants",
        type=int,
        metavar="N",
        help="answer N times; merge equal answers, the likeliest first",
    )
    parser.add_argument(
        "--keep", type=int, metavar="K", help="with -n: finish the K canvases that are most certain after two steps"
    )


def check_variants(arguments: argparse.Namespace) -> None:
    """Raise RequestError for flags that do not go together."""
    if arguments.keep is not None and arguments.variants is None:
        raise RequestError("--keep was given without -n; it says how many of the variants are finished")
    if arguments.variants is not None and arguments.watch:
        raise RequestError("--watch and -n were both given; one canvas can be watched: choose one")
    for name in ("fence", "thinking"):
        if arguments.variants is not None and getattr(arguments, name):
            raise RequestError(f"--{name} and -n were both given; variants are compared as they stand: choose one")
    if arguments.keep is not None and arguments.keep > arguments.variants:
        raise RequestError(f"--keep is {arguments.keep} and -n is {arguments.variants}; no more can go on than begin")


def run_variants(engine: Engine, request: ResolvedRequest, arguments: argparse.Namespace) -> None:
    """Answer, telling each answer on stderr as it finishes, and print the ranking."""
    from redraft.operations.variants import mean, variants

    heard = 0

    def tell(done: Generation) -> None:
        nonlocal heard
        heard += 1
        line = f"answer {heard}, seed {done.seed}, {mean(done.entropy):.4f} nats, {done.seconds:.2f} s"
        print(line, file=sys.stderr)

    told = tell if sys.stderr.isatty() else None
    found = variants(engine, request, arguments.variants, keep=arguments.keep, on_answer=told)
    if arguments.json:
        print_json([_json(variant) for variant in found])
        return
    for place, variant in enumerate(found, start=1):
        alike = f"{len(variant.answers)} alike" if len(variant.answers) > 1 else "once"
        print(f"[{place}] {alike}, {variant.entropy:.4f} nats\n{variant.text}")


def _json(variant: Variant) -> dict[str, object]:
    best = variant.answers[0]
    return {
        "text": variant.text,
        "agreement": round(variant.agreement, 6),
        "entropy": round(variant.entropy, 6),
        "seeds": [done.seed for done in variant.answers],
        "tokens": list(best.tokens),
        "steps": list(best.steps),
        "finish": best.finish,
    }
