"""Tables that come from records of sampling: halting rules, presets on several canvases, the dial, Sudoku by steps."""

from __future__ import annotations

from pathlib import Path

from pages.claims import record_of, table, taken
from redraft.diffusion.presets import PRESETS
from redraft.measure.evals import said


def halts(root: Path) -> str:
    """A row for each rule of the record of bench/forwards.py, of the first model in it."""
    record = record_of(root, "forwards-nano-sudoku")
    found = record.figures[record.workload["models"][0]]
    told = "Preset `fast` but for its halt. A cell is: exact, gained and lost against the first row, forwards, tokens"
    rows = [
        [label, *(_halted(task["under"][label]) for task in found.values())]
        for label in next(iter(found.values()))["under"]
    ]
    return f"{taken(record)}\n{told}\nper forward with the end token counted.\n\n{table(['ends when', *found], rows)}"


def _halted(one: dict[str, float]) -> str:
    share, forwards = f"{one['exact']:.1%} +{one['gained']} -{one['lost']}", f"{one['forwards']:.2f}"
    return f"{share}, {forwards}, {one['tokens_per_forward']:.1f}"


def sudoku(root: Path) -> str:
    """A row for each way of answering of the record of bench/sudoku.py, by the number of givens where it says so."""
    record = record_of(root, "sudoku-6x6")
    bands = list(next(iter(record.figures["givens"].values())))
    rows = [
        [label, *map(_solved, (one, *record.figures["givens"].get(label, {}).values()))]
        for label, one in record.figures["ways"].items()
    ]
    rows = [[*row, *[""] * (len(bands) + 2 - len(row))] for row in rows]
    columns = ("6x6, exact and forwards", "all", *(f"{band} givens" for band in bands))
    return f"{taken(record)}\n\n{table(columns, rows)}"


def _solved(one: dict[str, float]) -> str:
    return f"{said(one, 'exact')}, {one['forwards']:.1f}"


def presets(root: Path) -> str:
    """A row for each task, canvas and preset of the record of bench/presets.py."""
    record = record_of(root, "presets-nano-sudoku")
    columns = ("task", "canvas", "preset", "exact", "gained, lost", "blocks", "forwards", "tokens per pass")
    rows = [
        (
            task,
            one["canvas"] or "its own",
            one["preset"],
            f"{one['exact']:.1%}",
            f"+{one['gained']} -{one['lost']}",
            f"{one['blocks']:.2f}",
            f"{one['forwards']:.2f}",
            f"{one['tokens_per_pass']:.2f}",
            f"{one['first_text_ms']:.1f} ms",
        )
        for task, found in record.figures.items()
        for one in found
        if one["preset"] in PRESETS  # the record may have one that is gone
    ]
    return f"{taken(record)}\n\n{table((*columns, 'first text'), rows)}"


def dial(root: Path) -> str:
    """A row for each notch of the record of `redraft bench --dial`, and what came of times to keep."""
    record = record_of(root, "dial-nano-sudoku")
    tried = f"{len(record.figures['tried'])} settings on {' and '.join(record.workload['tasks'])}."
    notches = [
        (
            f"{one['effort']:.2f}",
            *(f"{one['rules'][name]:g}" for name in ("max_steps", "stability", "confidence", "entropy_bound")),
            said(one, "quality"),
            f"{one['forwards']:.2f}",
        )
        for one in record.figures["dial"]
    ]
    targets = [
        (
            f"{one['target_ms']:.1f} ms",
            f"{one['share_of_effort_1']:g}",
            f"{one['in_time']:.0%}",
            f"{one['median_ms']:.1f} ms",
            f"{one['exact']:.1%}",
            f"{one['forwards']:.2f}",
        )
        for one in record.figures["targets"]
    ]
    columns = ("effort", "cap", "stability", "confidence", "entropy bound", "exact", "forwards")
    kept = "Times to keep, as shares of the median time at effort 1, one request at a time:"
    paced = table(("target", "share", "in time", "median", "exact", "forwards"), targets)
    return f"{taken(record)}\n{tried}\n\n{table(columns, notches)}\n\n{kept}\n\n{paced}"
