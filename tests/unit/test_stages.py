"""A recipe in stages: what holds at a step, what a state shares with the recipe that continues it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from redraft.errors import RecipeError
from redraft.tune.base import read_base
from redraft.tune.data import Feed
from redraft.tune.recipe import (
    DataRecipe,
    ModelRecipe,
    ObjectiveRecipe,
    Recipe,
    StageRecipe,
    TrainRecipe,
    check,
    read_recipe,
)
from redraft.tune.train import LOG, train

replace = msgspec.structs.replace

SMALL = Recipe(
    name="small",
    data=DataRecipe(tasks={"copy": 1.0}, fit_share=1.0, fit_step=32),
    train=TrainRecipe(
        steps=3, encode_steps=1, batch_size=2, warmup=1, decay_steps=1, threads=1, probe_every=100, save_every=1
    ),
    model=ModelRecipe(
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_heads=2,
        num_experts=2,
        top_k_experts=1,
        layers=("sliding", "full"),
        canvas_length=256,
        vocabulary="plain",
    ),
    objective=ObjectiveRecipe(tell_prompt=False),
    stages=(
        StageRecipe(1, data=DataRecipe(tasks={"sudoku-4x4": 1.0}, fit_share=1.0)),
        StageRecipe(2, objective=ObjectiveRecipe(draws=2)),
    ),
)


def test_a_stage_holds_from_its_step_on() -> None:
    first, second, third = (SMALL.at(step) for step in (0, 1, 2))
    assert (first.data, first.objective) == (SMALL.data, SMALL.objective)
    assert list(second.data.tasks) == list(third.data.tasks) == ["sudoku-4x4"]
    assert (second.objective.draws, third.objective.draws) == (1, 2)
    assert not first.stages


def test_batches_follow_the_stages(tmp_path: Path) -> None:
    feed = Feed(SMALL, read_base(SMALL, tmp_path))
    copied, puzzled, twice = (feed.batches(step) for step in range(3))
    assert all(not len(batch.owner) for batch in copied)  # the causal mode alone: no canvas stands in the way
    wide = [batch.target.shape for batch in puzzled]
    assert {width for _, width in wide} == {32}
    assert [count for count, _ in wide] == [2]
    assert sum(len(batch.owner) for batch in twice) == 4


def test_a_stage_that_has_begun_cannot_be_changed_and_a_later_one_can(tmp_path: Path) -> None:
    short = replace(SMALL, train=replace(SMALL.train, steps=1))
    train(short, tmp_path)
    later = replace(short, train=replace(short.train, steps=2), stages=SMALL.stages[:1])
    train(later, tmp_path)
    rows = [json.loads(row)["step"] for row in (tmp_path / LOG).read_text().splitlines()]
    assert rows == [1, 2, 3]
    other = replace(later, stages=(StageRecipe(1, data=DataRecipe(tasks={"edit": 1.0})),))
    with pytest.raises(RecipeError, match="another recipe"):
        train(other, tmp_path)


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        ((StageRecipe(0),), "from_step"),
        ((StageRecipe(4), StageRecipe(4)), "from_step"),
        ((StageRecipe(2, data=DataRecipe(tasks={"nothing": 1.0})),), "nothing"),
        ((StageRecipe(2, objective=ObjectiveRecipe(draws=0)),), "draws"),
    ],
)
def test_a_stage_is_checked_like_the_rest(stages: tuple[StageRecipe, ...], named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        check(replace(SMALL, stages=stages))


def test_stages_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        'name = "a"\nstart = "nano-sudoku"\n[data]\ntasks = { copy = 1.0 }\n[train]\nsteps = 9\nbatch_size = 1\n'
        "[[stages]]\nfrom_step = 5\n[stages.data]\ntasks = { edit = 0.5 }\n"
    )
    assert read_recipe(file).stages == (StageRecipe(5, data=DataRecipe(tasks={"edit": 0.5})),)
