"""Compiled languages on disk: what was compiled once for a source and a tokenizer is read again, refusals too.

    <sha256 of the key>.language  =  MARK, sha256 of key and content, content

The key holds the source, its options, the tokenizer, the limits and the version of what compiles. The digest binds the
content to it, so a file that was damaged, cut short, or put in another's place is as good as none: the language is
compiled anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zlib
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from redraft.constraints.compile.lift import TokenAutomaton
from redraft.files import write_whole

MARK = b"redraft language 2\n"
MOST_BYTES, MOST_FILES = 1 << 30, 20_000
"""Of all that is kept in a folder; what was read longest ago goes first."""
LEFT_SEC = 3600.0
"""A file with a dot before its name is one that a killed program had begun, if it is so much older than the newest."""
_OURS = re.compile(r"[0-9a-f]{64}\.language|\.[0-9a-f]{64}\.language\.[0-9a-f]{8}")
LIBRARIES = ("jsonschema-rs", "llguidance", "outlines-core")
_ARRAYS = ("class_of", "src", "cls", "dst", "accepts")
_DIGEST = hashlib.sha256().digest_size


class Entry(NamedTuple):
    """What is kept of a source: its automaton, or the grammar that guides it and hints at ends; whether answers are
    checked, and what of a schema is ignored; or why it was refused. It is kept if it is `lasting`, and not a matter of
    the time there was."""

    automaton: TokenAutomaton | None
    checked: bool = False
    ignored: tuple[str, ...] = ()
    refused: str = ""
    grammar: str = ""
    hints: tuple[str, ...] = ()
    lasting: bool = True


@cache
def code_version() -> str:
    """A hash of the modules that compile and of the libraries that they ask: what they made before a change is not read
    after it."""
    digest = hashlib.sha256(MARK)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            digest.update(f"{library} {version(library)}".encode())
    return digest.hexdigest()


def path_of(folder: Path, key: str) -> Path:
    """Where the entry of a key is kept."""
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()}.language"


def read_entry(folder: Path, key: str) -> Entry | None:
    """The entry of a key; None if there is none that is whole and of just that key."""
    try:
        path = path_of(folder, key)
        if not path.is_file():  # a pipe would be waited for
            return None
        data = path.read_bytes()
        with suppress(OSError):  # it may be somebody else's, who lets it be read
            os.utime(path)
        content = data[len(MARK) + _DIGEST :]
        if data[: len(MARK)] != MARK or data[len(MARK) : len(MARK) + _DIGEST] != _digest(key, content):
            return None
        with np.load(io.BytesIO(zlib.decompress(content)), allow_pickle=False) as kept:
            notes = json.loads(kept["notes"].tobytes())
            arrays = {name: kept[name] for name in _ARRAYS if name in kept}
        automaton = TokenAutomaton(**arrays) if arrays else None
        notes |= {name: tuple(notes[name]) for name in ("ignored", "hints")}
        return Entry(automaton, **notes)
    except Exception:  # whatever it is. Python's parser, which reads an array's head, may fail where threads share it
        return None


def write_entry(folder: Path, key: str, entry: Entry) -> None:
    """Written beside and moved into place, so that nobody reads half of it. A disk that refuses costs only time."""
    said = {name: getattr(entry, name) for name in ("checked", "ignored", "refused", "grammar", "hints")}
    notes = json.dumps(said).encode()
    arrays = {} if entry.automaton is None else {name: getattr(entry.automaton, name) for name in _ARRAYS}
    content = io.BytesIO()
    np.savez(content, **arrays, notes=np.frombuffer(notes, np.uint8))
    packed = zlib.compress(content.getvalue(), level=1)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path_of(folder, key), MARK + _digest(key, packed) + packed)
        if packed[-1] % 64 == 0:  # of its checksum: now and then, since it takes a look at every file
            make_room(folder)


def make_room(folder: Path) -> None:
    """Remove what is too much, and what killed programs left, but nothing of another name than files have here.

    Raises OSError where the folder cannot be read.
    """
    found: list[tuple[os.stat_result, Path]] = []
    for path in (one for one in folder.iterdir() if _OURS.fullmatch(one.name)):
        with suppress(OSError):  # another program removes files, too
            found.append((path.stat(), path))
    found.sort(key=lambda one: -one[0].st_mtime)
    number = num_bytes = 0
    for stat, path in found:
        is_whole = path.suffix == ".language"
        number, num_bytes = number + is_whole, num_bytes + stat.st_size
        is_over = number > MOST_FILES or num_bytes > MOST_BYTES
        if is_over if is_whole else found[0][0].st_mtime - stat.st_mtime > LEFT_SEC:
            with suppress(OSError):
                path.unlink()


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(len(key.encode()).to_bytes(8, "big") + key.encode() + content).digest()
