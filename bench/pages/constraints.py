"""Tables of docs/constraints.md: every keyword and what is done about it, the formats, and the record of the ways."""

from __future__ import annotations

from pathlib import Path

from constraints import Way
from pages.claims import listed, record_of, table, taken
from redraft.constraints.compile.keywords import FORMATS, KEYWORDS


def keywords() -> str:
    """A row for each keyword of JSON Schema, of all drafts."""
    rows = [(f"`{one.name}`", _drafts(one.first, one.last), one.care.value, one.note) for one in KEYWORDS]
    formats = ", ".join(f"`{name}`" for name in sorted(FORMATS))
    return f"{table(('keyword', 'drafts', '', ''), rows)}\n\nFormats: {formats}."


def maskbench(root: Path) -> str:
    """The figures of the record of `bench/maskbench.py`: each split, and all."""
    record = record_of(root, "maskbench")
    columns = ("split", "schemas", "held", "of them exact", "held by llguidance", "valid inside", "invalid let through")
    splits = [*record.figures["splits"].items(), ("all", record.figures["all"])]
    rows = [
        (name, str(some["schemas"]), *(str(some[key]) for key in ("held", "exact", "theirs")),
         f"{some['inside']} of {some['valid']}", f"{some['through']} of {some['invalid']}")
        for name, some in splits
    ]  # fmt: skip
    return f"{taken(record)}\n\n{table(columns, rows)}\n\n{listed(record.summary)}"


def quiet(root: Path) -> str:
    """Time and memory of a sample of them, on a machine that does nothing else."""
    record = record_of(root, "maskbench-quiet")
    kept = [
        one
        for one in record.summary
        if any(word in one.figure for word in ("held", "seconds", "clock", "memory", "MB"))
    ]
    return f"{taken(record)}\n\n{listed(kept)}"


def noise_real(root: Path) -> str:
    """The summary of the record of `bench/noise_real.py`."""
    record = record_of(root, "noise-real")
    return f"{taken(record)}\n\n{listed(record.summary)}"


def ways(root: Path) -> str:
    """The figures of the record of `bench/constraints.py`."""
    record = record_of(root, "constraints")
    ways = [Way(**way) for way in record.figures["ways"]]
    columns = ("prompts", "way", "valid", "exact", "fields", "forwards", "tokens per forward", "ms")
    rows = [(way.prompts, way.way, *_cells(way)) for way in ways]
    rest = [claim for claim in record.summary if not any(claim.figure.startswith(f"{way.prompts}, ") for way in ways)]
    return f"{taken(record)}\n\n{table(columns, rows)}\n\n{listed(rest)}"


def _drafts(first: int, last: int) -> str:
    names = {4: "4", 6: "6", 7: "7", 2019: "2019-09", 2020: "2020-12"}
    return (
        f"{names[first]} on" if last == 2020 else names[first] if first == last else f"{names[first]} to {names[last]}"
    )


def _cells(way: Way) -> list[str]:
    if not way.count:
        return ["not installed", *[""] * 5]
    shares = ["" if share is None else f"{share:.1%}" for share in (way.valid, way.exact, way.fields)]
    return [*shares, f"{way.forwards:.2f}", f"{way.tokens_per_forward:.1f}", f"{way.milliseconds:.0f}"]
