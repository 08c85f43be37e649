"""`redraft serve --trace`: every request a file, no more of them than are to be kept, and no answer lost for one."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest
from tests.server.conftest import RECORD, USER, end, start

from redraft.engine.request import Options
from redraft.engine.scope import CancelScope
from redraft.errors import RequestError
from redraft.operations.engine import Engine
from redraft.trace.file import read_trace
from redraft.trace.folder import TraceFolder
from redraft.trace.lines import VERSION, Header
from redraft.trace.recorder import FolderRecorder

HEAD = Header(trace=VERSION, redraft="0", command="serve", model="nano", taken="", options={})
ROOM = 10**9


def test_every_request_to_a_server_leaves_a_trace_of_its_answer(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    server = start("--quiet", "--trace", str(folder))
    with httpx2.Client(base_url=server.base, timeout=100) as http:
        body = {"messages": USER, "seed": 7}
        said = http.post("/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        gap = http.post("/fim/completions", json={"prompt": "sudoku\n1234\n", "suffix": "\n4321", "max_tokens": 4})
        assert "redraft_forwards_total" in httpx2.get(f"{server.url}/metrics", timeout=100).text
    assert end(server) == 0
    traces = [read_trace(path) for path in sorted(folder.iterdir())]
    assert traces[0].main.frames[-1].text == said
    assert traces[0].header.command == "serve"
    assert gap.status_code == 200
    assert len(traces) > 2, "widths that compete for a gap are requests of their own"
    assert sum(trace.main.finish != "aborted" for trace in traces) >= 2
    (won,) = (trace.main for trace in traces if trace.main.taken)
    assert won.ended is not None
    assert gap.json()["choices"][0]["text"] in won.ended.text, "of those that competed, the one that came of it"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "folder"


def ask(engine: Engine, shelf: TraceFolder, seed: int) -> str:
    traced = engine.within(CancelScope(FolderRecorder(shelf, engine)))
    return traced.generate(RECORD, chat=True, seed=seed, options=Options(steps=2)).text


def test_only_the_newest_are_kept_from_run_to_run(nano: Engine, folder: Path) -> None:
    shelf = TraceFolder(folder, HEAD, 2, ROOM, print)
    assert list(folder.iterdir()) == []
    for seed in range(3):
        ask(nano, shelf, seed)
    (folder / "00000002.jsonl").unlink()  # somebody tidies up
    shelf.close()
    (folder / "00000001.jsonl").symlink_to("/nowhere/at all")  # or moves it, and the disk it went to is not there
    shelf = TraceFolder(folder, HEAD, 2, ROOM, print)
    said = ask(nano, shelf, 3)
    ask(nano, shelf, 4)
    # What cannot be read may be no trace.
    assert sorted(path.name for path in folder.iterdir()) == [f"0000000{number}.jsonl" for number in (1, 4, 5)]
    assert read_trace(folder / "00000004.jsonl").main.frames[-1].text == said


def test_two_servers_cannot_write_to_one_folder(folder: Path) -> None:
    shelf = TraceFolder(folder, HEAD, 9, ROOM, print)
    with pytest.raises(RequestError, match="is being written by another program; name another"):
        TraceFolder(folder, HEAD, 9, ROOM, print)
    shelf.close()
    TraceFolder(folder, HEAD, 9, ROOM, print).close()


def test_a_trace_that_cannot_be_written_costs_no_answer(
    nano: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = list[str]()
    shelf, files = TraceFolder(folder, HEAD, 9, ROOM, lost.append), len(list(Path("/proc/self/fd").iterdir()))
    said = ask(nano, shelf, 1)
    monkeypatch.setattr("redraft.trace.file.os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    assert lost == []
    assert ask(nano, shelf, 1) == said
    assert ask(nano, shelf, 1) == said
    (line,) = lost
    assert re.fullmatch(r"the trace .* cannot be written.*: .*No space.*; requests are answered, and .* lost .*", line)
    monkeypatch.undo()
    assert ask(nano, shelf, 1) == said
    assert len(lost) == 1, "there is room again"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert ask(nano, shelf, 1) == said
    assert len(lost) == 2, "and then none"
    assert len(list(Path("/proc/self/fd").iterdir())) <= files + 1, "files are closed"


def test_a_place_that_cannot_be_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("precious", encoding="utf-8")
    with pytest.raises(RequestError, match="cannot be made"):
        TraceFolder(tmp_path / "a", HEAD, 9, ROOM, print)
    assert (tmp_path / "a").read_text(encoding="utf-8") == "precious"
