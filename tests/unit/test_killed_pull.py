"""SIGKILL at any byte of a pull, from a hub of the test's own, with the hub's real client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.helpers import tiny_checkpoint, tiny_config

KILLS, NAME, COMMIT = 4, "owner/model", "a" * 40
SOURCE = Path(__file__).resolve().parents[2] / "src"
LOAD = "from redraft.weights import load, source; load.load_model(source.locate('owner/model'))"


class Hub(ThreadingHTTPServer):
    """A hub with one repository. After `left` bytes of files it sends no more, and `stuck` is set."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.left, self.stuck = files, sys.maxsize, threading.Event()
        self.lock, self.over = threading.Lock(), threading.Event()

    def handle_error(self, *_: Any) -> None:
        """A client that was killed."""

    def may_send(self) -> bool:
        with self.lock:
            self.left -= 1
            return self.left >= 0


class Answer(BaseHTTPRequestHandler):
    """One request of the client."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == f"/api/models/{NAME}/revision/main":
            names = [{"rfilename": name} for name in self.server.files]
            self.send({"id": NAME, "sha": COMMIT, "siblings": names})
        elif path.startswith(f"/api/models/{NAME}/tree/"):
            self.send([entry(name, data) for name, data in self.server.files.items()])
        elif path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
            self.file(self.server.files[path.rpartition("/")[2]])
        else:
            self.send_error(404)

    def send(self, what: Any) -> None:
        data = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def file(self, data: bytes) -> None:
        begin = int((self.headers.get("range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if begin else 200)
        self.send_header("etag", f'"{sha256(data).hexdigest()}"')
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("content-length", str(len(data) - begin))
        if begin:
            self.send_header("content-range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        for i in range(begin, len(data) if self.command == "GET" else 0, STEP):
            if not self.server.may_send():
                self.server.stuck.set()
                self.server.over.wait()
                return
            self.wfile.write(data[i : i + STEP])

    def log_message(self, *_: Any) -> None:
        """Not on stderr."""


STEP = 500


def entry(name: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(data), "oid": sha1(data, usedforsecurity=False).hexdigest()}


@contextmanager
def hub_of(folder: Path) -> Iterator[Hub]:
    hub = Hub({path.name: path.read_bytes() for path in folder.iterdir()})
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.over.set()
        hub.shutdown()
        hub.server_close()


@pytest.mark.slow
def test_a_killed_pull_leaves_nothing_that_seems_whole_and_a_second_one_completes(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "model", tiny_config(), max_shard_bytes=200_000)
    home, draw = tmp_path / "home", Random(1)
    with hub_of(tmp_path / "model") as hub:
        url = f"http://127.0.0.1:{hub.server_address[1]}"
        environment = os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(home), "PYTHONPATH": str(SOURCE)}
        words = [sys.executable, "-m", "redraft", "pull", NAME]
        pieces = sum(-(-len(data) // STEP) for data in hub.files.values())
        for _ in range(KILLS):
            hub.left = draw.randrange(pieces // KILLS)
            hub.stuck.clear()
            with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as process:
                assert hub.stuck.wait(60)
                process.kill()
            assert process.returncode == -signal.SIGKILL
            offline = environment | {"HF_HUB_OFFLINE": "1"}
            loaded = subprocess.run([sys.executable, "-c", LOAD], env=offline, capture_output=True, text=True)
            assert loaded.returncode != 0
            assert f"run: redraft pull {NAME}" in loaded.stderr
        hub.left = sys.maxsize
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = Path(done.stdout.strip())
        assert {path.name: path.read_bytes() for path in found.iterdir()} == hub.files
        loaded = subprocess.run([sys.executable, "-c", LOAD], env=offline, capture_output=True, text=True)
        assert loaded.returncode == 0, loaded.stderr
