"""A real server process on loopback, and one inside the test process where its engine has to be reached."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import torch
import uvicorn
from openai import OpenAI
from starlette.requests import Request
from starlette.types import Receive
from tests import helpers
from tests.helpers import ROOT
from tests.pictures import vision_engine

import redraft
from redraft.operations.engine import Engine
from redraft.server.http.app import create_app
from redraft.server.http.log import Log
from redraft.server.http.process import listen
from redraft.server.http.service import Service
from redraft.server.http.settings import Settings

RECORD, ANSWER = helpers.PROMPT, helpers.ANSWER
USER: list[Any] = [{"role": "user", "content": RECORD}]


@dataclass
class Process:
    """A server in a process of its own."""

    url: str
    popen: subprocess.Popen[str]

    @property
    def base(self) -> str:
        return f"{self.url}/v1"


def start(*words: str, env: dict[str, str] | None = None) -> Process:
    """`redraft serve` with a free port, of nano-sudoku unless told otherwise, whose answers are known; returns when it
    answers."""
    words = words if "--model" in words else ("--model", "nano-sudoku", "--name", "nano", *words)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **(env or {})}
    popen = subprocess.Popen(
        [sys.executable, "-m", "redraft", "serve", "--port", "0", "--threads", "1", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert popen.stdout is not None
    assert popen.stderr is not None
    url = popen.stdout.readline().strip()
    if not re.match(r"http://127\.0\.0\.1:\d+$", url):
        raise AssertionError(popen.stderr.read())
    return Process(url, popen)


def ended(process: Process) -> int:
    """Its exit code, once it has gone."""
    process.popen.communicate(timeout=120)
    return process.popen.returncode


def end(process: Process) -> int:
    """Stop it; its exit code."""
    process.popen.terminate()
    return ended(process)


def patient(receive: Receive | None = None) -> Request:
    """A request whose client does not leave, or leaves as `receive` says."""
    return Request({"type": "http", "headers": [], "state": {}}, receive or asyncio.Event().wait)


def eventually(is_so: Callable[[], bool], seconds: float = 100.0) -> bool:
    """Whether it comes true within a while: a long one, for a slow machine; what comes true is not waited for."""
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.005)
    return is_so()


@pytest.fixture(scope="session")
def server() -> Iterator[Process]:
    """One for all tests that only talk to it."""
    process = start("--quiet", "--alias", "other-name")
    yield process
    end(process)


@pytest.fixture(scope="module")
def client(server: Process) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def http(server: Process) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=100) as made:
        yield made


@dataclass
class Inside:
    """A server in this process."""

    url: str
    service: Service
    engine: Engine

    @property
    def base(self) -> str:
        return f"{self.url}/v1"


@pytest.fixture(scope="session")
def nano() -> Iterator[Engine]:
    """One engine, whose loop turns."""
    torch.set_num_threads(1)
    engine = redraft.load("nano-sudoku")
    engine.loop.start()
    yield engine
    engine.loop.stop()


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A random model that takes images; its loop turns."""
    engine = vision_engine(tmp_path_factory.mktemp("model"))
    engine.loop.start()
    yield engine
    engine.loop.stop()


def inside(
    engine: Engine, settings: Settings, log: Log | None = None, *, send_buffer: int | None = None
) -> Iterator[Inside]:
    """Serve an engine on a thread. With a small `send_buffer` a reader's slowness is felt at once."""
    service = Service(settings)
    service.ready(engine)
    config = uvicorn.Config(create_app(service, log or Log(None)), log_config=None, lifespan="off")
    server, listening = uvicorn.Server(config), listen("127.0.0.1", 0)
    if send_buffer is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield Inside(f"http://127.0.0.1:{listening.getsockname()[1]}", service, engine)
    server.should_exit = True
    thread.join(60)
    listening.close()


@pytest.fixture
def served(nano: Engine) -> Iterator[Inside]:
    """A server of the test's own, on the shared engine."""
    yield from inside(nano, Settings())
