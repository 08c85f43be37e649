"""Steps that are read together, as a stream where the vocabulary is long, with the plain path's answer."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from tests.helpers import alone, side_by_side, tiny_config, tiny_model

from redraft.config import CheckpointConfig, GenerationConfig
from redraft.diffusion.accept import Confidence
from redraft.diffusion.denoise import step, updated
from redraft.diffusion.plan import Flow
from redraft.diffusion.stats import Stats
from redraft.engine import reading, runner
from redraft.engine.events import Finished
from redraft.engine.loop import Loop
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.sequence import CanvasSequence
from redraft.model.gemma import DiffusionGemma
from redraft.model.head import LONG

pytestmark = pytest.mark.typed

PROMPT = [2, 17, 31, 44, 5, 9]


@lru_cache(maxsize=2)
def model(vocab: int = LONG) -> DiffusionGemma:
    return tiny_model(replace(tiny_config(vocab_size=vocab), canvas_length=8))


def request(seed: int, vocab: int = LONG, **options: object) -> ResolvedRequest:
    limits = GenerationConfig(max_new_tokens=16, max_denoising_steps=6, eos_token_ids=(1,))
    asked = Options(max_tokens=16, seed=seed, **options)  # type: ignore[arg-type]
    return build_request(PROMPT[: 3 + seed], asked, CheckpointConfig(model(vocab).config, limits))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each forward reads together."""
    counts: list[int] = []

    def spy(on: DiffusionGemma, lanes: list[CanvasSequence], hidden: list[torch.Tensor]) -> list[Stats]:
        counts.append(len(lanes))
        return reading.read_together(on, lanes, hidden)

    monkeypatch.setattr(runner, "read_together", spy)
    return counts


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 1, "top_p": 0.5}], ids=str)
def test_a_stream_takes_the_step_of_the_plain_path(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same canvas and hidden states each time: with random weights, a last bit grows from step to step."""
    counts: list[int] = []

    def beside(on: DiffusionGemma, lanes: list[CanvasSequence], hidden: list[torch.Tensor]) -> list[Stats]:
        found = reading.read_together(on, lanes, hidden)
        for lane, rows, stats in zip(lanes, hidden, found, strict=True):
            ours = updated(lane.canvas, stats, on.config.vocab_size, lane.policy, lane.noise)
            plain = step(lane.canvas, on.logits(rows), on, lane.policy, lane.noise)
            for name in ("tokens", "draft", "accepted"):
                assert torch.equal(getattr(ours, name), getattr(plain, name)), name
            torch.testing.assert_close(ours.entropy, plain.entropy, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(ours.soft, plain.soft, rtol=1e-3, atol=1e-4)
            assert (ours.step, ours.settled) == (plain.step, plain.settled)
        counts.append(len(lanes))
        return found

    monkeypatch.setattr(runner, "read_together", beside)
    for emitted in side_by_side(Loop(model()), [request(seed, **options) for seed in range(4)]):
        assert isinstance(emitted[-1], Finished)
        assert emitted[-1].error is None
    assert max(counts) == 4


def test_an_answer_does_not_depend_on_its_neighbours() -> None:
    """Bit for bit, also beside a neighbour that goes the plain way."""
    asked = request(1)
    (wanted,) = side_by_side(Loop(model()), [asked])
    assert side_by_side(Loop(model()), [request(0), asked, request(2, top_k=3)])[1] == wanted


@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"top_p": 0.5}, {"min_tokens": 9}, {"logprobs": 2}, {"logit_bias": ((5, 2.0),)}], ids=str
)
def test_what_a_stream_does_not_read_goes_by_the_logits(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(0, **options)
    wanted = alone(model(), [asked])
    counts = counted(monkeypatch)
    assert side_by_side(Loop(model()), [asked]) == wanted
    assert not any(counts)


@pytest.mark.parametrize("numbers", [reading.NUMBERS, 64 * 8 * 2, 1])
def test_short_vocabularies_are_read_together_bit_for_bit(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All canvases at once, two at a time or each by itself, of rules that read more of a distribution and less."""
    asked = [request(seed, 64) for seed in range(3)] + [request(3, 64, top_k=3), request(4, 64, temperature=0.0)]
    asked[1] = replace(asked[1], policy=replace(asked[1].policy, accept=Confidence(0.6)))
    asked[2] = replace(asked[2], policy=replace(asked[2].policy, plan=Flow(nats=3.0, least=2)))
    wanted = alone(model(64), asked)
    counts = counted(monkeypatch)
    monkeypatch.setattr(reading, "NUMBERS", numbers)
    assert side_by_side(Loop(model(64)), asked) == wanted
    assert max(counts) == 4


def test_no_step_of_a_stream_holds_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The point of it: the head's logits are never asked for."""
    monkeypatch.setattr(DiffusionGemma, "logits", None)
    asked = [request(3), request(2, temperature=0.0)]
    assert not any(map(reading.may_read_alone, asked)), "the ledger counts no logits for them"
    for emitted in side_by_side(Loop(model()), asked):
        assert isinstance(emitted[-1], Finished)
        assert emitted[-1].error is None
    assert torch.is_inference_mode_enabled() is False
