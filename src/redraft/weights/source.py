"""Stored tensors: a folder of safetensors files, and the folder of a model's name.

A `WeightSource` reads headers first, so that names and shapes can be checked before anything large is allocated, and
then one tensor at a time. It refuses files that disagree with themselves or with their index. Pickled weights are
refused: reading one can run code.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from redraft.errors import WeightsError
from redraft.files import read_small, shipped
from redraft.model.packed import Format, Packed
from redraft.shapes import Tensor
from redraft.weights.names import Slot, shown

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
EMBEDDED = ("nano", "nano-sudoku")
"""Models inside the package, the default first: one reads sentences, one solves puzzles (docs/decisions)."""
TEXT_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    *("processor_config.json", "preprocessor_config.json"),
)
"""Files of a checkpoint beside its weights and configs."""

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Stored:
    """One stored tensor's header. `dtype` is the file format's name: F32, BF16, F16, I64, F8_E4M3, …"""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path


class WeightSource:
    """The tensors of one checkpoint folder, by name. Opening it reads headers only.

    Raises WeightsError if the folder has no safetensors weights, a file is cut short or damaged, or the files and
    their index disagree.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: Mapping[str, Stored] = _read_headers(folder)

    def kept(self, wanted: Sequence[Slot]) -> Mapping[str, Format]:
        """The formats of our tensors that are stored whole in quantised blocks and kept so."""
        return {}

    def blocks(self, packed: Mapping[str, Format], wanted: Sequence[Slot]) -> tuple[str, ...]:
        """Kinds of quantised blocks that are unpacked as they are read, by name."""
        return ()

    def read_packed(self, name: str) -> Packed:
        """One tensor of blocks that are kept."""
        raise KeyError(name)

    def format_of(self, name: str) -> str | None:
        """The stored dtype of a tensor; None if it is absent."""
        return self.tensors[name].dtype if name in self.tensors else None

    def read(self, name: str) -> Tensor:
        """One tensor, on the CPU, as stored. Raises KeyError for an absent name: look in `tensors` first."""
        with opened(self.tensors[name].file) as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def read_rows(self, name: str, rows: slice) -> Tensor:
        """Part of one tensor, along its first axis; the rest is not read."""
        with opened(self.tensors[name].file) as file:
            tensor: Tensor = file.get_slice(name)[rows]
            return tensor

    def stream(self, names: Container[str]) -> Iterator[tuple[Stored, Tensor]]:
        """The tensors whose name is in `names`, file by file, one in memory at a time if the caller keeps none."""
        for path in sorted({stored.file for stored in self.tensors.values()}):
            with opened(path) as file:
                for name in file.offset_keys():
                    if name in names:
                        yield self.tensors[name], file.get_tensor(name)


def locate(name_or_path: str) -> Path:
    """The folder of a checkpoint, without using the network.

    "nano" and "nano-sudoku" are the models inside the package (write "./nano" for a folder of that name); otherwise an
    existing folder; otherwise a repository name that is complete in the local Hugging Face cache. Else WeightsError.
    """
    if name_or_path in EMBEDDED:
        return _embedded(name_or_path)
    with suppress(RuntimeError, OSError):  # "~name" of a user who does not exist; a name too long for a file
        path = shipped(Path(name_or_path).expanduser())
        if path.is_dir():
            return path
        if path.exists():
            raise WeightsError(f"{name_or_path!r} is a file; give the folder it is in")
    if is_repository(name_or_path):
        return _cached(name_or_path)
    raise WeightsError(
        f"no model {name_or_path!r}; give {' or '.join(map(repr, EMBEDDED))}, an existing folder, or a repository name"
        " such as google/diffusiongemma-26B-A4B-it"
    )


def is_asked_by_fields(model: str | Path, adapter: str | Path | None = None) -> bool:
    """Whether a model was taught the prompts that name fields, to copy, and to write from left to right as well: nano,
    as it is. What it answers is then copied out of the text and read back where nobody says otherwise."""
    return str(model) == "nano" and not adapter


def has_weights(folder: Path) -> bool:
    """Whether a folder holds safetensors weights, whole or not."""
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


def is_repository(name: str) -> bool:
    """Whether `name` has the form owner/name of a hub repository."""
    return _REPOSITORY.fullmatch(name) is not None


def _embedded(name: str) -> Path:
    folder = Path(str(files("redraft"))) / "assets" / name
    if not (folder / "config.json").is_file():
        raise WeightsError(
            f"the embedded model {name!r} is missing from this install ({folder}); install redraft again"
        )
    return folder


def _cached(name: str) -> Path:
    from huggingface_hub import try_to_load_from_cache  # 0.2 s to import, and only repository names need it

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError as error:  # a name that the hub has none of
        raise WeightsError(f"no model {name!r}: {str(error).partition(':')[0]}") from None
    folder = Path(found).parent if isinstance(found, str) else _pulled_before(name) if found is None else None
    if folder is None:
        raise WeightsError(f"{name!r} is neither a folder nor in the local cache; run: redraft pull {name}")
    if not has_weights(folder):
        raise WeightsError(f"{name!r} is only partly in the local cache, without weights; run: redraft pull {name}")
    return folder


def _pulled_before(name: str) -> Path | None:
    """The newest whole snapshot, where the one that the hub named last is not: a pull of it was cut off, or goes on."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    # Without a name for the newest, a commit was fetched by its digest, and is not the model of this name.
    configs = folder.glob("snapshots/*/config.json") if (folder / "refs/main").is_file() else ()
    whole = [path for path in configs if path.is_file() and _is_whole(path.parent)]
    return max(whole, key=lambda path: path.lstat().st_mtime).parent if whole else None


def _is_whole(folder: Path) -> bool:
    """Whether all weights are there that a folder should hold: other programs fetch a config before them."""
    if not (folder / INDEX).is_file():
        return (folder / SINGLE).is_file()
    with suppress(WeightsError):
        return all((folder / shard).is_file() for shard in _read_index(folder / INDEX).values())
    return False


def _read_headers(folder: Path) -> dict[str, Stored]:
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file() and index.is_file():
        raise WeightsError(f"{folder} holds both {SINGLE} and {INDEX}; remove the one that is out of date")
    if single.is_file():
        return {stored.name: stored for stored in _header(single)}
    if index.is_file():
        return _read_shards(folder, _read_index(index))
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise WeightsError(
            f"{folder} holds pickled weights ({shown(pickles)}), which can run code and are never read;"
            " convert them to safetensors"
        )
    raise WeightsError(f"{folder} has neither {SINGLE} nor {INDEX}; give a folder that holds a model's weights")


MOST_FILE_NAME = 255
"""Bytes that file systems take."""


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> shard file name, from the index."""
    try:
        found = json.loads(read_small(path), object_pairs_hook=_once)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}; fetch the file again") from None
    except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 are also a ValueError
        raise WeightsError(f"{path} is not valid JSON ({error}); fetch the file again") from None
    weight_map = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{path} has no weight_map; fetch the file again")
    for name, shard in weight_map.items():
        # A shard is a file of this folder: a path in the index would let a download point anywhere.
        is_file = isinstance(shard, str) and len(shard.encode(errors="replace")) <= MOST_FILE_NAME
        if not is_file or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise WeightsError(
                f"{path} puts {name} in {str(shard)[:100]!r}; a shard must be a .safetensors file beside it"
            )
    return weight_map


def _read_shards(folder: Path, weight_map: Mapping[str, str]) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    for shard in sorted(set(weight_map.values())):
        if not (folder / shard).is_file():
            raise WeightsError(f"{folder / shard} is named by {INDEX} and does not exist; fetch the model again")
        there = {stored.name: stored for stored in _header(folder / shard)}
        promised = {name for name, file in weight_map.items() if file == shard}
        if absent := sorted(promised - there.keys()):
            raise WeightsError(f"{folder / shard} lacks {len(absent)} tensors that {INDEX} puts there: {shown(absent)}")
        if extra := sorted(there.keys() - promised):
            raise WeightsError(
                f"{folder / shard} holds {len(extra)} tensors that {INDEX} does not put there: {shown(extra)}"
            )
        found |= there
    return found


def check_names(path: Path) -> None:
    """Raise WeightsError if two tensors of a safetensors file have one name: the parser would choose which is read."""
    with path.open("rb") as file:
        header = file.read(int.from_bytes(file.read(8), "little"))
    try:
        json.loads(header, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is damaged ({error}); fetch it again") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names differ. Raises ValueError."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError(f"it has {Counter(name for name, _ in pairs).most_common(1)[0][0]} twice")
    return found


def _header(path: Path) -> list[Stored]:
    with opened(path) as file:
        check_names(path)
        found = []
        for name in file.offset_keys():  # in the order of the bytes, so that a disk is read from front to back
            part = file.get_slice(name)
            found.append(Stored(name, tuple(part.get_shape()), part.get_dtype(), path))
    return found


def opened(path: Path) -> Any:  # safetensors' handle has no public type
    """An open file; the library checks the header and that the tensors cover the file to its last byte.

    Raises WeightsError for one that is damaged, or that cannot be read.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise OSError("it is no regular file")
        if path.exists() and not os.access(path, os.R_OK):  # of which the library says that there is no such file
            raise OSError("permission denied")
        if (named := str(path)).encode(errors="replace").decode() != named:
            raise OSError("its name is no UTF-8, and such files cannot be opened; rename the folder")
        return safe_open(path, framework="pt", device="cpu")
    except SafetensorError as error:
        size = path.stat().st_size
        raise WeightsError(f"{path} is damaged or cut short ({size} bytes: {error}); fetch it again") from None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error}); check that the file is there and readable") from None
