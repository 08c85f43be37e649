"""What every verb shares: its parser, the prompt, the engine, and how results leave."""

from __future__ import annotations

import argparse
import base64
import codecs
import json
import mimetypes
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from redraft.cli.flags import experts_of
from redraft.config import MOST_THREADS
from redraft.errors import RequestError
from redraft.files import read_start
from redraft.prompts import BEGINNINGS

if TYPE_CHECKING:
    from redraft.operations.engine import Engine

SAME_BITS_THREADS = 8
"""Up to here an answer is tested to be the same alone and in a batch, bit for bit; with 16 it was seen not to be."""

SOME_WRONG = 3
"""The exit code where all of many are done and some have no answer."""

MOST_READ = 2**26
"""Bytes of a prompt, a schema or a grammar."""

TAUGHT = {
    "nano": BEGINNINGS,
    "nano-sudoku": ("record\n", "sudoku\n", "repair\n", "edit\n", "list\n"),
}
"""How the chats begin that each model of the package was trained on; a test holds them to the tasks'."""

BOUNDS = {
    "nano": "nano is a demonstration model of 9 million parameters: it extracts fields from short English sentences"
    " (`redraft json`), changes and repairs records of JSON and fills short templates, each often wrongly;"
    " --model takes another",
    "nano-sudoku": "nano-sudoku knows only chats whose first line is record, sudoku, repair, edit or list, as"
    " `redraft demo --model nano-sudoku` shows them, with made-up words like melu; --model takes another",
}

Commands = Any  # argparse keeps the type of add_subparsers() private
Run = Callable[[argparse.Namespace], int | None]


def command(commands: Commands, name: str, summary: str, run: Run, *, epilog: str = "") -> argparse.ArgumentParser:
    """A sub-command with the flags that all of them take."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, parser=parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def load_engine(arguments: argparse.Namespace) -> Engine:
    """The engine of a command's model flags; notes and progress go to stderr."""
    set_up(arguments.threads)
    return engine_of(arguments)


def engine_of(arguments: argparse.Namespace, progress: Callable[[int, int], None] | None = None) -> Engine:
    """The same behind `set_up`, which is for the main thread."""
    from redraft.engine.settings import DEFAULT_LOOP, LoopConfig
    from redraft.operations.engine import Engine

    return Engine.load(
        arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        plan=getattr(arguments, "plan", None),
        adapter=getattr(arguments, "adapter", None),
        report=note,
        progress=progress or loaded,
        loop=LoopConfig(
            max_running=getattr(arguments, "max_running", DEFAULT_LOOP.max_running),
            graphs=False if arguments.no_graphs else None,
        ),
        experts=experts_of(arguments),
    )


def set_up(threads: int | None) -> None:
    """Set the threads of all tensor work. More threads than idle cores make a small model many times slower: they
    spin."""
    check_range("threads", threads, 1, MOST_THREADS)

    import torch

    busy = os.getloadavg()[0]
    idle = max(1, round((os.cpu_count() or 1) - busy))
    torch.set_num_threads(min(torch.get_num_threads(), idle, SAME_BITS_THREADS) if threads is None else threads)


def check_range(flag: str, value: int | None, least: int, most: int | None = None) -> None:
    """Raise RequestError for a flag's number out of its range. None is a flag that was not given, and no upper end."""
    if value is not None and (value < least or (most is not None and value > most)):
        must = f"at least {least}" if most is None else f"from {least} to {most}"
        raise RequestError(f"--{flag} is {value}; it must be {must}")


def note(line: str) -> None:
    """What a user should know, beside the result."""
    print(f"redraft: {tame(line)}", file=sys.stderr)


def loaded(done: int, total: int) -> None:
    """Progress of a load that takes a while."""
    if total >= MANY_ELEMENTS:
        show(f"loading {done / total:.0%} of {total / 1e9:.1f}e9 numbers", last=done == total)


def progress(what: str, done: int, total: int) -> None:
    """Progress of what is counted."""
    show(f"{what} {done}/{total}", last=done >= total)


def show(line: str, *, last: bool) -> None:
    """A line on a terminal's stderr in the place of the one before it; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="\n" if last else "", file=sys.stderr, flush=True)


MANY_ELEMENTS = 100_000_000


def new_folder(text: str) -> Path:
    """A folder to write. An empty name would be the one that somebody happens to be in."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; give a folder")
    return Path(text)


def prompt_flags(parser: argparse.ArgumentParser, text: str, what: str = "prompt") -> None:
    """A prompt, or `what` else it is, as a word or a file, and whether it goes through the chat template."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help=f'{text}; "-" or nothing reads stdin')
    parser.add_argument("--file", type=Path, help=f"read the {what} from a file")
    parser.add_argument("--chat", action="store_true", help="send it as a user's turn through the chat template")
    image_flag(parser)


def read_prompt(argument: str | None, file: Path | None, what: str = "prompt") -> str:
    """A prompt, or `what` else it is, from the argument, from --file, or from stdin ("-" or nothing given).

    Raises RequestError.
    """
    if argument is not None and file is not None:
        raise RequestError(f"a {what} and --file were both given; choose one")
    if file is not None:
        return _text(read_file(file, str(file)), str(file))
    if argument is not None and argument != "-":
        if os.path.isfile(argument):  # noqa: PTH113  # which raises nothing for a name that is too long
            note(f"{argument} is taken as the {what} itself; to read the file of that name, put < in front, or --file")
        return _some(argument, f"the {what}")
    if sys.stdin is None or sys.stdin.isatty():  # None where the caller has closed it
        raise RequestError(f"no {what}: pass one as an argument or through stdin")
    return _text(_bounded(sys.stdin.buffer, "stdin"), "stdin")


def image_flag(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Images that a question is about."""
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help=f"an image before the text; repeatable{more}",
    )


def asked(text: str, images: Sequence[str]) -> str | list[dict[str, Any]]:
    """A text, or with images a user's turn of both."""
    if not images:
        return text
    parts: list[dict[str, Any]] = [{"type": "image", "image": Path(one), "part": f"--image {one}"} for one in images]
    return [{"role": "user", "content": [*parts, *([{"type": "text", "text": text}] if text else [])]}]


def image_part(path: Path, most: int | None = None) -> dict[str, Any]:
    """An image of a file, of so many bytes at most, as OpenAI's interface takes it. Raises RequestError, also for a
    pipe, which may never end."""
    from redraft.images.pixels import ImageLimits  # with Pillow, which few need

    most = most or ImageLimits().num_bytes
    try:
        data = read_start(path, most + 1)
        if len(data) > most:
            raise RequestError(f"{path} has over {most} bytes; send a smaller image")
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}}


def print_json(value: object) -> None:
    """One JSON document on stdout, a list of numbers on a line; what would steer a terminal is escaped."""
    text = escaped(json.dumps(value, ensure_ascii=False, indent=1))
    print(re.sub(r"\[\n[\s\d.,e+-]+\]", lambda found: f"[{' '.join(found[0][1:-1].split())}]", text))


def read_file(path: Path, name: str) -> bytes:
    """All of a file that a user named, which may be a pipe. Raises RequestError if it cannot be read or has no end."""
    try:
        with path.open("rb") as file:
            return _bounded(file, name)
    except (OSError, ValueError) as error:  # the second for a name with a zero
        raise RequestError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def is_file(name: str) -> bool:
    """Whether there is a file of that name, which may be any text."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def _bounded(file: BinaryIO, name: str) -> bytes:
    if len(found := file.read(MOST_READ + 1)) > MOST_READ:
        raise RequestError(f"{name} has over {MOST_READ} bytes, more than any context holds; give less")
    return found


def numbered_lines(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Lines of a file that a user named, counted from 1. Raises RequestError at one that has no end."""
    for number, line in enumerate(iter(partial(file.readline, MOST_READ + 1), b""), 1):
        if len(line) > MOST_READ:
            raise RequestError(
                f"line {number} of {name} has over {MOST_READ} bytes, more than any context holds; give less:"
                " nothing behind it was read"
            )
        if number == 1:
            refuse_utf16(line, name)
        yield number, line


def decoded(raw: bytes, source: str) -> str:
    """Bytes of a file or a stream as text, without the mark that some editors begin one with. Raises RequestError if
    they are not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        refuse_utf16(raw, source)
        at = error.start + len(raw) - len(error.object)
        raise RequestError(f"{source} is not UTF-8 (byte {at} is 0x{raw[at]:02x})") from None


def refuse_utf16(start: bytes, source: str) -> None:
    """Raise RequestError for what begins as Windows begins a text of two bytes a character."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise RequestError(f"{source} is UTF-16 text; save it as UTF-8")


def escaped(text: str) -> str:
    """A JSON text whose strings have nothing that would steer a terminal; those below 0x20 no JSON text has."""
    return re.sub("[\x7f-\x9f]", lambda found: rf"\u{ord(found[0]):04x}", text)


def tame(text: str) -> str:
    """A text that a stranger wrote, without what would steer a terminal: control characters but line ends and tabs."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


def _text(raw: bytes, source: str) -> str:
    return _some(decoded(raw, source), source).removesuffix("\n")


def _some(text: str, source: str) -> str:
    if not text.strip():
        raise RequestError(f"{source} is empty; some text is needed")
    return text


def say_bounds(arguments: argparse.Namespace, turn: str | None) -> None:
    """A line on stderr if a model of the package is asked for what it was not taught: by a user's `turn`, or None for
    any other text."""
    if embedded(arguments) and (turn is None or not turn.startswith(TAUGHT[arguments.model])):
        note(BOUNDS[arguments.model])


def copying_flags(parser: argparse.ArgumentParser) -> None:
    """Whether an answer out of a text is read a second time, and whether its strings are parts of the text."""
    parser.add_argument(
        "--read-back",
        action=argparse.BooleanOptionalAction,
        help="read the answer a second time, from left to right; where something else was likelier, the model writes it"
        " so, too, a token a forward, and the likelier answer is taken (default: for nano alone)",
    )
    parser.add_argument(
        "--verbatim",
        action=argparse.BooleanOptionalAction,
        help="copy strings out of the text, word for word, and hold choices, dates, times and numbers to those"
        " that it states (default: for nano alone, where the text is not too long for that)",
    )


def say_guesses(arguments: argparse.Namespace, fields: Sequence[str]) -> None:
    """A line on stderr about the fields whose values are a guess, if a model of the package is asked."""
    if fields and is_shipped(arguments):
        bounds = f"{arguments.model} is small and often wrong, and a field with ? may be null"
        note(f"a guess: {', '.join(fields)}; {bounds}")


def embedded(arguments: argparse.Namespace) -> bool:
    """Whether a person asks a model of the package as it is."""
    return is_shipped(arguments) and at_a_terminal()


def is_shipped(arguments: argparse.Namespace) -> bool:
    """Whether a model of the package is asked as it is."""
    return arguments.model in TAUGHT and not getattr(arguments, "adapter", None)


def at_a_terminal() -> bool:
    """Whether a person reads stderr; programs have no use for advice."""
    return sys.stderr is not None and sys.stderr.isatty()
