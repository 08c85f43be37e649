"""Takes the records of bench/records/ again: which command makes which, how long it takes, which are out of date.

    python bench/take.py --list
    python bench/take.py                            all that need nothing first
    python bench/take.py constraints 'throughput-*'
    python bench/take.py --since 1a2b3c4            after an interruption, although there were commits meanwhile

Records are taken in the order of the table: what a measurement keeps for later loads (knee, dial, belief) comes first.
One that was taken at this commit is not taken again, so the same command goes on after an interruption. Afterwards run
`make docs`, which quotes them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from redraft.measure.record import read_record

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Take:
    """How a record is taken: a command without its --record, rough minutes on one core, what it needs first."""

    name: str
    minutes: float
    command: str
    needs: str = ""

    @property
    def whole(self) -> str:
        """The command as it is to be typed."""
        return f"{self.command} --record bench/records/{self.name}.json"

    @property
    def path(self) -> Path:
        """Where the record is."""
        return ROOT / "bench" / "records" / f"{self.name}.json"

    @property
    def commit(self) -> str:
        """The code that the present record was taken with, if there is one."""
        return read_record(self.path).commit if self.path.exists() else "not taken"


BENCH, EVAL = "redraft bench --model nano-sudoku --threads 1", "redraft eval --model nano-sudoku --threads 1"
BEFORE = "python bench/before_after.py --before ../before"
WRITTEN = "--groups phrasings strangers newcomers copies extract-short"
SHIPPED = "python bench/plain.py --model nano --canvas 128 --count 100"
TABLE = (
    Take("knee", 1, f"{BENCH} --knee"),
    Take("dial-nano-sudoku", 4, f"{BENCH} --dial 100"),
    Take("belief-nano-sudoku", 3, "python bench/belief.py --count 100 --keep"),
    Take("eval-nano-sudoku", 4, f"{EVAL} --preset reference --count 500"),
    Take("eval-nano-sudoku-fast", 2, f"{EVAL} --preset fast --count 500"),
    Take("eval-nano-sudoku-causal", 2, f"{EVAL} --causal --count 300"),
    Take("eval-nano-sudoku-pinned", 3, f"{EVAL} --pin --task sudoku-4x4 --task sudoku-6x6 --preset fast --count 1000"),
    Take("against-transformers", 1, "python bench/single_answers.py"),
    Take("throughput-one", 1, f"{BENCH} --scenario one --runs 5"),
    Take("throughput-variants", 1, f"{BENCH} --scenario variants --runs 5"),
    Take("throughput-together", 1, f"{BENCH} --scenario together --runs 3"),
    Take("throughput-long", 1, f"{BENCH} --scenario long --runs 3"),
    Take("throughput-long-4k", 5, f"{BENCH} --scenario long-4k --runs 3"),
    Take("throughput-poisson", 4, f"{BENCH} --scenario poisson --runs 2"),
    Take("forwards-nano-sudoku", 2, "python bench/forwards.py --count 300 --seed 7000"),
    Take("constraints", 7, "python bench/constraints.py --count 300"),
    Take("presets-nano-sudoku", 10, "python bench/presets.py --count 200"),
    Take("plans-nano-sudoku", 3, "python bench/plans.py --count 100"),
    Take("turns-nano-sudoku", 1, "python bench/turns.py --count 600"),
    Take("plain-nano", 5, f"{SHIPPED} {WRITTEN} elsewhere extract edit mend fill"),
    Take("plain-nano-causal", 5, f"{SHIPPED} --causal {WRITTEN} extract edit mend fill"),
    Take("sudoku-6x6", 2, "python bench/sudoku.py --size 6 --count 300"),
    Take("eval-nano-sudoku-infill", 14, "python bench/infills.py --count 40"),
    Take("serve", 12, "python bench/serve_load.py --count 256"),
    Take("before-after-nano", 5, BEFORE, "git worktree add --detach ../before REVISION"),
    Take("before-after-random", 10, f"{BEFORE} --model random", "the same"),
    Take("hostile", 20, "python bench/hostile.py --count 20000"),
    Take("streams", 11, "python bench/streams.py --count 600"),
    Take("kills", 20, "python bench/kills.py --count 50000"),
    Take("soak", 2, "python bench/soak.py --count 2000"),
    Take("device-nano-sudoku", 1, f"{BENCH} --device-card"),
    Take("steps-26b", 2, "python bench/steps.py", "a GPU with 64 GB"),
    Take("tiles", 4, "python bench/tiles.py", "a GPU with 10 GB"),
    Take("launches", 1, "python bench/launches.py"),
    Take("kernels-compiled", 20, "python bench/compiled.py --layers 6"),
    Take("matmul-peak", 1, "python bench/matmul_peak.py"),
    Take(
        "rehearsal",
        30,
        "python bench/rehearsal.py --layers 30 --streamed --plan int4-g64 --steps 2 --folder A",
        "16 GB of disk in a folder A, and 18 GB of memory",
    ),
    Take("tuning-speed", 4, "python bench/tuning_speed.py --steps 6"),
    Take("schema-suite", 2, "python bench/schema_suite.py"),
    Take("maskbench", 45, "python bench/maskbench.py --data A --count 0", "a clone of jsonschemabench, as A"),
    Take("maskbench-largest", 15, "python bench/maskbench.py --data A --count 200 --largest", "the same"),
    Take(
        "maskbench-quiet", 5, "python bench/maskbench.py --data A --count 2000 --seed 3", "the same, and no other work"
    ),
    Take("noise-real", 50, "python bench/noise_real.py --data A --count 1000 --vocabulary 262144", "the same"),
    Take("vision-tower", 3, "python bench/vision_tower.py"),
    Take("nano-vision", 6, "python bench/vision.py --model A", "the result of recipes/vision as A"),
    Take("fleet-simulation", 3, "python bench/fleet.py --count 20000"),
    Take("ray-path", 5, "python bench/ray_path.py --count 100", "the extra scale"),
    Take("ray-bulk", 8, "python bench/ray_bulk.py --count 20000", "the same"),
    Take("page-axe", 10, "python bench/page_axe.py A", "axe.min.js of the npm package axe-core, as A, and chromium"),
    Take("startup", 4, "python bench/startup.py --runs 7"),
    Take("clients", 10, "python bench/clients.py --venv A --venv B --node C", "every client, in folders A, B and C"),
    Take(
        "clients-images",
        1,
        "python bench/clients.py --images A --node B",
        "the checkpoint of tests/pictures.py::write_whole as A, the npm package openai in B",
    ),
    Take(
        "peers-llamacpp",
        10,
        "python bench/peer_tests.py A",
        "the unpacked source distribution of llama-cpp-python as A, and requests",
    ),
    Take(
        "peers-vllm",
        10,
        "python bench/vllm_tests.py A",
        "the unpacked source distribution of vLLM as A, pytest-asyncio, jsonschema, regex and requests",
    ),
    Take("train-orders", 4, "", "the run of docs/tuning.md, whose training-record.json it is"),
    Take("train-nano", 9, "", "the run of recipes/nano.toml on a GPU: from its training-log.jsonl"),
    Take(
        "train-nano-sudoku", 180, "", "the runs of docs/tuning.md, How nano was made: their training-record.json in one"
    ),
)


def main() -> int:
    """List, or take one record after the other; the exit code is 1 if one could not be taken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which, as 'knee' or 'eval-*' (default: all)")
    parser.add_argument("--list", action="store_true", help="print the table and which are out of date, take nothing")
    parser.add_argument("--again", action="store_true", help="take them although they are of this commit")
    parser.add_argument("--since", default="HEAD", metavar="REV", help="keep those of REV or later (default: HEAD)")
    arguments = parser.parse_args()
    if unknown := [one for one in arguments.names if not any(fnmatch(take.name, one) for take in TABLE)]:
        parser.error(f"{', '.join(unknown)}: no such record; see --list")
    if _git("rev-parse", "--verify", "--quiet", f"{arguments.since}^{{commit}}"):
        parser.error(f"--since {arguments.since}: no such commit")
    wanted = [take for take in TABLE if any(fnmatch(take.name, one) for one in arguments.names or ["*"])]
    old = [take for take in wanted if arguments.again or not is_of(take, arguments.since)]
    for take in wanted if arguments.list else [take for take in old if take.needs]:
        told = f"{take.command}, which needs {take.needs}".removeprefix(", which ") if take.needs else take.command
        print(f"{take.name:<22}{take.minutes:>4} min  {take.commit:<20}{'old' if take in old else '':<5}{told}")
    return 0 if arguments.list else take_all([take for take in old if not take.needs])


def is_of(take: Take, revision: str) -> bool:
    """Whether the record was taken at this revision or a later one, changed files or not."""
    return not _git("merge-base", "--is-ancestor", revision, take.commit.partition(" ")[0])


def take_all(takes: list[Take]) -> int:
    """Run the commands; one that fails leaves the record that was there, and the others go on."""
    failed = []
    for number, take in enumerate(takes, 1):
        left = sum(one.minutes for one in takes[number - 1 :])
        print(f"[{number}/{len(takes)}, about {left} min left] {take.name}: {take.command}", flush=True)
        began, words = time.monotonic(), shlex.split(take.command)
        words = ["-m", *words] if words[0] == "redraft" else words[1:]
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, *words, "--record", str(take.path)]
        try:
            code = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}).returncode
        except KeyboardInterrupt:
            print(f"interrupted; the same command goes on with {take.name}", flush=True)
            return 130
        failed += [take.name] if code else []
        print(f"{take.name}: {f'failed ({code})' if code else 'taken'}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else f"{len(takes)} taken; make docs quotes them")
    return 1 if failed else 0


def _git(*words: str) -> int:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True).returncode


if __name__ == "__main__":
    sys.exit(main())
