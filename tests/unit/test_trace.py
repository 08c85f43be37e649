"""Traces: what is written is what happened, a reader takes nothing else, and a terminal plays them again."""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.helpers import ANSWER, PROMPT, ROOT, Shell, forked

from redraft.__main__ import main
from redraft.cli.player import lines
from redraft.constraints.sources import choices_source
from redraft.engine.events import Draft
from redraft.engine.request import Options, Request
from redraft.engine.scope import CancelScope
from redraft.errors import RequestError, RunError, TraceError
from redraft.operations.engine import Engine
from redraft.trace.file import TraceFile, read_trace
from redraft.trace.lines import VERSION, Header
from redraft.trace.recorder import Recorder
from redraft.trace.recording import apart, first_apart

HEAD = Header(trace=VERSION, redraft="0", command="generate", model="nano", taken="", options={})
SLOWLY = ["--threads", "1", "--preset", "reference"]
"""Several steps where nano is sure, too."""
SLOW = ["generate", "Ka", "--steps", "9000", "--entropy-bound", "1e-9", "--temperature", "10", "--threads", "1"]


@pytest.fixture
def taken(engine: Engine, tmp_path: Path) -> Callable[..., Path]:
    """A trace of whatever is done with the engine it is given."""

    def take(work: Callable[[Engine], object]) -> Path:
        path = tmp_path / "trace.jsonl"
        file = TraceFile(path, HEAD)
        work(engine.within(CancelScope(Recorder(file, engine))))
        file.close()
        return path

    return take


@pytest.mark.parametrize("options", [Options(seed=3), Options(seed=3, preset="flow", max_tokens=64, min_tokens=64)])
def test_the_frames_add_up_to_the_drafts(engine: Engine, taken: Callable[..., Path], options: Options) -> None:
    """Also where a canvas is cut behind its end, and where it flows from block to block."""
    request = engine.resolve(Request("sudoku\n1..4\n..1.\n..42\n4...", chat=True, options=options))
    drafts = [event for event in engine.submit(request, drafts=True).events() if isinstance(event, Draft)]
    done = engine.run(request)
    (recording,) = read_trace(taken(lambda tapped: tapped.run(request))).recordings
    assert [frame.ids for frame in recording.frames] == [tuple(draft.tokens) for draft in drafts]
    assert [frame.drafted.accepted for frame in recording.frames] == [
        list(map(int, draft.accepted)) for draft in drafts
    ]
    for frame, draft in zip(recording.frames, drafts, strict=True):
        assert frame.drafted.entropy == pytest.approx(draft.entropy, abs=1e-6)
        assert frame.drafted.step == draft.step
    for before, frame, draft in zip(recording.frames, recording.frames[1:], drafts[1:], strict=False):
        if before.drafted.block == frame.drafted.block:
            assert list(frame.changed) == draft.changed
    assert recording.ended is not None
    assert (recording.ended.text, recording.finish, recording.ended.steps) == (done.text, done.finish, list(done.steps))
    assert [token for block in recording.blocks for token in block.tokens] == list(done.tokens)


def test_what_the_language_chose_is_marked(engine: Engine, taken: Callable[..., Path]) -> None:
    """A model that is sure of a record has to say something else; and what it says by itself is not marked."""
    for choices, wanted in (([ANSWER], ""), ([ANSWER.replace("417", "418")], "8")):
        language = engine.language(choices_source(choices))
        request = engine.resolve(Request(PROMPT, chat=True, options=Options(seed=1), constraint=language))
        (recording,) = read_trace(taken(lambda tapped, request=request: tapped.run(request))).recordings
        last = recording.frames[-1]
        forced = "".join(last.tokens[at] for at in last.drafted.forced if at < last.end)
        assert forced == wanted


def test_a_tap_changes_no_answer_and_tells_every_request(engine: Engine, taken: Callable[..., Path]) -> None:
    text = ("sudoku\n1234\n3412\n", "\n4321")
    alone = engine.infill(*text, max_tokens=6, seed=2)
    found = []
    trace = read_trace(taken(lambda tapped: found.append(tapped.infill(*text, max_tokens=6, seed=2))))
    assert found[0].data == alone.data
    assert len(trace.recordings) == alone.tried
    assert trace.main.finish in ("stop", "length")
    assert {recording.finish for recording in trace.recordings} == {trace.main.finish, "aborted"}
    assert [recording.taken for recording in trace.recordings].count(True) == 1
    assert trace.main.taken
    tokens = [token for block in trace.main.blocks for token in block.tokens]
    assert tuple(tokens[: len(alone.answer.tokens)]) == alone.answer.tokens
    assert sum(block.steps for block in trace.main.blocks) == alone.candidates[0].steps


MADE: list[str] = []


def good(path: Path) -> list[str]:
    """A whole trace, line by line; the run is made once."""
    if not MADE:
        words = ["generate", "--model", "nano-sudoku", "--chat", "--seed", "5", *SLOWLY, "--trace", str(path), PROMPT]
        assert main(words) == 0
        MADE[:] = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line}\n" for line in MADE), encoding="utf-8")
    return list(MADE)


def spoilt(lines: list[str], at: int, **changed: object) -> list[str]:
    at %= len(lines)
    return [*lines[:at], json.dumps(json.loads(lines[at]) | changed), *lines[at + 1 :]]


def without(lines: list[str], at: int, key: str) -> list[str]:
    reported = json.loads(lines[at])
    del reported[key]
    at %= len(lines)
    return [*lines[:at], json.dumps(reported), *lines[at + 1 :]]


BAD: list[tuple[Callable[[list[str]], list[str]], str]] = [
    (lambda t: spoilt(t, 0, trace=2), "is a trace of version 2; this program reads version 1"),
    (lambda t: spoilt(t, 0, trace="1"), "line 1 of .* is not the head of a trace"),
    (lambda t: t[1:], "line 1 of .* is not the head of a trace"),
    (lambda t: [], "line 1 of .* is not the head of a trace"),
    (lambda t: [t[0], t[1], t[2][:-9], *t[3:]], "line 3 of .* cannot be used"),
    (lambda t: [*t[:-1], t[-1][:20]], "line 6 of .* cannot be used"),
    (lambda t: [t[0], *t[2:]], "line 2 of .*: request 0 has not begun"),
    (lambda t: [*t[:4], t[3]], "line 5 of .*: step 2 .* does not follow"),
    (lambda t: [*t[:2], *t[3:]], "line 3 of .*: step 2 .* does not follow"),
    (lambda t: [*t, t[2]], "line 7 of .*: request 0 has ended"),
    (lambda t: [*t[:2], t[1], *t[2:]], "line 3 of .*: request 0 begins twice"),
    (lambda t: spoilt(t, 2, entropy=[0.0]), "line 3 of .* one a position"),
    (lambda t: spoilt(t, 2, positions=[]), "line 3 of .* not equally many"),
    (lambda t: spoilt(t, 2, forced=[256]), "line 3 of .* a position is not from 0 to 255"),
    (lambda t: spoilt(t, 2, end=-1), "line 3 of .* a position is not from 0 to 255"),
    (lambda t: spoilt(t, 2, positions=[], tokens=[], ids=[]), "line 3 of .* lists only 0 of them"),
    (lambda t: spoilt(t, 4, type="nonsense"), "line 5 of .* cannot be used"),
    (lambda t: ['{"trace":1,"x":' + "[" * 100_000], "line 1 of .* is not the head of a trace"),
    (lambda t: [*t[:2], '{"type":"draft","x":' + "[" * 100_000], "line 3 of .* cannot be used"),
    (lambda t: t[:2], "holds no step"),
    (lambda t: [*t[:2], "\xff"], "line 3 of .* cannot be used"),
    (lambda t: spoilt(t, 0, taken=None), "line 1 of .* is not the head of a trace"),
    (lambda t: spoilt(t, 0, options=[]), "line 1 of .* is not the head of a trace"),
    (lambda t: without(t, 0, "model"), "line 1 of .* is not the head of a trace"),
    (lambda t: spoilt(t, 1, ends=5), "line 2 of .* cannot be used"),
    (lambda t: spoilt(t, 1, width="256"), "line 2 of .* cannot be used"),
    (lambda t: without(t, 1, "ms"), "line 2 of .* cannot be used"),
    (lambda t: spoilt(t, 2, step="1"), "line 3 of .* cannot be used"),
    (lambda t: spoilt(t, 2, forced=None), "line 3 of .* cannot be used"),
    (lambda t: spoilt(t, 2, tokens=[5] * 256), "line 3 of .* cannot be used"),
    (lambda t: spoilt(t, 2, entropy=["0"] * 256), "line 3 of .* cannot be used"),
    (lambda t: without(t, 2, "ids"), "line 3 of .* cannot be used"),
    (lambda t: spoilt(t, -2, settled=1), "line 5 of .* cannot be used"),
    (lambda t: without(t, -2, "pieces"), "line 5 of .* cannot be used"),
    (lambda t: spoilt(t, -1, text=None), "line 6 of .* cannot be used"),
    (lambda t: spoilt(t, -1, error=5), "line 6 of .* cannot be used"),
    (lambda t: [*t, "[]"], "line 7 of .* cannot be used"),
    (lambda t: [*t[:3], "", *t[3:]], "line 4 of .* cannot be used"),
]


def in_bytes(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode("latin-1")


@pytest.mark.parametrize(("spoil", "said"), BAD)
def test_what_is_no_trace_is_refused_with_its_line(
    spoil: Callable[[list[str]], list[str]], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(in_bytes(spoil(good(path))))
    with pytest.raises(TraceError, match=said):
        read_trace(path)


def test_no_trace_is_read_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines behind the first had no bound, each and all together: what comes out of a pipe was read for ever."""
    path = tmp_path / "a.jsonl"
    lines = good(path)
    monkeypatch.setattr("redraft.trace.file.MOST_BYTES", len(in_bytes(lines)))
    path.write_bytes(in_bytes(lines))
    read_trace(path)
    path.write_bytes(in_bytes(lines) + b" " * 10**6)
    with pytest.raises(TraceError, match=r"line 7 of .* cannot be used: the trace has over"):
        read_trace(path)


READER = """
const source = Buffer.from(process.argv[1], "base64").toString();
const { readTrace } = await import("data:text/javascript," + encodeURIComponent(source));
let reported = "";
for await (const part of process.stdin) reported += part;
const read = (text) => {
  try {
    return readTrace(text).recordings.length;
  } catch (error) {
    return error.message;
  }
};
console.log(JSON.stringify(JSON.parse(reported).map((one) => read(Buffer.from(one, "base64").toString()))));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_refuses_what_the_reader_refuses_and_reads_what_it_reads(tmp_path: Path) -> None:
    lines = good(tmp_path / "a.jsonl")
    fine = [lines, lines[:-1], [lines[0].replace("{", '{"more":1,', 1), *lines[1:]]]
    sent = [base64.b64encode(in_bytes(one)).decode() for one in [*fine, *(spoil(lines) for spoil, _ in BAD)]]
    page = base64.b64encode((ROOT / "src/redraft/server/page/trace.js").read_bytes()).decode()
    run = ["node", "--input-type=module", "-e", READER, page]
    found = json.loads(subprocess.run(run, input=json.dumps(sent), capture_output=True, text=True, check=True).stdout)
    assert found[: len(fine)] == [1] * len(fine)
    for answer, (_, said) in zip(found[len(fine) :], BAD, strict=True):
        line = re.match(r"line (\d+)", said)
        assert isinstance(answer, str), f"the page reads what is refused with: {said}"
        assert line is None or answer.startswith(f"Line {line[1]} "), (answer, said)


def test_two_programs_cannot_write_one_trace(tmp_path: Path) -> None:
    """The second one wiped the first one's lines, which then stood behind zeros."""
    path = tmp_path / "trace.jsonl"
    first = TraceFile(path, HEAD)
    said = path.read_bytes()
    with pytest.raises(RequestError, match="is being written by another program; name another place"):
        TraceFile(path, HEAD)
    assert path.read_bytes() == said
    first.close()
    TraceFile(path, HEAD).close()


@pytest.mark.parametrize("killed", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_cut_off_leaves_a_trace_that_can_be_read(killed: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "redraft", *SLOW, "--seed", "1", "--trace", str(path)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.DEVNULL,
    )
    ends = time.monotonic() + 300
    while not (path.exists() and path.read_bytes().count(b"\n") > 6):
        assert time.monotonic() < ends
        time.sleep(0.02)
    process.send_signal(killed)
    assert process.wait(300) == (130 if killed == signal.SIGINT else -signal.SIGKILL)
    trace = read_trace(path)
    assert len(trace.main.frames) >= 4
    # An interrupt is an error of the request in whose forward it came, or aborts it between two.
    assert trace.main.finish in (("aborted", "error") if killed == signal.SIGINT else ("cut off",))


def test_a_trace_plays_as_it_was_watched(tmp_path: Path, capsys: pytest.CaptureFixture[str], shell: Shell) -> None:
    words = ["generate", "--model", "nano-sudoku", "--chat", *SLOWLY, "--watch", "sudoku\n....\n2.1.\n....\n.243"]
    paths = [tmp_path / "5.jsonl", tmp_path / "6.jsonl"]
    seen = []
    for seed, path in zip("56", paths, strict=True):
        assert main([*words, "--seed", seed, "--trace", str(path)]) == 0
        seen.append([line for line in capsys.readouterr().err.splitlines() if "nats" in line])
        assert shell(["watch", str(path)]).out.splitlines() == [squeezed(line) for line in seen[-1]]
    one, other = (read_trace(path).main for path in paths)
    reported = list(lines([("a", one), ("b", other)]))
    assert [line for line in reported if line.startswith("a")] == [f"a  {line}" for line in map(squeezed, seen[0])]
    found = first_apart(one, other)
    assert found is not None
    assert all(not apart(a, b) for a, b in zip(one.frames[: found[0]], other.frames[: found[0]], strict=False))
    first, second = one.frames[found[0]], other.frames[found[0]]
    assert found[1] == [at for at in range(256) if first.ids[at] != second.ids[at]]
    assert reported[-1].startswith(f"first apart at step {found[0] + 1}, position")
    assert first_apart(one, one) is None
    capsys.readouterr()
    said = json.loads(shell(["watch", *map(str, paths), "--json"]).out)
    assert said["apart"] == {"step": found[0] + 1, "positions": found[1]}
    assert [row["seed"] for row in said["traces"]] == [5, 6]


def squeezed(line: str) -> str:
    head, _, rest = line.partition("nats")
    return f"{head}nats  {rest.lstrip().removeprefix('⏎')}"  # the canvas that is redrawn in place has a line of its own


def test_a_strangers_trace_steers_no_terminal(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "a.jsonl"
    reported = good(path)
    first = json.loads(reported[2])
    first["tokens"][1] = "\x1b]0;owned\x07\x9b31m"
    path.write_text("\n".join([*reported[:2], json.dumps(first), *reported[3:], ""]), encoding="utf-8")
    shown = shell(["watch", str(path)]).out
    assert "owned" in shown
    assert shown.replace("\n", "").isprintable()
    named = path.rename(tmp_path / "\x1b]0;owned\x07.jsonl")
    assert shell(["watch", str(named), str(named)]).out.replace("\n", "").isprintable()


def test_watch_refuses_what_it_cannot_show(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "a.jsonl"
    good(path)
    for words, said in (
        (["watch", str(path), "--speed", "0"], "--speed is 0.0; it must be from 0.01"),
        (["watch", str(path), "--request", "4"], "has steps of 0"),
        (["watch", str(tmp_path / "none")], "cannot be read: No such file"),
        (["watch", __file__], "line 1 of"),
    ):
        assert said in shell(words, 2).err


@pytest.mark.parametrize(
    "line",
    [
        '{"trace":"of my own"}',
        '{"trace":1,"note":"precious"}',
        '{"trace":1}',
        '{"trace": 1, "redraft": "", "command": "", "model": "", "taken": 5, "options": {}}',
    ],
)
def test_a_file_of_somebodys_own_is_never_written_over(tmp_path: Path, line: str) -> None:
    """A first line with a key of that name was taken for a trace's."""
    path = tmp_path / "mine.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(RequestError, match="something else than a trace"):
        TraceFile(path, HEAD)
    assert path.read_text(encoding="utf-8") == line + "\n"
    path.unlink()
    for _ in range(2):  # its own it may write again
        TraceFile(path, HEAD).close()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RequestError, match="cannot be written"):  # nobody reads it, which was waited for
        TraceFile(tmp_path / "pipe", HEAD)


def test_a_full_disk_is_one_error_and_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"

    def limited() -> None:
        file = TraceFile(path, HEAD)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.size + 50, resource.RLIM_INFINITY))
        with pytest.raises(RunError, match="cannot be written on: File too large; make room"):
            file.write(HEAD)

    forked(limited)
    assert path.read_bytes() == msgspec.json.encode(HEAD) + b"\n"
