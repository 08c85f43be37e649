"""Tables of docs/constraints.md: every keyword and what is done about it, the formats, and the record of the ways."""

from __future__ import annotations

from pathlib import Path

from constraints import Way
from pages.claims import listed, record_of, table, taken
from redraft.constraints.compile.keywords import FORMATS, KEYWORDS


def keywords() -> str:
    """A row for each keyword of JSON Schema draft 2020-12."""
    rows = [(f"`{keyword.name}`", keyword.care.value, keyword.note) for keyword in KEYWORDS]
    formats = ", ".join(f"`{name}`" for name in sorted(FORMATS))
    return f"{table(('keyword', '', ''), rows)}\n\nFormats: {formats}."


def ways(root: Path) -> str:
    """The figures of the record of `bench/constraints.py`."""
    record = record_of(root, "constraints")
    ways = [Way(**way) for way in record.figures["ways"]]
    columns = ("prompts", "way", "valid", "exact", "fields", "forwards", "tokens per forward", "ms")
    rows = [(way.prompts, way.way, *_cells(way)) for way in ways]
    rest = [claim for claim in record.summary if not any(claim.figure.startswith(f"{way.prompts}, ") for way in ways)]
    return f"{taken(record)}\n\n{table(columns, rows)}\n\n{listed(rest)}"


def _cells(way: Way) -> list[str]:
    if not way.count:
        return ["not installed", *[""] * 5]
    shares = ["" if share is None else f"{share:.1%}" for share in (way.valid, way.exact, way.fields)]
    return [*shares, f"{way.forwards:.2f}", f"{way.tokens_per_forward:.1f}", f"{way.milliseconds:.0f}"]
