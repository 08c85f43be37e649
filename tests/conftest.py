"""Settings that hold for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from tests.helpers import Shell

    from redraft.operations.engine import Engine

# Examples are the same in every run, so a red check is never a matter of luck; run with --hypothesis-seed to explore.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Kernels run under Triton's interpreter, except in a run of the GPU's own tests; and interrupts interrupt.

    Triton looks at the variable when it is first imported, and several libraries import it. A shell has what it runs in
    the background ignore SIGINT, and what that starts in turn ignores it, too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.markexpr != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Test models are too small to share among threads, so one is faster; OMP_NUM_THREADS says otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _nobodys_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A knee or a dial that somebody measured on this machine would change how the tests' models run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _time_to_compile() -> Iterator[None]:
    """A constraint that is none too large is compiled on a slow machine, too; tests of the limit bring their own."""
    from redraft.constraints.compile import limits, regex

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regex, "MOST_SECONDS", 60)
        before = limits.DEFAULT_LIMITS.seconds
        object.__setattr__(limits.DEFAULT_LIMITS, "seconds", 60.0)  # the default of many functions, so it is one value
        yield
        object.__setattr__(limits.DEFAULT_LIMITS, "seconds", before)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The embedded model, loaded once per process: a test that changes an engine loads one of its own."""
    import redraft

    return redraft.load("nano-sudoku")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept in the user's cache is kept in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs the command of some words, which must exit with a code; returns what has been printed, `out` and `err`."""
    from redraft.__main__ import main

    def run(words: list[str], code: int = 0) -> Any:
        assert main(words) == code
        return capsys.readouterr()

    return run
