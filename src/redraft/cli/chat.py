"""`redraft chat`: a conversation, a line from the user and an answer in turn."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redraft.cli.common import Commands, asked, command, decoded, image_flag, load_engine, say_bounds
from redraft.cli.flags import model_flags, options_of, sampling_flags
from redraft.cli.trace import trace_flag, traced
from redraft.errors import RedraftError, RequestError

if TYPE_CHECKING:
    from redraft.engine.request import Generation, Options
    from redraft.operations.engine import Engine
    from redraft.text import Message

EPILOG = """Every line is a turn; a line that ends in a backslash continues on the next one. The model reads the whole
conversation at every turn, so its context limits the length: /new starts again, /quit or the end of input leaves.
/image FILE shows an image with the next turn.
With --json every answer is a line of JSON.

examples:
  redraft chat
  redraft chat --model ./checkpoint --system 'Answer in one sentence.' --max-tokens 256
  printf 'record\\\\\\nSend 417 melu to Karomi.\\n' | redraft chat --seed 7"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "chat", "talk with a model, line by line", run, epilog=EPILOG)
    parser.add_argument("--system", metavar="TEXT", help="a system message before the first turn")
    image_flag(parser, ": with the first turn")
    sampling_flags(parser, own={"seed": "seed of the first answer; each further one has the next"})
    trace_flag(parser)
    model_flags(parser, plan=True)


def run(arguments: argparse.Namespace) -> int:
    """Read a turn, answer it, and again."""
    if sys.stdin is None:
        raise RequestError("stdin is closed; a conversation reads its turns there")

    opening: list[Message] = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    said, seed, images = opening, arguments.seed, list(arguments.image)
    options = options_of(arguments)
    with traced(load_engine(arguments), arguments, "chat") as engine:
        if sys.stdin.isatty():
            say_bounds(arguments, None)
            print(
                "redraft: a line is a turn, \\ at its end continues it; /image FILE shows an image, /new starts again,"
                " /quit leaves",
                file=sys.stderr,
            )
        while (turn := _turn()) not in (None, "/quit"):
            if turn == "/new":
                said, images = opening, []
                continue
            if turn.startswith("/image "):
                images.append(turn.removeprefix("/image ").strip())
                continue
            content: Any = asked(turn, images)
            turns = [*said, *([{"role": "user", "content": turn}] if content is turn else content)]
            images = []
            try:
                text = _answer(engine, turns, replace(options, seed=seed), as_json=arguments.json).text
            except RedraftError as error:
                if arguments.debug or not sys.stdin.isatty():
                    raise
                print(f"redraft: {error}", file=sys.stderr)
                continue
            said = [*turns, {"role": "assistant", "content": text}]
            seed = seed if seed is None else (seed + 1) % 2**64
    return 0


def _turn() -> str | None:
    """The next turn that is not blank; None at the end of the input. Raises RequestError for bytes that are no text."""
    lines: list[str] = []
    while True:
        if sys.stdin.isatty():
            print("... " if lines else "> ", end="", file=sys.stderr, flush=True)
        raw = sys.stdin.buffer.readline()
        line = decoded(raw, "stdin").rstrip("\r\n")
        lines.append(line.removesuffix("\\"))
        if line.endswith("\\") and raw:
            continue
        if any(map(str.strip, lines)) or not raw:
            return "\n".join(lines) if any(map(str.strip, lines)) else None
        lines.clear()


def _answer(engine: Engine, turns: list[Message], options: Options, *, as_json: bool) -> Generation:
    """Answer, showing each block as it settles, and with `as_json` all of it at the end instead."""
    from redraft.cli.generate import generation_json
    from redraft.engine.request import Request

    handle = engine.submit(Request(turns, options))
    for delta in handle.deltas():
        if not as_json:
            print(delta.content, end="", flush=True)
    done = handle.answer.generation()
    print(json.dumps(generation_json(done), ensure_ascii=False) if as_json else "", flush=True)
    return done
