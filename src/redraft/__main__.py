"""The `redraft` command: parse, run, and turn every error into one line and an exit code."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from redraft.errors import RedraftError, ran_out

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 our failure, 2 the caller's mistake, 3 some of many
    have no answer, 130 interrupted."""
    if sys.stderr is None:  # `print` would take standard output for it
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # as long as the program
    if why := _unfit():
        print(f"redraft: {why}", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names of files are written as they are
    try:
        from redraft.cli.main import build_parser  # here, because Ctrl-C may come while it is imported

        arguments, unknown = build_parser().parse_known_args(argv)
    except KeyboardInterrupt:
        print("redraft: interrupted", file=sys.stderr)
        return INTERRUPTED
    if unknown:
        arguments.parser.refuse_unknown(unknown)
    if sys.stderr.isatty() or getattr(arguments, "check", None) or hasattr(arguments, "at_once"):
        # A terminal gets back its cursor, checking commands end, and a run says how far it is.
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, lambda given, _: sys.exit(128 + given))
    try:
        code = int(arguments.run(arguments) or 0)
        sys.stdout.flush()  # here, where a reader that went away or a full disk still has an exit code
        return code
    except BrokenPipeError:
        _drop_output()  # its reader went away, as `head` does
        return 1
    except (KeyboardInterrupt, Exception) as error:  # the last line of defence: a bug of ours still ends in one line
        if arguments.debug:
            raise
        if argv is None and isinstance(error, KeyboardInterrupt):  # another while Python ends would print a traceback
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        return _failed(error)


def _failed(error: BaseException) -> int:
    """Say what went wrong, in a line; returns the exit code."""
    if isinstance(error, RedraftError):
        _say(str(error))
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        _say(str(error) or "interrupted")
        return INTERRUPTED
    if isinstance(error, UnicodeEncodeError):  # an argument or a file's name with bytes that are no text
        _say(_unwritten(error))
        return 2
    if not isinstance(error, OSError):
        _say(_unexpected(error))
        return 1
    full = error.errno == errno.ENOSPC
    where = error.filename or ("the output" if full else "the system says")
    remedy = "make room and run it again" if full else "run again with --debug"
    _say(f"{where}: {error.strerror or error}; {remedy}")
    if full:
        _drop_output()  # what could not be written would fail a second time
    return 1


def _unexpected(error: BaseException) -> str:
    """What is said of a bug of ours, and of too little memory."""
    if ran_out(error):
        return "memory ran out; raise the limit that there is on it (ulimit -v, a container's), or ask for less"
    first = (str(error).splitlines() or [""])[0]
    return f"internal error, {type(error).__name__}: {first} (run again with --debug)"


def _unfit() -> str:
    """Why nothing can be run here, if so."""
    if sys.stdout is None:  # Python's sign that it was closed; the next file opened would get what is printed
        return "standard output is closed; send it to a file, or to /dev/null"
    try:
        Path.cwd()
    except OSError:  # torch's libraries would end the process
        return "the current folder was removed; cd to one that exists"
    return ""


def _say(text: str) -> None:
    """A line on stderr, in which a file's words or its name may stand."""
    from redraft.cli.common import tame

    print(f"redraft: {tame(text)}", file=sys.stderr)


def _unwritten(error: UnicodeEncodeError) -> str:
    """What to do about a text that an encoding has not: the output's, or UTF-8, as half a character."""
    if error.encoding.replace("-", "").lower() == "utf8":
        return f"{error.object[:60]!r} is not UTF-8 text; write it in UTF-8"
    lacking = f"the output's encoding, {error.encoding}, has no {error.object[error.start]!r}"
    return f"{lacking}; set PYTHONIOENCODING=utf-8"


def _drop_output() -> None:
    """Point stdout elsewhere, so that Python's own flush at exit stays silent."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
