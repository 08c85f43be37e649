"""The user's cache folder, for results that are slow to compute: compiled constraints and measured settings."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/redraft, or ~/.cache/redraft if that is not an absolute path (XDG Base Directories)."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "redraft"
    try:
        return Path.home() / ".cache" / "redraft"
    except RuntimeError:  # a user without a home, as some services: a folder that cannot be made
        return Path(os.devnull) / "redraft"
