"""Files: written whole or not at all, copied, locked."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from redraft.errors import RequestError

# Beside the models in the wheel; at the top of a clone.
_RECIPES = (Path(__file__).parent / "assets" / "recipes", Path(__file__).parents[2] / "recipes")


def recipes() -> Path:
    """The folder of the recipes and shapes that come with redraft."""
    return next((folder for folder in _RECIPES if folder.is_dir()), _RECIPES[0])


def shipped(path: Path) -> Path:
    """`path`; where nothing is there, and it reads recipes/…, that one of the recipes that come with redraft."""
    if not path.exists() and path.parts[:1] == ("recipes",) and ".." not in path.parts:
        return recipes().joinpath(*path.parts[1:])
    return path


def read_start(path: Path, most: int) -> bytes:
    """So many bytes, at most, of a file that is neither a pipe nor a device. Raises OSError."""
    _check_regular(path)
    with path.open("rb") as file:
        return file.read(most)


def named_from(folder: Path, name: str) -> Path:
    """An image that a row names from the folder of the rows. Raises RequestError for one that is not in it."""
    is_name = not any(one == "\0" or "\ud800" <= one <= "\udfff" for one in name)
    if not is_name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise RequestError(f"image is {name!r:.100}; name a file in the folder of the rows")
    return folder / name


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file")


def read_small(path: Path, most: int = 64 * 2**20) -> str:
    """The text of a file that is neither a pipe nor a device, at most so many characters.

    Raises OSError, UnicodeDecodeError.
    """
    _check_regular(path)
    with path.open(encoding="utf-8") as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise OSError(errno.EFBIG, f"it has over {most} characters")
    return text


def write_whole(path: Path, content: bytes) -> None:
    """Write as `in_place_of` does. Raises OSError, and leaves the old file."""
    with in_place_of(path) as beside:
        beside.write_bytes(content)


@contextmanager
def in_place_of(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """An empty file to be written in the block, which is then moved into place: a reader finds the old file or all of
    the new one. It is made with a mode, of which the umask takes its part. Raises OSError, and leaves the old file."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    beside.touch(mode, exist_ok=False)  # a name that no other file has, and no link
    try:
        yield beside
        os.replace(beside, path)
    except BaseException:  # an interrupt leaves nothing, either
        with suppress(OSError):  # what refused to be written to may refuse this, too
            beside.unlink()
        raise


def remove_halves(folder: Path, names: Collection[str]) -> None:
    """Remove what killed calls of `in_place_of` left of these files; nobody else may write there. Raises OSError."""
    for left in folder.glob(f".*.{'[0-9a-f]' * 8}"):
        if final_name(left.name) in names and left.is_file() and not left.is_symlink():
            left.unlink()


def final_name(name: str) -> str:
    """The name that a file of `in_place_of` will have; of any other file its own."""
    return name[1:].rpartition(".")[0] if name.startswith(".") else name


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON object, indented, as `write_whole` does."""
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def copy_files(names: Iterable[str], source: Path, target: Path) -> None:
    """Copy those of the files that a folder has into another one, each whole or not at all. Raises OSError."""
    for name in names:
        if (source / name).is_file():
            content, old = (source / name).read_bytes(), target / name
            if not (old.is_file() and old.read_bytes() == content):  # a full disk is no matter where nothing changes
                write_whole(old, content)


def lock(handle: int, path: Path) -> None:
    """Lock an open file or folder until it is closed, at the latest when the program ends.

    Raises RequestError if another program has the lock. On a file system without locks this does nothing.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RequestError(f"{path} is being written by another program; name another place") from None
    except OSError:
        return


def is_free(folder: Path) -> bool:
    """Whether no other program has the lock of a folder. Not where the file system has no locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


_HELD = set[int]()


def _let_go() -> None:
    """In a fork: it would have the lock, too, and keep it for as long as it outlives the program."""
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def alone(folder: Path, target: Path) -> Iterator[Path]:
    """Within this no other program writes into a folder, for `target`. Raises RequestError if one does, OSError."""
    handle = os.open(folder, os.O_RDONLY)
    _HELD.add(handle)
    try:
        lock(handle, target)
        yield folder
    finally:
        if handle in _HELD:  # a fork has closed it already
            _HELD.remove(handle)
            os.close(handle)
