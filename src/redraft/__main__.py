"""The `redraft` command: parse, run, and turn every error into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from redraft.cli.main import build_parser
from redraft.errors import RedraftError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 our failure, 2 the caller's mistake, 130 interrupted."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except RedraftError as error:
        if arguments.debug:
            raise
        print(f"redraft: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        if arguments.debug:
            raise
        print("redraft: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away; point stdout elsewhere so that closing it at exit stays silent.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # the last line of defence: a bug of ours still ends in one line
        if arguments.debug:
            raise
        first = (str(error).splitlines() or [""])[0]
        print(f"redraft: internal error, {type(error).__name__}: {first} (run again with --debug)", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
