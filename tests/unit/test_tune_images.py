"""Training with images: the clean pass sees what inference sees; the tower stays as it was, or learns."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from PIL import Image
from tests.helpers import ROOT, new_prefix
from tests.pictures import asking, drawn, encoded, write_whole

import redraft
from redraft.errors import RecipeError
from redraft.model.rows import IMAGE_ATTENTION, SoftTokens
from redraft.options import Options
from redraft.tune.base import read_base
from redraft.tune.data import Feed
from redraft.tune.images import soft_of, tower_of
from redraft.tune.objective import corrupt, losses
from redraft.tune.recipe import LoraRecipe, Recipe, read_recipe
from redraft.tune.sources import Conversation
from redraft.tune.train import train
from redraft.weights.vision import load_vision

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 60), "blue": (30, 60, 220), "white": (250, 250, 250)}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whole(tmp_path_factory.mktemp("start"))


def conversation(*parts: Any, answer: str = "yes") -> Conversation:
    return Conversation((*asking(*parts), {"role": "assistant", "content": answer}), "row")


def recipe_of(folder: Path, start: Path, **train: Any) -> Recipe:
    """A recipe on four squares, each with its colour for an answer."""
    folder.mkdir(exist_ok=True)
    rows = []
    for name, colour in COLOURS.items():
        (folder / f"{name}.png").write_bytes(encoded(Image.new("RGB", (48, 36), colour)))
        turn = {"role": "user", "content": [{"type": "image", "image": f"{name}.png"}, {"type": "text", "text": "?"}]}
        rows.append(json.dumps({"messages": [turn, {"role": "assistant", "content": name}]}))
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    lines = [f"{name} = {json.dumps(value)}" for name, value in ({"steps": 2, "batch_size": 4} | train).items()]
    text = f'name = "eye"\nstart = "{start}"\n[data]\nheld_out = 0\nwidths = [16]\n'
    text += f'[data.files]\n"{folder / "rows.jsonl"}" = 1.0\n'
    (folder / "recipe.toml").write_text(text + "[train]\nthreads = 1\n" + "\n".join(lines) + "\n")
    return read_recipe(folder / "recipe.toml")


@pytest.mark.parametrize("rule", IMAGE_ATTENTION)
def test_the_clean_pass_is_the_encoding(
    start: Path, tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences with images that share a line, and one alone: losses are those of what inference encodes."""
    base = read_base(recipe_of(tmp_path / "rows", start), tmp_path)
    feed, model = Feed(base.recipe, base), base.model().eval()
    model.image_attention, tower = rule, tower_of(model)
    assert tower is not None
    samples = [conversation("a", drawn(48, 36, 1), "b"), conversation(drawn(10, 80, 2), drawn(60, 40, 3), "c" * 40)]
    rows = [feed.row(sample, Random(0), 16) for sample in samples]
    data = msgspec.structs.replace(feed.recipe.data, pack_tokens=400)
    feed.recipe = msgspec.structs.replace(feed.recipe, data=data)
    (batch,) = feed.pack(rows)
    assert batch.clean.shape[0] == 1
    assert [one.line for one in batch.images] == [0, 0, 0]
    logits: list[torch.Tensor] = []
    found = type(model).logits
    monkeypatch.setattr(type(model), "logits", lambda own, hidden: logits.append(hidden) or found(own, hidden))
    with torch.no_grad():
        losses(model, batch, None)
    scored = []
    for row in rows:
        soft = tuple(SoftTokens(one.start, soft_of(tower, one.picture)) for one in row.images)
        with torch.no_grad():
            hidden = model.encode(torch.tensor(row.clean), new_prefix(model), soft)
        scored.append(hidden[:-1][torch.tensor(row.scored[1:])])
        placeholders = {i for one in row.images for i in range(one.start, one.stop)}
        assert not any(row.scored[i] for i in placeholders)
    assert torch.allclose(logits[0], torch.cat(scored), atol=2e-4)


@pytest.mark.parametrize("tower", [False, True])
def test_the_tower_learns_only_if_it_is_to(start: Path, tmp_path: Path, tower: bool) -> None:
    recipe = recipe_of(tmp_path / "rows", start, tower=tower)
    out = train(recipe, tmp_path / "out", lambda *_: None)
    before, after = (load_vision(folder).state_dict() for folder in (start, out))
    same = [torch.equal(before[name], after[name]) for name in before]
    assert not any(same[:1]) if tower else all(same)
    assert redraft.load(out, device="cpu").vision is not None


def test_adapters_leave_the_tower_alone(start: Path, tmp_path: Path) -> None:
    recipe = msgspec.structs.replace(recipe_of(tmp_path / "rows", start), lora=LoraRecipe(rank=2))
    out = train(recipe, tmp_path / "out", lambda *_: None)
    before, after = (load_vision(folder).state_dict() for folder in (start, out))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_four_pictures_are_learnt(start: Path, tmp_path: Path) -> None:
    """The path end to end: rows with pictures, training with the tower, a checkpoint that answers about pictures."""
    recipe = recipe_of(tmp_path / "rows", start, steps=300, batch_size=8, tower=True, lr=4e-3, warmup=20, ema=0.9)
    out = train(recipe, tmp_path / "out", lambda *_: None)
    engine = redraft.load(out, device="cpu")
    for name, colour in COLOURS.items():
        told = engine.generate(asking(Image.new("RGB", (48, 36), colour), "?"), options=Options(seed=1, max_tokens=16))
        assert told.text == name


def test_a_start_that_reads_text_alone_refuses_rows_with_images(tmp_path: Path) -> None:
    nano = redraft.load("nano").folder
    assert nano is not None
    recipe = recipe_of(tmp_path / "rows", nano)
    with pytest.raises(
        RecipeError, match=r"rows\.jsonl, line \d: messages.* is an image, and the start reads text alone"
    ):
        train(recipe, tmp_path / "out", lambda *_: None)
    with pytest.raises(RecipeError, match=r"\[train\] tower is true, and .* has no vision tower"):
        train(recipe_of(tmp_path / "rows", nano, tower=True), tmp_path / "other", lambda *_: None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "image", "image": "none.png"}], "cannot be read"),
        ([{"type": "image", "image": "pipe"}], "cannot be read: it is no regular file"),
        ([{"type": "image", "image": "../red.png"}], "image is '../red.png'; name a file in the folder of the rows"),
        ([{"type": "image", "image": "/dev/zero"}], "image is '/dev/zero'; name a file in the folder of the rows"),
        ([{"type": "sound"}], "a user's content may be a list"),
        ([{"type": "image", "image": 7}], "has an image of type int"),
    ],
)
def test_bad_rows_are_named(start: Path, tmp_path: Path, content: list[Any], said: str) -> None:
    recipe = recipe_of(tmp_path / "rows", start)
    os.mkfifo(tmp_path / "rows" / "pipe")
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "a"}]
    (tmp_path / "rows" / "rows.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    with pytest.raises(RecipeError, match=rf"rows\.jsonl, line 1: .*{said}"):
        train(recipe, tmp_path / "out", lambda *_: None)


def test_batches_keep_their_pictures_where_they_go(start: Path, tmp_path: Path) -> None:
    base = read_base(recipe_of(tmp_path / "rows", start), tmp_path)
    feed = Feed(base.recipe, base)
    (batch,) = feed.batches(0)
    moved = batch.to(torch.device("cpu")).repeated(2)
    assert moved.images == batch.images
    assert len(batch.images) == 4
    assert replace(batch, images=()).images == ()
    assert corrupt(batch, 64, torch.Generator().manual_seed(0)).canvas.shape == batch.target.shape


def test_the_recipe_of_pictures_draws_learns_and_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of recipes/vision with all of its pictures, from its own start; every picture is whole tokens."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "recipes" / "vision"))
    start = importlib.import_module("start").write_start(tmp_path / "start", steps=2)
    recipe = msgspec.structs.replace(read_recipe(ROOT / "recipes/vision/nano-vision.toml"), start=str(start))
    recipe = recipe.at(recipe.train.steps)
    few = {"steps": 3, "batch_size": 4, "probe_every": 3, "probe_examples": 2}
    short = msgspec.structs.replace(recipe.train, **few, compile=False)  # which takes longer than the steps
    logged: list[dict[str, float]] = []
    out = train(msgspec.structs.replace(recipe, train=short), tmp_path / "out", lambda *row: logged.append(row[2]))
    assert len(logged) == 3
    assert {name for name in logged[-1] if name.endswith(" exact")} == {
        "recipes/vision/drawn.py:boards exact",
        "recipes/vision/drawn.py:receipts exact",
    }
    drawn_there = importlib.import_module("drawn")
    one, other = (next(drawn_there.boards(split, 1))["messages"] for split in ("train", "held_out"))
    assert one[1]["content"].count("\n") == 5
    assert one[1]["content"] != other[1]["content"]
    engine = redraft.load(out, device="cpu")
    request = engine.resolve(redraft.Request(one[:1]))
    assert request.images[0].run.length == 42
    assert json.loads(next(drawn_there.receipts("train", 2))["messages"][1]["content"])["total"] > 0
