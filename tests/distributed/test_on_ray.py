"""A fleet on a Ray cluster of two nodes, both on this machine: equal answers, whatever is killed.

Each test has a hard limit, and everything of Ray runs in processes that end with the tests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.repo.test_readme import NEEDS_RAY, prepare
from tests.server.conftest import ROOT, nano  # noqa: F401  # the fixture

import transcripts
from redraft.cli.rows import run_batch
from redraft.operations.engine import Engine
from redraft.server.http.service import Service
from redraft.server.http.settings import Settings
from redraft.tasks import task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'redraft[scale]'"),
]

ROWS = 400
REPLICA = "ServeReplica:redraft:Replica"
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT / "src"),
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback alone
    "RAY_worker_niceness": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_agent_register_timeout_ms": "300000",  # a busy machine is slow, not broken
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_health_check_failure_threshold": "30",
    "RAY_gcs_server_port_wait_time_s": "300",
}


def row(number: int, *, begins: str = "") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"record\n{begins}Send {100 + number} melu to Karomi."}]}


def started(*words: str, **more: Any) -> subprocess.Popen[str]:
    found = subprocess.Popen(
        [sys.executable, *words],
        env=os.environ | ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )
    STARTED.append(found)
    return found


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    """Behind the last test nothing of what was started runs, and no pipe of it is open."""
    yield
    for one in STARTED:
        one.kill()
        one.wait()
        for pipe in (one.stdin, one.stdout, one.stderr):
            if pipe is not None:
                pipe.close()


class TwoNodes:
    """The cluster."""

    def __init__(self) -> None:
        self.process = started(str(Path(__file__).with_name("two_nodes.py")), stdin=subprocess.PIPE)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            raise AssertionError(self.process.communicate()[1])

    def do(self, what: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def redraft(self, *words: str) -> subprocess.Popen[str]:
        model = () if "--model" in words else ("--model", "nano-sudoku")
        return started("-m", "redraft", *words, *model, "--ray", "--address", self.address, "--device", "cpu")


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[TwoNodes]:
    found = TwoNodes()
    yield found
    found.process.communicate(timeout=120)


@pytest.fixture(scope="module")
def expected(nano: Engine, tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: F811
    """The answers of one engine to numbered rows, the i-th with the seed 7 + i, as `redraft run` writes them."""

    def answers(rows: Sequence[Any]) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("one")
        service = Service(Settings(names=("nano-sudoku", "*")))
        service.ready(nano)
        write(folder / "in", rows)
        run_batch(service, folder / "in", folder / "out", seed=7, at_once=16)
        return read(folder / "out")

    return answers


def write(path: Path, rows: Sequence[Any]) -> None:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in rows))


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of an output without what no two answers share: ids and times."""
    return [plain(json.loads(line)) for line in path.read_text().splitlines()]


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        apart = {"created", "ms", "first_text_ms", "settings", "system_fingerprint"}
        named = {name: plain(one) for name, one in value.items() if name not in apart}
        return {
            name: one for name, one in named.items() if not (name == "id" and str(one).startswith(("chat", "cmpl")))
        }
    return value


class Fleet:
    """Replicas behind one address, by a command that prints it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        if not re.fullmatch(r"http://127\.0\.0\.1:\d+", self.url):
            raise AssertionError(self.process.communicate()[1])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return str(reply.read().decode())

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return json.loads(self._post(body))  # type: ignore[no-any-return]

    def stream(self, body: dict[str, Any]) -> list[str]:
        text = self._post(body | {"stream": True})
        return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=180) == 0

    def names(self) -> set[str]:
        """Of the replicas that answer."""
        return set(re.findall(r'replica="(\w+)"', self.get("/metrics/replicas")))

    def _post(self, body: dict[str, Any]) -> str:
        headers = {"content-type": "application/json"}
        wanted = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(wanted, timeout=600) as reply:
            return str(reply.read().decode())


@pytest.fixture(scope="class")
def fleet(two_nodes: TwoNodes) -> Iterator[Fleet]:
    found = Fleet(two_nodes.redraft("serve", "--replicas", "2", "--port", "0", "--quiet"))
    yield found
    found.end()


def replicas() -> list[int]:
    found = subprocess.run(["pgrep", "-f", REPLICA], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


class TestServe:
    """`redraft serve --ray`."""

    def test_two_replicas_answer_as_one_engine(self, fleet: Fleet, expected: Any) -> None:
        rows = [row(i) for i in range(24)]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda one: plain(fleet.ask(one[1] | {"seed": 7 + one[0]})), enumerate(rows)))
        assert found == [one["response"]["body"] for one in expected(rows)]
        loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
        assert (heard := ports("/proc/net/tcp") | ports("/proc/net/tcp6"))
        assert heard <= loopback, "nothing listens for others"
        page = fleet.get("/metrics/replicas")
        each = re.findall(r'redraft_requests_total\{.*completions.*replica="(\w+)".*\} ([\d.]+)', page)
        assert len(dict(each)) == 2, "both had some"
        (total,) = re.findall(r"redraft_requests_total\{.*completions.*\} ([\d.]+)", fleet.get("/metrics"))
        assert float(total) == sum(float(count) for _, count in each) >= 24
        assert "<html" in fleet.get("/")

    def test_long_bodies_and_answers_pass(self, fleet: Fleet) -> None:
        """Over 4 MiB, which Ray carries at a time by itself, each was a 500 of no form."""
        texts = {4 * 2**20 - 100: "context_length_exceeded", 5 * 2**20: "body_too_large"}
        for size, code in texts.items():
            with pytest.raises(urllib.error.HTTPError) as refused:
                fleet.ask({"messages": [{"role": "user", "content": "a" * size}]})
            assert json.loads(refused.value.read())["error"]["code"] == code
        body = {"prompt": ["ab" * 240] * 60, "echo": True, "logprobs": 20, "max_tokens": 1, "seed": 1}
        headers = {"content-type": "application/json"}
        wanted = urllib.request.Request(fleet.url + "/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(wanted, timeout=100) as reply:
            data = reply.read()
        assert len(data) > 4 * 2**20, len(data)
        assert len(json.loads(data)["choices"]) == 60

    def test_a_client_who_leaves_ends_the_work_in_the_replica(self, fleet: Fleet) -> None:
        body = row(0) | {"stream": True, "max_tokens": 700, "min_tokens": 690}
        headers = {"content-type": "application/json"}
        wanted = urllib.request.Request(fleet.url + "/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(wanted, timeout=600) as reply:
            assert reply.readline().startswith(b"data: ")
        until = time.monotonic() + 60
        while "redraft_disconnects_total 1.0" not in fleet.get("/metrics") and time.monotonic() < until:
            time.sleep(0.1)
        assert "redraft_disconnects_total 1.0" in fleet.get("/metrics")

    def test_a_killed_replica_costs_only_streams_that_had_begun(self, fleet: Fleet, expected: Any) -> None:
        """What was not begun is answered as one engine answers it; what was ends with an error event; nothing hangs."""
        rows = [row(i) for i in range(64)]
        before = replicas()
        with ThreadPoolExecutor(64) as pool:
            running = [pool.submit(fleet.stream, one | {"seed": 7 + i}) for i, one in enumerate(rows)]
            while not any(one.done() for one in running):
                time.sleep(0.01)
            os.kill(before[0], signal.SIGKILL)
            found = [one.result() for one in running]
        wanted = [one["response"]["body"]["choices"][0]["message"]["content"] for one in expected(rows)]
        lost = 0
        for events, text in zip(found, wanted, strict=True):
            assert events[-1] == "[DONE]"
            chunks = [json.loads(event) for event in events[:-1]]
            if "error" in chunks[-1]:
                assert chunks[-1]["error"]["code"] == "replica_lost"
                assert any(chunk["choices"][0]["delta"] for chunk in chunks[:-1]), "it had begun"
                lost += 1
            else:
                assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == text
        assert lost < 64
        until = time.monotonic() + 300
        while len(replicas()) < 2 and time.monotonic() < until:
            time.sleep(0.5)
        assert len(replicas()) == 2, "the replica is back"

    def test_answers_that_are_under_way_at_a_sigterm_are_finished(self, fleet: Fleet, expected: Any) -> None:
        """A request that comes behind the signal is refused."""
        rows = [row(i) for i in range(32)]
        with ThreadPoolExecutor(32) as pool:
            running = [pool.submit(fleet.ask, one | {"seed": 7 + i}) for i, one in enumerate(rows)]
            while not any(one.done() for one in running):
                time.sleep(0.01)
            fleet.process.send_signal(signal.SIGTERM)
            before = sum(one.done() for one in running)
            late = [one for one in running if isinstance(one.exception(), urllib.error.HTTPError)]
        assert {getattr(one.exception(), "code", None) for one in late} <= {503}
        wanted = [one["response"]["body"] for one in expected(rows)]
        pairs = [(plain(one.result()), text) for one, text in zip(running, wanted, strict=True) if one not in late]
        assert len(pairs) > before, "some were under way"
        assert all(found == text for found, text in pairs)
        assert fleet.process.wait(timeout=180) == 0


def ports(path: str) -> set[str]:
    """Addresses, as the kernel writes them, on which processes of Ray Serve's replicas listen."""
    files = [one for pid in replicas() for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()]
    inodes = {str(one.readlink())[8:-1] for one in files if str(one.readlink()).startswith("socket:")}
    rows = [line.split() for line in Path(path).read_text().splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


SCALED = """
from redraft.distributed.cluster import serve_fleet
from redraft.distributed.fleet import Fleet
from redraft.server.http.settings import Settings
settings = Settings(names=("nano-sudoku", "*"))
fleet = Fleet(model="nano-sudoku", device="cpu", most=2, rows=4, downscale_sec=5.0, settings=settings)
serve_fleet(fleet, address="{}", host="127.0.0.1", port=0, ready=lambda url: print(url, flush=True))
"""


def test_a_fleet_grows_in_a_burst_and_shrinks_behind_it(two_nodes: TwoNodes, expected: Any) -> None:
    """As `--autoscale 1:2`, with a lower bound of rows and less patience; every answer is there, and one engine's."""
    asked = [row(i) for i in range(64)]
    wanted = [one["response"]["body"] for one in expected(asked)]
    fleet = Fleet(started("-c", SCALED.format(two_nodes.address)))
    until = time.monotonic() + 600

    def is_right(i: int) -> bool:
        return bool(plain(fleet.ask(asked[i % 64] | {"seed": 7 + i % 64})) == wanted[i % 64])

    right, seen = list[bool](), [len(fleet.names())]
    with ThreadPoolExecutor(32) as pool:
        while seen[-1] < 2 and time.monotonic() < until:
            right += pool.map(is_right, range(64))
            seen.append(len(fleet.names()))
    with ThreadPoolExecutor(3) as pool:  # fewer than the bound, and more than one, so that the one that ends has some
        while seen[-1] > 1 and time.monotonic() < until:
            right += pool.map(is_right, range(6))
            seen.append(len(fleet.names()))
    assert (seen[0], max(seen), seen[-1]) == (1, 2, 1)
    assert all(right), f"{right.count(False)} of {len(right)}"
    fleet.end()


def output_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, error = process.communicate(timeout=600)
    return process.returncode, error


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    """Some begin alike, two are no requests."""
    begins = ["", "Kindly note: " * 120, "By the way: " * 120]
    found: list[Any] = [row(i, begins=begins[i % 3] if i < 30 else "") for i in range(ROWS)]
    found[3], found[4] = {"messages": []}, "{"
    return found


class TestRun:
    """`redraft run --ray`."""

    def test_a_lost_node_and_a_killed_driver_cost_no_row(
        self, two_nodes: TwoNodes, expected: Any, rows: list[Any], tmp_path: Path
    ) -> None:
        source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        write(source, rows)
        words = ("run", str(source), str(target), "--seed", "7", "--replicas", "2")
        first = two_nodes.redraft(*words)
        while lines_in(target) < 64:
            assert first.poll() is None or lines_in(target) >= 64, first.communicate()[1]
            time.sleep(0.02)
        first.kill()
        first.communicate()
        # A quick machine may have written all rows before the kill: what stands is what an earlier one leaves, whose
        # last line is cut short.
        kept = target.read_bytes().splitlines(keepends=True)[:129]
        done = len(kept) - 1
        assert done > 0
        target.write_bytes(b"".join(kept)[:-5])
        second = two_nodes.redraft(*words)
        while lines_in(target) <= done + 64 and second.poll() is None:
            time.sleep(0.02)
        two_nodes.do("end a node")
        two_nodes.do("add a node")
        code, error = output_of(second)
        assert code == 3, error  # two rows are no requests
        assert read(target) == expected(rows)

    def test_a_folder_of_lines_and_parquet_are_read_and_written(
        self, two_nodes: TwoNodes, expected: Any, tmp_path: Path
    ) -> None:
        """Row i is the i-th of the files in the order of their names, and the same row of the same seed."""
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        asked = [row(i) for i in range(9)]
        asked[5]["messages"][0]["content"] += "\u2028 2026-01-02"  # what is no end of a line, and no date
        wanted = expected(asked)
        folder, table, target = tmp_path / "in", tmp_path / "max_tokens=1" / "in.parquet", tmp_path / "out.parquet"
        folder.mkdir()
        table.parent.mkdir()  # which was a field of every row
        (folder / "b.jsonl").write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in asked[4:]))
        (folder / "a.jsonl").write_text("\n".join(json.dumps(one) for one in asked[:4]))
        (folder / "_SUCCESS").touch()
        code, error = output_of(two_nodes.redraft("run", str(folder), str(tmp_path / "out.jsonl"), "--seed", "7"))
        assert code == 0, error
        assert "Warning" not in error, "of one batch for two replicas"
        apart = {"row_sha256": None}  # of lines that were not written as these
        assert [one | apart for one in read(tmp_path / "out.jsonl")] == [one | apart for one in wanted]

        names = [f"k{i}".encode() for i in range(8)] + [b"k\xff"]  # text as some writers have it
        given = [one | {"stop": None, "custom_id": name} for one, name in zip(asked, names, strict=True)]
        parquet.write_table(pyarrow.Table.from_pylist(given), table)
        code, error = output_of(two_nodes.redraft("run", str(table), str(target), "--seed", "7"))
        assert code == 0, error
        found = parquet.read_table(target).to_pylist()
        assert [plain(json.loads(one["body"])) for one in found] == [one["response"]["body"] for one in wanted]
        assert [(one["custom_id"], one["status_code"]) for one in found] == [
            *((f"k{i}", 200) for i in range(8)),
            (r"k\udcff", 200),
        ]
        assert not (tmp_path / "out.parquet.lines").exists()
        code, error = output_of(two_nodes.redraft("run", str(table), str(target), "--seed", "7"))
        assert (code, "out.parquet exists; name another output, or remove it" in error) == (2, True), error
        (tmp_path / "typed").mkdir()
        for kind in (int, str):
            typed = pyarrow.Table.from_pylist([{"max_tokens": kind(8)}])
            parquet.write_table(typed, tmp_path / "typed" / f"{kind.__name__}.parquet")
        code, error = output_of(two_nodes.redraft("run", str(tmp_path / "typed"), str(tmp_path / "b.parquet")))
        assert (code, "typed cannot be read (" in error, "max_tokens has" in error) == (2, True, True), error

    def test_an_output_of_other_rows_is_refused(self, two_nodes: TwoNodes, rows: list[Any], tmp_path: Path) -> None:
        write(tmp_path / "in", rows[:2])
        (tmp_path / "out").write_text("mine\n")
        code, error = output_of(two_nodes.redraft("run", str(tmp_path / "in"), str(tmp_path / "out")))
        assert code == 2
        assert "is not of a run's output; name another output" in error
        assert (tmp_path / "out").read_text() == "mine\n"


def test_a_file_is_scored_as_by_one_engine(two_nodes: TwoNodes, nano: Engine, tmp_path: Path) -> None:  # noqa: F811
    found = [
        {"prompt": one.prompt, "response": one.answer} for one in islice(task("records").examples("held_out", 0), 24)
    ]
    write(tmp_path / "rows.jsonl", found)
    words = ("eval", "--file", str(tmp_path / "rows.jsonl"), "--seed", "3", "--json")
    here = started("-m", "redraft", *words, "--model", "nano-sudoku", "--device", "cpu", "--threads", "1")
    there = two_nodes.redraft(*words, "--replicas", "2")
    scores = []
    for one in (here, there):
        out, error = one.communicate(timeout=600)
        assert one.returncode == 0, error
        scores.append({name: value for name, value in json.loads(out)[0].items() if "sec" not in name})
    assert scores[0]["count"] == 24
    assert scores[0]["exact"] > 0
    assert scores[1] == scores[0]


def test_batches_of_long_rows_end_by_their_bytes() -> None:
    """64 rows of 16 MiB were one batch, and 2,048 of them a window, before the first answer."""
    from redraft.distributed.batch import BATCH_BYTES, _tables

    rows = [b"{}", *[b"x" * 2**22] * 100, b"{}"]
    tables = list(_tables(iter(rows), 5))
    assert sorted(number for table in tables for number in table["number"].to_pylist()) == [*range(5, 107)]
    assert max(table.nbytes for table in tables) < BATCH_BYTES + 2**23


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--replicas", "9"), "9 replicas of 1 CPU each do not fit on the cluster, which has room for 2"),
        (("--model", "/nowhere"), "put the model where all nodes see it, at the same path"),
    ],
)
def test_a_cluster_that_cannot_serve_is_refused(two_nodes: TwoNodes, words: tuple[str, ...], message: str) -> None:
    code, error = output_of(two_nodes.redraft("serve", *words))
    assert (code, message in error) == (2, True), error


def test_an_address_where_no_cluster_is_is_refused() -> None:
    process = started("-m", "redraft", "serve", "--ray", "--address", "127.0.0.1:1", "--device", "cpu")
    code, error = output_of(process)
    assert (code, "no Ray cluster answers at 127.0.0.1:1" in error) == (2, True), error


@pytest.mark.parametrize("page", NEEDS_RAY, ids=lambda page: page.stem)
def test_a_pages_commands_run_as_they_are_written(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each starts a cluster of its own, as for a reader who has none."""
    for name, value in (ENVIRONMENT | {"RAY_OVERRIDE_RESOURCES": '{"CPU": 2}'}).items():
        monkeypatch.setenv(name, value)
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- slow serves: ") == 1
    assert transcripts.taken(text, slow=True, prepare=prepare) == text
