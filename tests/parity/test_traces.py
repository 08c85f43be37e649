"""The denoise loop against three recorded runs of the reference, decision by decision.

The network is teacher-forced: at every step it is shown the recorded canvas and conditions on the recorded soft
embedding, so rounding cannot grow through the loop (on random weights 1e-5 becomes 1e-2 in ten steps). Everything
decided must then be equal: accept masks, drafts, next canvases, stops, sequences.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tests.helpers import ORACLE, oracle_model, stable_model

from redraft.cache import Prefix
from redraft.config import GenerationConfig, parse_generation
from redraft.diffusion.canvas import Canvas, fresh
from redraft.diffusion.denoise import Policy, reference_policy, step
from redraft.diffusion.noise import START, TapeNoise
from redraft.model.gemma import DiffusionGemma
from redraft.model.rows import Mode, Rows, Span

pytestmark = pytest.mark.typed

TRACES = [
    ("generate_b1", 0),
    ("generate_b2pad", 0),
    ("generate_b2pad", 1),
    ("generate_stable", 0),
    ("generate_stable", 1),
]
EOS = (1, 106, 50)


def policy() -> Policy:
    config, unknown = parse_generation(
        {
            "max_denoising_steps": 12,
            "t_min": 0.4,
            "t_max": 0.8,
            "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
            "stability_threshold": 1,
            "confidence_threshold": 0.05,
        },
        GenerationConfig(),
    )
    assert not unknown
    return reference_policy(config)


class Row:
    """One row of a trace: its draws as a tape, and what the reference decided."""

    def __init__(self, name: str, row: int) -> None:
        self.log, self.row, self.name = load_file(ORACLE / f"{name}.safetensors"), row, name
        self.softs = load_file(ORACLE / "soft.safetensors")
        prompt = self.log["in.prompt"][row]
        mask = self.log["in.mask"][row].bool() if "in.mask" in self.log else torch.ones_like(prompt, dtype=torch.bool)
        self.prompt, self.pads = prompt[mask], int((~mask).sum())

    def at(self, block: int, step_index: int, what: str) -> torch.Tensor:
        return self.log[f"c{block}.s{step_index}.{what}"][self.row]

    def soft(self, block: int, step_index: int) -> torch.Tensor:
        """What the reference conditions its next step on: softmax of the scaled logits times embedding, times √d."""
        return self.softs[f"{self.name}.r{self.row}.c{block}.s{step_index}"]

    def steps(self, block: int) -> int:
        return sum(key.startswith(f"c{block}.s") and key.endswith(".accept_mask") for key in self.log)

    @property
    def blocks(self) -> int:
        return sum(key.endswith(".init") for key in self.log)

    def tape(self) -> TapeNoise:
        tape = {}
        for block in range(self.blocks):
            start = self.log[f"c{block}.init"][self.row]
            tape[block, START] = (start, start)
            for i in range(self.steps(block)):
                tape[block, i + 1] = (self.at(block, i, "sampled"), self.at(block, i, "random"))
        return TapeNoise(tape)


class AtPosition:
    """The model behind a prefix, with position ids shifted by the pads that the reference counts."""

    def __init__(self, model: DiffusionGemma, prefix: Prefix, width: int, pads: int) -> None:
        self.model = model
        self.rows: Rows = model.rows([Span(prefix, width, Mode.DENOISE, prefix.length + pads)])

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def denoise(self, tokens: torch.Tensor, soft: torch.Tensor | None) -> torch.Tensor:
        return self.model.logits(self.model(tokens, soft, self.rows))

    def soften(self, probabilities: torch.Tensor) -> torch.Tensor:
        return self.model.soften(probabilities)


def replay(model: DiffusionGemma, row: Row) -> Iterator[tuple[int, int, Canvas]]:
    """(block, step index, canvas after it) for every step until the row stops; blocks until the row has ended."""
    prefix = Prefix(model.config.layers)
    encode(model, row.prompt, prefix, row.pads)
    for block in range(row.blocks):
        behind = AtPosition(model, prefix, model.config.canvas_length, row.pads)
        canvas = fresh(row.tape(), block, model.config.canvas_length, model.config.vocab_size)
        while not canvas.settled and canvas.step < policy().max_steps:
            i = canvas.step
            assert torch.equal(canvas.tokens, row.at(block, i, "in_canvas"))
            canvas = step(canvas, behind.denoise(canvas.tokens, canvas.soft), behind, policy(), row.tape())
            yield block, i, canvas
            if not canvas.settled and canvas.step < policy().max_steps:
                torch.testing.assert_close(canvas.soft, row.soft(block, i), atol=2e-3, rtol=1e-3)
                canvas = replace(canvas, soft=row.soft(block, i))
        if any(token in EOS for token in canvas.draft.tolist()):
            return
        encode(model, canvas.draft, prefix, row.pads)


def encode(model: DiffusionGemma, tokens: torch.Tensor, prefix: Prefix, pads: int) -> None:
    rows = model.rows([Span(prefix, tokens.shape[0], Mode.ENCODE, prefix.length + pads)])
    model(tokens, None, rows)
    rows.commit()


@pytest.mark.parametrize(("name", "index"), TRACES)
@torch.inference_mode()
def test_every_decision_equals_the_reference(name: str, index: int) -> None:
    model = stable_model() if name == "generate_stable" else oracle_model()
    row = Row(name, index)
    passes, answer, last = 0, [], None
    for block, i, canvas in replay(model, row):
        where = f"block {block}, step {i + 1}"
        assert torch.equal(canvas.accepted, row.at(block, i, "accept_mask")), f"{where}: accept mask"
        assert torch.equal(canvas.draft, row.at(block, i, "argmax")), f"{where}: draft"
        assert canvas.entropy is not None
        torch.testing.assert_close(canvas.entropy, row.at(block, i, "entropy"), atol=2e-3, rtol=1e-3)
        if not canvas.settled:
            assert torch.equal(canvas.tokens, row.at(block, i, "renoised")), f"{where}: next canvas"
        passes += 1
        if last is not None and last.block != block:
            answer += last.draft.tolist()
        last = canvas
    assert last is not None
    answer += last.draft.tolist()
    end = next((i for i, token in enumerate(answer) if token in EOS), len(answer) - 1) + 1
    wanted = row.log["out.sequences"][index][len(row.log["in.prompt"][index]) :].tolist()
    assert answer[:end] == wanted[:end], "the sequence differs"
    assert all(token == 0 for token in wanted[end:]), "the reference pads after the end"
    useful = sum(token != 0 for token in wanted)
    assert useful / passes == pytest.approx(float(row.log["out.tokens_per_forward"][index]), rel=1e-6)


def test_the_traces_exercise_stops_and_ends() -> None:
    """The three traces together hold a canvas that settles early, one that meets the cap, and an end token."""
    model = stable_model()
    with torch.inference_mode():
        settled = {(block, canvas.settled) for block, _, canvas in replay(model, Row("generate_stable", 1))}
    assert any(stopped for _, stopped in settled)
    sequence = load_file(ORACLE / "generate_b2pad.safetensors")["out.sequences"][0].tolist()
    assert 50 in sequence


def test_a_wrong_rule_would_be_noticed() -> None:
    """The comparison fails for a sampler with another entropy bound, so it can fail at all."""
    model, row = oracle_model(), Row("generate_b1", 0)
    with torch.inference_mode():
        _, i, canvas = next(replay(model, row))
        wrong = replace(policy(), accept=type(policy().accept)(1.0))
        prefix = Prefix(model.config.layers)
        encode(model, row.prompt, prefix, 0)
        behind = AtPosition(model, prefix, 16, 0)
        start = fresh(row.tape(), 0, 16, model.config.vocab_size)
        other = step(start, behind.denoise(start.tokens, None), behind, wrong, row.tape())
    assert not torch.equal(other.accepted, row.at(0, i, "accept_mask"))
    assert torch.equal(canvas.accepted, row.at(0, i, "accept_mask"))
