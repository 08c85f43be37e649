"""Tables of docs/denoising.md that come from records: halting rules, the presets on several canvases, and the dial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redraft.measure.record import read_record


def halts(root: Path) -> str:
    """A row for each rule of the record of scripts/forwards.py, of the first model in it."""
    record = read_record(root / "benchmarks" / "forwards-nano.json")
    name, seed, count = record.workload["models"][0], record.workload["seed"], record.workload["count"]
    found = record.figures[name]
    head = (
        f"`python scripts/forwards.py --count {count} --seed {seed} --record benchmarks/forwards-nano.json`, taken "
        f"{record.taken}; {name},\npreset `fast` but for its halt. A cell is: exact, gained and lost against the first "
        "row, forwards, tokens per forward with the end token counted."
    )
    rows = [f"| ends when | {' | '.join(found)} |", "| --- |" + " --- |" * len(found)]
    for label in next(iter(found.values()))["under"]:
        cells = (task["under"][label] for task in found.values())
        told = (
            f"{one['exact']:.1%} +{one['gained']} -{one['lost']}, {one['forwards']:.2f}, "
            f"{one['tokens_per_forward']:.1f}"
            for one in cells
        )
        rows.append(f"| {label} | {' | '.join(told)} |")
    return "\n".join([head, "", *rows])


def presets(root: Path) -> str:
    """A row for each task, canvas and preset of the record of `redraft bench --presets`."""
    record = read_record(root / "benchmarks" / "presets-nano.json")
    head = (
        f"`redraft bench --presets {record.workload['examples_per_task']} --threads 1 --record-dir benchmarks`, "
        f"taken {record.taken}; model {record.workload['model']}, {record.workload['dtype']}, CPU."
    )
    rows = ["| task | canvas | preset | exact | gained, lost | blocks | forwards | tokens per pass | first text |"]
    rows += ["| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for task, found in record.figures.items():
        for one in found:
            where = "its own" if one["canvas"] is None else one["canvas"]
            rows.append(
                f"| {task} | {where} | {one['preset']} | {one['exact']:.1%} | +{one['gained']} -{one['lost']} "
                f"| {one['blocks']:.2f} | {one['forwards']:.2f} | {one['tokens_per_pass']:.2f} "
                f"| {one['first_text_ms']:.1f} ms |"
            )
    return "\n".join([head, "", *rows])


def dial(root: Path) -> str:
    """A row for each notch of the record of `redraft bench --dial`."""
    record = read_record(root / "benchmarks" / "dial-nano.json")
    head = (
        f"`redraft bench --dial {record.workload['examples_per_task']} --threads 1 --record-dir benchmarks`, taken "
        f"{record.taken}; {len(record.figures['tried'])} settings on {' and '.join(record.workload['tasks'])}."
    )
    rows = ["| effort | cap | stability | confidence | entropy bound | exact | forwards |"]
    rows += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for one in record.figures["dial"]:
        rules = one["rules"]
        rows.append(
            f"| {one['effort']:.2f} | {rules['max_steps']} | {rules['stability']} | {rules['confidence']:g} "
            f"| {rules['entropy_bound']:g} | {one['quality']:.1%} ({one['low']:.1%} to {one['high']:.1%}) "
            f"| {one['forwards']:.2f} |"
        )
    return "\n".join([head, "", *rows, "", *_targets(record.figures["targets"])])


def _targets(found: list[dict[str, Any]]) -> list[str]:
    """What came of times to keep."""
    rows = ["Times to keep, as shares of the median time at effort 1, one request at a time:", ""]
    rows += ["| target | share | in time | median | exact | forwards |", "| --- | --- | --- | --- | --- | --- |"]
    for one in found:
        rows.append(
            f"| {one['target_ms']:.1f} ms | {one['share_of_effort_1']:g} | {one['in_time']:.0%} "
            f"| {one['median_ms']:.1f} ms | {one['exact']:.1%} | {one['forwards']:.2f} |"
        )
    return rows
