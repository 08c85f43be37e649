"""Several processes train as one does: the same losses and weights, from the same files, whoever began."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest
import torch
from tests.training import SHAPE, rows
from torch import Tensor

from redraft.errors import RecipeError
from redraft.model.gemma import DiffusionGemma
from redraft.tune.base import read_base
from redraft.tune.data import Feed
from redraft.tune.initial import initial_model
from redraft.tune.layout import pack
from redraft.tune.objective import Batch, Corruption, corrupt, losses
from redraft.tune.parallel import World, share, world_of
from redraft.tune.recipe import ObjectiveRecipe, Recipe, read_recipe
from redraft.tune.state import FILE
from redraft.tune.train import train
from redraft.weights.load import load_model

RECIPE = """
name = "tiny"
{start}
[data]
tasks = {{ "sudoku-4x4" = 0.4, records = 0.6 }}
fit_share = 0.5
[objective]
pinned_share = 0.5
rolled = 0.5
own = 0.3
own_steps = 3
[train]
encode_steps = 1
steps = {steps}
decay_steps = 1
batch_size = 5
lr = 1e-2
warmup = 2
threads = 1
save_every = 2
probe_every = 2
probe_examples = 1
recompute = {recompute}
seed = 3
"""
ADAPTERS = 'start = "{start}"\n[lora]\nrank = 2'
# The command's own entry, twice in one start of the processes: importing torch is most of the time.
TWICE = """
import sys
from redraft.__main__ import main
for recipe, out in (sys.argv[1:3], sys.argv[3:5]):
    if code := main(["tune", recipe, "--out", out]):
        sys.exit(code)
"""


def written(folder: Path, name: str, start: str, steps: int) -> Path:
    path = folder / f"{name}-{steps}.toml"
    path.write_text(RECIPE.format(start=start, steps=steps, recompute=str("lora" in start).lower()))
    return path


def same(one: list[dict[str, float]], other: list[dict[str, float]]) -> None:
    assert [row.keys() for row in one] == [row.keys() for row in other]
    for mine, theirs in zip(one, other, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6)


# -- the share of a process --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    folder = tmp_path_factory.mktemp("feed")
    recipe = read_recipe(written(folder, "whole", SHAPE, 4))
    return Feed(recipe, read_base(recipe, folder))


def gradients(model: DiffusionGemma, batch: Batch, noise: Corruption, scored: int, weight: float) -> dict[str, Tensor]:
    """Gradients of a batch in a step with `scored` scored tokens in all and the canvas weight `weight`."""
    model.zero_grad()
    found = losses(model, batch, noise)
    assert found.denoise is not None
    parts = found.encode * int(batch.scored.sum()) / scored + found.denoise * float(batch.weight.sum()) / weight
    parts.backward()
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("pack_tokens", [0, 150], ids=["apart", "packed"])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_shares_of_a_batch_add_up_to_it_and_run_as_many_forwards(feed: Feed, count: int, pack_tokens: int) -> None:
    """Seven processes share five lines, or two: some have nothing but ghosts, and all run the same forwards."""
    rng = Random(0)
    (batch,) = pack([feed.row(example, rng, 24) for example in feed.samples(1)], draws=2, pack_tokens=pack_tokens)
    noise = corrupt(
        batch,
        432,
        torch.Generator().manual_seed(1),
        ObjectiveRecipe(self_conditioning=0.3, rolled=0.5, own=0.3, own_steps=3),
    )
    model = initial_model(feed.base.config, seed=1).requires_grad_(True)
    scored, weight = int(batch.scored.sum()), float(batch.weight.sum())
    wanted = gradients(model, batch, noise, scored, weight)
    forwards: list[int] = []
    hook = model.register_forward_pre_hook(lambda module, given: forwards.append(len(given[0])))
    added = dict.fromkeys(wanted, torch.zeros(()))
    ran = []
    for rank in range(count):
        forwards.clear()
        mine, drawn = share(batch, noise, World(torch.device("cpu"), rank, count))
        found = gradients(model, mine, drawn, scored, weight)
        added = {name: added[name] + found[name] for name in wanted}
        ran.append(len(forwards))
    hook.remove()
    assert len(set(ran)) == 1, f"the processes ran {ran} forwards, and would have waited for each other"
    assert ran[0] > 3, "no canvas went several steps of the sampler"
    for name, value in wanted.items():
        assert torch.allclose(added[name], value, atol=1e-5), name


# -- two processes -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_train_as_one_and_continue_each_others_runs(tmp_path: Path) -> None:
    """Begun by two and continued by one, all weights; begun by one and continued by two, adapters and recomputation."""
    whole, adapters = SHAPE, ADAPTERS.format(start=tmp_path / "straight-whole")
    straight = {
        name: train(read_recipe(written(tmp_path, name, start, 4)), tmp_path / f"straight-{name}")
        for name, start in (("whole", whole), ("adapters", adapters))
    }
    train(read_recipe(written(tmp_path, "adapters", adapters, 1)), tmp_path / "adapters")
    begun, continued = written(tmp_path, "whole", whole, 1), written(tmp_path, "adapters", adapters, 4)
    (tmp_path / "twice.py").write_text(TWICE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run(
        [
            *command,
            str(tmp_path / "twice.py"),
            str(begun),
            str(tmp_path / "whole"),
            str(continued),
            str(tmp_path / "adapters"),
        ],
        env={**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(tmp_path / "whole"), str(tmp_path / "adapters")], "the first process tells"
    same(rows(tmp_path / "whole"), rows(straight["whole"])[:2])
    train(read_recipe(written(tmp_path, "whole", whole, 4)), tmp_path / "whole")
    for name, folder in straight.items():
        same(rows(tmp_path / name), rows(folder))
        one, other = (torch.load(there / FILE, weights_only=True) for there in (folder, tmp_path / name))
        assert one["optimizer"]["state"].keys() == other["optimizer"]["state"].keys()
        shipped, mine = (load_model(there)[0].state_dict() for there in (folder, tmp_path / name))
        for part in shipped:
            # AdamW turns the rounding of a gradient near zero into a whole step: of one element, not of a matrix.
            assert (shipped[part] - mine[part]).norm() <= 1e-3 * shipped[part].norm(), part


# -- what cannot be shared ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "local", "said"),
    [
        ({"batch_size": 1}, 2, "batch_size is 1, fewer than the 2 processes; start fewer"),
        ({"device": "cuda:1"}, 2, "device is 'cuda:1' for 2 processes; use \"cuda\": each takes its own"),
        ({"device": "cuda"}, 2, "device is 'cuda', which this machine does not have for 2 processes; use cpu"),
        ({}, 1, "torchrun has 2 processes, 1 of them on this machine; training uses one machine"),
    ],
)
def test_what_processes_cannot_share_is_refused(
    feed: Feed, changed: dict[str, object], local: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_WORLD_SIZE": str(local)}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    recipe: Recipe = msgspec.structs.replace(feed.recipe, train=msgspec.structs.replace(feed.recipe.train, **changed))
    with pytest.raises(RecipeError, match=said), world_of(recipe):
        pass
