"""A seed canvas: pins never move, whatever policy, batch and model say, and a batch gives what a request has alone."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import alone, side_by_side, tiny_config, tiny_model
from torch import Tensor

from redraft.config import CheckpointConfig, GenerationConfig
from redraft.diffusion.canvas import Canvas, fresh
from redraft.diffusion.denoise import Policy, settle
from redraft.diffusion.halt import AtLeast, StableAndConfident
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.seed import SeedCanvas, seeded
from redraft.diffusion.stats import Stats
from redraft.engine.events import Block, Draft
from redraft.engine.loop import Loop
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.errors import RequestError
from redraft.model.fused import fuse_layers
from redraft.model.gemma import DiffusionGemma

EOS, WIDTH, VOCAB = 1, 16, 64


@lru_cache
def model() -> DiffusionGemma:
    return fuse_layers(tiny_model(replace(tiny_config(), canvas_length=WIDTH)))


def request(seed_canvas: SeedCanvas | None, max_tokens: int = 24, seed: int = 0, **options: object) -> ResolvedRequest:
    shipped = CheckpointConfig(model().config, GenerationConfig(max_denoising_steps=4, eos_token_ids=(EOS,)))
    prompt = [2, *((7 * seed + 3 * i) % 60 + 2 for i in range(9))]
    return build_request(
        prompt,
        Options(max_tokens=max_tokens, seed=seed, seed_canvas=seed_canvas, **options),  # type: ignore[arg-type]
        shipped,
    )


tokens = st.integers(0, VOCAB - 1)
pairs = st.dictionaries(st.integers(0, WIDTH - 1), st.tuples(tokens, st.booleans()), min_size=1)


@settings(max_examples=20)
@given(
    st.lists(st.tuples(pairs, st.integers(WIDTH, 40), st.integers(0, 99)), min_size=1, max_size=4),
    st.sampled_from(["reference", "fast", "flow"]),
    st.sampled_from([None, True]),
)
def test_pins_never_move_alone_or_among_others(
    drawn: list[tuple[dict[int, tuple[int, bool]], int, int]], preset: str, end_aware: bool | None
) -> None:
    asked, pins = [], []
    for chosen, max_tokens, seed in drawn:
        held = tuple((at, token) for at, (token, pinned) in chosen.items() if pinned)
        loose = tuple((at, token) for at, (token, pinned) in chosen.items() if not pinned)
        options = {"preset": preset, "end_aware": end_aware, "canvas": WIDTH}
        asked.append(request(SeedCanvas(held, loose), max_tokens, seed, **options))
        pins.append(dict(held))
    reported = side_by_side(Loop(model()), asked)
    assert reported == alone(model(), asked)
    for heard, wanted in zip(reported, pins, strict=True):
        end = min([at for at, token in wanted.items() if token == EOS], default=WIDTH)
        said = [token for event in heard if isinstance(event, Block) for token in event.tokens]
        for at, token in wanted.items():
            assert at >= end or said[at] == token, f"pin {at} is not in the answer"
            for event in heard:
                if isinstance(event, Draft) and event.block == 0 and at < len(event.tokens):
                    assert event.tokens[at] == token, f"pin {at} moved at step {event.step}"


def test_a_seed_canvas_is_shown_at_the_first_step_and_noise_elsewhere() -> None:
    noise = SeededNoise(3)
    canvas = seeded(noise, 6, VOCAB, SeedCanvas(((1, 40),), ((4, 41),)))
    assert canvas.pinned is not None
    assert canvas.pinned.tolist() == [False, True, False, False, False, False]
    start = fresh(noise, 0, 6, VOCAB).tokens.tolist()
    assert canvas.tokens.tolist() == [start[0], 40, start[2], start[3], 41, start[5]]


@pytest.mark.parametrize(
    ("seed_canvas", "options", "words"),
    [
        (SeedCanvas(((16, 3),)), {}, "seed_canvas.pins names position 16; the first canvas has positions 0 to 15"),
        (SeedCanvas(((-1, 3),)), {}, "names position -1"),
        (SeedCanvas(given=((8, 3),)), {"canvas": 8}, "seed_canvas.given names position 8"),
        (SeedCanvas(((0, 64),)), {}, "token id 64 at position 0; the vocabulary ends at 63"),
        (SeedCanvas(((0, -1),)), {}, "token id -1"),
        (SeedCanvas(((2, 3), (2, 4))), {}, "holds position 2 to token 4, which is held to 3"),
        (SeedCanvas(((2, 3),), ((2, 4),)), {}, "holds position 2 to token 4, which is held to 3"),
        (SeedCanvas(((2, EOS),)), {"min_tokens": 5}, "min_tokens is 5 and an end token is pinned at position 2"),
        (SeedCanvas(((2, 3),)), {"causal": True}, "causal and seed_canvas were both given"),
    ],
)
def test_a_seed_canvas_that_cannot_be_is_refused(
    seed_canvas: SeedCanvas, options: dict[str, object], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        request(seed_canvas, **options)  # type: ignore[arg-type]


class Eager:
    """A model that would end every answer at once and believes no pin."""

    dtype = torch.float32

    def denoise(self, tokens: Tensor, soft: Tensor | None) -> Tensor:
        self.soft = soft
        logits = torch.zeros(len(tokens), VOCAB)
        logits[:, EOS] = 30.0
        return logits

    def soften(self, probabilities: Tensor) -> Tensor:
        return probabilities


def steps(policy: Policy, seed_canvas: SeedCanvas, model: Eager) -> list[Canvas]:
    return list(settle(model, seeded(SeededNoise(0), 4, VOCAB, seed_canvas), policy, SeededNoise(0)))


def test_a_pin_feeds_back_its_token() -> None:
    eager = Eager()
    steps(Policy(), SeedCanvas(((1, 9),)), eager)
    assert eager.soft is not None
    belief = torch.softmax(torch.tensor([30.0 if token == EOS else 0.0 for token in range(VOCAB)]), -1)
    torch.testing.assert_close(eager.soft[1], torch.eye(VOCAB)[9], atol=1e-6, rtol=0)
    torch.testing.assert_close(eager.soft[0], belief, atol=1e-6, rtol=0)


def test_pins_do_not_make_a_gap_look_certain() -> None:
    """The mean over all positions would be a quarter of the open one's, and the canvas would stop."""
    reading = torch.tensor([3, 4, 5, 6])
    entropy, pinned = torch.tensor([0.0, 0.0, 0.0, 0.01]), torch.tensor([True, True, True, False])
    stats = Stats(reading, reading, entropy, torch.zeros(4, 1))
    assert StableAndConfident(0, 0.005)(stats, [])
    assert not StableAndConfident(0, 0.005)(replace(stats, pinned=pinned), [])
    assert StableAndConfident(0, 0.005)(replace(stats, pinned=torch.ones(4, dtype=torch.bool)), [])


def test_a_first_guess_between_pins_is_never_the_answer() -> None:
    rule = StableAndConfident(0)
    assert len(steps(Policy(halt=rule), SeedCanvas(((1, 9),)), Eager())) == 1
    assert len(steps(Policy(halt=AtLeast(rule, 2)), SeedCanvas(((1, 9),)), Eager())) == 2
    asked = request(SeedCanvas(((1, 9),)), preset="fast", end_aware=False)
    assert isinstance(asked.policy.halt, AtLeast)
