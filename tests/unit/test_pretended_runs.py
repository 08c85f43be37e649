"""What is run on a card, on a pretended one: the tests that need a GPU, an engine with its thread, and training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason=f"there is no triton for {sys.platform}")

from tests.gpu import test_whole
from tests.pretend import CUDA, Device, Held, layer_of_torch, pretend
from tests.training import SHAPE

import redraft
from redraft import Options, Request
from redraft.engine.settings import LoopConfig
from redraft.model.kernels import Kernels, attend_eager, norm_exact
from redraft.model.moe import experts_dense
from redraft.operations.engine import Engine
from redraft.tune import fused
from redraft.tune import train as training
from redraft.tune.objective import Batch
from redraft.tune.recipe import Recipe, read_recipe
from redraft.tune.state import State

pytestmark = pytest.mark.slow

folder = test_whole.folder
TORCH = Kernels(norm_exact, attend_eager, experts_dense, layer=layer_of_torch)  # which a graph can be recorded with
ASKED = "Extract as JSON: name, age (integer)\nAlice is 31 years old."
BEGUN = ASKED + '\n{"name":"'
CALLS: dict[str, Callable[[Engine], object]] = {
    "a schema": lambda engine: engine.extract("Alice is 31 years old.", "name, age int", seed=1).text,
    "many": lambda engine: [
        done.text for done in engine.map(Request(ASKED, Options(seed=i), chat=True) for i in range(9))
    ],
    "variants": lambda engine: [one.text for one in engine.variants(Request(ASKED, Options(seed=1), chat=True), 3)],
    "a gap": lambda engine: engine.infill(BEGUN + "Al", '","age":31}', seed=1).gap,
    "an edit": lambda engine: engine.edit(BEGUN + 'Alice","age":31}', (len(BEGUN), len(BEGUN) + 5), seed=1).text,
}


def numbers(engine: Engine) -> list[float]:
    """The log-probabilities of an answer, without their tokens: of two that are nearly equal, either may be first."""
    rows = engine.generate(Request(ASKED, Options(logprobs=2, seed=1), chat=True)).logprobs
    return [number for row in rows for _, number in row]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    with pretend(monkeypatch) as found:
        yield found


def test_the_test_of_a_replayed_graph_runs(folder: Path, device: Device) -> None:
    test_whole.test_a_replayed_graph_computes_what_single_launches_do(folder, "int4", "float32")


def test_the_test_of_whole_answers_runs(folder: Path, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.engine.engine.kernels_of", lambda *_: TORCH)
    test_whole.test_answers_are_those_of_the_plain_way(folder, {"loop": LoopConfig(graphs=True)})


def test_an_engine_answers_as_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = redraft.load("nano", device="cpu", dtype="float32", kernels=TORCH)
    wanted, near = {name: call(plain) for name, call in CALLS.items()}, numbers(plain)
    with pretend(monkeypatch) as device:
        engine = redraft.load("nano", device=str(CUDA), dtype="float32", kernels=TORCH)
        assert {name: call(engine) for name, call in CALLS.items()} == wanted
        assert numbers(engine) == pytest.approx(near, rel=1e-2, abs=1e-4)
        assert not engine.loop.runner.no_graphs
        assert device.seen.operations


def test_training_leaves_nothing_on_the_host(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of a recipe but its backward pass, for which torch needs a driver: gradients are made up."""
    trained: dict[str, Any] = {}

    def step(recipe: Recipe, state: State, batches: Sequence[Batch]) -> dict[str, float]:
        if not trained:
            trained.update(state.trained)
            monkeypatch.setattr(State, "trained", trained)
            state.model.requires_grad_(False)  # else torch would note what a backward pass needs
        return real(recipe, state, batches)

    def backward(loss: torch.Tensor) -> None:
        assert isinstance(loss, Held)
        for one in trained.values():
            one.grad = torch.randn_like(one)

    real = training.train_step
    monkeypatch.setattr(training, "train_step", step)
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    monkeypatch.setattr(fused, "fuse_checked", lambda model, bfloat16: fused.fuse(model))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    waits: list[int] = []

    def noted(step: int, total: int, row: dict[str, float]) -> None:
        waits.append(len([wait for wait in device.seen.waits if "train.py" in wait]))
        device.seen.clear()

    training.train(read_recipe(tmp_path / "recipe.toml"), tmp_path / "out", noted)
    assert {one.device for one in trained.values()} == {CUDA}
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert max(waits[:3]) <= 11, "a step reads its norm, and of each of two batches five numbers"


RECIPE = f"""
name = "there"
{SHAPE.replace("max_positions = 128", "max_positions = 512")}
vocabulary = "plain"
[data]
tasks = {{ extract-short = 0.5, copy = 0.5 }}
most_blocks = 4
[objective]
plausible = 0.2
rolled = 0.3
own = 0.5
own_steps = 2
[train]
steps = 3
encode_steps = 1
batch_size = 4
lr = 1e-3
device = "{CUDA}"
bfloat16 = true
ema = 0.9
seed = 1
threads = 1
probe_every = 4
probe_examples = 1
save_every = 2
[sampling]
max_new_tokens = 24
max_denoising_steps = 4
"""
