"""`redraft watch`: a trace played again in the terminal, or two of them side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from redraft.cli.common import Commands, command, note, print_json, tame
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.trace.recording import Recording, Trace

EPILOG = """A trace is written by --trace of generate, chat, json, infill, edit, fill and serve; no model is loaded to
play it. Keys, on a terminal: space to pause and go on, left and right for a step, home and end, + and - for the pace,
q to leave. Without a terminal every step is a line. Two traces are shown step by step beside each other, with their
differences marked.

examples:
  redraft generate --model nano-sudoku --chat --seed 5 --trace five.jsonl $'sudoku\\n1..4\\n..1.\\n..42\\n4...'
  redraft watch five.jsonl --speed 1
  redraft watch five.jsonl six.jsonl
  redraft watch five.jsonl six.jsonl --json"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "watch", "play a trace again, or two side by side", run, epilog=EPILOG)
    parser.add_argument("first", type=Path, metavar="FILE", help="a trace")
    parser.add_argument("second", type=Path, nargs="?", metavar="OTHER", help="another, to compare with it")
    parser.add_argument("--speed", type=float, default=3.0, metavar="N", help="steps a second (default: 3)")
    parser.add_argument(
        "--request",
        type=int,
        metavar="I",
        help="which request of a trace (default: the one whose answer was used, else the longest)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read, then play or print."""
    from redraft.trace.file import read_trace

    if not 0.01 <= arguments.speed <= 1000:
        raise RequestError(f"--speed is {arguments.speed}; it must be from 0.01 to 1000 steps a second")
    paths = [path for path in (arguments.first, arguments.second) if path is not None]
    traces = [read_trace(path) for path in paths]
    recordings = [_chosen(trace, arguments.request, path) for trace, path in zip(traces, paths, strict=True)]
    if arguments.json:
        print_json(_summary(traces, recordings))
        return 0
    from redraft.cli.player import play

    for path, trace in zip(paths, traces, strict=True):
        if trace.instead is not None:
            note(f"{path}: the answer that was used was written from left to right: {trace.instead}")
    play([(tame(path.name), recording) for path, recording in zip(paths, recordings, strict=True)], arguments.speed)
    return 0


def _chosen(trace: Trace, index: int | None, path: Path) -> Recording:
    if index is None:
        return trace.main
    found = next((recording for recording in trace.recordings if recording.begun.index == index), None)
    if found is None:
        there = ", ".join(str(recording.begun.index) for recording in trace.recordings)
        raise RequestError(f"--request is {index}; {path} has steps of {there}")
    return found


def _summary(traces: list[Trace], recordings: list[Recording]) -> dict[str, object]:
    from redraft.trace.recording import first_apart

    rows = [
        {
            "model": trace.header.model,
            "command": trace.header.command,
            "requests": [one.begun.index for one in trace.recordings],
            "request": recording.begun.index,
            "seed": recording.begun.seed,
            "steps": len(recording.frames),
            "finish": recording.finish,
            "text": recording.frames[-1].text if recording.ended is None else recording.ended.text,
            "ms": recording.frames[-1].drafted.ms,
        }
        | ({} if trace.instead is None else {"instead": trace.instead})
        for trace, recording in zip(traces, recordings, strict=True)
    ]
    if len(recordings) == 1:
        return rows[0]
    found = first_apart(recordings[0], recordings[1])
    return {"traces": rows, "apart": None if found is None else {"step": found[0] + 1, "positions": found[1]}}
