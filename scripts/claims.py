"""What records say, as tables in the pages that they belong to."""

from __future__ import annotations

from pathlib import Path

from redraft.measure.record import Record, read_record


def infills(root: Path) -> str:
    """The claims of the record of infills."""
    record = read_record(root / "benchmarks" / "eval-nano-infill.json")
    count = next(iter(record.figures.values()))["count"]
    return _claims(record, f"redraft eval --infill --count {count}")


def widths(root: Path) -> str:
    """The claims of the record of rules for choosing a gap's width."""
    record = read_record(root / "benchmarks" / "widths-nano.json")
    return _claims(record, f"python scripts/widths.py --count {record.workload['count']}")


def belief(root: Path) -> str:
    """The claims of the record of probabilities, and how often held-out decisions came true, by what was told."""
    record = read_record(root / "benchmarks" / "belief-nano.json")
    rows = [_claims(record, f"python scripts/belief.py --count {record.workload['count']}"), ""]
    rows += ["A tenth of all held-out guesses in each row:", ""]
    rows += ["| decisions told | came true | fields told | came true |", "| --- | --- | --- | --- |"]
    both = [record.figures[what]["at the fitted temperature"]["reliability"] for what in ("decisions", "fields")]
    for pair in zip(*both, strict=True):
        rows.append("| " + " | ".join(f"{one['told']:.1%} | {one['right']:.1%}" for one in pair) + " |")
    return "\n".join(rows)


def _claims(record: Record, command: str) -> str:
    """The record's claims behind the command that takes it."""
    head = f"`{command} --record benchmarks/{record.name}.json`, taken {record.taken}; CPU."
    return "\n".join(
        [head, "", "| | |", "| --- | --- |", *(f"| {one.figure} | {one.value} |" for one in record.summary)]
    )
