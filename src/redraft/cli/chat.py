"""`redraft chat`: a conversation, a line from the user and an answer in turn."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft.cli.common import (
    MOST_READ,
    Commands,
    asked,
    command,
    decoded,
    image_flag,
    is_file,
    load_engine,
    note,
    say_bounds,
)
from redraft.cli.constraint_flags import read_schema
from redraft.cli.flags import model_flags, options_of, sampling_flags
from redraft.cli.trace import trace_flag, traced
from redraft.errors import RedraftError, RequestError
from redraft.files import write_whole
from redraft.prompts import of_schema

if TYPE_CHECKING:
    from redraft.engine.request import Generation, Options
    from redraft.operations.engine import Engine
    from redraft.text import Message

EPILOG = """Every line is a turn; a line that ends in a backslash continues on the next one. The model reads the whole
conversation at every turn, so its context limits the length. On a terminal the canvas settles before your eyes.
Ctrl-C ends an answer, and pressed again the chat. With --json every answer is a line of JSON. A line may also be a
command:

  /new              start again            /schema FIELDS|FILE   answer with JSON of this schema; alone: freely again
  /seed N           seed of the next answer           /save FILE   write the conversation, as JSON messages
  /image FILE       show it with the next turn
  /help             this list              /quit                 leave, as the end of input does

examples:
  redraft chat
  redraft chat --model ./checkpoint --system 'Answer in one sentence.' --max-tokens 256
  printf '/schema name, age int\\nAlice is 31 years old.\\n' | redraft chat --seed 7"""


COMMANDS = ("/new", "/schema", "/seed", "/save", "/image", "/help")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "chat", "talk with a model, line by line", run, epilog=EPILOG)
    parser.add_argument("--system", metavar="TEXT", help="a system message before the first turn")
    image_flag(parser, ": with the first turn")
    sampling_flags(parser, own={"seed": "seed of the first answer; each further one has the next"})
    trace_flag(parser)
    model_flags(parser, plan=True)


@dataclass(frozen=True)
class ChatSession:
    """What was said, and how the next turn is answered. A new one begins with `opening`."""

    opening: tuple[Message, ...]
    said: tuple[Message, ...]
    options: Options
    schema: Any = None
    images: tuple[str, ...] = ()

    def turn(self, text: str) -> Message:
        """A user's turn, with the images that were to be shown with it."""
        found = asked(text, self.images)
        return {"role": "user", "content": text} if isinstance(found, str) else found[0]

    def answered(self, turn: Message, text: str) -> ChatSession:
        """With one turn and its answer more; the next answer has the next seed."""
        seed = self.options.seed
        options = replace(self.options, seed=None if seed is None else (seed + 1) % 2**64)
        return replace(
            self, said=(*self.said, turn, {"role": "assistant", "content": text}), options=options, images=()
        )

    def after(self, command: str, value: str) -> ChatSession:
        """What a command makes of it. Raises RequestError for a value that the command cannot have."""
        if command == "/new":
            return replace(self, said=self.opening, images=())
        if command == "/image":
            if not is_file(value):
                raise RequestError(f"/image {value[:100]!r} is no file; name one")
            return replace(self, images=(*self.images, value))
        if command == "/schema":
            return replace(self, schema=read_schema(value) if value else None)
        if command == "/seed":
            if not value.isdecimal() or len(value) > 20 or int(value) >= 2**64:
                raise RequestError(f"/seed is {value[:100]!r}; write a whole number from 0 to 2^64 - 1")
            return replace(self, options=replace(self.options, seed=int(value)))
        if command == "/save":
            self._save(value)
        else:
            note(EPILOG.split("\n\n")[1])
        return self

    def _save(self, name: str) -> None:
        if not name:
            raise RequestError("/save needs the name of a file")
        try:
            if os.path.lexists(name):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            said = json.dumps(self.said, ensure_ascii=False, indent=2, default=str)  # paths of images
            write_whole(Path(name), (said + "\n").encode())
        except (OSError, ValueError) as error:  # the second for a name with a zero
            said = getattr(error, "strerror", None) or str(error)
            raise RequestError(f"/save {name[:100]}: {said}; name another file") from None
        note(f"wrote {len(self.said)} messages to {name}")


def run(arguments: argparse.Namespace) -> int:
    """Read a turn, answer it, and again."""
    if sys.stdin is None:
        raise RequestError("stdin is closed; a conversation reads its turns there")

    opening: tuple[Message, ...] = ()
    if arguments.system is not None:
        opening = ({"role": "system", "content": arguments.system},)
    talk = ChatSession(opening, opening, options_of(arguments), images=tuple(arguments.image))
    with traced(load_engine(arguments), arguments, "chat") as engine:
        if sys.stdin.isatty():
            say_bounds(arguments, None)
            note("a line is a turn, \\ at its end continues it; /help lists the commands, /quit leaves")
        leaving = False  # at the next Ctrl-C
        while True:
            try:
                if (turn := _turn()) is None or turn == "/quit":
                    break
                leaving = False
                name, _, value = turn.partition(" ")
                if name in COMMANDS:
                    talk = talk.after(name, value.strip())
                else:
                    text = turn if talk.schema is None else of_schema(talk.schema, turn)
                    said = talk.turn(text)
                    talk = talk.answered(said, _answer(engine, talk, said, as_json=arguments.json).text)
            except RedraftError as error:
                if arguments.debug or not sys.stdin.isatty():
                    raise
                note(str(error))
            except KeyboardInterrupt:
                if leaving or not sys.stdin.isatty():
                    raise
                leaving = True
                print(file=sys.stderr)
                note("interrupted; what was said before is kept: go on, or leave by another Ctrl-C")
    return 0


def _turn() -> str | None:
    """The next turn that is not blank, None at the end of the input.

    Raises RequestError if it is not UTF-8, or has no end.
    """
    lines, size = list[str](), 0
    while True:
        if sys.stdin.isatty():
            print("... " if lines else "> ", end="", file=sys.stderr, flush=True)
        raw = sys.stdin.buffer.readline(MOST_READ + 1)
        size += len(raw)
        if size > MOST_READ:
            raise RequestError(f"the turn has over {MOST_READ} bytes, more than any context holds; give less")
        line = decoded(raw, "stdin").rstrip("\r\n")
        lines.append(line.removesuffix("\\"))
        if line.endswith("\\") and raw:
            continue
        if any(map(str.strip, lines)) or not raw:
            return "\n".join(lines) if any(map(str.strip, lines)) else None
        lines.clear()


def _answer(engine: Engine, talk: ChatSession, said: Message, *, as_json: bool) -> Generation:
    """Answer: on a terminal the canvas settles, elsewhere text comes as it is certain; `as_json`, all at once."""
    from redraft.cli.display import watched
    from redraft.cli.generate import generation_json
    from redraft.engine.request import Request

    request = Request([*talk.said, said], talk.options, schema=talk.schema)
    if not as_json and sys.stdout.isatty() and sys.stderr.isatty():
        done = watched(engine, request, answer_follows=True)
        print(done.text, flush=True)
        return done
    handle = engine.submit(request)
    for delta in handle.deltas():
        if not as_json:
            print(delta.content, end="", flush=True)
    done = handle.answer.generation()
    print(json.dumps(generation_json(done), ensure_ascii=False) if as_json else "", flush=True)
    return done
