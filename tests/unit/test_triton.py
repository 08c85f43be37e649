"""The GPU's kernels under Triton's interpreter, each equal to its twin."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason=f"there is no triton for {sys.platform}")

from tests import kernels
from tests.helpers import new_prefix, tiny_config, tiny_model, with_kernels

from redraft.model.gemma import DiffusionGemma
from redraft.model.gpu import attention, experts, tiles
from redraft.model.gpu.experts import _blocks, experts_tiles
from redraft.model.gpu.kernels import GPU
from redraft.model.gpu.norm import norm_kernel
from redraft.model.gpu.tiles import SPARE
from redraft.model.kernels import Causal, norm_exact
from redraft.model.packed import FP8, INT4, INT4_BLOCKS, INT6_BLOCKS, INT6_G32, INT8, INT8_G32, NVFP4, TABLE8, Format
from redraft.model.rows import IMAGE_ATTENTION, Mode, Span
from redraft.weights.fill import pack_model
from redraft.weights.plan import PLANS

FLOATS = [torch.float32, torch.bfloat16]


def rest_slow(cases: Sequence[Any], fast: int) -> list[Any]:
    """The interpreter is slow: every commit runs the first cases of a kernel, `make test-slow` the rest."""
    return [*cases[:fast], *(pytest.param(case, marks=pytest.mark.slow) for case in cases[fast:])]


@pytest.mark.parametrize("form", kernels.FORMS, ids=lambda form: form.name if form else "plain")
@pytest.mark.parametrize("case", rest_slow(kernels.CHOICES, 2), ids=str)
def test_experts_equal_their_twin(case: tuple[int, ...], form: Format | None) -> None:
    kernels.check_experts(case, form, torch.float32, "cpu")


@pytest.mark.parametrize("forms", [(INT4_BLOCKS, INT8_G32), (INT8_G32, INT6_G32)], ids=lambda forms: forms[0].name)
def test_experts_of_two_formats_equal_their_twin(forms: tuple[Format, Format]) -> None:
    """As in files of Q4_K, where rows of the second matrices are no blocks of 256: a tile of the first's is too narrow
    for a group of the other."""
    kernels.check_experts(kernels.CHOICES[2], forms[0], torch.float32, "cpu", forms[1])


@pytest.mark.parametrize("case", kernels.CHOICES, ids=str)
def test_only_experts_that_a_row_chose_have_blocks(case: tuple[int, ...]) -> None:
    """A block is what a program reads an expert's matrix for; the others return before they load. Each expert has as
    few as its rows need, and its matrix is read so often."""
    rows, count, _, _, choices, used = case
    chosen = torch.stack([torch.randperm(used)[:choices] for _ in range(rows)]).int()
    _, experts, starts, ends = _blocks(chosen, count, 16)
    found = Counter(experts[starts < ends].tolist())
    assert found == {one: -(-size // 16) for one, size in Counter(chosen.flatten().tolist()).items()}


@pytest.mark.slow
@pytest.mark.parametrize("case", [kernels.CHOICES[1], kernels.CHOICES[3], (80, 3, 128, 192, 2, 3)], ids=str)
@pytest.mark.parametrize(
    "form",
    [None, INT4, NVFP4, INT4_BLOCKS, INT6_BLOCKS, INT8_G32],
    ids=lambda form: form.name if form else "plain",
)
def test_experts_in_half_precision_equal_their_twin(case: tuple[int, ...], form: Format | None) -> None:
    """In float16, also in large tiles: the interpreter multiplies the bits of bfloat16 as integers. Natively it is
    tested in tests/gpu."""
    kernels.check_experts(case, form, torch.float16, "cpu")


@pytest.mark.parametrize(
    ("memory", "is_ten", "form", "wanted"),
    [
        *((memory, False, INT4_BLOCKS, (128, 64, 8)) for memory in (99, 163)),  # compute 8.0, 8.6, 8.9, 12.0
        *((memory, False, INT4, (128, 64, 16)) for memory in (99, 163)),
        *((memory, False, FP8, (128, 64, 128)) for memory in (99, 163)),
        *((227, False, form, (128, 128, 16)) for form in (INT4_BLOCKS, INT4)),  # 9.0
        *((227, False, form, (128, 128, 128)) for form in (INT8, FP8)),
        *((227, True, form, (128, 64, 128)) for form in (INT8, FP8)),  # 10.0
        *((227, True, form, (128, 128, 64)) for form in (INT8_G32, None)),
        (227, False, None, (128, 64, 64)),  # 9.0, by its time there
    ],
)
def test_the_first_tile_of_many_rows_fits_into_registers(
    memory: int, is_ten: bool, form: Format | None, wanted: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, columns and inner of three canvases of the 26B model. In 128 columns int8 and fp8 spilled on 10.0, in 16
    words Q4_K did on 12.0 (record `kernels-compiled`); slow cases of test_compiled.py compile the new tiles."""
    monkeypatch.setattr(experts, "shared_memory", lambda _: memory * 1024 - SPARE)
    for module in (tiles, experts):
        monkeypatch.setattr(module, "is_compute_10", lambda: is_ten)
    shape = (2, 256, 256)
    plain = torch.empty(shape, dtype=torch.bfloat16)
    weight = plain if form is None else kernels.some_packed(shape, form, kernels.draw(0, "cpu"))
    first, second = experts_tiles(weight, 48.0, torch.bfloat16)
    assert (first.rows, first.out, first.inner) == wanted
    assert (second.rows, second.out) == (128, 256 if (first.out, form) == (64, None) else 128)


def test_experts_in_tiles_of_few_words_equal_their_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Q4_K has them on RTX cards and A100s."""
    monkeypatch.setattr(experts, "shared_memory", lambda _: 99 * 1024 - SPARE)
    kernels.check_experts((80, 2, 128, 64, 2, 2), INT4_BLOCKS, torch.float16, "cpu")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows", [0.1, 16.0, 64.0, 1000.0])
def test_tiles_of_plain_experts_fit_into_the_smallest_shared_memory(rows: float, dtype: torch.dtype) -> None:
    """64 KiB, of compute 7.5: there a canvas on nano, in float32, ended in "out of resource"."""
    for tile, matrices in zip(experts_tiles(torch.empty(4, 64, 64, dtype=dtype), rows, dtype), (2, 1), strict=True):
        assert tile.inner * (matrices * tile.out + tile.rows) * dtype.itemsize <= 64 * 1024


@pytest.mark.parametrize("form", kernels.FORMS[1:], ids=lambda form: form.name)
@pytest.mark.parametrize("case", kernels.PRODUCTS, ids=str)
def test_packed_products_equal_their_twin(case: tuple[int, int, int], form: Format) -> None:
    kernels.check_product(*case, form, torch.float32, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("form", [INT4, INT8, NVFP4], ids=lambda form: form.name)
def test_packed_products_of_the_released_widths_equal_their_twin(form: Format) -> None:
    kernels.check_product(19, 2112, 2816, form, torch.float16, "cpu")


@pytest.mark.slow
def test_attention_of_the_released_heads_equals_its_twin() -> None:
    kernels.check_spans((16, 8, 2, 256, 512, 30, 40), torch.float16, "cpu")


@pytest.mark.parametrize("rule", IMAGE_ATTENTION)
@pytest.mark.parametrize("case", kernels.SPANS, ids=str)
def test_attention_of_all_spans_equals_that_of_one_after_the_other(case: tuple[int, ...], rule: str) -> None:
    kernels.check_spans(case, torch.float32, "cpu", rule)


def test_attention_in_large_tiles_equals_its_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision: only that, and what fills a GPU, is taken so many rows at a time."""
    monkeypatch.setattr(attention, "_PROGRAMS", 1)
    kernels.check_spans((16, 8, 2, 32, 32, 30, 40), torch.float16, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_attention_in_tiles_of_few_keys_equals_its_twin(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As heads of 512 have them on RTX cards; half precision is float16, whose bits the interpreter multiplies."""
    memory = 2 * 1024 if dtype == torch.float16 else 3 * 1024
    monkeypatch.setattr(attention, "shared_memory", lambda _: memory)
    assert attention.attention_tile(torch.empty(46, 8, 32, dtype=dtype)).keys == 16
    kernels.check_spans((8, 4, 2, 32, 32, 30, 40), dtype, "cpu")


@pytest.mark.parametrize("splits", [2, 3])
def test_shares_of_the_keys_join_to_what_the_twin_finds(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of one key more or less, shares that some rows see nothing of, and a share without keys."""
    tile = attention.AttentionTile(16, 16, splits=splits)
    monkeypatch.setattr(attention, "attention_tile", lambda _: tile)
    for case in kernels.SPANS:
        kernels.check_spans(case, torch.float32, "cpu")


@pytest.mark.parametrize("memory", [99, 163, 227])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [32, 256, 512])
def test_tiles_of_attention_fit_into_shared_memory(
    dim: int, dtype: torch.dtype, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the compiler lays it out: queries, scores in rows that are one longer, all stages but one of keys and values,
    or keys alone; and 2 KB are left. In float32 heads of 256 were 1 KiB too large for compute 8.0 and 8.9, those of 512
    more.
    """
    monkeypatch.setattr(attention, "shared_memory", lambda _: memory * 1024 - SPARE)
    tile = attention.attention_tile(torch.empty(256, 16, dim, dtype=dtype))
    held = tile.rows * dim + max(1, 2 * (tile.stages - 1)) * tile.keys * dim + tile.rows * (tile.keys + 1)
    assert held * dtype.itemsize <= (memory - 2) * 1024


@pytest.mark.parametrize(
    ("memory", "dim", "wanted"),
    [
        *((99, 256, (32, 32, 3)), (99, 512, (32, 16, 2))),  # compute 8.6, 8.9, 12.0
        *((163, 256, (32, 32, 3)), (163, 512, (32, 32, 2))),  # 8.0
        *((227, 256, (64, 64, 3)), (227, 512, (64, 32, 2))),  # 9.0
    ],
)
def test_attention_loads_ahead_on_every_card(
    memory: int, dim: int, wanted: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, keys and stages of one canvas in bfloat16."""
    monkeypatch.setattr(attention, "shared_memory", lambda _: memory * 1024 - SPARE)
    tile = attention.attention_tile(torch.empty(256, 16, dim, dtype=torch.bfloat16))
    assert (tile.rows, tile.keys, tile.stages) == wanted


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("form", [INT8, FP8], ids=lambda form: form.name)
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 200), (2, 2048)])
def test_rounded_rows_are_those_of_their_twin(rows: int, size: int, form: Format, dtype: torch.dtype) -> None:
    kernels.check_rounded(rows, size, form, dtype, "cpu")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_some_heads_of_a_row_equal_their_twin(dtype: torch.dtype) -> None:
    """Without a copy of them: they lie together, and the other heads between one row's and the next's."""
    x = torch.randn(5, 7, 24).to(dtype)[:, 1:4]
    weights = [torch.rand(3, 24) + 0.5, None]
    for ours, theirs in zip(norm_kernel(x, weights, 1e-6), norm_exact(x, weights, 1e-6), strict=True):
        kernels.near(ours, theirs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 7), (6, 32), (5, 3, 24)], ids=str)
def test_norms_equal_their_twin(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weights = [torch.rand(shape[1:]) + 0.5, None, torch.rand(shape[-1:]) + 0.5]
    kernels.check_norm(shape, weights, None, dtype)
    kernels.check_norm(shape, weights, torch.randn(shape).to(dtype), dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("form", [None, TABLE8], ids=["plain", "int8"])
@pytest.mark.parametrize("case", kernels.TABLES, ids=str)
def test_the_head_equals_its_twin(case: tuple[int, ...], form: Format | None, dtype: torch.dtype) -> None:
    kernels.check_head(case, dtype, "cpu", form)


@pytest.mark.parametrize("case", rest_slow(kernels.WALKS, 3), ids=str)
def test_messages_equal_their_twin(case: tuple[int, ...]) -> None:
    """With something left of the language and, in some of the smaller cases, nothing."""
    left = [kernels.check_walk(case, seed, "cpu") for seed in range(3 if case[0] < 10 else 1)]
    assert any(left)


@pytest.mark.parametrize("wide", [4, 2048])
def test_tokens_by_class_equal_their_twin(wide: int) -> None:
    kernels.check_classes(70, wide, "cpu")


def test_a_language_of_which_nothing_is_left_is_noticed() -> None:
    assert not kernels.check_walk((2, 3, 0, 0, 1.0, (0, 5), 0), 1, "cpu")


def mixed(model: DiffusionGemma) -> list[torch.Tensor]:
    """A prompt beyond the window, then in one forward its commit and canvas, another's canvas, a third's prompt."""
    tokens, soft = torch.arange(23) % 61 + 3, torch.randn(23, 64, generator=torch.Generator().manual_seed(3))
    first, second, third = (new_prefix(model) for _ in range(3))
    with torch.inference_mode():
        prompt = model.encode(tokens[:13], first)
        model.encode(tokens[:3], second)
        spans = [Span(first, 4, Mode.ENCODE), Span(first, 6, Mode.DENOISE), Span(second, 6, Mode.DENOISE)]
        rows = model.rows([*spans, Span(third, 7, Mode.ENCODE)])
        hidden = model(tokens, soft, rows)
        rows.commit()
        return [prompt, hidden, model.denoise(tokens[:6], None, third)]


@pytest.mark.parametrize("plan", rest_slow([None, "int4", "nvfp4"], 1))
def test_a_model_on_the_kernels_equals_one_on_plain_torch(plan: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them together, wired as they will run, on causal and canvas rows side by side; and no mask is made."""
    config = tiny_config(hidden_size=64, intermediate_size=96, moe_intermediate_size=64, head_dim=16)
    plain = tiny_model(config)
    twin = with_kernels(plain, GPU)
    if plan:
        plain, twin = (pack_model(model, PLANS[plan]) for model in (plain, twin))
    theirs = mixed(plain)
    monkeypatch.setattr(Causal, "mask", property(lambda _: pytest.fail("a kernel asked for a mask")))
    for ours, other in zip(mixed(twin), theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=2e-3, atol=2e-3)
