"""The objective against transformers' own modules, and a trainer that can be interrupted at any step."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import signal
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from tests.helpers import reference
from tests.training import SHAPE, rows, steps_of, stop_behind
from torch import Tensor
from torch.nn import functional as F

import redraft
from redraft.cache import Prefix
from redraft.diffusion.canvas import fresh
from redraft.diffusion.denoise import Policy, settle
from redraft.diffusion.halt import StableAndConfident
from redraft.engine.request import Request
from redraft.errors import RecipeError, RequestError, RunError
from redraft.model.gemma import DiffusionGemma
from redraft.tasks import Example
from redraft.tune import base, objective
from redraft.tune import train as trainer
from redraft.tune.base import read_base
from redraft.tune.clock import Clock
from redraft.tune.compiled import compile_parts
from redraft.tune.context import CleanContext
from redraft.tune.data import Feed
from redraft.tune.initial import initial_model
from redraft.tune.layout import pack
from redraft.tune.objective import Batch, Corruption, Losses, Roll, corrupt, losses
from redraft.tune.parallel import World
from redraft.tune.probe import _PrefixDenoiser
from redraft.tune.recipe import ObjectiveRecipe, Recipe, TrainRecipe, generation_config, model_config, read_recipe
from redraft.tune.recompute import recompute_layers
from redraft.tune.state import FILE
from redraft.tune.train import learning_rate, train
from redraft.weights.load import load_model

RECIPE = f"""
name = "tiny"
{SHAPE}
[data]
tasks = {{ "sudoku-4x4" = 0.4, records = 0.6 }}

[train]
encode_steps = 1
steps = 5
batch_size = 5
lr = 1e-2
warmup = 2
threads = 1
save_every = 3
probe_every = 100
probe_examples = 1
seed = 3

[sampling]
max_new_tokens = 24
max_denoising_steps = 4
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(RECIPE)
    return read_recipe(path)


@pytest.fixture(scope="module")
def feed(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Feed:
    return Feed(recipe, read_base(recipe, tmp_path_factory.mktemp("feed")))


@pytest.fixture(scope="module")
def trained(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run without interruption."""
    return train(recipe, tmp_path_factory.mktemp("straight"))


@pytest.fixture
def model(feed: Feed) -> DiffusionGemma:
    """Weights worth comparing: norms away from 1, and the two scalars of a layer apart."""
    found = initial_model(feed.base.config, seed=1)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, value in sorted(found.state_dict().items()):
            if value.ndim == 1:
                value.mul_(1 + 0.2 * torch.randn(value.shape, generator=draw))
    return found.requires_grad_(True)


# -- recipes -----------------------------------------------------------------------------------------------------------


def test_a_recipe_is_read_as_written(recipe: Recipe) -> None:
    assert (recipe.name, recipe.train.steps, recipe.train.lr, recipe.train.weight_decay) == ("tiny", 5, 1e-2, 0.01)
    assert recipe.data.tasks == {"sudoku-4x4": 0.4, "records": 0.6}
    assert recipe.model is not None
    config = model_config(recipe.model, 432)
    assert [layer.window for layer in config.layers] == [16, None, 16, None]
    assert [(layer.num_kv_heads, layer.head_dim) for layer in config.layers] == [(2, 8), (1, 16)] * 2
    assert generation_config(recipe).max_denoising_steps == 4


def test_the_learning_rate_climbs_and_falls(recipe: Recipe) -> None:
    """Warm-up to `lr` in two steps, then half a cosine over the other eight: half way down at the fourth of them."""
    settings = TrainRecipe(steps=8, encode_steps=2, batch_size=1, lr=1.0, final_lr=0.2, warmup=2)
    slow = msgspec.structs.replace(recipe, train=settings)
    assert [learning_rate(slow, step) for step in (0, 1, 2)] == [0.5, 1.0, 1.0]
    assert learning_rate(slow, 6) == pytest.approx(0.6)
    assert learning_rate(slow, 10) == pytest.approx(0.2)


# -- batches and noise -------------------------------------------------------------------------------------------------


def only(feed: Feed, step: int = 1) -> Batch:
    """The one batch of a step of the recipe above; in the first no canvas is run."""
    (batch,) = feed.batches(step)
    return batch


def rows_of(feed: Feed, *examples: Example) -> Batch:
    (batch,) = feed.pack([feed.row(example, Random(0), 24) for example in examples])
    return batch


def lengths(batch: Batch) -> list[int]:
    """Tokens of each sequence, where each has a line of its own: padding begins a sequence at every token."""
    return (batch.first == 0).sum(1).tolist()


def test_a_canvas_is_the_answer_and_then_end_tokens(feed: Feed) -> None:
    batch = rows_of(feed, Example("record\nKa", "melu"), Example("sudoku\n1..4", "1234\n4321"))
    prompts = [feed.prompt("record\nKa"), feed.prompt("sudoku\n1..4")]
    answers = [feed.text.encode(answer, bos=False) for answer in ("melu", "1234\n4321")]
    assert batch.start.tolist() == [len(prompt) for prompt in prompts]
    for i, length in enumerate(lengths(batch)):
        wanted = [*prompts[i], *answers[i], 1]
        assert batch.clean[i, :length].tolist() == wanted
        assert set(batch.clean[i, length:].tolist()) <= {0}
        assert batch.scored[i].tolist() == [0 < at < length for at in range(batch.clean.shape[1])]
        assert batch.target[i].tolist() == answers[i] + [1] * (24 - len(answers[i]))
        assert int(batch.content[i]) == len(answers[i]) + 1


def test_a_batch_is_a_function_of_its_step_with_the_tasks_in_their_shares(feed: Feed) -> None:
    first, again, other = only(feed), only(feed), only(feed, 2)
    assert torch.equal(first.clean, again.clean)
    assert not torch.equal(first.target, other.target)
    asked = [feed.text.decode(row.tolist()) for row in first.clean]
    assert [("sudoku" in text, "record" in text) for text in asked] == [(True, False)] * 2 + [(False, True)] * 3


def test_an_answer_as_long_as_the_canvas_is_refused(feed: Feed) -> None:
    """It would leave no room for the end token, and the model would learn answers that never end."""
    rows_of(feed, Example("sudoku\n1", "1" * 23))
    with pytest.raises(RecipeError, match="the answer has 24 tokens and one for its end; 1 canvases of 24"):
        rows_of(feed, Example("sudoku\n1", "1" * 24))


def bare(target: Tensor, pinned: Tensor | None = None) -> Batch:
    """Canvases without anything around them."""
    size, none = target.shape, torch.zeros(len(target), dtype=torch.long)
    pins = torch.zeros(size, dtype=torch.bool) if pinned is None else pinned
    clean = torch.zeros(1, 1, dtype=torch.long)
    return Batch(clean, clean > 0, clean, none, none, none, target, pins, none + size[1])


def test_corruption_replaces_the_share_it_says_with_even_tokens() -> None:
    target = torch.full((4000, 16), 7)
    found = corrupt(bare(target), 8, torch.Generator().manual_seed(0))
    assert found.level.min() > 0
    assert found.level.max() < 1
    changed = (found.canvas != target).float().mean(1)
    assert float((changed - found.level * 7 / 8).mean()) == pytest.approx(0, abs=0.005)
    thirds = (found.level * 3).long()
    for third in range(3):  # every canvas, and so every block of an answer, has a level of its own
        assert float(changed[thirds == third].mean()) == pytest.approx((third + 0.5) / 3 * 7 / 8, abs=0.03)
    random = found.canvas[found.canvas != 7]
    shares = torch.bincount(random, minlength=8)[:7] / len(random)
    assert shares.tolist() == pytest.approx([1 / 7] * 7, abs=0.01)
    assert float(found.conditioned.float().mean()) == pytest.approx(0.5, abs=0.03)


def test_pins_stay_and_half_of_the_canvases_that_have_any_start_from_noise() -> None:
    target = torch.full((4000, 16), 7)
    pinned = (torch.arange(16) >= 10).expand(4000, -1)
    found = corrupt(bare(target, pinned), 1000, torch.Generator().manual_seed(0))
    assert (found.canvas[:, 10:] == 7).all()
    assert float((found.level == 1).float().mean()) == pytest.approx(0.5, abs=0.03)
    assert (found.canvas[found.level == 1][:, :10] != 7).float().mean() > 0.99


# -- the objective -----------------------------------------------------------------------------------------------------


def seen_by(model: DiffusionGemma, run: Callable[[], object]) -> list[list[int]]:
    """The tokens of every forward."""
    seen: list[list[int]] = []
    hook = model.register_forward_pre_hook(lambda module, given: seen.append(given[0].tolist()))
    run()
    hook.remove()
    return seen


def test_the_model_sees_the_corrupted_canvas_and_not_the_answer(feed: Feed, model: DiffusionGemma) -> None:
    """Shown the target instead, it would learn to copy, and the loss would look wonderful."""
    batch = only(feed)
    noise = replace(
        corrupt(batch, 432, torch.Generator().manual_seed(1)), conditioned=torch.tensor([1, 0, 1, 0, 0]).bool()
    )
    clean, guess, canvas = seen_by(model, lambda: losses(model, batch, noise))
    assert clean == batch.clean.flatten().tolist()
    assert guess == noise.canvas[[0, 2]].flatten().tolist()
    assert canvas == noise.canvas.flatten().tolist()
    assert canvas != batch.target.flatten().tolist()


@torch.no_grad()
def their_losses(
    theirs: Any, batch: Batch, noise: Corruption, seen: Tensor, certainty: float = 0.0
) -> tuple[float, float]:
    """The same two losses out of transformers' modules, one sequence and canvas at a time: no padding, no mask of ours.

    `seen` are the canvases that our second pass was shown.
    """
    from transformers import DynamicCache

    encoder, cap = theirs.model.encoder.language_model, theirs.config.text_config.final_logit_softcapping
    encode, denoise, weights = [], [], []
    for line, scored, first in zip(batch.clean, batch.scored, batch.first, strict=True):
        for origin in first[scored].unique().tolist():
            here = first == origin
            cache = DynamicCache(config=theirs.config.text_config)
            hidden = encoder(input_ids=line[here][None], past_key_values=cache).last_hidden_state[0]
            logits = torch.tanh(theirs.lm_head(hidden) / cap) * cap
            each = F.cross_entropy(logits[:-1], line[here][1:], reduction="none")
            encode.append(each[scored[here][1:]])
    for i in range(len(batch.start)):
        there = slice(None if batch.live is None else int(batch.live[i]))
        canvas, shown, target, pinned = (one[i][there] for one in (noise.canvas, seen, batch.target, batch.pinned))
        clean = batch.clean[batch.owner[i], batch.origin[i] : batch.start[i]][None]
        prefix = DynamicCache(config=theirs.config.text_config)
        encoder(input_ids=clean, past_key_values=prefix)
        guess = theirs(past_key_values=prefix, decoder_input_ids=canvas[None]).logits
        if noise.roll is not None and noise.roll.steps[i]:
            guess = guess / noise.roll.temperature[0, i]
        sure = torch.full_like(guess, -1e9).scatter(2, target[None, :, None], 0.0)
        guess = torch.where(pinned[None, :, None], sure, guess)
        said = theirs(
            past_key_values=prefix,
            decoder_input_ids=shown[None],
            self_conditioning_logits=guess,
            self_conditioning_mask=noise.conditioned[i][None],
        ).logits[0]
        scored = ~pinned
        read, wanted = torch.distributions.Categorical(logits=said[scored]), target[scored]
        doubt = torch.where(read.mode == wanted, read.entropy(), 0.0)
        denoise.append((certainty * doubt - read.log_prob(wanted)).mean())
        weights.append(math.sqrt(int(scored.sum())))
    mean = sum(w * d for w, d in zip(weights, denoise, strict=True)) / sum(weights)
    return float(torch.cat(encode).mean()) if encode else 0.0, float(mean)


def batches_of_all_kinds(feed: Feed) -> list[Batch]:
    """Answers of one and of several canvases, pins, a gap; apart and packed; every canvas twice."""
    rng = Random(0)
    wide = [feed.row(example, rng, 24) for example in feed.samples(0)]
    pins = msgspec.structs.replace(
        feed.recipe,
        data=msgspec.structs.replace(feed.recipe.data, most_blocks=3),
        objective=msgspec.structs.replace(feed.recipe.objective, pinned_share=1.0, tell_prompt=False),
    )
    other = Feed(pins, feed.base)
    narrow = [other.row(example, rng, 8) for example in other.samples(1)]
    gap = [feed.row(Example("sudoku\n1..4 is", "12", suffix="34 and 4321"), rng, 24)]
    found = pack([*wide, *gap], draws=2) + pack(narrow)
    return found + pack([*wide, *gap], pack_tokens=150) + pack(narrow, pack_tokens=120, draws=2)


def some_canvases(drawn: Corruption, chosen: Tensor, width: int) -> Corruption:
    """The choices of some canvases, cut to a width."""
    found = drawn.some(chosen)
    assert found.roll is not None
    cut = (part[..., :width] for part in (found.roll.uniform, found.roll.tokens))
    return replace(found, canvas=found.canvas[:, :width], roll=Roll(found.roll.steps, found.roll.temperature, *cut))


def test_groups_of_several_widths_in_one_batch_have_the_losses_that_they_have_apart(
    feed: Feed, model: DiffusionGemma
) -> None:
    """Answers and a gap on canvases of 8, 16 and 24, drawn twice, with every kind of noise."""
    rng, wide = Random(0), msgspec.structs.replace(feed.recipe.data, most_blocks=3)
    narrow = Feed(msgspec.structs.replace(feed.recipe, data=wide), feed.base)
    rows = [feed.row(example, rng, 24) for example in feed.samples(0)]
    rows += [narrow.row(example, rng, width) for width in (8, 16) for example in feed.samples(width)]
    rows.append(feed.row(Example("sudoku\n1..4 is", "12", suffix="34 and 4321"), rng, 24))
    apart, (one,) = pack(rows, draws=2), pack(rows, draws=2, merge_rows=10**6)
    assert one.live is not None
    assert sorted(one.live.unique().tolist()) == sorted({batch.target.shape[1] for batch in apart})
    assert len(pack(rows, draws=2, merge_rows=1)) == len(apart) >= 3
    assert sum(batch.given.sum() for batch in apart) == one.given.sum() > 0
    wanted = ObjectiveRecipe(draws=2, tell_prompt=False, plausible=0.2, rolled=0.5, own=0.4, own_steps=2)
    drawn = corrupt(one, feed.base.config.vocab_size, torch.Generator().manual_seed(3), wanted)
    assert torch.equal(drawn.canvas[one.pinned], one.target[one.pinned])
    together = losses(model, one, drawn, wanted)
    assert together.denoise is not None
    encode = denoise = torch.zeros(())
    for batch in apart:
        length = batch.clean.shape[1]
        lines = [next(i for i in range(len(rows)) if one.clean[i, :length].equal(text)) for text in batch.clean]
        mine = torch.tensor(
            [
                next(
                    i + draw
                    for i in range(0, len(one.target), 2)
                    if one.live[i] == width and one.owner[i] == lines[owner] and one.start[i] == start
                )
                for j, (owner, start) in enumerate(zip(batch.owner.tolist(), batch.start.tolist(), strict=True))
                for width, draw in [(batch.target.shape[1], j % 2)]
            ]
        )
        found = losses(model, batch, some_canvases(drawn, mine, batch.target.shape[1]), wanted)
        assert found.denoise is not None
        encode = encode + found.encode * batch.scored.sum() / one.scored.sum()
        denoise = denoise + found.denoise * batch.weight.sum() / one.weight.sum()
    torch.testing.assert_close(together.denoise, denoise, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(together.encode, encode, rtol=2e-5, atol=1e-6)


@pytest.mark.filterwarnings("default")  # theirs are not ours to fix
def test_both_losses_equal_those_of_transformers_modules(
    feed: Feed, recipe: Recipe, model: DiffusionGemma, tmp_path: Path
) -> None:
    feed.base.save(model, tmp_path)
    theirs = reference(tmp_path)
    batches = [*(only(feed, seed) for seed in (1, 2)), *batches_of_all_kinds(feed)]
    assert any(len(set(lengths(batch))) > 1 for batch in batches[:2]), "no batch has padding to get wrong"
    assert int(batches[0].start.max()) > 16, "no prompt is longer than the window"
    assert any(int(batch.origin.max()) for batch in batches), "nothing is packed"
    assert any(bool(batch.pinned.any()) for batch in batches)
    for i, batch in enumerate(batches):
        objective = ObjectiveRecipe(self_conditioning=0.6, plausible=0.3, rolled=0.5)
        noise = corrupt(batch, 432, torch.Generator().manual_seed(i), objective)
        ours = losses(model, batch, noise)
        assert ours.denoise is not None
        assert ours.seen is not None
        wanted = their_losses(theirs, batch, noise, ours.seen)
        assert (ours.encode.item(), ours.denoise.item()) == pytest.approx(wanted, rel=1e-5)
        assert ours.total.item() == pytest.approx(sum(wanted), rel=1e-5)


@dataclass(frozen=True)
class Drawn:
    """The denoise loop's source of randomness, out of one canvas's row of a roll."""

    roll: Roll
    row: int

    def tokens(self, block: int, step: int, width: int, vocab: int, origin: int = 0) -> Tensor:
        return self.roll.tokens[step - 1, self.row]

    def sample(self, block: int, step: int, probabilities: Tensor, origin: int = 0) -> Tensor:
        reached = probabilities.cumsum(-1)
        draw = self.roll.uniform[step - 1, self.row] * reached[:, -1]
        return (reached < draw[:, None]).sum(-1)


@dataclass(frozen=True)
class AsDrawn:
    """A schedule of one canvas's temperatures."""

    roll: Roll
    row: int

    def temperature(self, step: int, max_steps: int) -> float:
        return float(self.roll.temperature[step - 1, self.row])


def test_an_own_canvas_is_where_the_denoise_loop_comes_to(feed: Feed, model: DiffusionGemma) -> None:
    """From noise alone, behind pins too: canvas and soft embedding after as many steps of the product's loop."""
    pinned = rows_of(feed, *(Example("sudoku\n1..4", "1234\n4321", given=((0, 2), (5, 6))),) * 6)
    pinned = replace(pinned, pinned=torch.arange(24).expand(6, -1) % 5 == 0)
    for batch, seed in ((only(feed), 0), (pinned, 1)):
        objective = ObjectiveRecipe(self_conditioning=0.5, plausible=0.3, own=1.0, own_steps=3)
        noise = corrupt(batch, 432, torch.Generator().manual_seed(seed), objective)
        assert noise.roll is not None
        assert set(noise.roll.steps.tolist()) > {0, 3}, "not every number of steps is there"
        assert torch.equal(noise.conditioned, noise.roll.steps > 0)
        softs: list[Tensor] = []
        hook = model.register_forward_pre_hook(lambda module, given, softs=softs: softs.append(given[1]))
        found = losses(model, batch, noise).seen
        hook.remove()
        assert found is not None
        width = batch.target.shape[1]
        soft = softs[-1].view(*batch.target.shape, -1)
        for i in range(len(batch.start)):
            prefix = Prefix(feed.base.config.layers, room=200)
            pins = batch.pinned[i] if batch.pinned[i].any() else None
            with torch.no_grad():
                model.encode(batch.clean[i, : batch.start[i]], prefix)
                canvas = fresh(Drawn(noise.roll, i), 0, width, 432, seed=noise.canvas[i], pinned=pins)
                policy = Policy(AsDrawn(noise.roll, i), halt=StableAndConfident(9), max_steps=9)
                going = settle(_PrefixDenoiser(model, prefix), canvas, policy, Drawn(noise.roll, i))
                for _ in range(int(noise.roll.steps[i])):
                    canvas = next(going)
            assert found[i].tolist() == canvas.tokens.tolist()
            wanted = torch.zeros_like(soft[i]) if canvas.soft is None else canvas.soft
            torch.testing.assert_close(soft[i], wanted, atol=1e-5, rtol=1e-4)


def test_the_canvas_trains_the_prompts_keys_and_never_sees_the_answers(
    feed: Feed, model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detached keys would train the encoder for next tokens only; a border off by one would show the answer."""

    class Kept(CleanContext):
        def attend(self, index: int, *given: Any) -> Tensor:
            out = super().attend(index, *given)
            for part in (self.keys[index], self.values[index]):
                part.retain_grad()
            kept.append((self.keys[index], self.values[index]))
            return out

    kept: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr(objective, "CleanContext", Kept)
    batch = only(feed)
    found = losses(model, batch, corrupt(batch, 432, torch.Generator().manual_seed(1)))
    assert found.denoise is not None
    found.denoise.backward()
    inside = torch.arange(batch.clean.shape[1]) < batch.start[:, None]
    assert len(kept) == 4
    for layer, (key, value) in zip(feed.base.config.layers, kept, strict=True):
        for part in (key, value):
            assert part.grad is not None
            reached = (part.grad != 0).flatten(2).any(2) if part.grad.ndim == 3 else (part.grad != 0).any(3).any(1)
            assert not (reached & ~inside).any(), "a gradient reached the answer"
            if layer.is_full:
                assert (reached | ~inside).all(), "a prompt token without a gradient"


@pytest.mark.filterwarnings("default")  # the compiler's are not ours to fix
@pytest.mark.parametrize(
    ("change", "off"),
    [
        (recompute_layers, 1e-6),
        # A minute of compiling. The norm and the sums have another order.
        pytest.param(compile_parts, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_layers_that_are_run_again_or_compiled_give_the_same_gradients(
    feed: Feed, model: DiffusionGemma, change: Callable[[DiffusionGemma], None], off: float
) -> None:
    """Through the keys and values that a clean layer leaves to the canvases, too."""
    if change is compile_parts and shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler")
    batch = only(feed)
    noise = corrupt(batch, 432, torch.Generator().manual_seed(1))
    kept: list[dict[str, Tensor]] = []
    for _ in range(2):
        model.zero_grad()
        losses(model, batch, noise).total.backward()
        kept.append({name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None})
        names = list(model.state_dict())
        change(model)
        assert list(model.state_dict()) == names
    one, other = kept
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[name], other[name], atol=off) for name in one)


def test_no_gradient_goes_through_the_guess(feed: Feed, model: DiffusionGemma) -> None:
    """The guess is an input, as at inference, where nobody could differentiate through earlier steps."""
    batch = only(feed)
    noise = replace(corrupt(batch, 432, torch.Generator().manual_seed(1)), conditioned=torch.ones(5).bool())
    grads: list[bool] = []
    hook = model.register_forward_hook(lambda module, given, out: grads.append(out.requires_grad))
    losses(model, batch, noise)
    hook.remove()
    assert grads == [True, False, True]


def test_leave_one_out_logits_are_corrected_by_the_token_that_the_position_has() -> None:
    """Against a count of every clean canvas of three positions and four tokens, under a prior that ties them."""
    vocab, level = 4, 0.7
    cleans = list(product(range(vocab), repeat=3))
    prior = torch.rand(len(cleans), generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def seen_given(shown: int, clean: int) -> float:
        return (1 - level) * (shown == clean) + level / vocab

    for canvas in product(range(vocab), repeat=3):
        believed, left_out = torch.zeros(3, vocab, dtype=torch.float64), torch.zeros(3, vocab, dtype=torch.float64)
        for weight, clean in zip(prior, cleans, strict=True):
            each = [seen_given(shown, token) for shown, token in zip(canvas, clean, strict=True)]
            for at in range(3):
                believed[at, clean[at]] += weight * math.prod(each)
                left_out[at, clean[at]] += weight * math.prod(each[:at] + each[at + 1 :])
        found = objective.observed(left_out.log()[None], torch.tensor([canvas]), torch.tensor([level]))
        assert torch.allclose(found[0].softmax(-1), believed / believed.sum(-1, keepdim=True), atol=1e-6)


# -- the trainer -------------------------------------------------------------------------------------------------------


def test_the_first_losses_are_pinned(trained: Path) -> None:
    """Pins: printed once by this code, whose losses the tests above compare with transformers'. They catch a change."""
    found = rows(trained)
    assert [row["encode"] for row in found[:5]] == pytest.approx(PINNED_ENCODE, rel=1e-4)
    assert [row["denoise"] for row in found[1:6]] == pytest.approx(PINNED_DENOISE, rel=1e-4)
    assert "denoise" not in found[0], "the first step of this recipe trains the causal mode alone"


PINNED_ENCODE = [6.45252, 5.849395, 5.292772, 5.025138, 4.728684]
PINNED_DENOISE = [3.903118, 5.204675, 4.664057, 4.303756, 3.785936]


@pytest.mark.parametrize("last", [3, 4])
def test_an_interrupted_run_continues_exactly(recipe: Recipe, trained: Path, tmp_path: Path, last: int) -> None:
    """Interrupted at the saved state, and one step behind it, which is then run and logged again."""

    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path, stop_behind(last))
    assert not (tmp_path / "model.safetensors").exists()
    assert steps_of(recipe, tmp_path) == [4, 5, 6]
    assert rows(tmp_path) == rows(trained)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5, 6]
    one, other = (torch.load(folder / FILE, weights_only=True) for folder in (trained, tmp_path))
    for part in ("weights", "average"):
        assert all(torch.equal(one[part][name], other[part][name]) for name in one[part])
    assert (tmp_path / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


@dataclass
class Ticks:
    """A clock that goes on by a second each time that it is asked."""

    now: float = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_the_time_of_a_step_is_told_without_the_load(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 10 s behind a load of 60: the run ended after 250 s of 300."""
    ticks = [0.0, *(60.0 + 10 * i for i in range(1, 99))]
    monkeypatch.setattr("redraft.tune.clock.time", SimpleNamespace(monotonic=lambda: ticks.pop(0)))
    clock = Clock(recipe, 300)
    step = 0
    while (last := clock.after(step := step + 1)) > step:
        pass
    assert last == step == 24


def test_a_run_by_the_clock_is_the_run_of_the_steps_that_it_chose(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redraft.tune.clock.time", Ticks())
    seen = list[int]()
    train(recipe, tmp_path / "timed", lambda step, total, row: seen.append(total), seconds=11)
    rows = [json.loads(line) for line in (tmp_path / "timed/training-log.jsonl").read_text().splitlines()]
    assert len(rows) == 11  # a step takes one second of this clock
    assert [row.get("decay_steps") for row in rows] == [None] * 6 + [4] + [None] * 4
    assert seen == [11] * 11
    wanted = msgspec.structs.replace(recipe.train, steps=10, decay_steps=4)
    train(msgspec.structs.replace(recipe, train=wanted), tmp_path / "counted")
    timed, counted = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("timed", "counted"))
    assert timed == counted


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_the_step_of_an_interrupt_is_kept(by: signal.Signals, recipe: Recipe, trained: Path, tmp_path: Path) -> None:
    """A run of fewer steps than lie between two saved states began anew after every ctrl-C, and every `timeout`."""
    before = signal.getsignal(signal.SIGTERM)

    def interrupt(step: int, total: int, row: dict[str, float]) -> None:
        if step == 1:
            signal.raise_signal(by)

    with pytest.raises(KeyboardInterrupt, match="behind step 2 of 6; the same command goes on"):
        train(recipe, tmp_path, interrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is before
    assert steps_of(recipe, tmp_path) == [3, 4, 5, 6]
    assert rows(tmp_path) == rows(trained)
    assert (tmp_path / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_a_second_interrupt_ends_at_once(recipe: Recipe, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupt(step: int, total: int, row: dict[str, float]) -> None:
        signal.raise_signal(signal.SIGINT)
        assert "interrupt again to end at once" in capfd.readouterr().err
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path, interrupt)
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    ("where", "name", "call"),
    [
        (torch, "save", 1),
        (os, "replace", 1),
        (torch.nn.utils, "clip_grad_norm_", 5),
        (trainer, "probe", 0),
        (base, "save_model", 0),
    ],
    ids=["half a state", "a state without its name", "half a step", "a probe", "half a checkpoint"],
)
def test_an_interrupt_at_any_moment_loses_nothing(
    recipe: Recipe, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, call: int
) -> None:
    """The call of that number is cut off in its middle: a file it was to write is begun and no more."""
    real, calls = getattr(where, name), list[int]()

    def cut(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) <= call:
            return real(*given, **named)
        for path in given:
            if isinstance(path, Path) and "save" in name:
                target = path / "model.safetensors" if path.is_dir() else path
                target.write_bytes(target.read_bytes()[:100] if target.exists() else b"beginning")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, name, cut)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path)
    train(recipe, tmp_path)
    assert rows(tmp_path) == rows(trained)
    assert (tmp_path / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_the_state_of_another_recipe_is_refused(recipe: Recipe, trained: Path) -> None:
    other = msgspec.structs.replace(recipe, train=msgspec.structs.replace(recipe.train, lr=0.5))
    before = (trained / FILE).read_bytes()
    with pytest.raises(RecipeError, match=r"another recipe \(train\.lr was .*, is 0\.5\); change it back"):
        train(other, trained)
    assert (trained / FILE).read_bytes() == before


def test_the_state_of_other_rows_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    """A run went on with whatever stood in its file by then, without a word."""
    path, out = tmp_path / "rows.jsonl", tmp_path / "out"
    line = json.dumps({"prompt": "record", "response": "{}"}) + "\n"
    path.write_text(line * 3, encoding="utf-8")
    data = msgspec.structs.replace(recipe.data, tasks={}, files={str(path): 1.0}, held_out=0)
    mine = msgspec.structs.replace(recipe, data=data)

    with pytest.raises(KeyboardInterrupt):
        train(mine, out, stop_behind(4))
    path.write_text(line * 2 + line.replace("record", "others"), encoding="utf-8")
    with pytest.raises(RecipeError, match=r"belongs to other data: rows\.jsonl has changed; bring it back"):
        train(mine, out)
    path.write_text(line * 3, encoding="utf-8")
    assert steps_of(mine, out) == [4, 5, 6]


@pytest.mark.parametrize(
    "change",
    [{"step": "x"}, {"step": -5}, {"weights": {}}, {"average": {"a": 3}}, {"average": {}}, {"best": 3}, {"score": "x"}],
)
def test_a_state_whose_parts_are_others_is_refused(
    recipe: Recipe, trained: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    """It ended in an internal error, or trained from step -5 on."""
    torch.save(torch.load(trained / FILE, weights_only=True) | change, tmp_path / FILE)
    with pytest.raises(RecipeError, match="is damaged"):
        train(recipe, tmp_path)


def test_a_state_with_one_bit_flipped_is_refused(recipe: Recipe, trained: Path, tmp_path: Path) -> None:
    """It was taken up without a word, and the damage went into the checkpoint."""
    state = bytearray((trained / FILE).read_bytes())
    with zipfile.ZipFile(trained / FILE) as parts:
        numbers = parts.read(max(parts.infolist(), key=lambda part: part.file_size))
    state[state.index(numbers) + len(numbers) // 2] ^= 0x40
    (tmp_path / FILE).write_bytes(state)
    with pytest.raises(RecipeError, match="is damaged"):
        train(recipe, tmp_path)


@pytest.mark.parametrize("row", [b'{"step": 4}', b'{"step": 3, "seconds": 1.0}', b"\xff", b"\0" * 99, b"[]"])
def test_a_damaged_row_of_a_log_is_dropped_or_named(recipe: Recipe, trained: Path, tmp_path: Path, row: bytes) -> None:
    """As a crash of the machine leaves a log: it was an internal error, and the run could not go on."""
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path, stop_behind(3))
    whole = (log := tmp_path / trainer.LOG).read_bytes()
    for damaged in (whole[: whole.index(b"\n") + 1], whole.replace(b"\n", b"\n" + row + b"\n", 1)):
        log.write_bytes(damaged)
        with pytest.raises(RecipeError, match=r"line 2 of .*-log\.jsonl is not the row of step 2; bring it back"):
            train(recipe, tmp_path)
        assert log.read_bytes() == damaged
    log.write_bytes(whole + row)
    assert steps_of(recipe, tmp_path) == [4, 5, 6]
    assert rows(tmp_path) == rows(trained)


def test_two_runs_into_one_folder_do_not_mix(recipe: Recipe, trained: Path, tmp_path: Path) -> None:
    """The second cut the first one's log, and both wrote one state in turn."""
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as the first one holds it
    with pytest.raises(RequestError, match="is being written by another program; name another place"):
        train(recipe, tmp_path)
    assert not list(tmp_path.iterdir())
    os.close(handle)
    train(recipe, tmp_path)
    assert rows(tmp_path) == rows(trained)


def test_a_pipe_in_the_states_place_is_not_waited_for(recipe: Recipe, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(RecipeError, match="is damaged"):
        train(recipe, tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534\nNo space"),
    ],
    ids=["OSError", "torch's own"],
)
def test_a_full_disk_leaves_the_last_state(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """torch.save reports a full disk as a RuntimeError of its zip writer, which was taken for a bug of ours."""
    save, saved = torch.save, list[int]()

    def full(state: dict[str, Any], path: Path) -> None:
        if saved:
            path.write_bytes(b"the beginning")
            raise error
        save(state, path)
        saved.append(state["step"])

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RunError, match=r"training-state\.pt: .*; free some space"):
        train(recipe, tmp_path)
    assert torch.load(tmp_path / FILE, weights_only=True)["step"] == saved[0] == 3
    assert not list(tmp_path.glob(f".{FILE}.*"))


def test_a_state_is_written_through_no_link(recipe: Recipe, tmp_path: Path) -> None:
    """The name that it was written under was known beforehand. What killed runs were writing does not pile up."""
    link, left, mine = (tmp_path / name for name in ("training-state.new", f".{FILE}.01234567", "mine"))
    for path in (left, mine):
        path.write_text("precious")
    link.symlink_to(mine)
    train(recipe, tmp_path)
    assert (mine.read_text(), left.exists()) == ("precious", False)


def test_a_loss_that_is_no_number_stops_the_run(recipe: Recipe, tmp_path: Path) -> None:
    wild = msgspec.structs.replace(recipe, train=msgspec.structs.replace(recipe.train, lr=1e30, clip=1e30))
    with pytest.raises(RunError, match=r"the (loss|gradient) is nan at step \d.*; lower \[train\] lr"):
        train(wild, tmp_path)


def test_a_gradient_that_is_no_number_never_reaches_the_weights(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss may be a number all the same; clipped by such a length, all weights were none, and were saved."""
    clip, steps = torch.nn.utils.clip_grad_norm_, iter(range(10))

    def clipped(*arguments: Any) -> Tensor:
        return clip(*arguments) * (math.nan if next(steps) == 4 else 1.0)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clipped)
    with pytest.raises(RunError, match="the gradient is nan at step 4, before it reached a weight"):
        train(recipe, tmp_path)
    state = torch.load(tmp_path / FILE, weights_only=True)
    assert state["step"] == 3
    monkeypatch.undo()
    train(recipe, tmp_path)  # it goes on


def test_what_is_shipped_is_the_average_of_the_weights(recipe: Recipe, trained: Path) -> None:
    """The average starts at the initial weights and moves by 1 - min(ema, (1 + n) / (10 + n)) at step n."""
    state = torch.load(trained / FILE, weights_only=True)
    shipped = dict(load_model(trained)[0].named_parameters())
    assert shipped.keys() == state["average"].keys()
    assert all(torch.equal(shipped[name], value) for name, value in state["average"].items())
    assert not torch.equal(shipped["embed.weight"], state["weights"]["embed.weight"])


@pytest.mark.filterwarnings("default")  # theirs are not ours to fix
def test_the_shipped_folder_loads_here_and_in_transformers(recipe: Recipe, trained: Path) -> None:
    engine = redraft.load(trained)
    done = engine.generate("record\nSend 417 melu to Karomi.", chat=True, seed=0)
    assert len(done.tokens) <= 24
    assert sum(done.steps) <= 4
    reference(trained)
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(trained)
    chat = [{"role": "user", "content": "record\nSend 417 melu to Karomi."}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert tuple(asked) == engine.resolve(Request(chat)).prompt


def test_losses_are_split_by_noise_and_by_what_was_corrupted() -> None:
    """Each kind's mean is that of its positions alone; a given position counts for none, whatever its loss."""
    target = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    seen = torch.tensor([[1, 0, 3], [4, 5, 6], [0, 0, 9]])
    pinned = torch.tensor([[False, False, True], [False, False, False], [False, False, True]])
    each = torch.tensor([[1.0, 2.0, math.nan], [4.0, 8.0, 3.0], [16.0, 2.0, math.inf]], requires_grad=True)
    none = torch.zeros(3, dtype=torch.int64)
    batch = Batch(none[None], none[None] > 0, none[None], none, none, none, target, pinned, none)
    split = trainer.Split(torch.device("cpu"))
    for _ in range(2):
        split.add(
            batch, Corruption(seen, torch.tensor([0.1, 0.5, 0.9999]), none > 0), Losses(each.sum(), None, each, seen)
        )
    means = split.means(World(torch.device("cpu")))
    assert means == {"clean low": 1.0, "corrupted low": 2.0, "clean middle": 5.0, "corrupted high": 9.0}
