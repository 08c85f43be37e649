"""Memory that is used again and again is not given back in between."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROUNDS = """
import resource, torch
from redraft.cli.common import keep_memory
if {keep}: print(keep_memory())
torch.set_num_threads(1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.ones(2**20) for _ in range(20)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
first, *others = [faults() for _ in range(4)]
print(first, max(others))
"""


def rounds(*, keep: bool, **environment: str) -> list[str]:
    """What is said, by a process that takes 80 MB four times: the faults of the first round, and the most of others."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", ROUNDS.format(keep=keep)]
    told = subprocess.run(command, env=plain | environment, capture_output=True, text=True, check=True, timeout=100)
    return told.stdout.split()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_forwards_memory_is_there_for_the_next() -> None:
    first, others = map(int, rounds(keep=False))
    assert others > first / 2, "the C library kept it by itself: nothing to ask for"
    said, *told = rounds(keep=True)
    first, others = map(int, told)
    assert said == "True"
    assert others < first / 4


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_whoever_has_set_the_librarys_variables_has_decided(name: str) -> None:
    assert rounds(keep=True, **{name: ""})[0] == "False"
