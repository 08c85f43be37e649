"""A batch that is killed again and again: is every row there once, in order, with its error where it belongs?

    python bench/kills.py --count 50000 --record bench/records/kills.json

One row in a hundred is hostile. The command runs in a process of its own, which is killed KILLS times with SIGKILL, at
random places all over the batch, and started again; the last one runs to the end. Exit code 1 if a row is missing,
doubled, in another place, or has another status than it should.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from command import arguments, finish
from redraft.cli.common import progress
from redraft.errors import RunError
from redraft.measure.record import Progress, Record, new_record

KILLS, LATEST_SEC, POLL_SEC, LAST = 20, 4.0, 0.05, 0.9
"""LAST is the share of the batch behind which no kill is planned, for the batch may end before it."""
HOSTILE: tuple[dict[str, Any], ...] = (
    {"prompt": [-1]},
    {"prompt": [2**63]},
    {"prompt": "a", "n": 2**63},
    {"prompt": "a", "max_tokens": -2},
    {"messages": []},
    {"prompt": "a", "canvas": {"accept": ["gate:" * 500 + "factor"]}},
)


def rows(count: int, rng: Random) -> Iterator[tuple[dict[str, Any], int]]:
    """Rows and the status of each."""
    for i in range(count):
        hostile = rng.random() < 0.01
        plain = {"prompt": f"row {i}", "max_tokens": 8, "max_steps": 2, "canvas": {"width": 16}}
        yield {"custom_id": f"r{i}", **(rng.choice(HOSTILE) if hostile else plain)}, 400 if hostile else 200


def killed(command: list[str], target: Path, place: int, rng: Random) -> int:
    """Run it, kill it at a random moment after it has written row `place`, and return the number of whole lines then.

    Raises RunError if it ends by itself before that, with what it said.
    """
    with TemporaryFile() as said, target.open("rb") as written:
        with subprocess.Popen(command, stderr=said, env=environment()) as process:
            lines = 0
            while process.poll() is None and lines <= place:
                lines += written.read().count(b"\n")
                time.sleep(POLL_SEC)
            time.sleep(rng.uniform(0, LATEST_SEC))
            process.kill()
        lines = target.read_bytes().count(b"\n")
        if process.returncode >= 0:
            said.seek(0)
            last = said.read().decode(errors="replace").strip()[-500:]
            raise RunError(f"it ended before its kill, with code {process.returncode} and {lines} rows: {last}")
    return lines


def environment() -> dict[str, str]:
    """Of the command."""
    root = Path(__file__).resolve().parent.parent
    return {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}


def measured(count: int, report: Progress) -> dict[str, Any]:
    """The figures of one batch."""
    rng, wanted = Random("kills"), list(rows(count, Random("rows")))
    with TemporaryDirectory() as folder:
        source, target = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        source.write_text("".join(json.dumps(row) + "\n" for row, _ in wanted))
        target.touch()
        words = ["run", str(source), str(target), "--seed", "0", "--threads", "1"]
        command, began, kills = [sys.executable, "-m", "redraft", *words], time.monotonic(), list[int]()
        for place in sorted(rng.randrange(int(LAST * count)) for _ in range(KILLS)):
            kills.append(killed(command, target, place, rng))
            report("kill", len(kills), KILLS)
        code = subprocess.run(command, stderr=subprocess.DEVNULL, env=environment()).returncode
        found = [json.loads(line) for line in target.read_text().splitlines()]
    ids = [line["custom_id"] for line in found]
    said = [line["response"]["status_code"] for line in found]
    return {
        "exit_code": code,
        "seconds": round(time.monotonic() - began, 1),
        "rows": count,
        "hostile": sum(status == 400 for _, status in wanted),
        "lines_at_kills": kills,
        "missing": len({row["custom_id"] for row, _ in wanted} - set(ids)),
        "doubled": len(ids) - len(set(ids)),
        "in_order": ids == [row["custom_id"] for row, _ in wanted],
        "wrong_status": sum(one != other for one, (_, other) in zip(said, wanted, strict=False)),
    }


def record_of(figures: dict[str, Any]) -> Record:
    """What is quoted of them."""
    what = (
        f"{figures['rows']} rows, {figures['hostile']} of them hostile, killed {len(figures['lines_at_kills'])} times"
    )
    wrong = f"{figures['missing']}, {figures['doubled']}, {figures['wrong_status']}"
    return new_record(
        "kills",
        workload={"rows": figures["rows"], "kills": KILLS},
        figures=figures,
        summary=[
            (f"{what}: missing, doubled, of another status", wrong),
            ("in order", "yes" if figures["in_order"] else "no"),
            ("seconds", f"{figures['seconds']:.0f}"),
        ],
    )


def main() -> None:
    """One record."""
    asked = arguments(__doc__ or "", count=50_000)
    figures = measured(asked.count, progress)
    finish(record_of(figures), asked.record)
    held = figures["in_order"] and not (figures["missing"] or figures["doubled"] or figures["wrong_status"])
    if not held or figures["exit_code"] != 3:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
