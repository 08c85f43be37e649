"""Programs for a library that can neither be interrupted nor given a bound on memory: a process of its own runs it.

Such a process is isolated: it reads no folder that a caller happens to be in, and no variable. So it knows neither
PYTHONPATH nor a user's own packages, and is given the folder of the library.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_FIND = "import sys; sys.path.append(sys.argv.pop())\n"


def isolated(code: str, library: str, *arguments: int) -> list[str]:
    """The command of a process that runs `code`, which may import `library` and has the arguments in sys.argv."""
    return [sys.executable, "-I", "-c", _FIND + code, *map(str, arguments), _folder_of(library)]


@cache
def _folder_of(library: str) -> str:
    found = find_spec(library)
    assert found is not None, "it is a dependency"
    assert found.origin is not None, "it is a package with a file"
    return str(Path(found.origin).resolve().parents[1])
