"""A row's product does not depend on the rows beside it, however many threads share the work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.helpers import ROOT

# A process of its own: the test session is pinned to one thread, where a matmul is not divided at all.
MATMULS = """
import sys, torch
from redraft.model.linear import multiply
from redraft.model.sums import IN_ORDER
torch.set_num_threads(int(sys.argv[1]))
odd = []
more = ((1024, 256), (2816, 704)) if IN_ORDER else ()
for inner, outer in ((8, 24), (64, 96), (128, 512), (512, 128), *more):
    x, weight = torch.randn(700, inner), torch.randn(outer, inner)
    whole = multiply(x, weight)
    odd += [rows for rows in range(1, 180) if not torch.equal(multiply(x[:rows], weight), whole[:rows])]
print(torch.get_num_threads(), odd)
"""

ANSWERS = """
import sys, torch
from redraft.diffusion.noise import SeededNoise
from redraft import load
from redraft.engine.loop import Loop
from redraft.engine.request import Options, Request
from redraft.engine.runner import run_alone
torch.set_num_threads(int(sys.argv[1]))
engine, told = load("nano-sudoku"), []
prompts = ["a", "Send 417 melu", "record\\nSend 417 melu to Karomi.", "sudoku 1..4", "Ka", "17"]
asked = [engine.resolve(Request(text, Options(max_tokens=8, seed=i, steps=3, causal=i == 4)))
         for i, text in enumerate(prompts)]
loop = Loop(engine.model)
handles = [loop.submit(one, drafts=True) for one in asked]
loop.drain()
told = [list(handle.events()) for handle in handles]
alone = [list(run_alone(engine.model, one, SeededNoise(one.seed))) for one in asked]
print(torch.get_num_threads(), [i for i, (a, b) in enumerate(zip(told, alone)) if a != b])
"""


@pytest.mark.parametrize(
    ("program", "threads"),
    # With sixteen threads and hundreds of rows, operations beside the matmuls are cut where sums change.
    [
        pytest.param(MATMULS, 1, id="matmuls-1"),
        pytest.param(MATMULS, 2, id="matmuls-2"),
        pytest.param(MATMULS, 8, id="matmuls-8", marks=pytest.mark.slow),
        pytest.param(MATMULS, 16, id="matmuls-16", marks=pytest.mark.slow),
        pytest.param(ANSWERS, 2, id="answers-2"),
        pytest.param(ANSWERS, 8, id="answers-8", marks=pytest.mark.slow),
    ],
)
def test_rows_and_answers_are_the_same_alone_and_among_others(program: str, threads: int) -> None:
    """From ten threads on, a matmul of 17 rows left one thread a single row, whose sums came in another order. On
    processors of Intel's the first 15 rows were summed otherwise, and with two threads up to 300 of a long sum."""
    done = _run(program, str(threads))
    assert done.stdout == f"{threads} []\n", done.stdout + done.stderr


@pytest.mark.slow
def test_who_multiplies_before_a_model_is_loaded_is_warned_or_has_the_same_rows() -> None:
    """The library changes its ways only before its first product."""
    done = _run("import torch; torch.ones(64, 64) @ torch.ones(64, 64)" + MATMULS, "1")
    assert "RuntimeWarning: a matrix was multiplied" in done.stderr or done.stdout == "1 []\n"


@pytest.mark.slow
def test_a_mode_that_the_user_chose_for_mkl_stands() -> None:
    program = "import os; from redraft.model import sums as s; print(s.IN_ORDER, s.row_group(), os.environ['MKL_CBWR'])"
    held, group, mode = _run(program, MKL_CBWR="AUTO").stdout.split()
    assert (held, mode) == ("False", "AUTO")
    assert int(group) >= 4


def _run(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_WAIT_POLICY": "PASSIVE"} | variables
    environment.pop("OMP_NUM_THREADS", None)
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
