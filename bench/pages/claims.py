"""What records say, as tables in the pages that they belong to, behind the command that takes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from redraft.measure.record import Claim, Record, read_record
from take import TABLE


def record_of(root: Path, name: str) -> Record:
    """A record of bench/records/."""
    return read_record(root / "bench" / "records" / f"{name}.json")


def taken(record: Record) -> str:
    """The command that takes it, and when it did."""
    command = next(take.whole for take in TABLE if take.name == record.name)
    return f"`{command}`, taken {record.taken}; CPU."


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows of cells under the names of their columns."""
    head, *lines = [f"| {' | '.join(map(_cell, line))} |" for line in (columns, *rows)]
    return "\n".join([head, "|---" * len(columns) + "|", *lines])


def _cell(content: object) -> str:
    return str(content).replace("|", "\\|").replace("\n", " ")


def listed(claims: Iterable[Claim]) -> str:
    """What may be quoted."""
    return table(("", ""), ((claim.figure, claim.value) for claim in claims))


def all_of(root: Path, name: str) -> str:
    """All that may be quoted of one record."""
    record = record_of(root, name)
    return f"{taken(record)}\n\n{listed(record.summary)}"


def belief(root: Path) -> str:
    """The claims of the record of probabilities, and how often held-out decisions came true, by probability."""
    figures = record_of(root, "belief-nano-sudoku").figures
    both = [figures[what]["at the fitted temperature"]["reliability"] for what in ("decisions", "fields")]
    rows = [[f"{one[kind]:.1%}" for one in pair for kind in ("told", "right")] for pair in zip(*both, strict=True)]
    tenths = table(("decisions: probability", "came true", "fields: probability", "came true"), rows)
    return f"{all_of(root, 'belief-nano-sudoku')}\n\nA tenth of all held-out guesses in each row:\n\n{tenths}"
