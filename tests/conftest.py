"""Settings that hold for every test."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# Examples are the same in every run, so a red check is never a matter of luck; run with --hypothesis-seed to explore.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Test models are too small to share among threads; one is faster, and its sums are always in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
