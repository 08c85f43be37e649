"""`redraft generate`: one prompt, one answer, the canvas on show if wanted."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from redraft.cli.backend import backend_of, generate_remote
from redraft.cli.bounds import say_bounds
from redraft.cli.check import check_flag, check_of
from redraft.cli.common import Commands, command, load_engine, note, print_json, read_prompt
from redraft.cli.flags import backend_flags, model_flags, options_of, sampling_flags
from redraft.cli.held import held_flags, held_source
from redraft.cli.thinking import check_thinking, thinking_flag
from redraft.cli.trace import trace_flag, traced
from redraft.cli.variants import check_variants, run_variants, variant_flags

if TYPE_CHECKING:
    from redraft.engine.request import Generation

EPILOG = """examples:
  redraft generate --chat $'sudoku\\n1..4\\n..1.\\n..42\\n4...'
  echo 'Once upon a time' | redraft generate --model ./checkpoint --max-tokens 64 --seed 7
  redraft generate --chat --watch --file question.txt --json
  redraft generate --chat -n 20 --keep 5 --file question.txt
  redraft generate --chat --schema 'who, qty int, item' $'record\\nSend 417 melu to Karomi.'
  redraft generate --chat --check 'python -m json.tool' $'record\\nSend 417 melu to Karomi.'"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "generate", "answer a prompt", run, epilog=EPILOG)
    what = 'a text to continue; "-" or nothing reads stdin'
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help=what)
    parser.add_argument("--file", type=Path, help="read the prompt from a file")
    parser.add_argument("--chat", action="store_true", help="send it as a user's turn, through the chat template")
    parser.add_argument("--watch", action="store_true", help="show the canvas settling, on stderr")
    trace_flag(parser)
    thinking_flag(parser, "the thinking goes to stderr")
    variant_flags(parser)
    held_flags(parser)
    check_flag(parser)
    sampling_flags(parser)
    model_flags(parser, plan=True)
    backend_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Load, generate, print."""
    check_variants(arguments)
    check = check_of(arguments)
    check_thinking(arguments)
    prompt = read_prompt(arguments.prompt, arguments.file)
    if (backend := backend_of(arguments)) is not None:
        return generate_remote(backend, arguments, prompt)
    source = held_source(arguments)

    import torch

    from redraft.cli.watch import Watch
    from redraft.constraints.validation import unfenced
    from redraft.engine.fields import field_confidence, field_entropy
    from redraft.engine.request import Request
    from redraft.engine.scope import CancelScope

    say_bounds(arguments, prompt if arguments.chat else None)
    engine, options = load_engine(arguments), options_of(arguments)
    request = engine.resolve(
        Request(prompt, options, chat=arguments.chat, thinking=arguments.thinking, constraint=source, check=check)
    )
    with traced(engine, arguments, "generate") as engine:
        if arguments.variants is not None:
            run_variants(engine, request, arguments)
            return 0
        if arguments.watch:
            with Watch(engine.text, answer_follows=sys.stdout.isatty() and not arguments.json) as watch:
                done = engine.within(CancelScope(watch, parent=engine.scope)).generate(request)
        else:
            done = engine.generate(request)
    told: dict[str, object] = {"threads": torch.get_num_threads()}
    if arguments.thinking:
        told["thinking"] = done.reasoning.strip()
        if not arguments.json:
            print(told["thinking"], file=sys.stderr)
    said = unfenced(done.text) if arguments.fence else done.text
    if arguments.json:
        if source is not None and source.kind == "schema":
            told["fields"] = field_entropy(engine.text, done)
            told["confidence"] = field_confidence(engine.text, done)
        print_json(generation_json(done) | told | {"text": said})
    else:
        print(said)
        if done.finish == "length":
            note(f"cut at {len(done.tokens)} tokens; --max-tokens allows for more")
    return 0


def generation_json(done: Generation) -> dict[str, object]:
    """A finished answer as JSON; the words are those of `Generation`."""
    rounded = asdict(done) | {
        "entropy": [round(nats, 6) for nats in done.entropy],
        "log_mass": [round(nats, 6) for nats in done.log_mass],
    }
    return rounded | {
        "tokens_per_forward": round(done.tokens_per_forward, 3),
        "tokens_per_pass": round(done.tokens_per_pass, 3),
    }
