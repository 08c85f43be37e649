"""The record of a training run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from redraft.errors import RecordError
from redraft.measure.record import Record, new_record

JUDGED = (" exact", " nats")
"""Ends of the names of what every probe finds one of."""


def training_record(log: Path, *, workload: Mapping[str, Any], batch: int, seconds: float, ran: int) -> Record:
    """What was trained, from the log of its steps: how many steps and samples, how long, and every probe.

    `workload` says what of the recipe, `batch` is the samples of a step, `seconds` and `ran` are this call's.
    Raises RecordError for a log that no run has written.
    """
    try:
        rows = [json.loads(line) for line in log.read_bytes().splitlines()]
        times = {row["step"]: float(row["seconds"]) for row in rows}
        last = rows[-1]
    except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"{log} is not the log of a run ({type(error).__name__}: {error}); bring it back") from None
    spent = sum(times.values())
    samples = len(rows) * batch
    probes = [
        {"step": row["step"], **{name: value for name, value in row.items() if name.endswith((*JUDGED, " steps"))}}
        for row in rows
        if any(name.endswith(JUDGED) for name in row)
    ]
    said = f"{spent / 60:.1f} minutes in steps, {len(rows):,} steps, {samples:,} samples"
    return new_record(
        f"train-{workload['recipe']}",
        workload={**workload, "steps": len(rows), "batch": batch},
        figures={
            "seconds_in_steps": round(spent, 1),
            "seconds_of_this_call": seconds,
            "steps_of_this_call": ran,
            "seconds_median_step": round(median(times.values()), 4),
            "samples": samples,
            "probes": probes,
            "last": last,
        },
        summary=[(f"Training {workload['recipe']}", said)],
    )
