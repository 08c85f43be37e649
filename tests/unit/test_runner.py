"""One request through the runner: limits, ends, order of events, and equality with the loop it is built on."""

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.helpers import tiny_config, tiny_model

from redraft.config import CheckpointConfig, GenerationConfig
from redraft.diffusion.noise import SeededNoise
from redraft.engine.events import Block, Draft, Finished
from redraft.engine.request import Options
from redraft.engine.resolve import build_request
from redraft.engine.runner import run_alone as run
from redraft.model.gemma import DiffusionGemma

pytestmark = pytest.mark.typed

PROMPT = [2, 17, 31, 44, 5, 9]
WIDTH = 16


def checkpoint(model: DiffusionGemma) -> CheckpointConfig:
    return CheckpointConfig(
        model.config, GenerationConfig(max_new_tokens=32, max_denoising_steps=5, eos_token_ids=(1,))
    )


@pytest.fixture(scope="module")
def model() -> DiffusionGemma:
    return tiny_model(replace(tiny_config(), canvas_length=WIDTH))


@pytest.mark.parametrize("max_tokens", [1, 7, 16, 17, 40])
def test_never_more_tokens_than_asked(model: DiffusionGemma, max_tokens: int) -> None:
    """The reference rounds an answer up to whole canvases; ours is cut exactly."""
    request = replace(build_request(PROMPT, Options(max_tokens=max_tokens, seed=1), checkpoint(model)), eos=frozenset())
    blocks = [event for event in run(model, request, SeededNoise(1)) if isinstance(event, Block)]
    assert sum(len(block.tokens) for block in blocks) == max_tokens
    assert len(blocks) == -(-max_tokens // model.config.canvas_length)


def test_the_last_block_is_never_committed(model: DiffusionGemma) -> None:
    request = replace(build_request(PROMPT, Options(max_tokens=40, seed=1), checkpoint(model)), eos=frozenset())
    events = list(run(model, request, SeededNoise(1)))
    finished = events[-1]
    assert isinstance(finished, Finished)
    blocks = sum(isinstance(event, Block) for event in events)
    assert (blocks, finished.commits, finished.reason) == (3, 2, "length")


def test_an_end_token_ends_the_answer_and_is_not_part_of_it(model: DiffusionGemma) -> None:
    open_ended = replace(build_request(PROMPT, Options(max_tokens=48, seed=3), checkpoint(model)), eos=frozenset())
    free = next(event for event in run(model, open_ended, SeededNoise(3)) if isinstance(event, Block))
    end = free.tokens[5]
    first = free.tokens.index(end)
    ended = replace(open_ended, eos=frozenset({end}))
    *_, block, finished = run(model, ended, SeededNoise(3))
    assert block.tokens == free.tokens[:first]
    assert finished.reason == "stop"
    short = replace(ended, max_tokens=first) if first else replace(ended, max_tokens=1)
    *_, block, finished = run(model, short, SeededNoise(3))
    assert finished.reason == "stop", "an answer that fits its limit exactly still ended by itself"


def test_changed_marks_compare_with_the_step_before(model: DiffusionGemma) -> None:
    request = build_request(PROMPT, Options(max_tokens=16, seed=2), checkpoint(model))
    drafts = [event for event in run(model, request, SeededNoise(2)) if isinstance(event, Draft)]
    assert all(drafts[0].changed)
    for before, after in pairwise(drafts):
        assert after.changed == [a != b for a, b in zip(before.tokens, after.tokens, strict=True)]
