"""The knee: rows per forward beyond which more do not raise throughput, kept on disk for later loads.

    redraft bench --knee ──► knees.json in the user's cache ──► redraft.load: LoopConfig.max_rows

A knee belongs to a checkpoint, its number formats, a device and a number of threads; another of any of them has none
until it is measured. Answers do not depend on it, so a file that is lost or cannot be read costs speed and no more.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path

import torch

from redraft.errors import RunError
from redraft.files import read_small, write_whole
from redraft.home import cache_folder


def knees_file() -> Path:
    """Where this user's knees are kept."""
    return cache_folder() / "knees.json"


def knee_key(folder: Path, dtype: str, device: str, plan: str | None = None) -> str:
    """What a knee belongs to. Weights are distinguished by name and size, for speed depends on no number in them."""
    digest = hashlib.blake2b((folder / "config.json").read_bytes(), digest_size=16)
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else f"{where.type} of {platform.node()}"
    formats = dtype if plan is None else f"{dtype} with plan {plan}"
    return f"{digest.hexdigest()}, {formats}, {name}, {torch.get_num_threads()} threads"


def read_knee(key: str, report: Callable[[str], None] | None = None) -> int | None:
    """Rows at the knee, None if it was not measured; `report` gets a line for a file that cannot be used."""
    try:
        return _read(knees_file()).get(key)
    except (OSError, ValueError) as error:
        if report is not None:
            report(f"{knees_file()} cannot be used ({error}); `redraft bench --knee` writes it anew")
        return None


def write_knee(key: str, rows: int) -> Path:
    """Keep a knee beside those that are kept already; returns the file. Raises RunError if it cannot be written."""
    path = knees_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            kept = _read(path)
        except ValueError:
            kept = {}
        write_whole(path, json.dumps(kept | {key: rows}, indent=1).encode())
    except OSError as error:
        raise RunError(f"the knee cannot be kept in {path}: {error.strerror}; set XDG_CACHE_HOME elsewhere") from None
    return path


def _read(path: Path) -> dict[str, int]:
    """Every kept knee. Raises ValueError for a file that holds something else."""
    try:
        found = json.loads(read_small(path))
    except RecursionError:
        raise ValueError("it nests too deep") from None
    except (FileNotFoundError, NotADirectoryError):  # nor is there a folder where nothing can be kept
        return {}
    if not isinstance(found, dict) or not all(type(rows) is int and rows > 0 for rows in found.values()):
        raise ValueError("it is not an object of positive integers")
    return found
