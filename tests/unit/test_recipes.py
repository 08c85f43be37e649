"""The recipes in recipes/: each is read, builds its model and makes a batch; its first losses are pinned.

A full step of most takes seconds to minutes, so the losses are those of `small`: six examples a step, each canvas
corrupted once, both losses and all of the recipe's noise from the first step, a canvas of its own going one step of
the sampler at most, in float32 on one thread of a CPU, from nano where the recipe starts from a run that is not in this
repository. All else is the recipe's.

The first pinned loss of each is what transformers' modules lose on the same samples, noise and weights; the four behind
it hold the optimizer, the schedule, the data and the noise of later steps where they are. To pin a recipe that is new
or was changed on purpose: `PYTHONPATH=src:. python tests/unit/test_recipes.py`.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.helpers import DATA

from redraft.tune import train as trainer
from redraft.tune.base import Base, read_base
from redraft.tune.data import Feed
from redraft.tune.objective import Batch, Corruption, Losses, losses
from redraft.tune.recipe import Recipe, read_recipe
from redraft.tune.train import train

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.toml"))
PINS = DATA / "first_losses.json"
STEPS = 5
TOLERANCE = 1e-3  # other processors and versions of torch add in another order; a changed objective is off by far more

Seen = list[tuple[Batch, Corruption, Losses]]


def small(path: Path) -> Recipe:
    """A recipe with what makes its steps quick."""
    recipe = read_recipe(path)
    replace = msgspec.structs.replace
    own_steps = min(recipe.objective.own_steps, 1)
    return replace(
        recipe,
        start="nano" if recipe.start else "",
        objective=replace(recipe.objective, draws=1, correct_from=0, own_steps=own_steps),
        train=replace(recipe.train, batch_size=6, encode_steps=0, bfloat16=False, device="cpu", threads=1),
    )


def first_losses(recipe: Recipe, out: Path) -> list[dict[str, float]]:
    """Both losses of the first steps."""
    found: list[dict[str, float]] = []

    def note(step: int, total: int, row: dict[str, float]) -> None:
        found.append({name: row[name] for name in ("encode", "denoise")})
        if step == STEPS:
            raise KeyboardInterrupt

    try:
        train(recipe, out, note)
    except KeyboardInterrupt:
        return found
    raise AssertionError("a run that was interrupted went on")


@pytest.fixture(scope="module")
def pins() -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = json.loads(PINS.read_text())["recipes"]
    return found


def test_every_recipe_is_pinned(pins: dict[str, Any]) -> None:
    assert sorted(pins) == sorted(path.stem for path in RECIPES)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_builds_its_model_and_makes_a_batch(path: Path, tmp_path: Path) -> None:
    """As it is written, but for a start that is not there."""
    recipe = read_recipe(path)
    assert recipe.name == path.stem
    base = read_base(msgspec.structs.replace(recipe, start="nano" if recipe.start else ""), tmp_path)
    model = base.model()
    assert sum(value.numel() for value in model.parameters()) > 1e6
    samples = Feed(msgspec.structs.replace(recipe, train=small(path).train), base).batches(1)
    assert sum(len(batch.clean) for batch in samples) == 6
    assert max(int(batch.clean.max()) for batch in samples) < base.config.vocab_size


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")  # theirs are not ours to fix
def test_the_first_losses_are_pinned_and_the_first_is_that_of_transformers_modules(
    path: Path, pins: dict[str, list[dict[str, float]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Seen = []

    def noted(model: Any, batch: Batch, corruption: Corruption | None, *, leave_one_out: bool) -> Losses:
        assert not leave_one_out, "transformers has no such loss"
        found = losses(model, batch, corruption)
        assert corruption is not None
        seen.append((batch, corruption, found))
        return found

    monkeypatch.setattr(trainer, "losses", noted)
    recipe = small(path)
    found = first_losses(recipe, tmp_path / "out")
    for row, pinned in zip(found, pins[path.stem], strict=True):
        assert row == pytest.approx(pinned, rel=TOLERANCE)
    base = read_base(recipe, tmp_path)
    first = seen[: len(Feed(recipe, base).batches(0))]
    assert pins[path.stem][0] == pytest.approx(theirs_of(base, first, tmp_path), rel=TOLERANCE)


def theirs_of(base: Base, seen: Seen, folder: Path) -> dict[str, float]:
    """What transformers' modules lose on the batches of a step, which count by what they score."""
    transformers = pytest.importorskip("transformers")
    from tests.unit.test_tune import their_losses

    transformers.utils.logging.disable_progress_bar()
    base.save(base.model(), folder)
    theirs = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(folder, attn_implementation="eager").eval()
    sums, counts = torch.zeros(2), torch.zeros(2)
    for batch, noise, ours in seen:
        assert ours.seen is not None
        weights = torch.tensor([float(batch.told.sum()), float((~batch.pinned).sum(1).float().sqrt().sum())])
        each = torch.tensor(their_losses(theirs, batch, noise, ours.seen))
        sums += torch.where(weights > 0, each, 0.0) * weights
        counts += weights
    encode, denoise = (sums / counts).tolist()
    return {"encode": encode, "denoise": denoise}


def main() -> None:
    """Pin what this code loses."""
    torch.set_num_threads(1)
    pins = {}
    for path in RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            rows = first_losses(small(path), Path(folder) / "out")
        pins[path.stem] = [{name: round(value, 6) for name, value in row.items()} for row in rows]
    PINS.write_text(json.dumps({"torch": torch.__version__, "recipes": pins}, indent=1) + "\n")


if __name__ == "__main__":
    main()
