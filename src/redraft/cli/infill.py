"""`redraft infill`: new text for some lines of a file, everything around them as it was."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from redraft.cli.common import Commands, command, load_engine, note, print_json, say_bounds, tame
from redraft.cli.file_lines import PLACE_HELP, TextFile, read_lines
from redraft.cli.flags import model_flags, options_of, sampling_flags
from redraft.cli.trace import trace_flag, traced
from redraft.errors import RequestError, RunError

if TYPE_CHECKING:
    from redraft.engine.request import Options
    from redraft.operations.gap_constraint import GapConstraint

EPILOG = """The model sees the text before and after the named lines, and never the lines themselves. The
indentation of the first line and the line end of the last stay. The result is a diff on stdout; nothing is written
without --write, which replaces the file in one move and refuses if it has changed meanwhile.

examples:
  redraft infill notes.py:12
  redraft infill notes.py:3,10-12 --max-tokens 24 --seed 7 --write"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "infill", "rewrite some lines of a file from the text around them", run, epilog=EPILOG)
    parser.add_argument("place", metavar="FILE:LINES", help=PLACE_HELP + "; several gaps as notes.py:3,10-12")
    parser.add_argument("--write", action="store_true", help="write the result to the file")
    parser.add_argument("--width", type=int, metavar="N", help="try this many tokens and no other number")
    parser.add_argument("--no-heal", action="store_true", help="let no token at a seam grow into the gap")
    gap_flags(parser, own={"max_tokens": "widest gap to try, in tokens (default: 32)"})
    model_flags(parser)


def gap_flags(parser: argparse.ArgumentParser, own: Mapping[str, str] | None = None) -> None:
    """What the new text must have in it, and how the canvas around the gap is denoised."""
    parser.add_argument("--regex", metavar="RE", help="all of the new text matches this")
    parser.add_argument(
        "--word", action="append", default=[], metavar="N=TEXT", help="word N of the new text is TEXT; repeatable"
    )
    parser.add_argument(
        "--contains", action="append", default=[], metavar="TEXT", help="the new text has this in it; repeatable"
    )
    parser.add_argument(
        "--lacks", action="append", default=[], metavar="TEXT", help="the new text does not have this in it; repeatable"
    )
    trace_flag(parser)
    sampling_flags(parser, own=own)


def gap_constraint(arguments: argparse.Namespace) -> GapConstraint:
    """The constraint on the new text that the flags name. Raises RequestError."""
    from redraft.operations.gap_constraint import GapConstraint

    words = []
    for given in arguments.word:
        number, found, word = given.partition("=")
        if not (found and number.isascii() and number.isdigit() and len(number) < 10):
            raise RequestError(f"--word is {given[:100]!r}; write its number and the word, as 3=melu")
        words.append((int(number), word))
    return GapConstraint(arguments.regex, tuple(words), tuple(arguments.contains), tuple(arguments.lacks))


def gap_options(arguments: argparse.Namespace) -> Options:
    """What `gap_flags` say of the sampler."""
    return replace(options_of(arguments), max_tokens=None)  # which is the widest gap, where there is such a flag


def run(arguments: argparse.Namespace) -> int:
    """Read, load, fill, print, write."""
    source = read_lines(arguments.place, to_write=arguments.write)

    from redraft.operations.infill import infill_all

    constraint = gap_constraint(arguments)
    say_bounds(arguments, None)
    engine = load_engine(arguments)
    edges = [0, *(edge for span in source.spans for edge in span), len(source.data)]
    parts = [source.data[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)]
    with traced(engine, arguments, "infill") as engine:
        done = infill_all(
            engine,
            parts,
            max_tokens=arguments.max_tokens,
            width=arguments.width,
            constraint=constraint,
            heal=not arguments.no_heal,
            options=gap_options(arguments),
        )
    apart = ("data", "answer")
    gaps = [
        {key: value for key, value in asdict(one).items() if key not in apart} | {"finish": one.finish} for one in done
    ]
    return show(source, done[-1].data, {"gaps": gaps}, arguments, is_cut=any(one.finish == "deadline" for one in done))


def show(
    source: TextFile, data: bytes, details: dict[str, object], arguments: argparse.Namespace, *, is_cut: bool
) -> int:
    """Print the diff, or everything as JSON, and write if asked to; returns the exit code. Nothing is written where the
    diff cannot be printed, nor of a text that the time cut, which is a draft."""
    diff, writes = source.diff(data), arguments.write and not is_cut and data != source.data
    if not arguments.json:
        print(tame(diff) if sys.stdout.isatty() else diff, end="", flush=True)  # what steers a terminal may be in it
        if data == source.data:
            left = details.get("left_out") or ()
            named = f"nothing came of {', '.join(map(str, left))}" if isinstance(left, tuple) and left else ""
            note(f"{named or 'the new text is the one that was there'}; {_remedy(arguments)}")
    if writes and (name := _format_lost(source, data)) is not None:
        raise RunError(f"{source.path} is {name} and would not be any more, so nothing is written; try another --seed")
    if writes:
        source.write(data)
        note(f"wrote {source.path}")
    if is_cut:
        unwritten = ", so nothing is written" if arguments.write else ""
        note(f"the time was up before the new text had settled{unwritten}; --deadline allows for more")
    if arguments.json:
        print_json({"file": str(source.path), "written": writes, "diff": diff} | details)
    return int(arguments.write and is_cut)


def _remedy(arguments: argparse.Namespace) -> str:
    """What to do where nothing has changed."""
    if getattr(arguments, "instruction", None) is None:
        return "another --seed may change it"
    return (
        "unless it says so already, name the line, as FILE:8, or its section, or say it otherwise, as 'Set port to 9.'"
    )


def _format_lost(source: TextFile, data: bytes) -> str | None:
    """The format that a file was of and would not be any more: by its name, or JSON if it is an object or a list."""
    from redraft.operations.formats import MOST_CHARACTERS, is_of, read

    old, new, suffix = source.data.decode("utf-8-sig"), data.decode("utf-8-sig"), source.path.suffix
    named = {".toml": "TOML", ".yaml": "YAML", ".yml": "YAML", ".ini": "INI", ".cfg": "INI"}.get(suffix)
    may_be = named or ("JSON" if old.lstrip().startswith(("{", "[")) else None)
    if may_be is None or suffix in (".jsonl", ".ndjson"):
        return None
    if may_be in ("YAML", "INI") and len(new) > MOST_CHARACTERS:
        return None
    if may_be in ("YAML", "INI"):  # of which any text may be one value, or none
        return may_be if read(may_be, old) is not None and read(may_be, new) is None else None
    return may_be if is_of(may_be, old) and not is_of(may_be, new) else None
