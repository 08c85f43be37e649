"""What every command shares: flags, the prompt, and how results leave."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft.cli.place import experts_of, place_flags
from redraft.config import MOST_THREADS
from redraft.errors import RequestError
from redraft.options import PRESET_NAMES

if TYPE_CHECKING:
    from redraft.engine.request import Options
    from redraft.operations.engine import Engine

SAME_BITS_THREADS = 8
"""Up to here an answer is tested to be the same alone and in a batch, bit for bit; with 16 it was seen not to be."""


PLAN_HELP = (
    "pack the matrices: int8, int4, int4-g64, int8-e8, int4-g64-e8, fp8, nvfp4, nvfp4-experts (default: as stored)"
)

ADAPTER_HELP = "a LoRA adapter in PEFT's layout, merged into the weights"

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
    parser.set_defaults(run=run, mistaken=parser.error)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def model_flags(parser: argparse.ArgumentParser, *, positional: bool = False, plan: bool = False) -> None:
    """Which model, where, in which numbers; `plan` where matrices may be changed on the way in."""
    what = 'a checkpoint: "nano" (in the package), a folder, or a repository name in the local cache (default: nano)'
    if positional:
        parser.add_argument("model", nargs="?", default="nano", metavar="MODEL", help=what)
    else:
        parser.add_argument("--model", default="nano", help=what)
    parser.add_argument("--device", default="auto", help="where to run: cpu, cuda, cuda:1 (default: cuda if usable)")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="processor threads (default: as many as there are idle cores)"
    )
    parser.add_argument(
        "--dtype", default="auto", choices=("auto", "float32", "bfloat16"), help="number format (default: as stored)"
    )
    place_flags(parser)
    if plan:
        parser.add_argument("--plan", metavar="NAME", help=PLAN_HELP)
        parser.add_argument("--adapter", metavar="FOLDER", help=ADAPTER_HELP)


def sampling_flags(parser: argparse.ArgumentParser) -> None:
    """How canvases are denoised; what is not given comes from the checkpoint's generation_config.json."""
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens to answer with; never exceeded")
    parser.add_argument(
        "--seed", type=int, help="seed of all noise; repeats an answer on the same machine with the same --threads"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="cap on denoising steps per canvas; also sets the cooling"
    )
    parser.add_argument(
        "--entropy-bound", type=float, metavar="NATS", help="entropy that one step may accept, for the whole canvas"
    )
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="X", help="factor on the schedule; 0 samples the likeliest"
    )
    parser.add_argument("--top-k", type=int, metavar="N", help="sample from the N likeliest tokens only")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="sample from this share of probability")
    parser.add_argument("--min-tokens", type=int, default=0, metavar="N", help="no end before this many tokens")
    parser.add_argument("--deadline", type=float, metavar="SEC", help="answer with the best canvas after this long")
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="RULE",
        help="acceptance rule instead of the preset's, as confidence:0.9, factor, frechet, margin, entropy:0.1, "
        "or gate:2:RULE; repeatable: what any of them keeps is kept",
    )
    parser.add_argument(
        "--cooling", type=int, metavar="N", help="steps over which the temperature falls, whatever the cap"
    )
    parser.add_argument(
        "--effort", type=float, metavar="X", help="0 to 1: a setting of the table that `redraft bench --dial` measures"
    )
    parser.add_argument("--target-ms", type=float, metavar="MS", help="lower the effort as needed to answer in time")
    parser.add_argument(
        "--min-effort", type=float, default=0.0, metavar="X", help="with --target-ms: never below (default: 0)"
    )
    parser.add_argument(
        "--canvas", type=int, metavar="N", help="width of the canvases, in tokens (default: the preset's choice)"
    )
    parser.add_argument(
        "--end-aware",
        action=argparse.BooleanOptionalAction,
        help="neither wait for nor compute what stands behind the answer's end (default: the preset's choice)",
    )
    causal_flag(parser)
    preset_flag(parser)


def causal_flag(parser: argparse.ArgumentParser) -> None:
    """The other way to run the same weights."""
    parser.add_argument(
        "--causal", action="store_true", help="answer from left to right, one token per forward, with the same weights"
    )


def preset_flag(parser: argparse.ArgumentParser, of: str = "") -> None:
    """Which sampler rules."""
    default = "what the checkpoint says it was trained for, else reference"
    parser.add_argument("--preset", choices=PRESET_NAMES, help=f"sampler rules{of} (default: {default})")


def options_of(arguments: argparse.Namespace) -> Options:
    """What the flags of a command say of its answers; what has no flag there is left as it is."""
    from redraft.engine.request import Options

    flags: dict[str, Any] = vars(arguments) | {"deadline_sec": getattr(arguments, "deadline", None)}
    given = {one.name: flags[one.name] for one in fields(Options) if flags.get(one.name) is not None}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return Options(**given)


def load_engine(arguments: argparse.Namespace) -> Engine:
    """The engine of a command's model flags; notes and progress go to stderr."""
    set_up(arguments.threads)

    from redraft.engine.loop import LoopConfig
    from redraft.operations.engine import Engine

    return Engine.load(
        arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        plan=getattr(arguments, "plan", None),
        adapter=getattr(arguments, "adapter", None),
        report=note,
        progress=loaded,
        loop=LoopConfig(graphs=arguments.graphs),
        experts=experts_of(arguments),
    )


def set_up(threads: int | None) -> None:
    """Set the threads of all tensor work. More threads than idle cores make a small model many times slower: they
    spin."""
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise RequestError(f"--threads is {threads}; it must be from 1 to {MOST_THREADS}")

    import torch

    busy = os.getloadavg()[0]
    idle = max(1, round((os.cpu_count() or 1) - busy))
    torch.set_num_threads(min(torch.get_num_threads(), idle, SAME_BITS_THREADS) if threads is None else threads)


def note(line: str) -> None:
    """What a user should know, beside the result."""
    print(f"redraft: {line}", file=sys.stderr)


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


def read_prompt(argument: str | None, file: Path | None, what: str = "prompt") -> str:
    """A prompt, or `what` else it is, from the argument, from --file, or from stdin ("-" or nothing given).

    Raises RequestError.
    """
    if argument is not None and file is not None:
        raise RequestError(f"a {what} and --file were both given; choose one")
    if file is not None:
        try:
            raw = file.read_bytes()
        except OSError as error:
            raise RequestError(f"{file} cannot be read: {error.strerror}") from None
        return _text(raw, str(file))
    if argument is not None and argument != "-":
        return _some(argument, f"the {what}")
    if sys.stdin is None or sys.stdin.isatty():  # None where the caller has closed it
        raise RequestError(f"no {what}: pass one as an argument, with --file, or through stdin")
    return _text(sys.stdin.buffer.read(), "stdin")


def print_json(value: object) -> None:
    """One JSON document on stdout, a list of numbers on a line."""
    told = json.dumps(value, ensure_ascii=False, indent=1)
    print(re.sub(r"\[\n[\s\d.,e+-]+\]", lambda found: f"[{' '.join(found[0][1:-1].split())}]", told))


def decoded(raw: bytes, source: str) -> str:
    """Bytes of a file or a stream as text. Raises RequestError if they are not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{source} is not UTF-8 (byte {error.start} is 0x{raw[error.start]:02x})") from None


def tame(text: str) -> str:
    """A text that a stranger wrote, without what would steer a terminal: control characters but line ends and tabs."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


def _text(raw: bytes, source: str) -> str:
    return _some(decoded(raw, source), source).removesuffix("\n")


def _some(text: str, source: str) -> str:
    if not text.strip():
        raise RequestError(f"{source} is empty; some text is needed")
    return text
