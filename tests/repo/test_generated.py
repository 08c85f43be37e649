"""Generated pages equal what bench/generate.py writes, and it writes what its sources say."""

from __future__ import annotations

import json
from pathlib import Path

import generate


def test_every_generated_page_is_current() -> None:
    """A figure in the README that no record holds, or help text that no parser prints, would be a false claim."""
    stale = [
        path.name
        for path, text in generate.pages(generate.ROOT).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert not stale, f"{stale}: run `make docs` and read the difference"


def write_record(folder: Path, file: str, name: str, *figures: tuple[str, str]) -> None:
    record = {"name": name, "taken": "2026-01-02", "commit": "abc", "machine": {}, "workload": {}, "figures": {}}
    record["summary"] = [{"figure": figure, "value": value} for figure, value in figures]
    (folder / file).write_text(json.dumps(record))
