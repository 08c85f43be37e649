"""A canvas's forward in memory that stands still: the same answers, and nothing that a graph could not repeat."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.helpers import alone, new_prefix, side_by_side, tiny_config, tiny_model, with_kernels
from torch.profiler import ProfilerActivity, profile

from redraft.config import CheckpointConfig, GenerationConfig
from redraft.engine.loop import Loop
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.settings import LoopConfig
from redraft.errors import RequestError
from redraft.model.fused import fuse_layers
from redraft.model.gemma import DiffusionGemma
from redraft.model.gpu.graph import GraphedStep, GraphPlaces, Placed
from redraft.model.head import Head, read_head
from redraft.model.rows import Mode, Span

SHAPES: dict[str, dict[str, Any]] = {"plain layers": {"num_experts": 6}, "fused layers": {}}


def model_of(shape: str, width: int = 7) -> DiffusionGemma:
    """Two layers, one of them with a window of 8, so that its buffers move on behind a long prefix."""
    return fuse_layers(tiny_model(replace(tiny_config(**SHAPES[shape]), canvas_length=width)))


def request_of(model: DiffusionGemma, prompt: int, seed: int) -> ResolvedRequest:
    shipped = CheckpointConfig(model.config, GenerationConfig(max_denoising_steps=4, eos_token_ids=(1,)))
    options = Options(max_tokens=90 if seed == 1 else 20, seed=seed, end_aware=seed == 2)
    return replace(build_request([2] * prompt, options, shipped), eos=frozenset())


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_in_standing_memory_are_the_same_bit_for_bit(shape: str) -> None:
    """Alone over several blocks, one after another, and two at once, which share forwards for a while."""
    model = model_of(shape)
    loop = Loop(model, LoopConfig())
    loop.runner.places = GraphPlaces(model)
    first, second, third = (request_of(model, 9 + 40 * seed, seed) for seed in (1, 2, 3))
    wanted = alone(model, [first, second, third])
    assert side_by_side(loop, [first]) == wanted[:1]
    (kept,) = loop.runner.places.prefixes
    assert loop.runner.places._steps, "nothing stepped at its place"
    shorter = [replace(second, prompt=second.prompt[:12])]
    assert side_by_side(loop, shorter) == alone(model, shorter)
    assert loop.runner.places.prefixes == [kept], "the next request could have had the same buffers"
    assert side_by_side(loop, [second, third]) == wanted[1:]
    assert len(loop.runner.places.prefixes) == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_that_is_read_or_written_moves(shape: str) -> None:
    """Addresses stay from step to step and from block to block, and a step leaves nothing behind but its result."""
    model, prefix = model_of(shape), None
    prefix = new_prefix(model)
    prefix.restart(64)
    step = GraphedStep(model, [prefix], 7)
    tokens, soft = torch.arange(7) + 20, torch.randn(7, 32)
    rows = Span(prefix, 7, Mode.DENOISE)

    def addresses() -> list[int]:
        turned = [part for pair in step.rows._rotations.values() for part in pair]
        held = [buffer for layer in prefix.layers for buffer in (layer.keys, layer.values)]
        standing = (step.given, step.soft, *step.rows.tables(0).tensors, step.rows.positions)
        return [tensor.data_ptr() for tensor in (*standing, *turned, *held)]

    with torch.inference_mode():
        model.encode(tokens, prefix)
        step([Placed(0, tokens, None)])
        before = addresses()
        for length in (3, 7, 7):
            model.encode(tokens[:length], prefix)
            for given in (None, soft):
                ours, _ = step([Placed(0, tokens, given)])
                assert torch.equal(ours, model(tokens, given, model.rows([rows])))
                assert addresses() == before
                assert step.serves([prefix])
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            kept, _ = step([Placed(0, tokens, soft)])
        left = sum(event.self_cpu_memory_usage for event in seen.key_averages())
        assert left == kept.numel() * kept.element_size()
    assert not step.serves([new_prefix(model)])
    assert not step.serves([prefix, prefix])


def test_a_buffer_that_had_to_grow_is_noticed() -> None:
    model = model_of("plain layers")
    prefix = new_prefix(model)
    step = GraphedStep(model, [prefix], 7)
    with torch.inference_mode():
        model.encode(torch.arange(60) % 60 + 2, prefix)
        ours, _ = step([Placed(0, torch.arange(7), None)])
        assert torch.equal(ours, model(torch.arange(7), None, model.rows([Span(prefix, 7, Mode.DENOISE)])))
        assert step.serves([prefix])
        model.encode(torch.arange(300) % 60 + 2, prefix)
    assert not step.serves([prefix])


@pytest.mark.parametrize("shape", SHAPES)
def test_dead_rows_and_empty_places_change_nothing(shape: str) -> None:
    """Four places: canvases of two widths at two of them, one that nobody steps at, and one that nobody has."""
    model = model_of(shape)
    prefixes = [new_prefix(model) for _ in range(3)]
    step = GraphedStep(model, prefixes, 7, 4, reads=True)
    draw = torch.Generator().manual_seed(3)
    with torch.inference_mode():
        for prefix, length in zip(prefixes, (5, 20, 13), strict=True):
            model.encode(torch.arange(length) + 2, prefix)
        for widths in ((7, 3), (2, 7), (7, 3)):
            canvases = [
                Placed(
                    place,
                    torch.randint(64, (width,), generator=draw),
                    torch.randn(width, 32, generator=draw),
                    torch.rand(2, width, generator=draw) + torch.tensor([[0.4], [0.0]]),
                )
                for place, width in zip((0, 2), widths, strict=True)
            ]
            step.soft.fill_(1e3)  # left by others
            held = [(layer.keys.clone(), layer.values.clone()) for layer in prefixes[1].layers]
            hidden, reading = step(canvases)
            assert reading is not None
            for one in canvases:
                assert one.draws is not None
                rows = model.rows([Span(prefixes[one.place], one.width, Mode.DENOISE)])
                theirs = model(one.tokens, one.soft, rows)
                torch.testing.assert_close(hidden[step.of(one)], theirs, rtol=1e-4, atol=1e-5)
                head = Head(model.table, model.config.logit_cap, model.dtype)
                read = read_head(theirs, head, one.draws[0, :, None], one.draws[1])
                assert torch.equal(reading.sample[step.of(one)], read.sample)
                assert torch.equal(reading.argmax[step.of(one)], read.argmax)
                torch.testing.assert_close(reading.soft[step.of(one)], read.soft, rtol=1e-3, atol=1e-4)
            for layer, (keys, values) in zip(prefixes[1].layers, held, strict=True):
                end = prefixes[1].length - layer.origin
                assert torch.equal(layer.keys[:, :end], keys[:, :end]), "a prefix that nobody steps behind has changed"
                assert torch.equal(layer.values[:, :end], values[:, :end])


def test_graphs_are_refused_where_there_is_no_gpu_and_left_out_by_default() -> None:
    model = model_of("fused layers")
    with pytest.raises(RequestError, match="graphs is True and the model runs on cpu; leave it out"):
        Loop(model, LoopConfig(graphs=True))
    assert Loop(model).runner.places is None


def test_standing_buffers_shrink_again() -> None:
    model = model_of("plain layers")
    places = GraphPlaces(model)
    large, small = places.prefix(900, []), places.prefix(20, [])
    assert large is not None
    assert small is large, "a large one serves a small request"
    other = places.prefix(20, [large])
    assert other is not None
    assert places.idle([other]) == large.num_bytes
    places.drop_idle([other])
    assert places.prefixes == [other]
    assert places.prefix(20, []) is other


def test_a_step_on_the_kernels_in_standing_memory_equals_the_plain_one() -> None:
    pytest.importorskip("triton", reason=f"there is no triton for {sys.platform}")
    from redraft.model.gpu.kernels import GPU

    draw = torch.Generator().manual_seed(1)
    config = tiny_config(hidden_size=64, intermediate_size=96, moe_intermediate_size=64, head_dim=16)
    plain = tiny_model(config)
    gpu = with_kernels(plain, GPU)
    prefixes = [new_prefix(plain), new_prefix(plain)]
    step = GraphedStep(gpu, prefixes[:1], 6, 1)
    with torch.inference_mode():
        for length in (13, 4):
            for model, prefix in zip((gpu, plain), prefixes, strict=True):
                model.encode(torch.arange(length) + 3, prefix)
            rows = plain.rows([Span(prefixes[1], 6, Mode.DENOISE)])
            soft = torch.randn(6, 64, generator=draw)
            ours, _ = step([Placed(0, torch.arange(6), soft)])
            theirs = plain(torch.arange(6), soft, rows)
            torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
