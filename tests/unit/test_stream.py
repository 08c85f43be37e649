"""Requests on a long vocabulary: read as a stream where nothing else is wanted, with the plain path's answer."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from tests.helpers import tiny_config, tiny_model

from redraft.config import CheckpointConfig, GenerationConfig
from redraft.diffusion.canvas import Canvas
from redraft.diffusion.denoise import step
from redraft.diffusion.noise import SeededNoise
from redraft.engine import runner, stream
from redraft.engine.events import Event, Finished
from redraft.engine.loop import Loop, LoopConfig
from redraft.engine.request import Options, Request, build_request
from redraft.engine.runner import run_alone
from redraft.model.gemma import DiffusionGemma
from redraft.model.head import LONG

PROMPT = [2, 17, 31, 44, 5, 9]


@lru_cache(maxsize=2)
def model(vocab: int = LONG) -> DiffusionGemma:
    return tiny_model(replace(tiny_config(vocab_size=vocab), canvas_length=8))


def request(seed: int, vocab: int = LONG, **options: object) -> Request:
    limits = GenerationConfig(max_new_tokens=16, max_denoising_steps=6, eos_token_ids=(1,))
    asked = Options(max_tokens=16, seed=seed, **options)  # type: ignore[arg-type]
    return build_request(PROMPT[: 3 + seed], asked, CheckpointConfig(model(vocab).config, limits))


def batched(requests: list[Request], on: DiffusionGemma) -> list[list[Event]]:
    found: list[list[Event]] = [[] for _ in requests]
    loop = Loop(on, LoopConfig())
    for asked, told in zip(requests, found, strict=True):
        loop.submit(asked, told.append, drafts=True)
    while any(not told or not isinstance(told[-1], Finished) for told in found):
        loop.tick()
    return found


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each forward reads as a stream."""
    counts: list[int] = []

    def spy(on: DiffusionGemma, steps: list[stream.Due]) -> list[object]:
        counts.append(len(steps))
        return stream.take_steps(on, steps)  # type: ignore[return-value]

    monkeypatch.setattr(runner, "take_steps", spy)
    return counts


def test_a_stream_takes_the_step_of_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same canvas and hidden states each time: with random weights, a last bit grows from step to step."""
    counts: list[int] = []

    def beside(on: DiffusionGemma, steps: list[stream.Due]) -> list[Canvas]:
        found = stream.take_steps(on, steps)
        for due, ours in zip(steps, found, strict=True):
            plain = step(due.lane.canvas, on.logits(due.hidden), on, due.lane.policy, due.lane.noise)
            for name in ("tokens", "draft", "accepted"):
                assert torch.equal(getattr(ours, name), getattr(plain, name)), name
            torch.testing.assert_close(ours.entropy, plain.entropy, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(ours.soft, plain.soft, rtol=1e-3, atol=1e-4)
            assert (ours.step, ours.settled) == (plain.step, plain.settled)
        counts.append(len(steps))
        return found

    monkeypatch.setattr(runner, "take_steps", beside)
    for told in batched([request(seed) for seed in range(4)], model()):
        assert isinstance(told[-1], Finished)
        assert told[-1].error is None
    assert max(counts) == 4


def test_an_answer_does_not_depend_on_its_neighbours() -> None:
    """Bit for bit, also beside a neighbour that goes the plain way."""
    asked = request(1)
    (alone,) = batched([asked], model())
    assert batched([request(0), asked, request(2, top_k=3)], model())[1] == alone


@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"top_p": 0.5}, {"min_tokens": 9}, {"logprobs": 2}, {"logit_bias": ((5, 2.0),)}], ids=str
)
def test_what_a_stream_does_not_read_goes_by_the_logits(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(0, **options)
    alone = list(run_alone(model(), asked, SeededNoise(asked.seed)))
    counts = counted(monkeypatch)
    assert batched([asked], model())[0] == alone
    assert counts[0] == 0


def test_a_short_vocabulary_goes_by_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counted(monkeypatch)
    batched([request(0, 64)], model(64))
    assert set(counts) == {0}


def test_no_step_of_a_stream_holds_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The point of it: the head's logits are never asked for."""
    monkeypatch.setattr(DiffusionGemma, "logits", None)
    (told,) = batched([request(3)], model())
    assert isinstance(told[-1], Finished)
    assert torch.is_inference_mode_enabled() is False
