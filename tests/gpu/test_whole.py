"""Whole models natively: a step as one graph, experts on the host. Run with `pytest -m gpu` on a CUDA device."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.helpers import new_prefix, tiny_checkpoint, tiny_config

import redraft
from redraft.config import read_config
from redraft.engine.request import Options, Request
from redraft.engine.settings import LoopConfig
from redraft.weights.source import locate

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]
WIDE = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 64, "head_dim": 16, "num_experts": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / "tiny"
    nano = locate("nano")  # whose tokenizer it has
    config = tiny_config(**WIDE, vocab_size=read_config(nano).model.vocab_size)
    tiny_checkpoint(place, replace(config, canvas_length=16))
    shutil.copy(nano / "tokenizer.json", place)
    return place


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("plan", [None, "int4"])
def test_a_replayed_graph_computes_what_single_launches_do(folder: Path, plan: str | None, dtype: str) -> None:
    """Behind prefixes that grow, with and without a soft embedding, several replays of one capture."""
    pytest.importorskip("triton")
    from redraft.model.gpu.graph import GraphedStep, Placed
    from redraft.model.gpu.kernels import GPU
    from redraft.model.rows import Mode, Span
    from redraft.weights.load import load_model
    from redraft.weights.plan import PLANS

    chosen = PLANS[plan] if plan else None
    model = load_model(folder, dtype=getattr(torch, dtype), device="cuda", kernels=GPU, plan=chosen)[0]
    prefix = new_prefix(model)
    step = GraphedStep(model, [prefix], 16)
    tokens = torch.arange(16, device="cuda") + 3
    with torch.inference_mode():
        for length in (5, 16, 16, 1):
            model.encode(tokens[:length], prefix)
            for seed in range(3):
                soft = torch.randn(16, 64, device="cuda", dtype=model.dtype) if seed else None
                ours = step([Placed(0, tokens.cpu() + seed, soft)])[0].clone()
                theirs = model(tokens + seed, soft, model.rows([Span(prefix, 16, Mode.DENOISE)]))
                assert float((ours.float() - theirs.float()).norm() / theirs.float().norm()) < 0.01
    assert step._graph is not None, "nothing was captured"


@pytest.mark.parametrize("options", [{"loop": LoopConfig(graphs=True)}, {"experts": "host"}], ids=["graphs", "host"])
def test_answers_are_those_of_the_plain_way(folder: Path, options: dict[str, object]) -> None:
    engines = [redraft.load(folder, device="cuda"), redraft.load(folder, device="cuda", **options)]  # type: ignore[arg-type]
    for seed in range(4):
        wanted = Options(max_tokens=40, seed=seed)
        found = [list(one.submit(one.resolve(Request([2, 9, 7], wanted)), drafts=True).events()) for one in engines]
        assert [event.tokens for event in found[0] if hasattr(event, "tokens")] == [
            event.tokens for event in found[1] if hasattr(event, "tokens")
        ]
