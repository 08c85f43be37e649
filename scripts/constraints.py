"""Tables of docs/constraints.md: every keyword and what is done about it, the formats, and the record of the ways."""

from __future__ import annotations

from pathlib import Path

from redraft.constrain.keywords import FORMATS, KEYWORDS
from redraft.measure.constraints import Way
from redraft.measure.record import read_record


def keywords() -> str:
    """A row for each keyword of JSON Schema draft 2020-12."""
    rows = ["| keyword | | |", "| --- | --- | --- |"]
    rows += [f"| `{keyword.name}` | {keyword.care.value} | {keyword.note} |" for keyword in KEYWORDS]
    return "\n".join([*rows, "", "Formats: " + ", ".join(f"`{name}`" for name in sorted(FORMATS)) + "."])


def ways(root: Path) -> str:
    """The figures of the record of `redraft bench --constraints`."""
    record = read_record(root / "benchmarks" / "constraints.json")
    head = f"`redraft bench --constraints {record.workload['prompts']} --threads 1 --record-dir benchmarks`"
    rows = [f"{head}, taken {record.taken}; model {record.workload['model']}, CPU.", ""]
    rows += ["| prompts | way | valid | exact | fields | forwards | tokens per forward | ms |", "| --- " * 8 + "|"]
    ways = [Way(**way) for way in record.figures["ways"]]
    rows += [f"| {way.prompts} | {way.way} | {' | '.join(_cells(way))} |" for way in ways]
    rest = [claim for claim in record.summary if not any(claim.figure.startswith(f"{way.prompts}, ") for way in ways)]
    return "\n".join([*rows, "", "| | |", "| --- | --- |", *(f"| {claim.figure} | {claim.value} |" for claim in rest)])


def _cells(way: Way) -> list[str]:
    if not way.count:
        return ["not installed", *[""] * 5]
    shares = ["" if share is None else f"{share:.1%}" for share in (way.valid, way.exact, way.fields)]
    return [*shares, f"{way.forwards:.2f}", f"{way.tokens_per_forward:.1f}", f"{way.milliseconds:.0f}"]
