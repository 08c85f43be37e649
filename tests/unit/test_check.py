"""Blocks judged by the causal mode, against a plain loop that reads and encodes every block twice."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import tiny_config, tiny_model

from redraft.cache import Prefix
from redraft.config import CheckpointConfig, GenerationConfig
from redraft.diffusion.canvas import fresh
from redraft.diffusion.check import CausalCheck
from redraft.diffusion.denoise import Policy, settle
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.plan import Flow
from redraft.diffusion.seed import SeedCanvas
from redraft.engine.events import Block, Finished
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.runner import run_alone
from redraft.errors import RequestError
from redraft.model.gemma import DiffusionGemma

WIDTH = 12
SHIPPED = GenerationConfig(max_denoising_steps=3, eos_token_ids=(1,))


@lru_cache
def model() -> DiffusionGemma:
    return tiny_model(replace(tiny_config(sliding_window=9), canvas_length=WIDTH))


def checked(seed: int, max_tokens: int, check: CausalCheck) -> ResolvedRequest:
    options = Options(seed=seed, max_tokens=max_tokens)
    asked = build_request([2, 17, 31, 44, 5], options, CheckpointConfig(model().config, SHIPPED))
    return replace(asked, policy=replace(asked.policy, check=check))


class Behind:
    """The model behind a prefix that is built anew from all tokens."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.dtype, self.soften = tokens, model().dtype, model().soften

    def prefix(self) -> Prefix:
        prefix = Prefix(model().config.layers)
        model().encode(torch.tensor(self.tokens), prefix)
        return prefix

    def denoise(self, canvas: torch.Tensor, soft: torch.Tensor | None) -> torch.Tensor:
        return model().denoise(canvas, soft, self.prefix())


@torch.inference_mode()
def plainly(request: ResolvedRequest, least: float) -> list[list[int]]:
    """The tokens of each block: what follows is judged token by token, each time with all before it encoded anew."""
    noise, said, told = SeededNoise(request.seed), list(request.prompt), list[list[int]]()
    left, rows = request.max_tokens, 0
    last = -(-request.max_tokens // WIDTH) * WIDTH
    while True:
        canvas = fresh(noise, len(told), min(WIDTH, last - rows), request.vocab)
        *_, canvas = settle(Behind(said), canvas, request.policy, noise)
        draft = canvas.draft.tolist()
        good = 1
        while good < len(draft) and draft[good - 1] not in request.eos:
            hidden = model().encode(torch.tensor(said + draft[:good]), Prefix(model().config.layers))
            law = torch.softmax(model().logits(hidden[-1:])[0], -1)
            if float(law[draft[good]]) < least * float(law.max()):
                break
            good += 1
        kept = draft[:good]
        end = next((i for i, token in enumerate(kept) if token in request.eos), None)
        told.append(kept[:end][:left])
        left, rows = left - len(told[-1]), rows + good
        if end is not None or left == 0:
            return told
        said += kept


@settings(max_examples=8)
@given(st.integers(0, 10_000), st.integers(1, 20), st.sampled_from([0.01, 0.2, 1.0]))
def test_a_checked_answer_equals_a_plain_loop(seed: int, max_tokens: int, least: float) -> None:
    request = checked(seed, max_tokens, CausalCheck(least))
    *events, finished = run_alone(model(), request, SeededNoise(seed), drafts=False)
    blocks = [event.tokens for event in events if isinstance(event, Block)]
    assert blocks == plainly(request, least)
    assert isinstance(finished, Finished)
    assert finished.commits == len(blocks), "every block has been encoded, the last one too"


def test_checks_do_cut_blocks_here_and_let_some_through() -> None:
    """Else the test above would say nothing."""
    strict, lenient = (
        [
            len(event.tokens)
            for event in run_alone(
                model(), replace(checked(1, 48, CausalCheck(least)), eos=frozenset()), SeededNoise(1)
            )
            if isinstance(event, Block)
        ]
        for least in (1.0, 1e-30)
    )
    assert lenient == [12, 12, 12, 12]
    assert len(strict) > 4


def test_passing_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.4, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8], [1 / 3] * 3]))
    tokens = torch.tensor([2, 1, 2, 0])  # the first is not judged; then 0.4/0.5, 0.1/0.5, 0.1/0.8
    assert CausalCheck(0.9).passing(logits, tokens) == 1
    assert CausalCheck(0.7).passing(logits, tokens) == 2
    assert CausalCheck(0.19).passing(logits, tokens) == 3
    assert CausalCheck(0.12).passing(logits, tokens) == 4
    assert CausalCheck(1.0).passing(logits[:1], tokens[:1]) == 1


@pytest.mark.parametrize("least", [0.0, -1.0, 1.1, float("nan")])
def test_meaningless_shares_are_refused(least: float) -> None:
    with pytest.raises(RequestError, match="the check's share"):
        CausalCheck(least)


def test_a_check_needs_whole_canvases() -> None:
    with pytest.raises(RequestError, match="a check needs whole canvases"):
        Policy(plan=Flow(), check=CausalCheck())


def test_a_check_and_pins_are_refused_together() -> None:
    options = Options(preset="checked", seed_canvas=SeedCanvas(((1, 5),), ()))
    with pytest.raises(RequestError, match="a check might drop a pin"):
        build_request([2], options, CheckpointConfig(model().config, SHIPPED))
