"""Files that are whole or absent."""

from __future__ import annotations

import os
import secrets
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
    except OSError:
        with suppress(OSError):  # what refused to be written to may refuse this, too
            beside.unlink()
        raise
