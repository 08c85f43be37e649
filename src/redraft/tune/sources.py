"""Sources of examples. The samples of a step are a function of seed and step alone.

    TaskSource        a built-in task                     → Example
    RowsSource        a JSON-lines file                   → Conversation
    GeneratorSource   a function in a Python file         → Conversation
    FolderSource      text files                          → Passage

A row is an object with `messages` (role and content, the last one the assistant's) or with `prompt` and `response`.
Files are read once at the start, to check every row and to note its position and digest. Only these stay in memory, and
any step can be read without the steps before it. A row that was replaced since is refused.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from random import Random
from time import time_ns
from types import ModuleType
from typing import Protocol, runtime_checkable

from redraft.errors import RecipeError, RequestError
from redraft.files import named_from, shipped
from redraft.images.messages import is_data
from redraft.tasks import Example, Task, stream_seed, task
from redraft.text import Message
from redraft.tune.recipe import DataRecipe

MOST_ROW_BYTES, MOST_FILE_BYTES = 64 * 2**20, 2**28
_MOST_SHOWN, _MOST_BAD = 5, 1000
"""Bad rows of a file that are shown, and that are counted."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_PASSAGE_CHARS = 4000
_TICK = 2 * 10**9
"""Nanoseconds, the coarsest steps that a file's times have."""


@dataclass(frozen=True)
class Conversation:
    """Messages, of which the last is an answer, and where they were read."""

    messages: tuple[Message, ...]
    where: str


@dataclass(frozen=True)
class Passage:
    """A stretch of plain text, and where it was read."""

    text: str
    where: str


Sample = Example | Conversation | Passage
_Place = tuple[int, int, int]
"""Where a row begins, its line number and its digest."""
_Stamp = tuple[int, ...]
"""What the system says of a file."""


@runtime_checkable
class SampleSource(Protocol):
    """An endless supply of samples. `digest` is of what a user's files hold; none of what comes with the program."""

    name: str
    digest: str

    def samples(self, seed: int, count: int) -> list[Sample]:
        """Samples to train on; the same for the same seed."""

    def held_out(self, count: int) -> list[Sample]:
        """Up to so many samples that are never trained on; none if there are none."""


Made = dict[tuple[int, str, int], SampleSource]
"""Sources that were read, by kind, name and how many are held out: stages that share one read it once."""


def sources(data: DataRecipe, made: Made) -> list[tuple[SampleSource, float]]:
    """The sources of a recipe and their shares; `made` has those that were read before, and gets the others. Raises
    RecipeError for one that cannot be read or is empty."""
    found: list[tuple[SampleSource, float]] = [(TaskSource(task(name)), share) for name, share in data.tasks.items()]
    kinds: Sequence[tuple[Mapping[str, float], Callable[[str], SampleSource]]] = (
        (data.files, lambda name: RowsSource(Path(name), data.held_out)),
        (data.folders, lambda name: FolderSource(Path(name), data.held_out)),
        (data.generators, GeneratorSource),
    )
    name = ""
    try:
        for number, (named, make) in enumerate(kinds):
            for name, share in named.items():
                key = (number, name, data.held_out)
                if key not in made:
                    made[key] = make(name)
                found.append((made[key], share))
    except (OSError, ValueError) as error:  # the second for a name with a zero
        why = getattr(error, "strerror", None) or error
        raise RecipeError(f"[data] {name!r:.200} cannot be read ({why}); give another name") from None
    return found


class TaskSource:
    """A built-in task, which has its own held-out examples."""

    def __init__(self, wrapped: Task) -> None:
        self.task, self.name, self.digest = wrapped, wrapped.name, ""

    def samples(self, seed: int, count: int) -> list[Sample]:
        return list(islice(self.task.examples("train", seed), count))

    def held_out(self, count: int) -> list[Sample]:
        return list(islice(self.task.examples("held_out", 1), count))


class RowsSource:
    """A JSON-lines file. A hash of a row decides whether it is held out, so copies of a row are on one side."""

    def __init__(self, path: Path, held_out: int) -> None:
        self.path, self.name = path, path.name
        self._train: list[_Place] = []
        self._kept: list[_Place] = []
        bad, whole = list[str](), blake2b(digest_size=16)
        if path.exists() and not path.is_file():
            raise RecipeError(f"{path} is not a regular file, which steps read again; give a file of JSON lines")
        if path.exists() and not path.stat().st_size:  # as the files of /proc say, some of which wait for ever
            raise RecipeError(f"{path} has no rows to train on; it is empty")
        try:
            with path.open("rb") as file:
                at = 0
                for number, line in enumerate(iter(partial(file.readline, MOST_ROW_BYTES + 1), b""), 1):
                    if len(line) > MOST_ROW_BYTES:
                        raise RecipeError(f"{path}, line {number} has over {MOST_ROW_BYTES} bytes; make it shorter")
                    if line.strip():
                        try:
                            parse_row(line, f"{path}, line {number}")
                        except RecipeError as error:
                            bad.append(str(error))
                            if len(bad) == _MOST_BAD:
                                break
                        side = self._kept if held_out and _is_held_out(line, held_out) else self._train
                        side.append((at, number, _digest(line)))
                        whole.update(line.strip() + b"\n")
                    at += len(line)
        except OSError as error:
            raise RecipeError(f"{path} cannot be read ({error.strerror}); give a file of JSON lines") from None
        if bad:
            more = f"; and {len(bad) - _MOST_SHOWN} more bad rows" if len(bad) > _MOST_SHOWN else ""
            more += ", behind which no more was read" if len(bad) == _MOST_BAD else ""
            raise RecipeError("; ".join(bad[:_MOST_SHOWN]) + more)
        self.digest = whole.hexdigest()
        if not self._train:
            why = "all are held out; set [data] held_out to 0" if self._kept else "every line is one JSON object"
            raise RecipeError(f"{path} has no rows to train on; {why}")

    def samples(self, seed: int, count: int) -> list[Sample]:
        rng = Random(stream_seed(self.name, "train", seed))
        return self._read(rng.choices(self._train, k=count))

    def held_out(self, count: int) -> list[Sample]:
        return self._read(self._kept[:count])

    def _read(self, places: list[_Place]) -> list[Sample]:
        try:
            if self.path.exists() and not self.path.is_file():  # a pipe would be waited for
                raise RecipeError(f"{self.path} is no longer a regular file; bring it back")
            with self.path.open("rb") as file:
                found: list[Sample] = []
                for at, number, digest in places:
                    where = f"{self.path}, line {number}"
                    file.seek(at)
                    if _digest(line := file.readline(MOST_ROW_BYTES)) != digest:
                        raise RecipeError(f"{where} is no longer what it was at the start; bring it back")
                    found.append(parse_row(line, where, self.path.parent))
                return found
        except OSError as error:
            raise RecipeError(f"{self.path} cannot be read any more ({error.strerror}); bring it back") from None


class GeneratorSource:
    """`function(split, seed)` of a Python file, an iterator of rows; split is "train" or "held_out"."""

    def __init__(self, place: str) -> None:
        self.name, self.digest = place, ""
        self._function = _load(place)

    def samples(self, seed: int, count: int) -> list[Sample]:
        return self._rows("train", seed, count)

    def held_out(self, count: int) -> list[Sample]:
        return self._rows("held_out", 1, count)

    def _rows(self, split: str, seed: int, count: int) -> list[Sample]:
        try:
            rows = list(islice(self._function(split, seed), count))
        except (Exception, SystemExit, GeneratorExit) as error:  # the user's own code can fail in any way
            raise RecipeError(f"{self.name} failed: {type(error).__name__}: {error}; correct the function") from None
        if len(rows) < count and split == "train":
            raise RecipeError(f"{self.name} gave {len(rows)} rows where {count} were asked for; it must not end")
        return [_conversation(row, f"{self.name}, row {i} of seed {seed}") for i, row in enumerate(rows, 1)]


class FolderSource:
    """The text files of a folder and the folders in it, each as likely as it is long.

    A hash of a file's text decides whether it is held out, so copies of a file are on one side.
    """

    def __init__(self, folder: Path, held_out: int) -> None:
        self.name, self._files, self._kept = str(folder), list[Path](), list[Path]()
        self._sizes, self._digests, self._stamps = dict[Path, int](), dict[Path, int](), dict[Path, _Stamp]()
        whole = blake2b(digest_size=16)
        if not folder.is_dir():
            raise RecipeError(f"{folder} is not a folder; [data] folders names folders of text files")
        for path in sorted(_files_in(folder)):
            if path.is_file():
                text, stamp = _text(path)
                whole.update(os.fsencode(path.relative_to(folder)) + b"\0" + text.encode() + b"\0")
                if text:
                    is_kept = held_out and _is_held_out(text.encode(), held_out)
                    (self._kept if is_kept else self._files).append(path)
                    self._sizes[path], self._digests[path] = len(text), _digest(text.encode())
                    self._stamps[path] = stamp
        self.digest = whole.hexdigest()
        if not self._files:
            why = "; all of it is held out; set [data] held_out to 0" if self._kept else ""
            raise RecipeError(f"{folder} holds no text to train on; [data] folders names folders of text files{why}")

    def samples(self, seed: int, count: int) -> list[Sample]:
        rng = Random(stream_seed(self.name, "train", seed))
        sizes = [self._sizes[path] for path in self._files]
        return self._passages(rng.choices(self._files, sizes, k=count), rng)

    def held_out(self, count: int) -> list[Sample]:
        return self._passages(self._kept[:count], Random(stream_seed(self.name, "held_out", 1)))

    def _passages(self, paths: list[Path], rng: Random) -> list[Sample]:
        """Stretches of files that start at the beginning of a line; one file after another is read, each once."""
        places = defaultdict[Path, list[tuple[int, int]]](list)
        for i, path in enumerate(paths):
            places[path].append((i, rng.randrange(max(1, self._sizes[path] - _PASSAGE_CHARS // 4))))
        found = dict[int, Sample]()
        for path, drawn in places.items():
            text, stamp = _text(path)
            if stamp != self._stamps[path]:  # a hash takes longer than all else
                if _digest(text.encode()) != self._digests[path]:
                    raise RecipeError(f"{path} is no longer what it was at the start; bring it back")
                self._stamps[path] = stamp
            for i, at in drawn:
                start = text.rfind("\n", 0, at) + 1
                found[i] = Passage(text[start : start + _PASSAGE_CHARS], f"{path}, character {start}")
        return [found[i] for i in range(len(paths))]


def _files_in(folder: Path) -> Iterator[Path]:
    """All that are not hidden. Raises RecipeError for a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        raise RecipeError(f"{error.filename} cannot be read: {error.strerror}; the texts in it would be missing")

    for inside, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(inside, name) for name in names if not name.startswith("."))


def _text(path: Path) -> tuple[str, _Stamp]:
    """The text of a file, and what stays the same until the file changes."""
    try:
        found, now = path.stat(), time_ns()
        if found.st_size > MOST_FILE_BYTES:
            raise RecipeError(f"{path} has over {MOST_FILE_BYTES} bytes; cut it into several files")
        text = path.read_text(encoding="utf-8").strip() if found.st_size else ""
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not readable text ({error}); move it elsewhere") from None
    # The stamp of a file of just now is like no other: it may change again before its times do, which have ticks.
    just_now = now if now - found.st_ctime_ns < _TICK else 0
    return text, (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, just_now)


def parse_row(line: bytes, where: str, folder: Path = Path()) -> Conversation:
    """One line of a JSON-lines file in a folder. Raises RecipeError that begins with `where`."""
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{where}: not UTF-8 (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        table = "; of a table make a JSON object of each row" if ".csv" in where or ".tsv" in where else ""
        raise RecipeError(f"{where}: not JSON ({error}){table}") from None
    found = _conversation(row, where)
    if any(_SURROGATE.search(json.dumps(message["content"], ensure_ascii=False)) for message in found.messages):
        raise RecipeError(f"{where}: a text has an unpaired surrogate; write valid Unicode")
    try:
        return _from_folder(found, folder)
    except RequestError as error:
        raise RecipeError(f"{where}: {error}") from None


def _conversation(row: object, where: str) -> Conversation:
    if not isinstance(row, dict):
        raise RecipeError(f"{where}: the row is a {type(row).__name__}; it must be an object")
    if "messages" in row:
        return Conversation(_messages(row["messages"], where), where)
    if not isinstance(row.get("prompt"), str):
        raise RecipeError(f"{where}: there are neither messages nor a prompt that is a string")
    if not isinstance(row.get("response"), str) or not row["response"].strip():
        raise RecipeError(f"{where}: there is no response; it must be a string that is not empty")
    asked = {"role": "user", "content": row["prompt"]}
    return Conversation((asked, {"role": "assistant", "content": row["response"]}), where)


def _messages(found: object, where: str) -> tuple[Message, ...]:
    if not isinstance(found, list) or not found:
        raise RecipeError(f"{where}: messages is not a list of messages")
    for i, message in enumerate(found):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        is_parts = role == "user" and isinstance(content, list) and all(map(_is_part, content))
        if not isinstance(role, str) or not (isinstance(content, str) or is_parts):
            raise RecipeError(
                f"{where}: messages[{i}] must have a role and a content, both strings; a user's content may be a list"
                ' of {"type": "text", "text": …} and {"type": "image", "image": …}'
            )
    last = found[-1]
    if last["role"] not in ANSWERING or not last["content"].strip():
        raise RecipeError(f"{where}: there is no response; the last message must be an assistant's, and not empty")
    return tuple(found)


def _is_part(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    return (
        isinstance(part.get("text"), str) if part.get("type") == "text" else part.get("type") in ("image", "image_url")
    )


def _from_folder(sample: Conversation, folder: Path) -> Conversation:
    """A conversation whose files of images are named from a folder. Raises RequestError for one elsewhere."""
    messages: list[Message] = []
    for message in sample.messages:
        if isinstance(message["content"], list):
            parts = [
                {**part, "image": named_from(folder, part["image"])}
                if isinstance(part.get("image"), str) and not is_data(part["image"])
                else part
                for part in message["content"]
            ]
            message = {**message, "content": parts}
        messages.append(message)
    return Conversation(tuple(messages), sample.where)


ANSWERING = ("assistant", "model")


def _digest(line: bytes) -> int:
    return int.from_bytes(blake2b(line.strip(), digest_size=8).digest(), "big")


def _is_held_out(line: bytes, one_in: int) -> bool:
    return _digest(line) % one_in == 0


@cache
def _module(path: Path, digest: int) -> ModuleType:
    """A file as a module, which is run once for all functions of it. A dataclass looks for its module by name."""
    spec = importlib.util.spec_from_file_location(f"redraft_generator_{_digest(bytes(path)):x}_{digest:x}", path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"[data] generator {path} is not a Python file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load(place: str) -> Callable[[str, int], Iterator[object]]:
    file, colon, name = place.rpartition(":")
    path = shipped(Path(file))
    if not colon or not path.is_file():
        raise RecipeError(f'[data] generator {place!r} names no file; write "file.py:function"')
    try:
        module = _module(path.resolve(), _digest(path.read_bytes()))
    except RecipeError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:  # as above
        raise RecipeError(f"[data] generator {file} failed: {type(error).__name__}: {error}; correct it") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise RecipeError(f"[data] generator {file} has no function {name!r}")
    found: Callable[[str, int], Iterator[object]] = function
    return found
