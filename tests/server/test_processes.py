"""A server whose model's experts are shared by several processes: what one process answers, and an end for all."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.conftest import ANSWER, RECORD, ROOT, Inside, eventually

pytestmark = pytest.mark.slow

SERVE = ("-m", "redraft", "serve", "--port", "0", "--threads", "1", "--quiet", "--parallel", "experts")
LONG = {"model": "nano", "prompt": "record\nSend 417", "max_tokens": 700, "min_tokens": 700, "seed": 1}
REFERENCE = {"preset": "reference"}
BRIEF = {"max_steps": 6, "max_tokens": 40, "canvas": REFERENCE | {"width": 32}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
CHAT, TEXT, FIM = "chat/completions", "completions", "fim/completions"
HELD = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"messages": [{"role": "user", "content": RECORD}], "seed": 5, "canvas": {"preset": "fast"}}),
    (CHAT, {"messages": [{"role": "user", "content": RECORD}], "response_format": HELD, "seed": 6} | BRIEF),
    (TEXT, {"prompt": "sudoku\n1..4\n..1.\n..42\n4...", "seed": 7, "temperature": 2.0} | BRIEF),
    (TEXT, {"prompt": "record\nSend 3 gamo to Tilda.", "seed": 8, "n": 2} | BRIEF),
    (TEXT, {"prompt": "record", "seed": 9, "max_tokens": 12, "canvas": REFERENCE | {"causal": True}}),
    (FIM, {"prompt": "def f(r):\n    return ", "suffix": "\n", "seed": 10} | BRIEF | {"canvas": REFERENCE}),
)
"""A question, one held to a schema, noise, two of one prompt, one from left to right, and a gap."""


@dataclass
class Group:
    """The processes, the first of them first."""

    url: str
    pids: list[int]
    popen: list[subprocess.Popen[str]]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **more}


def started(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *command], env=env, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def url_of(first: subprocess.Popen[str]) -> str:
    assert first.stdout is not None
    assert first.stderr is not None
    url = first.stdout.readline().strip()
    if not re.match(r"http://127\.0\.0\.1:\d+$", url):
        first.kill()
        raise AssertionError(first.stderr.read())
    return url


def rank_of(pid: int) -> int:
    """Of a process that torchrun has started, as its environment says; -1 for any other."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return -1
    return next((int(word[5:]) for word in words if word.startswith(b"RANK=")), -1)


@pytest.fixture
def two() -> Iterator[Group]:
    """As torchrun starts them."""
    run = started(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *SERVE], environment())
    url = url_of(run)
    children = [int(word) for word in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]
    pids = sorted((pid for pid in children if rank_of(pid) >= 0), key=rank_of)
    yield Group(url, pids, [run])
    if run.poll() is None:  # or they have gone before it
        for pid in (run.pid, *pids):
            os.kill(pid, signal.SIGKILL)
    run.communicate()


@pytest.fixture
def three(free_port: int) -> Iterator[Group]:
    """By hand, without anybody who ends the others when one has died. Four experts do not divide by three."""
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port), "WORLD_SIZE": "3"}
    processes = [started(list(SERVE), environment(RANK=str(rank), **told)) for rank in range(3)]
    yield Group(url_of(processes[0]), [one.pid for one in processes], processes)
    for one in processes:
        one.kill()
        one.communicate()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(base: str) -> list[Any]:
    """What is answered to all that is asked, at once: the choices, without how long they took."""

    def ask(asked: tuple[str, dict[str, Any]]) -> Any:
        told = httpx2.post(f"{base}/v1/{asked[0]}", json={"model": "nano", **asked[1]}, timeout=300)
        assert told.status_code == 200, told.text
        choices = told.json()["choices"]
        for choice in choices:
            choice["canvas"] = {name: choice["canvas"][name] for name in ("seed", "finish", "steps")}
        return choices

    with ThreadPoolExecutor(len(ASKED)) as pool:
        return list(pool.map(ask, ASKED))


def test_two_processes_answer_as_one_and_end_as_one(two: Group, served: Inside) -> None:
    """SIGTERM to the first, in the middle of an answer: the answer is finished, and all end well."""
    ours, wanted = answers(two.url), answers(served.url)
    for asked, mine, theirs in zip(ASKED, ours, wanted, strict=True):
        assert mine == theirs, asked
    value = json.loads(ours[1][0]["message"]["content"])
    assert isinstance(value["a"], int)
    body = LONG | {"stream": True, "max_tokens": 200, "min_tokens": 200}
    with httpx2.stream("POST", f"{two.url}/v1/completions", json=body, timeout=300) as told:
        lines = told.iter_lines()
        next(lines)
        os.kill(two.pids[0], signal.SIGTERM)
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    (run,) = two.popen
    _, said = run.communicate(timeout=100)
    assert run.returncode == 0, said


def test_who_loses_a_process_says_so_and_ends(three: Group) -> None:
    """The third is killed in the middle of an answer: whoever waits is answered, the first and the second end."""
    base, found = f"{three.url}/v1/completions", list[Any]()
    first = httpx2.post(f"{three.url}/v1/{ASKED[0][0]}", json={"model": "nano", **ASKED[0][1]}, timeout=300)
    assert first.json()["choices"][0]["message"]["content"] == ANSWER
    waiting = threading.Thread(target=lambda: found.append(httpx2.post(base, json=LONG, timeout=300)))
    waiting.start()
    assert eventually(lambda: "redraft_running_requests 1.0" in httpx2.get(f"{three.url}/metrics", timeout=100).text)
    os.kill(three.pids[2], signal.SIGKILL)
    waiting.join(100)
    assert found[0].status_code == 500
    for rank, one in enumerate(three.popen[:2]):
        _, said = one.communicate(timeout=100)
        last = [line for line in said.splitlines() if not line.startswith(("redraft: serving", "redraft: try"))]
        assert one.returncode == 1, said
        who = ("redraft: another", "redraft: process 1: the first")[rank]
        assert len(last) == 1, said
        assert last[0].startswith(f"{who} of the 3 processes that share the experts is gone"), said
