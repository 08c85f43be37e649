"""A batch on a Ray cluster of two nodes whose command and one of whose nodes are killed: is every row there, and equal?

    python bench/ray_bulk.py --count 20000 --record bench/records/ray-bulk.json

The rows are those of `kills.py`, one in a hundred hostile. One engine answers them without Ray. Then two engines on two
nodes do: the command is killed with SIGKILL at a quarter of them and run again, and at half of them a node is, and
another comes. Exit code 1 if a row is missing, doubled, in another place, or another answer than one engine's. The
cluster is that of the tests (`tests/distributed/two_nodes.py`). It needs the extra `scale`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from command import arguments, finish
from kills import environment, rows
from redraft.errors import RunError
from redraft.measure.record import Record, new_record

NODES = Path(__file__).resolve().parents[1] / "tests" / "distributed" / "two_nodes.py"
POLL_SEC, SOME_WRONG = 0.2, 3
OWN = {"id", "created", "ms", "first_text_ms", "settings", "system_fingerprint"}
"""What no two answers share: names and times."""

PATIENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback alone
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": "300000",  # a busy machine is slow, not broken
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_health_check_failure_threshold": "30",
    "RAY_gcs_server_port_wait_time_s": "300",
}


def variables() -> dict[str, str]:
    """Of every process: Ray goes by some of them in a command that joins the cluster, too."""
    return environment() | PATIENT


class Nodes:
    """The cluster."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self.address = process, self._read(process)

    @staticmethod
    def _read(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        if not (line := process.stdout.readline().strip()):
            raise RunError("the cluster does not answer; what it says is above")
        return line

    def do(self, what: str) -> None:
        """End a node, or add one."""
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        self._read(self._process)


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """A cluster of two nodes of one CPU."""
    process = subprocess.Popen(
        [sys.executable, str(NODES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=variables(),
    )
    try:
        yield Nodes(process)
    finally:
        process.communicate(timeout=120)


def plain(value: Any) -> Any:
    """An answer without what is its own."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if name not in OWN}
    return [plain(one) for one in value] if isinstance(value, list) else value


def lines_in(path: Path) -> int:
    """Whole lines of a file that may not be there yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for a command that has some rows with an error. Raises RunError for another exit code."""
    if (code := process.wait()) not in (0, SOME_WRONG):
        raise RunError(f"the command ended with exit code {code}; what it says is above")


def faulty(command: list[str], target: Path, count: int, nodes: Nodes) -> tuple[int, int]:
    """Run it, kill it at a quarter, run it again and end a node at half; rows that were there at either."""
    first = subprocess.Popen(command, env=variables())
    while lines_in(target) < count // 4 and first.poll() is None:
        time.sleep(POLL_SEC)
    first.kill()
    first.wait()
    kept = lines_in(target)
    second = subprocess.Popen(command, env=variables())
    while lines_in(target) < count // 2 and second.poll() is None:
        time.sleep(POLL_SEC)
    done = lines_in(target)
    if second.poll() is None:
        nodes.do("end a node")
        nodes.do("add a node")
    ended(second)
    return kept, done


def measure(count: int, folder: Path) -> Record:
    """Both runs."""
    source, one, many = (folder / name for name in ("in.jsonl", "one.jsonl", "many.jsonl"))
    source.write_text("".join(json.dumps(row) + "\n" for row, _ in rows(count, Random(1))))
    words = [sys.executable, "-m", "redraft", "run", str(source)]
    shared = ["--seed", "1", "--threads", "1", "--device", "cpu"]
    began = time.monotonic()
    ended(subprocess.Popen([*words, str(one), *shared], env=variables()))
    alone = time.monotonic() - began
    with two_nodes() as nodes:
        began = time.monotonic()
        ray = [*words, str(many), *shared, "--ray", "--address", nodes.address, "--replicas", "2"]
        kept, done = faulty(ray, many, count, nodes)
        seconds = time.monotonic() - began
    with one.open() as wanted, many.open() as found:
        pairs = list(zip_longest(wanted, found))
    equal = sum(a is not None and b is not None and plain(json.loads(a)) == plain(json.loads(b)) for a, b in pairs)
    if not equal == len(pairs) == count:
        raise RunError(f"{count - equal} of {count} rows differ, of {len(pairs)} that are there")
    figures = {
        "rows": len(pairs),
        "equal": equal,
        "at_the_kill": kept,
        "at_the_end_of_the_node": done,
        "one_engine_sec": round(alone, 1),
        "ray_with_both_faults_sec": round(seconds, 1),
        "load": round(os.getloadavg()[0], 1),
    }
    summary = [
        ("rows on two nodes, the command and a node killed", f"{len(pairs)}"),
        ("of these equal to one engine's", f"{equal}"),
    ]
    return new_record("ray-bulk", workload={"rows": count, "nodes": 2, "replicas": 2}, figures=figures, summary=summary)


if __name__ == "__main__":
    given = arguments(__doc__ or "", count=20_000)
    with TemporaryDirectory() as place:
        finish(measure(given.count, Path(place)), given.record)
