"""`redraft generate`: one prompt, and one answer or several variants of it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING

from redraft.cli.backend import backend_of, generate_remote
from redraft.cli.common import (
    Commands,
    asked,
    command,
    load_engine,
    note,
    print_json,
    prompt_flags,
    read_prompt,
    say_bounds,
    tame,
)
from redraft.cli.constraint_flags import (
    check_flag,
    check_of,
    check_thinking,
    constraint_flags,
    constraint_of,
    note_ignored,
    thinking_flag,
)
from redraft.cli.flags import backend_flags, model_flags, options_of, sampling_flags
from redraft.cli.trace import answered, traced, watch_flag
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.engine.request import Generation, ResolvedRequest
    from redraft.operations.engine import Engine
    from redraft.operations.variants import Variant

EPILOG = """examples:
  redraft generate --model nano-sudoku --chat $'sudoku\\n1..4\\n..1.\\n..42\\n4...'
  echo 'Once upon a time' | redraft generate --model ./checkpoint --max-tokens 64 --seed 7
  redraft generate --chat --watch --file question.txt --json
  redraft generate --chat -n 20 --keep 5 --file question.txt
  redraft generate --chat --regex '[A-Z]{2}[0-9]{4}' --file question.txt
  redraft generate --chat --check 'python -m json.tool' $'Repair the JSON:\\n{"a":1'"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "generate", "answer a prompt", run, epilog=EPILOG)
    prompt_flags(parser, "a text to continue")
    watch_flag(parser)
    thinking_flag(parser, "the thinking goes to stderr")
    variant_flags(parser)
    constraint_flags(parser)
    check_flag(parser)
    sampling_flags(parser)
    model_flags(parser, plan=True)
    backend_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Load, generate, print."""
    check_variants(arguments)
    check = check_of(arguments)
    check_thinking(arguments)
    check_images(arguments)
    prompt = read_prompt(arguments.prompt, arguments.file)
    if (backend := backend_of(arguments)) is not None:
        return generate_remote(backend, arguments, prompt)
    source = constraint_of(arguments)

    import torch

    from redraft.constraints.places import unfenced
    from redraft.engine.fields import field_confidence, field_entropy
    from redraft.engine.request import Request

    say_bounds(arguments, prompt if arguments.chat else None)
    engine, options = load_engine(arguments), options_of(arguments)
    shown = asked(prompt, arguments.image)
    request = engine.resolve(
        Request(shown, options, chat=arguments.chat, thinking=arguments.thinking, constraint=source, check=check)
    )
    with traced(engine, arguments, "generate") as engine:
        if arguments.variants is not None:
            run_variants(engine, request, arguments)
            return 0
        done = answered(engine, request, arguments)
    more: dict[str, object] = {"threads": torch.get_num_threads()}
    if arguments.thinking:
        more["thinking"] = done.reasoning.strip()
        if not arguments.json:
            print(tame(done.reasoning.strip()), file=sys.stderr)
    note_ignored(done.ignored)
    text = unfenced(done.text) if arguments.fence else done.text
    if arguments.json:
        if source is not None and source.kind == "schema":
            more["fields"] = field_entropy(engine.text, done)
            more["confidence"] = field_confidence(engine.text, done)
        print_json(generation_json(done) | more | {"text": text})
    else:
        print(text)
        if done.finish == "deadline":
            note(f"cut at {len(done.tokens)} tokens, as the time was up; --deadline allows for more")
        elif not done.tokens:
            note("the answer is empty: the model ended it at once; --min-tokens N asks for more")
        if done.finish == "length":
            note(f"cut at {len(done.tokens)} tokens; --max-tokens allows for more")
    return 0


def generation_json(done: Generation) -> dict[str, object]:
    """A finished answer as JSON, with the fields of `Generation`."""
    return asdict(done) | {
        "entropy": [round(nats, 6) for nats in done.entropy],
        "log_mass": [round(nats, 6) for nats in done.log_mass],
        "tokens_per_forward": round(done.tokens_per_forward, 3),
        "tokens_per_pass": round(done.tokens_per_pass, 3),
    }


def check_images(arguments: argparse.Namespace) -> None:
    """Raise RequestError for images without a turn that they could stand in."""
    if arguments.image and not arguments.chat:
        raise RequestError("--image was given without --chat; images stand in a user's turn: add --chat")


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
        raise RequestError("--keep was given without -n; it is how many of the variants are finished")
    if arguments.variants is not None and arguments.watch:
        raise RequestError("--watch and -n were both given; one canvas can be watched: choose one")
    for name in ("fence", "thinking"):
        if arguments.variants is not None and getattr(arguments, name):
            raise RequestError(f"--{name} and -n were both given; variants are compared as whole texts: choose one")
    if arguments.keep is not None and arguments.keep > arguments.variants:
        raise RequestError(f"--keep is {arguments.keep} and -n is {arguments.variants}; no more can go on than begin")


def run_variants(engine: Engine, request: ResolvedRequest, arguments: argparse.Namespace) -> None:
    """Answer, report each answer on a terminal as it finishes, and print the ranking."""
    from redraft.operations.variants import mean, variants

    numbers = count(1)

    def report(done: Generation) -> None:
        note(f"answer {next(numbers)}, seed {done.seed}, {mean(done.entropy):.4f} nats, {done.seconds:.2f} s")

    on_answer = report if sys.stderr.isatty() else None
    found = variants(engine, request, arguments.variants, keep=arguments.keep, on_answer=on_answer)
    if arguments.json:
        print_json([_variant_json(variant) for variant in found])
        return
    for place, variant in enumerate(found, start=1):
        alike = f"{len(variant.answers)} alike" if len(variant.answers) > 1 else "once"
        print(f"[{place}] {alike}, {variant.entropy:.4f} nats\n{variant.text}")


def _variant_json(variant: Variant) -> dict[str, object]:
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
