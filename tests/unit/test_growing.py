"""Layers that a start lacks, and steps that train the causal mode alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from redraft.cache import Prefix
from redraft.errors import RecipeError
from redraft.tune.base import read_base
from redraft.tune.data import Feed
from redraft.tune.parallel import World
from redraft.tune.recipe import DataRecipe, ModelRecipe, ObjectiveRecipe, Recipe, TrainRecipe, check
from redraft.tune.state import FILE, restore
from redraft.tune.train import LOG, train
from redraft.weights.load import load_model
from redraft.weights.source import locate

SHAPE = ModelRecipe(
    hidden_size=128,
    intermediate_size=256,
    moe_intermediate_size=64,
    num_heads=4,
    num_experts=4,
    top_k_experts=2,
    layers=("sliding", "full", "sliding", "full", "sliding", "sliding", "full"),
    new_layers=(1, 5),
    max_positions=1024,
    canvas_length=256,
    vocabulary="python",
)
"""nano-sudoku, with a layer behind its first and one in front of its last."""
GROWN = Recipe(
    name="grown",
    start="nano-sudoku",
    model=SHAPE,
    data=DataRecipe(tasks={"records": 1.0}, fit_share=1.0),
    train=TrainRecipe(steps=4, batch_size=2, threads=1, warmup=0, lr=1e-5, new_lr=1e-3),
)


def test_a_grown_model_computes_at_first_what_its_start_does(tmp_path: Path) -> None:
    """Otherwise all that the start has learnt would be lost in the first steps."""
    start, _ = load_model(locate("nano-sudoku"))
    grown = read_base(GROWN, tmp_path).model()
    assert (len(start.layers), len(grown.layers)) == (5, 7)
    tokens, canvas = torch.arange(40, 90), torch.arange(100, 132)
    found = []
    for model in (start, grown):
        prefix = Prefix(model.config.layers)
        read = model.logits(model.encode(tokens, prefix))
        found.append((read, model.denoise(canvas, None, prefix)))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_new_layers_learn_at_their_own_rate(tmp_path: Path) -> None:
    """Adam's first step is as long as the rate, whatever the gradient: so far has a weight of each layer gone."""
    state = restore(GROWN, read_base(GROWN, tmp_path), tmp_path / FILE, World(torch.device("cpu")))
    before = {name: value.detach().clone() for name, value in state.trained.items()}
    train(replace(GROWN, train=replace(GROWN.train, steps=1)), tmp_path)
    saved = torch.load(tmp_path / FILE, weights_only=True)["weights"]
    moved = {name: float((saved[name] - value).abs().max()) for name, value in before.items()}
    for i, rate in ((0, 1e-5), (1, 1e-3), (5, 1e-3), (6, 1e-5)):
        assert moved[f"layers.{i}.post_ffw_norm.weight"] == pytest.approx(rate, rel=0.05)


def test_a_share_of_the_steps_runs_canvases(tmp_path: Path) -> None:
    recipe = replace(GROWN, objective=ObjectiveRecipe(canvas_share=0.4))
    feed = Feed(recipe, read_base(recipe, tmp_path))
    run = [any(len(batch.owner) for batch in feed.batches(step)) for step in range(60)]
    assert 12 <= sum(run) <= 36
    train(recipe, tmp_path / "out")
    rows = [json.loads(row) for row in (tmp_path / "out" / LOG).read_text().splitlines()]
    assert ["denoise" in row for row in rows] == run[: len(rows)]


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (replace(GROWN, objective=ObjectiveRecipe(canvas_share=1.5)), "canvas_share is 1.5; it must be from 0 to 1"),
        (replace(GROWN, train=replace(GROWN.train, new_lr=0.0)), "new_lr is 0.0; it must be a number above 0"),
        (replace(GROWN, start=""), "a start that lacks them"),
        (replace(GROWN, model=replace(SHAPE, new_layers=())), "new_lr is for"),
    ],
)
def test_a_recipe_that_cannot_grow_is_refused(recipe: Recipe, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        check(recipe)


def test_new_layers_that_do_not_add_up_are_counted(tmp_path: Path) -> None:
    recipe = replace(GROWN, model=replace(SHAPE, new_layers=(1,)))
    with pytest.raises(RecipeError, match="5 layers, and 6 of this recipe's 7 are not new"):
        read_base(recipe, tmp_path).model()
