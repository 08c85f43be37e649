"""Input and output of a run on Ray that are not JSONL files of this machine: folders, Parquet and URLs of stores.

    IN ──Ray's readers──► a file of lines ──the run, as of any file──► OUT.lines ──► OUT: Parquet, or lines at a URL

So a run is resumed as any other, from OUT.lines, which is removed when OUT is whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from posixpath import normpath
from tempfile import TemporaryDirectory
from typing import Any

from redraft.errors import RequestError, RunError

PARQUET, LINES = ".parquet", (".jsonl", ".ndjson", ".json")
MANY = 10_000
"""Lines that are in memory at a time when they become Parquet."""


def is_url(name: str) -> bool:
    """Whether it is one, not a path."""
    return "://" in name


def needs_ray(name: str) -> bool:
    """Whether an input or output is no file of lines."""
    return is_url(name) or name.endswith(PARQUET) or Path(name).is_dir()


@contextmanager
def as_files(ray: Any, source: str, target: str) -> Iterator[tuple[Path, Path]]:
    """Input and output as files of lines; behind the context the output is what was asked for.

    Raises RequestError for an input that cannot be read or an output that is there, RunError for one that cannot be
    written.
    """
    if is_url(target) and target.endswith("/"):
        raise RequestError(f"{target} names no file; end it with one, such as {target}answers.jsonl")
    if needs_ray(source) and _lies_in(target, source):
        raise RequestError(f"{target} lies in {source}, all of which is read; name an output elsewhere")
    apart = is_url(target) or target.endswith(PARQUET)
    lines = Path(f"{target.rpartition('/')[2] if is_url(target) else target}.lines") if apart else Path(target)
    if apart:
        system, path = _place(target)
        if not lines.exists() and _info(system, path, target).type.name != "NotFound":
            raise RequestError(f"{target} exists; name another output, or remove it")
    with TemporaryDirectory() as folder:
        here = Path(source)
        if needs_ray(source):
            here = Path(folder) / "rows"
            _gather(ray, source, here)
        try:
            yield here, lines
        except RequestError as error:
            if here == Path(source) or str(here) not in str(error):
                raise
            raise RequestError(str(error).replace(str(here), source)) from None
    if apart:
        try:
            _deliver(lines, system, path)
        except (OSError, ValueError) as error:
            raise RunError(f"{target} cannot be written: {error}; run it again, {lines} has all answers") from None
        lines.unlink()


def _gather(ray: Any, source: str, into: Path) -> None:
    """Write the rows of `source` as lines."""
    from pyarrow import fs

    system, path = _place(source)
    found = _info(system, path, source)
    listed = system.get_file_info(fs.FileSelector(path, recursive=True)) if found.type.name == "Directory" else [found]
    kinds = {
        ends: sorted(one.path for one in listed if one.is_file and one.path.endswith(ends)) for ends in (PARQUET, LINES)
    }
    if bool(kinds[PARQUET]) == bool(kinds[LINES]):
        have = "both Parquet and JSON files" if kinds[LINES] else "no Parquet or JSON file"
        raise RequestError(f"{source} has {have} ({', '.join((PARQUET, *LINES))}); pass one kind")
    # Lines as they are: Ray's read_json gives all rows the same fields, and its read_text also splits at U+2028.
    read = ray.data.read_parquet if kinds[PARQUET] else ray.data.read_binary_files
    how = {"filesystem": system, "partitioning": None}  # a folder called a=b is no field of its rows
    try:
        with into.open("wb") as file:
            tables = read(kinds[PARQUET] or kinds[LINES], **how).iter_batches(batch_size=None, batch_format="pyarrow")
            for row in (row for table in tables for row in table.to_pylist()):
                data = json.dumps(_given(row), default=_text).encode() if kinds[PARQUET] else row["bytes"]
                file.write(data if data.endswith(b"\n") else data + b"\n")
    except (OSError, ValueError, TypeError, ray.exceptions.RayError) as error:  # Arrow's errors of types are no values'
        lines = [line for line in str(error).strip().splitlines() if not line.startswith("(To change")]
        said = (lines or [type(error).__name__])[-1]
        raise RequestError(
            f"{source} cannot be read ({said}); put it where all nodes see it, at the same path"
        ) from None


def _given(value: Any) -> Any:
    """Without nulls, which are what Parquet has for a field that a row does not."""
    if isinstance(value, dict):
        return {name: _given(one) for name, one in value.items() if one is not None}
    return [_given(one) for one in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    """What JSON has no form for. Text is bytes where a writer of Parquet has not said that it is text."""
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def _place(name: str) -> Any:
    """The file system of a path or URL, and the path there."""
    from pyarrow import fs

    try:
        return fs.FileSystem.from_uri(name if is_url(name) else Path(name).resolve().as_uri())
    except (OSError, ValueError) as error:
        raise RequestError(f"{name} cannot be reached ({error}); write a URL as s3://bucket/folder") from None


def _lies_in(name: str, folder: str) -> bool:
    (system, path), (other, above) = _place(name), _place(folder)
    return bool(system == other) and PurePosixPath(normpath(above)) in PurePosixPath(normpath(path)).parents


def _info(system: Any, path: str, name: str) -> Any:
    try:
        return system.get_file_info(path)
    except OSError as error:
        raise RequestError(f"{name} cannot be reached: {error}") from None


def _deliver(lines: Path, system: Any, path: str) -> None:
    """Write finished lines at a path: as they are, or as a folder of Parquet."""
    import pyarrow
    from pyarrow import dataset, fs

    if not path.endswith(PARQUET):
        fs.copy_files(str(lines), path, destination_filesystem=system)
        return
    schema = pyarrow.schema({"custom_id": "string", "row_sha256": "string", "status_code": "int16", "body": "string"})

    def batches() -> Iterator[Any]:
        with lines.open("rb") as file:
            while some := [json.loads(line) for line in islice(file, MANY)]:
                rows = [one | one["response"] | {"body": json.dumps(one["response"]["body"])} for one in some]
                for row in rows:  # half a character is none in Parquet
                    row["custom_id"] = row["custom_id"].encode(errors="backslashreplace").decode()
                yield pyarrow.RecordBatch.from_pylist(rows, schema)

    dataset.write_dataset(
        batches(),
        path,
        schema=schema,
        filesystem=system,
        format="parquet",
        preserve_order=True,
        existing_data_behavior="overwrite_or_ignore",
    )
