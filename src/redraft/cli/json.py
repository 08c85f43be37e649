"""`redraft json`: text in, one JSON value of a schema out; a line each, for many."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from redraft.cli.bounds import say_bounds
from redraft.cli.common import Commands, command, decoded, load_engine, read_prompt
from redraft.cli.flags import model_flags, options_of, sampling_flags
from redraft.cli.held import fence_flag, read_schema
from redraft.cli.thinking import thinking_flag, thoughtful, told_apart
from redraft.errors import RedraftError, RequestError

if TYPE_CHECKING:
    from redraft.constraints.language import Source
    from redraft.engine.engine import Engine
    from redraft.engine.request import Generation, Options, Request

AT_ONCE = 32

EPILOG = """The text is sent as a user's turn, behind the instruction if there is one; the answer is valid for the
schema, or there is none. The schema is a file, JSON, or fields:

  name, age int?, size S|M|L, tags str[], born date      types: str, int, float, bool, date, time, email, uuid
                                                         a|b: one of these    []: a list    ?: may be missing

With --many every line of stdin is a text and gives a line; one without an answer gives null, and says why on stderr.
With --json a line tells the entropy of each field, in nats, beside the value. Exit codes: 0 every text was answered,
1 some were not, 2 a mistake in the call.

examples:
  echo 'Send 417 melu to Karomi.' | redraft json --schema 'who, qty int, item' --instruction record
  redraft json --schema order.schema.json --many --seed 1 < mails.txt > orders.jsonl"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "json", "read a text as JSON of a schema", run, epilog=EPILOG)
    parser.add_argument("text", nargs="?", metavar="TEXT", help='the text; "-" or nothing reads stdin')
    parser.add_argument("--schema", required=True, metavar="FILE|FIELDS", help="what to answer with")
    fence_flag(parser)
    thinking_flag(parser, "--json returns the thinking, too")
    parser.add_argument("--instruction", metavar="TEXT", help="what to do, in front of the text")
    parser.add_argument("--many", action="store_true", help="answer each line of stdin, in order")
    sampling_flags(parser, own={"seed": "seed of all noise; with --many, line i has this seed plus i"})
    model_flags(parser, plan=True)


def run(arguments: argparse.Namespace) -> int:
    """Read, load, answer, print."""
    schema = read_schema(arguments.schema)
    if arguments.many and arguments.text not in (None, "-"):
        raise RequestError("--many reads its texts from stdin; leave the argument out")
    if arguments.many and (sys.stdin is None or sys.stdin.isatty()):
        raise RequestError("--many reads its texts from stdin, a line each; pipe some in")
    text = None if arguments.many else read_prompt(arguments.text, None, "text")

    from redraft.constraints.sources import schema_source

    say_bounds(arguments, arguments.instruction or text or "")
    engine = load_engine(arguments)
    ask = _asker(engine, schema_source(schema, fence=arguments.fence), arguments)
    if text is not None:
        print(ask(engine, text, 0), flush=True)
        return 0
    failed = 0
    for number, told in _each(engine, ask):
        if isinstance(told, RedraftError):
            failed += 1
            print(f"redraft: line {number + 1}: {told}", file=sys.stderr)
        print("null" if isinstance(told, RedraftError) else told, flush=True)
    return 1 if failed else 0


Ask = Callable[["Engine", str, int], str]


def _asker(engine: Engine, source: Source, arguments: argparse.Namespace) -> Ask:
    """What answers a text with a line. Raises RequestError for what no text would do."""
    from redraft.engine.mend import mended

    language = engine.language(source)
    options = options_of(arguments)
    before = "" if arguments.instruction is None else f"{arguments.instruction}\n"

    def asked(text: str, options: Options) -> Request:
        if arguments.thinking:
            return thoughtful(engine, before + text, options, language)
        return engine.request(before + text, chat=True, options=options, language=language)

    asked("x", options)  # what no text would do is refused at once

    def ask(engine: Engine, text: str, number: int) -> str:
        seed = None if options.seed is None else (options.seed + number) % 2**64
        request = asked(text, replace(options, seed=seed))
        done = mended(engine, request, None) if language.checked else engine.finish(request)
        thought, done = told_apart(engine.text, done) if arguments.thinking else (None, done)
        return _line(engine, done, thought, told=arguments.json)

    return ask


def _line(engine: Engine, done: Generation, thought: str | None, *, told: bool) -> str:
    """The answer on a line as it was written, without the space between its parts."""
    import msgspec

    from redraft.constraints.validation import unfenced
    from redraft.engine.fields import field_entropy

    value = msgspec.Raw(msgspec.json.format(unfenced(done.text).encode(), indent=-1))
    if not told:
        return bytes(value).decode()
    sure = {path: round(nats, 6) for path, nats in field_entropy(engine.text, done).items()}
    whole = {"value": value, "fields": sure, "seed": done.seed, "steps": done.steps, "finish": done.finish}
    return msgspec.json.encode(whole if thought is None else whole | {"thinking": thought}).decode()


def _each(engine: Engine, ask: Ask) -> Iterator[tuple[int, str | RedraftError]]:
    """Every line of stdin and what came of it, in order, some under way at a time."""
    from redraft.engine.tap import seen_through
    from redraft.server.leash import Leash

    leash, running = Leash(engine.loop), deque[tuple[int, Future[str | RedraftError]]]()
    held = seen_through(engine, leash, gaps=False)

    def answer(raw: bytes, number: int) -> str | RedraftError:
        try:
            text = decoded(raw, "it").strip()
            if not text:
                raise RequestError("it is empty; some text is needed")
            return ask(held, text, number)
        except RedraftError as error:
            return error

    lines = enumerate(sys.stdin.buffer)
    engine.loop.start()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            while True:
                for number, raw in islice(lines, AT_ONCE - len(running)):
                    running.append((number, pool.submit(answer, raw, number)))
                if not running:
                    return
                number, first = running.popleft()
                yield number, first.result()
        finally:
            leash.cut()  # an interrupt waits for nobody
            engine.loop.stop()
