"""`redraft json`: text in, one JSON value of a schema out; a line each, for many."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Queue
from typing import TYPE_CHECKING, Any, BinaryIO

from redraft.cli.common import (
    SOME_WRONG,
    Commands,
    asked,
    command,
    copying_flags,
    decoded,
    escaped,
    image_flag,
    is_shipped,
    load_engine,
    note,
    numbered_lines,
    read_prompt,
    say_bounds,
    say_guesses,
    show,
    tame,
)
from redraft.cli.constraint_flags import note_ignored, read_schema, style_flags, thinking_flag
from redraft.cli.flags import model_flags, options_of, sampling_flags
from redraft.cli.trace import answered, traced, watch_flag
from redraft.errors import RedraftError, RequestError, as_failure
from redraft.prompts import fields_of, of_schema

if TYPE_CHECKING:
    from redraft.engine.request import Generation, Request
    from redraft.operations.engine import Engine

AT_ONCE, MOST_FIELDS = 32, 5
Read = tuple[int, bytes] | Exception | None
"""A line of stdin and its number; or the error that reading met; or None, the end."""

EPILOG = """The text is sent as a user's turn, behind a line that asks for the schema's fields, or behind --instruction,
which may be empty. An answer is valid for the schema; where there is none, there is an error. The schema is a file,
JSON, or fields:

  name, age int?, size S|M|L, tags str[], born date

  types: str, int, float, bool, date, time, datetime, email, uuid
  a|b: one of these    []: a list    ?: null if not said

With --many every line of stdin is a text and gives a line of output: null where there is no answer, with the reason on
stderr. With --json a line has the entropy of each field, in nats, beside the value, and where it was read back the
probability of each field's least likely token, and the fields that are a guess. Exit codes: 0 every text was answered,
3 some were not, 2 a mistake in the call.

examples:
  echo 'Send 3 apples to Maria.' | redraft json --schema 'who, qty int, item'
  redraft json --watch --schema 'name, age int' 'Alice is 31 years old.'
  redraft json --model ./checkpoint --schema 'shop, total float' --image receipt.png
  redraft json --schema order.schema.json --many --seed 1 < mails.txt > orders.jsonl"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "json", "read a text as JSON of a schema", run, epilog=EPILOG)
    parser.add_argument("text", nargs="?", metavar="TEXT", help='the text; "-" or nothing reads stdin')
    parser.add_argument("--schema", required=True, metavar="FILE|FIELDS", help="what to answer with")
    style_flags(parser)
    thinking_flag(parser, "--json returns the thinking, too")
    parser.add_argument(
        "--instruction", metavar="TEXT", help="a first line in place of the one that asks for the fields"
    )
    image_flag(parser, "; the text may then be left out")
    parser.add_argument(
        "--many",
        action="store_true",
        help='answer each line of stdin, in order: a text, or one in JSON, as a string or as {"text": …}, whatever else'
        " that has; of many thousands, run keeps what is done",
    )
    copying_flags(parser)
    watch_flag(parser)
    sampling_flags(parser, own={"seed": "seed of all noise; with --many, line i has this seed plus i"})
    model_flags(parser, plan=True)


def run(arguments: argparse.Namespace) -> int:
    """Read, load, answer, print."""
    schema = read_schema(arguments.schema)
    if arguments.many and arguments.text not in (None, "-"):
        raise RequestError("--many reads its texts from stdin; leave the argument out")
    if arguments.many and (sys.stdin is None or sys.stdin.isatty()):
        raise RequestError("--many reads its texts from stdin, a line each; pipe some in")
    if arguments.many and arguments.watch:
        raise RequestError("--watch and --many were both given; one canvas can be watched: choose one, or take --trace")
    if arguments.image and arguments.text is None and not arguments.many:
        if arguments.verbatim:
            raise RequestError("--verbatim copies out of a text, and there is only an image; give one, or leave it out")
        text: str | None = ""  # what stdin has is not asked for
    else:
        text = None if arguments.many else read_prompt(arguments.text, None, "text")

    say_bounds(arguments, _asked(schema, arguments, ""))
    asked_for = fields_of(schema) if isinstance(schema, Mapping) else None
    if is_shipped(arguments) and asked_for is not None and len(asked_for[0]) > MOST_FIELDS:
        note(f"{arguments.model} was taught at most {MOST_FIELDS} fields at once; ask for fewer, or several times")
    engine = load_engine(arguments)
    asker = _asker(engine, schema, arguments)
    engine.resolve(asker("x", 0))  # refuse at once what is wrong with every text
    with traced(engine, arguments, "json") as seen:
        if text is None:
            return SOME_WRONG if _many(seen, asker, arguments) else 0
        request = asker(text, 0)
        line, guessed = _line(seen, request, answered(seen, request, arguments), arguments)
    print(line, flush=True)
    say_guesses(arguments, fields_among(schema, guessed))
    return 0


def fields_among(schema: Any, pointers: Sequence[str]) -> list[str]:
    """The fields of a record that values stand in, in its order."""
    wanted = fields_of(schema) if isinstance(schema, Mapping) else None
    found = {pointer.split("/")[1] for pointer in pointers if "/" in pointer}
    return [] if wanted is None else [field.name for field in wanted[0] if field.name in found]


Asker = Callable[[str, int], "Request"]


def _asker(engine: Engine, schema: Any, arguments: argparse.Namespace) -> Asker:
    """Returns a function from a text and its number to a request. Raises ConstraintError."""
    from redraft.constraints.sources import schema_source
    from redraft.engine.request import Request
    from redraft.operations.verbatim import held_to

    source = schema_source(schema, spaces=not (arguments.compact or engine.by_fields), fence=arguments.fence)
    note_ignored(engine.language(source).ignored)
    options = options_of(arguments)

    def request(text: str, number: int) -> Request:
        seed = options.seed if options.seed is None or not number else (options.seed + number) % 2**64
        own = replace(options, seed=seed)
        prompt = asked(_asked(schema, arguments, text), arguments.image)
        language = held_to(engine, source, text, own, arguments.verbatim)
        return Request(prompt, own, chat=True, thinking=arguments.thinking, constraint=language)

    return request


def _asked(schema: Any, arguments: argparse.Namespace, text: str) -> str:
    """The user's turn about a text."""
    if arguments.instruction is None:
        return of_schema(schema, text)
    return f"{arguments.instruction}\n{text}" if arguments.instruction else text


def _many(engine: Engine, asker: Asker, arguments: argparse.Namespace) -> int:
    """Answer every line of stdin, in order, some side by side; returns how many had no answer."""
    from redraft.engine.request import Request
    from redraft.operations.generate import attempts

    failed, doubtful, taken, lines = 0, 0, deque[Request | RedraftError](), Queue[Read](2)
    # On a thread, so that an answer waits for no further line; two are held, since a line may have 64 MiB.
    threading.Thread(target=_read_lines, args=(_own_stdin(), lines), daemon=True).start()
    each = _noted(_requests(asker, lines), taken)
    engine.loop.start()  # requests run while this thread waits for a line
    try:
        for number, found in enumerate(attempts(engine, each, at_once=AT_ONCE, ready=lambda: not lines.empty())):
            request, line = taken.popleft(), "null"
            if not isinstance(found, RedraftError) and not isinstance(request, RedraftError):
                try:
                    line, guessed = _line(engine, request, found, arguments)
                    doubtful += bool(guessed)
                except Exception as error:  # whatever it is, it is this line's: the others have their answers
                    found = as_failure(error)
            if isinstance(found, RedraftError):
                failed += 1
                show("", last=False)
                print(tame(f"redraft: line {number + 1}: {found}"), file=sys.stderr)
            print(line, flush=True)
            if not sys.stdout.isatty():
                show(f"line {number + 1}", last=False)
    finally:
        show("", last=False)
        engine.loop.stop()
    if doubtful and not arguments.json:
        note(f"{doubtful} of the answers have values that are a guess; --json names them")
    return failed


def _noted(each: Iterator[Request | RedraftError], taken: deque[Request | RedraftError]) -> Iterator[Any]:
    """Each, as it is taken, noted for who comes behind."""
    for one in each:
        taken.append(one)
        yield one


def _own_stdin() -> BinaryIO:
    """stdin, as a file of our own: Python cannot end well while a thread waits in `sys.stdin.buffer`."""
    with suppress(OSError, AttributeError):  # a test's or a notebook's has no descriptor
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    return sys.stdin.buffer


def _read_lines(file: BinaryIO, lines: Queue[Read]) -> None:
    """Every line, and then None, or what reading met."""
    try:
        for line in numbered_lines(file, "stdin"):
            lines.put(line)
        lines.put(None)
    except Exception as error:  # who waits for a line has to learn of it, whatever it is
        lines.put(error)


def _requests(asker: Asker, lines: Queue[Read]) -> Iterator[Request | RedraftError]:
    """The request of every line, or what is wrong with the line; one that is too long is the last."""
    while isinstance(line := lines.get(), tuple):
        try:
            number, raw = line
            text = _text_in(decoded(raw, "it").strip())
            if not text.strip():
                raise RequestError("it is empty; some text is needed")
            yield asker(text, number - 1)
        except RedraftError as error:
            yield error
    if isinstance(line, RedraftError):
        yield line
    elif line is not None:
        raise line


def _text_in(line: str) -> str:
    """The text that a line is: of JSON a string, or the `text` of an object, which may have more. So a text of several
    lines has room on one. Raises RequestError for another object, of which nobody said which part is the text."""
    value: Any = line
    if line[:1] in ('"', "{"):
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
    if isinstance(value, dict):
        if not isinstance(value.get("text"), str):
            said = "it is an object whose text is no string" if "text" in value else "it is an object without a text"
            raise RequestError(f'{said}; write {{"text": "..."}}, or as a JSON string what is to be read as it stands')
        return str(value["text"])
    return value if isinstance(value, str) else line


def _line(
    engine: Engine, request: Request, done: Generation, arguments: argparse.Namespace
) -> tuple[str, Sequence[str]]:
    """The answer on a line as it was written, without the space between its parts; and the pointers of its values that
    are a guess, if it is read back: behind an image nothing is."""
    import msgspec

    from redraft.constraints.places import unfenced
    from redraft.engine.fields import field_entropy
    from redraft.operations.read_back import reads_back, second_opinion

    read: dict[str, Any] = {}
    guessed: Sequence[str] = ()
    if reads_back(engine, arguments.read_back):
        with suppress(RedraftError):  # of an image, or for a full disk of the trace: there is an answer all the same
            opinion = second_opinion(engine, request, done)
            done, guessed = opinion.done, opinion.guesses(engine.text)
            if opinion.instead_of is not None and arguments.watch:
                note("read back, another answer was likelier; it was written from left to right, and is this one")
            likely = {path: round(one, 6) for path, one in opinion.likely(engine.text).items()}
            read = {"likely": likely, "guesses": guessed}
    value = msgspec.Raw(msgspec.json.format(unfenced(done.text).encode(), indent=-1))
    if not arguments.json:
        return escaped(bytes(value).decode()), guessed
    sure = {path: round(nats, 6) for path, nats in field_entropy(engine.text, done).items()}
    whole = {"value": value, "fields": sure, "seed": done.seed, "steps": done.steps, "finish": done.finish}
    thought = {"thinking": done.reasoning.strip()} if arguments.thinking else {}
    return escaped(msgspec.json.encode(whole | read | thought).decode()), guessed
