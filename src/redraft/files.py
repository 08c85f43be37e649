"""Files that are whole or absent, and JSON in them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the final name, then move into place: a reader finds the old file or all of the new one.

    Raises OSError, and leaves the old file.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # no name that another file could have
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except BaseException:  # an interrupt leaves nothing, either
        with suppress(OSError):  # what refused to be written to may refuse this, too
            beside.unlink()
        raise


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON object, indented, as `write_whole` does."""
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def copy_files(names: Iterable[str], source: Path, target: Path) -> None:
    """Copy those of the files that a folder has into another one. Raises OSError."""
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
