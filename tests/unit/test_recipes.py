"""The recipes in recipes/: each is read, builds its model and makes a batch; its first losses are pinned.

A full step of most takes seconds to minutes, so the losses are those of `small`: six examples a step, each canvas
corrupted once, both losses and all of the recipe's noise from the first step, a canvas of its own going one step of
the sampler at most, without puzzles that take seconds to make and text of this machine's own, in float32 on one thread
of a CPU. Where a recipe starts from a checkpoint, that is one of nano's shape with random weights, so that nano may be
trained again. All else is the recipe's.

The first pinned loss of each is what transformers' modules lose on the same samples, noise and weights; the four behind
it hold the optimizer, the schedule, the data and the noise of later steps where they are. To pin a recipe that is new
or was changed on purpose: `PYTHONPATH=src:. python tests/unit/test_recipes.py`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.helpers import DATA

from redraft.config import read_config
from redraft.tune import train as trainer
from redraft.tune.base import TEXT_FILES, Base, read_base
from redraft.tune.data import Feed
from redraft.tune.initial import initial_model
from redraft.tune.objective import Batch, Corruption, Losses, losses
from redraft.tune.recipe import DataRecipe, ObjectiveRecipe, Recipe, read_recipe
from redraft.tune.train import train
from redraft.weights.save import save_model
from redraft.weights.source import locate

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.toml"))
PINS = DATA / "first_losses.json"
STEPS = 5
TOLERANCE = 1e-3  # other processors and versions of torch add in another order; a changed objective is off by far more

Seen = list[tuple[Batch, Corruption, Losses]]


def random_start(starts: Path, like: str) -> Path:
    """A checkpoint like one of the package's, but for its weights; in a folder that may have it."""
    source, folder = locate(like), starts / f"like-{like}"
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    for name in (*TEXT_FILES, "generation_config.json"):
        if (source / name).exists():
            shutil.copy(source / name, folder)
    found = read_config(source)
    save_model(initial_model(found.model, seed=0), folder, generation=found.generation)
    return folder


def small(path: Path, starts: Path) -> Recipe:
    """A recipe with what makes its steps quick."""
    recipe = read_recipe(path)
    replace = msgspec.structs.replace
    own_steps = min(recipe.objective.own_steps, 1)
    return replace(
        recipe,
        start=str(random_start(starts, "nano" if recipe.start == "nano" else "nano-sudoku")) if recipe.start else "",
        data=without(recipe.data, "hard", "infill"),
        objective=replace(recipe.objective, draws=1, correct_from=0, own_steps=own_steps),
        train=replace(
            recipe.train,
            batch_size=6,
            encode_steps=0,
            bfloat16=False,
            compile=False,
            device="cpu",
            threads=1,
            workers=0,
        ),
    )


def without(data: DataRecipe, *words: str) -> DataRecipe:
    """Without the tasks whose names have these words in."""
    tasks = {name: share for name, share in data.tasks.items() if not any(word in name for word in words)}
    return msgspec.structs.replace(data, tasks=tasks)


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
def starts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("starts")


@pytest.fixture(scope="module")
def pins() -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = json.loads(PINS.read_text())["recipes"]
    return found


def test_every_recipe_is_pinned(pins: dict[str, Any]) -> None:
    assert sorted(pins) == sorted(path.stem for path in RECIPES)


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")  # theirs are not ours to fix
def test_the_first_losses_are_pinned_and_the_first_is_that_of_transformers_modules(
    path: Path, starts: Path, pins: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Seen = []

    def noted(model: Any, batch: Batch, corruption: Corruption | None, objective: ObjectiveRecipe) -> Losses:
        assert not objective.leave_one_out, "transformers has no such loss"
        found = losses(model, batch, corruption, objective)
        assert corruption is not None
        seen.append((batch, corruption, found))
        return found

    monkeypatch.setattr(trainer, "losses", noted)
    recipe = small(path, starts)
    found = first_losses(recipe, tmp_path / "out")
    # What a model's own sampler accepts hangs on last bits, and a few tokens of a canvas on that.
    tolerance = 10 * TOLERANCE if "\nrolled = " in path.read_text(encoding="utf-8") else TOLERANCE
    for row, pinned in zip(found, pins[path.stem], strict=True):
        assert row == pytest.approx(pinned, rel=tolerance)
    base = read_base(recipe, tmp_path)
    first = seen[: len(Feed(recipe, base).batches(0))]
    assert pins[path.stem][0] == pytest.approx(
        theirs_of(base, first, tmp_path, recipe.objective.certainty), rel=TOLERANCE
    )


def theirs_of(base: Base, seen: Seen, folder: Path, certainty: float) -> dict[str, float]:
    """What transformers' modules lose on the batches of a step, which count by what they score."""
    transformers = pytest.importorskip("transformers")
    from tests.unit.test_tune import their_losses

    transformers.utils.logging.disable_progress_bar()
    base.save(base.model(), folder)
    theirs = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(folder, attn_implementation="eager").eval()
    sums, counts = torch.zeros(2), torch.zeros(2)
    for batch, noise, ours in seen:
        assert ours.seen is not None
        weights = torch.tensor([float(batch.scored.sum()), float((~batch.pinned).sum(1).float().sqrt().sum())])
        each = torch.tensor(their_losses(theirs, batch, noise, ours.seen, certainty))
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
            rows = first_losses(small(path, Path(folder)), Path(folder) / "out")
        pins[path.stem] = [{name: round(value, 6) for name, value in row.items()} for row in rows]
    PINS.write_text(json.dumps({"torch": torch.__version__, "recipes": pins}, indent=1) + "\n")


if __name__ == "__main__":
    main()
