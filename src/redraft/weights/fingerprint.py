"""Whether a folder still holds the checkpoint that it held."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from redraft.config import OWN_FILE
from redraft.weights.source import TEXT_FILES

_WHOLE, _SAMPLES, _SAMPLE = 2**24, 256, 2**14  # bytes of a file hashed whole; else how many samples, of how many bytes
_SETTINGS = ("config.json", "generation_config.json")
Stamps = tuple[tuple[str, int, int], ...]


def fingerprint(folder: Path) -> str:
    """A digest of a checkpoint: its settings and its weights, of files over 16 MiB an even sample."""
    digest = hashlib.sha256()
    for path in _files(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            if size <= _WHOLE:
                digest.update(file.read())
                continue
            for i in range(_SAMPLES):
                file.seek(i * (size - _SAMPLE) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def known_fingerprint(folder: Path) -> str:
    """The same, worked out once for as long as the files stay as they are."""
    return _fingerprint(folder, stamps(folder))


def texts_digest(folder: Path) -> str:
    """A digest of what `fingerprint` leaves out: tokenizer, chat template, image settings and `redraft.json`."""
    digest = hashlib.sha256()
    for path in (folder / name for name in (OWN_FILE, *TEXT_FILES)):
        digest.update(path.read_bytes() if path.is_file() else b"")
        digest.update(f" {path.name} ".encode())
    return digest.hexdigest()


def stamps(folder: Path, *, weights_alone: bool = False) -> Stamps:
    """Size and time of each of these files: mostly other ones, where one was written or replaced."""
    found = ((path.name, path.stat()) for path in _files(folder) if not (weights_alone and path.name in _SETTINGS))
    return tuple((name, one.st_size, one.st_mtime_ns) for name, one in found)


def _files(folder: Path) -> list[Path]:
    weights = sorted(path for ending in ("safetensors", "gguf") for path in folder.glob(f"*.{ending}"))
    return [path for path in (*(folder / name for name in _SETTINGS), *weights) if path.exists()]


@lru_cache(maxsize=8)
def _fingerprint(folder: Path, _stamps: Stamps) -> str:
    return fingerprint(folder)
