"""The user's own folder, where what was worked out once is kept: compiled languages, knees, dials."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/redraft, or ~/.cache/redraft where that is no absolute path (XDG Base Directories)."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "redraft"
    try:
        return Path.home() / ".cache" / "redraft"
    except RuntimeError:  # a user without a home, as services may be: a folder that nothing can be kept in
        return Path(os.devnull) / "redraft"
