"""torch's threads in a fork: they are the parent's alone, and an operation shared among them would wait for ever."""

from __future__ import annotations

import os

import torch

_WORKED = list[int]()
"""The process in which torch worked for us last, if it has."""


def one_thread_in_a_fork() -> None:
    """Have torch work on one thread from here on, if this is a fork of a process in which it has worked for us."""
    if _WORKED and _WORKED[0] != os.getpid():
        torch.set_num_threads(1)
    _WORKED[:] = [os.getpid()]
