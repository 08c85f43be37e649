"""Philox against its published vectors; seeded noise is a pure function of its address."""

import numpy as np
import pytest
import torch

from redraft.diffusion.noise import START, SeededNoise, TapeNoise, philox
from redraft.errors import RequestError

pytestmark = pytest.mark.typed


# Known answers of philox4x32-10 in the authors' Random123 distribution (kat_vectors): counter, key, output.
@pytest.mark.parametrize(
    ("counter", "key", "output"),
    [
        ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, 0xFFFFFFFFFFFFFFFF, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0A4093822,
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_vectors(counter: list[int], key: int, output: list[int]) -> None:
    assert philox(key, np.array([counter], dtype=np.uint64))[:, 0].tolist() == output


def test_draws_depend_on_seed_block_step_and_position_alone() -> None:
    wide, narrow = SeededNoise(5).tokens(2, 17, 64, 1000), SeededNoise(5).tokens(2, 17, 16, 1000)
    assert torch.equal(wide[:16], narrow), "a position's draw changed with the width of the canvas"
    others = [SeededNoise(6).tokens(2, 17, 64, 1000), SeededNoise(5).tokens(3, 17, 64, 1000)]
    others.append(SeededNoise(5).tokens(2, 18, 64, 1000))
    for other in others:
        assert (other == wide).float().mean() < 0.1, "another address gave the same draws"


def test_a_row_sampled_alone_equals_the_row_in_its_canvas() -> None:
    p = torch.softmax(torch.randn(8, 50, generator=torch.Generator().manual_seed(0)), -1)
    whole = SeededNoise(1).sample(0, 3, p)
    assert torch.equal(SeededNoise(1).sample(0, 3, p[:3]), whole[:3])


def test_tokens_are_uniform() -> None:
    """Chi-square over 16 bins of 64k draws: 30.6 is the 1% point of 15 degrees of freedom, and the draw is fixed."""
    drawn = SeededNoise(11).tokens(0, START, 65_536, 16)
    counts = torch.bincount(drawn, minlength=16).float()
    assert float(((counts - 4096) ** 2 / 4096).sum()) < 30.6


def test_samples_follow_the_distribution() -> None:
    p = torch.tensor([0.5, 0.25, 0.0, 0.2, 0.05])
    drawn = SeededNoise(3).sample(0, 1, p.expand(65_536, -1))
    shares = torch.bincount(drawn, minlength=5).float() / 65_536
    assert shares[2] == 0, "a token of probability zero was drawn"
    # four standard deviations of a share of 0.5 over 65,536 draws
    assert float((shares - p).abs().max()) < 4 * (0.25 / 65_536) ** 0.5


def test_sampling_stays_inside_the_vocabulary_when_probabilities_round_down() -> None:
    p = torch.full((4096, 7), 1e-7)
    p[:, 0] = 0.5
    assert int(SeededNoise(0).sample(0, 1, p).max()) < 7


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(RequestError, match=str(seed)):
        SeededNoise(seed)


def test_a_tape_replays_and_ends_with_an_error() -> None:
    sampled, random = torch.tensor([1, 2]), torch.tensor([3, 4])
    tape = TapeNoise({(0, 1): (sampled, random)})
    assert torch.equal(tape.sample(0, 1, torch.ones(2, 5) / 5), sampled)
    assert torch.equal(tape.tokens(0, 1, 2, 5), random)
    with pytest.raises(RequestError, match="block 0, step 2"):
        tape.tokens(0, 2, 2, 5)
