"""SIGKILL at random moments, two processes at once, Ctrl-C, fork, clocks: nothing half-written is taken for whole.

A process that is killed is a fork of the test's, which has the imports behind it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import TYPE_CHECKING

import pytest
import torch
from tests.helpers import BYTES, forked, python, tiny_checkpoint, tiny_config
from tests.training import rows
from tests.unit.test_disk_cache import SCHEMA, right, spelt
from tests.unit.test_quantize import WIDE
from tests.unit.test_tune import RECIPE

import redraft
from redraft import Request, RunError
from redraft.constraints.language import ready
from redraft.constraints.sources import choices_source, schema_source
from redraft.operations.engine import Engine
from redraft.options import Options
from redraft.tune.recipe import read_recipe
from redraft.tune.train import train
from redraft.weights.load import load_model
from redraft.weights.plan import PLANS
from redraft.weights.quantize import quantize_checkpoint

if TYPE_CHECKING:
    from _typeshed import TraceFunction

FORK = multiprocessing.get_context("fork")
SOURCE = Path(__file__).resolve().parents[2] / "src"
KILLS = 6


def killed(work: Callable[[], object], seconds: float) -> bool:
    """Run it in a process of its own and kill that; whether it still ran."""
    process = FORK.Process(target=work)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.slow
def test_a_killed_quantize_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    plain, target, draw = tmp_path / "plain", tmp_path / "target", Random(1)
    tiny_checkpoint(plain, tiny_config(**WIDE), max_shard_bytes=200_000)

    def work(at: Path = target) -> None:
        quantize_checkpoint(plain, at, PLANS["int4"], max_shard_bytes=60_000)

    began = time.monotonic()
    work(tmp_path / "whole")
    seconds, count = time.monotonic() - began, 0
    for _ in range(KILLS):
        count += killed(work, draw.uniform(0, 0.8 * seconds))
        if target.exists():
            break
    assert count, "none was killed: the run is too quick"
    if not target.exists():
        work()
    for path in (tmp_path / "whole").iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes(), path.name
    load_model(target)


@pytest.mark.slow
def test_a_killed_tune_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    recipe, folder, draw = read_recipe(tmp_path / "tiny.toml"), tmp_path / "run", Random(1)
    began = time.monotonic()
    whole = train(recipe, tmp_path / "whole")
    seconds, count = time.monotonic() - began, 0
    for _ in range(KILLS):
        count += killed(lambda: train(recipe, folder), draw.uniform(0, 0.8 * seconds))
        if (folder / "model.safetensors").exists():
            load_model(folder)
            break
    assert count, "none was killed: the run is too quick"
    train(recipe, folder)
    assert rows(folder) == rows(whole)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_two_processes_may_share_a_cache_of_languages(tmp_path: Path) -> None:
    """They compile the same sources at the same time, and one is killed in the middle of it."""
    words = [f"word{i}" for i in range(20)]

    def work() -> None:
        for word in words:
            assert ready(choices_source([word]), BYTES, kept_in=tmp_path).holds(spelt(word))
            assert right(ready(schema_source(SCHEMA), BYTES, kept_in=tmp_path))

    them = [FORK.Process(target=work) for _ in range(3)]
    for one in them:
        one.start()
    time.sleep(0.05)
    them[0].kill()
    for one in them:
        one.join()
    assert [one.exitcode for one in them[1:]] == [0, 0]
    work()
    whole = [path for path in tmp_path.iterdir() if path.suffix == ".language"]
    assert len(whole) == len(words) + 1


def test_an_interrupt_at_any_moment_leaves_an_engine_that_answers(engine: Engine) -> None:
    options = Options(max_tokens=64, seed=3)
    expected = engine.generate("go on", options=options).text
    draw, met = Random(2), 0
    for _ in range(8):
        timer = threading.Timer(draw.uniform(0.01, 0.15), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()  # on a busy machine it fires before this has returned
            for _ in range(1000):
                engine.generate("go on", options=options)
        except KeyboardInterrupt:
            met += 1
        finally:
            timer.join()  # or it would end the next test
        engine.loop.check()
        assert not engine.loop.is_busy
        assert engine.loop.num_bytes == 0
    assert met == 8
    assert engine.generate("go on", options=options).text == expected


def test_an_interrupt_between_any_two_instructions_leaves_neither_a_lock_nor_a_mode_of_torch(engine: Engine) -> None:
    """One came between torch's taking its inference mode and our `with`: collected later, the guard ended the mode in
    the middle of another forward. So the errors are kept here, with their frames, and let go within such a mode."""
    options = Options(max_tokens=4, seed=3)
    expected = engine.generate("go on", options=options).text
    files = ("grad_mode.py", "contextlib.py", "interrupts.py")
    errors, at, left = [], 1, 0

    def trace(frame: FrameType, _event: str, _given: object) -> TraceFunction | None:
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    def count(_frame: FrameType, event: str, _given: object) -> TraceFunction:
        nonlocal left
        if event == "opcode":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return count

    while True:
        left, before = at, sys.gettrace()
        try:
            sys.settrace(trace)
            try:
                assert engine.generate("go on", options=options).text == expected
            finally:
                sys.settrace(before)
        except KeyboardInterrupt as error:
            errors.append(error)
        if left > 0:
            break
        assert not torch.is_inference_mode_enabled()
        assert not engine.loop._turn.is_held
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        at += 97
    assert len(errors) > 25
    with torch.inference_mode():
        errors.clear()
        gc.collect()
        assert torch.is_inference_mode_enabled()
    engine.loop.drain()  # what was interrupted between being submitted and being read
    assert engine.generate("go on", options=options).text == expected


def test_a_fork_answers_as_its_parent_does(engine: Engine) -> None:
    options = Options(max_tokens=16, seed=3)
    expected = engine.generate("go on", options=options).text

    def work() -> None:
        assert engine.generate("go on", options=options).text == expected

    forked(work)
    assert engine.generate("go on", options=options).text == expected


SOLVE = """
import os, sys, threading, time, torch, redraft
torch.set_num_threads(2)
engine = redraft.load("nano-sudoku")
options = redraft.Options(max_tokens=256, steps=5000, min_tokens=256, entropy_bound=1e-9)
def answer(): return engine.generate("go on", options=redraft.Options(max_tokens=16, seed=3)).text
def work():
    while True: engine.generate("go on", options=options)
"""


@pytest.mark.parametrize("asked", ["answer()", "sorted(engine.decide('go on', ['a', 'b']).shares)"])
def test_a_fork_of_several_threads_of_torch_answers_on_one(asked: str) -> None:
    """torch's other threads are the parent's alone: an operation that was shared among them waited for ever."""
    ran = python(SOLVE + f"wanted = {asked}\nif not os.fork(): os._exit({asked} != wanted)\nprint(os.wait()[1])")
    assert (ran.returncode, ran.stdout) == (0, "0\n")


def test_a_fork_loads_a_model_where_its_parent_has_used_torch_for_something_else() -> None:
    work = "import os, torch, redraft; torch.set_num_threads(2); a = torch.randn(1500, 1500); (a @ a).sum()\n"
    asked = "redraft.load('nano-sudoku').generate('go on', max_tokens=8, seed=3).seed != 3"
    ran = python(f"{work}if not os.fork(): os._exit({asked})\nprint(os.wait()[1])")
    assert (ran.returncode, ran.stdout) == (0, "0\n")


def test_a_fork_made_while_a_callers_thread_is_in_a_forward_gets_an_error_and_the_program_ends() -> None:
    """It waited for the turn, which a thread holds that it has not got; and the end of the program was an abort."""
    script = """
threading.Thread(target=work, daemon=True).start()
while not engine.loop.forwards or not engine.loop._turn.is_held: time.sleep(0.001)
def forked():
    try: answer()
    except redraft.errors.RunError as error: return "this process is a fork of one whose thread" in str(error)
if not (child := os.fork()): sys.exit(0 if forked() else 1)
print(os.waitpid(child, 0)[1])
"""
    ran = python(SOLVE + script)
    assert (ran.returncode, ran.stdout) == (0, "0\n"), ran.stderr


def test_a_fork_may_load_an_engine_of_its_own_and_end_while_a_thread_of_its_own_answers() -> None:
    """It waited for ever in the first copy of a weight, as the error's own advice led it there; or was aborted."""
    script = """
answer()
if not (child := os.fork()):
    engine.generate("go on", options=redraft.Options(max_tokens=4, seed=3))
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.5)
    sys.exit(0 if redraft.load("nano-sudoku").generate("go on", options=redraft.Options(max_tokens=4)) else 1)
print(os.waitpid(child, 0)[1])
"""
    ran = python(SOLVE + script)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0\n", "")


def test_a_fork_has_the_locks_of_an_answer_that_the_parent_reads() -> None:
    """A thread of the parent held it; the child waited for ever where it has an error to get."""
    script = """
handle = engine.submit(redraft.Request("go on", options))
threading.Thread(target=handle.result, daemon=True).start()
time.sleep(0.3)
if not (child := os.fork()):
    try: handle.result()
    except redraft.errors.RunError as error: os._exit(0 if "this process is a fork" in str(error) else 1)
print(os.waitpid(child, 0)[1])
handle.abort()
"""
    ran = python(SOLVE + script)
    assert (ran.returncode, ran.stdout) == (0, "0\n"), ran.stderr


def test_what_runs_at_the_end_of_a_program_may_ask_the_engine() -> None:
    """It waited for ever for a turn that had been taken from all threads, the main one among them."""
    script = "threading.Thread(target=work, daemon=True).start(); time.sleep(0.5)"
    ran = python("import atexit\natexit.register(lambda: print(len(answer()) > -1))\n" + SOLVE + script)
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


@pytest.mark.parametrize(
    "asked",
    [
        "asyncio.run(all_of(engine.stream('go on')))",
        "engine.loop.start()",
        "thread = threading.Thread(target=answer); thread.start(); thread.join()",
    ],
)
def test_at_the_end_of_a_program_other_threads_get_an_error(asked: str) -> None:
    """The main thread waited for them, and they for the end of the program."""
    before = f"""
import asyncio, atexit
async def all_of(deltas): return [delta async for delta in deltas]
def report():
    redraft.engine.turn.LAST_WAIT_SEC = 0.2
    {asked}
atexit.register(report)
"""
    ran = python(before + SOLVE + "answer()")
    assert ran.returncode == 0
    assert "RunError: the program ends, and " in ran.stderr


def test_a_program_may_end_while_its_engine_answers() -> None:
    """Python ends threads that are no longer waited for; within a forward that was an abort, with -6 for the code."""
    script = (
        "import os, sys, time, redraft; engine = redraft.load('nano-sudoku'); engine.loop.start();"
        "options = redraft.Options(max_tokens=256, steps=5000, min_tokens=256, entropy_bound=1e-9);"
        "left = [engine.submit(redraft.Request('go on', options)) for _ in range(4)]; time.sleep(0.5);"
        "assert engine.loop.is_busy; child = os.fork() or sys.exit(4);"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4; sys.exit(3)"
    )
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, timeout=100, check=False)
    assert (ran.returncode, ran.stderr) == (3, b"")


def test_no_deadline_is_read_off_a_clock_that_jumps() -> None:
    """The time of day stands in answers (`created`) alone: a clock that is set ends nothing early and nothing late."""
    found = {
        f"{path.relative_to(SOURCE / 'redraft')}"
        for path in SOURCE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\btime\.time(_ns)?\(", line) and "created" not in line
    }
    assert found == set()


def test_a_fork_of_an_engine_that_turns_on_a_thread_gets_an_error() -> None:
    """Its calls waited for ever: the thread that would answer is the parent's alone."""
    engine = redraft.load("nano-sudoku")
    engine.loop.start()
    options = Options(max_tokens=16, seed=3)
    expected = engine.generate("go on", options=options).text
    left = engine.submit(Request("go on", Options(max_tokens=256, seed=3)))

    def work() -> None:
        for call in (lambda: engine.generate("go on", options=options), engine.loop.start, engine.loop.tick):
            with pytest.raises(RunError, match="this process is a fork of one whose thread turns the engine"):
                call()
        left.abort()  # as a generator does that is collected; the parent's goes on

    with engine.loop._mail:  # whatever the thread holds at that moment
        forked(work)
    assert engine.generate("go on", options=options).text == expected
    assert left.result().finish != "aborted"
    engine.loop.stop()


@pytest.mark.slow
def test_a_full_disk_is_one_error_of_quantize_and_the_same_command_goes_on(tmp_path: Path) -> None:
    plain, target = tmp_path / "plain", tmp_path / "target"
    tiny_checkpoint(plain, tiny_config(**WIDE), max_shard_bytes=200_000)

    def work(at: Path) -> None:
        quantize_checkpoint(plain, at, PLANS["int4"], max_shard_bytes=60_000)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        with pytest.raises(RunError, match=r"could not be written .*; free space and run the same command again"):
            work(target)

    forked(limited)
    assert not target.exists()
    work(target)
    work(tmp_path / "whole")
    for path in (tmp_path / "whole").iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes(), path.name
