"""Tables of docs/constraints.md: every keyword and what is done about it, the formats, and the record of the ways."""

from __future__ import annotations

from pathlib import Path

from redraft.constrain.keywords import FORMATS, KEYWORDS
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
    rows = [f"{head}, taken {record.taken}; model {record.workload['model']}, CPU.", "", "| | |", "| --- | --- |"]
    return "\n".join([*rows, *(f"| {claim.figure} | {claim.value} |" for claim in record.summary)])
