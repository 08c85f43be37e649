"""The kernels natively: run with `pytest -m gpu` on a machine with a CUDA device."""

import pytest
import torch
from tests import kernels

from redraft.model.linear import multiply, multiply_unpacked
from redraft.model.packed import FP8, INT8, TABLE8, Format

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]
FLOATS = [torch.bfloat16, torch.float32]  # what is measured comes first: a session on a GPU is short
# The real model's widths, a canvas of rows, experts of very different sizes.
REAL = [(256, 128, 2816, 704, 8, 128), (256, 128, 2816, 704, 8, 20), (1, 128, 2816, 704, 8, 128)]
MANY = (2048, 128, 2816, 704, 8, 128)  # eight canvases: other tiles


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("form", kernels.FORMS, ids=lambda form: form.name if form else "plain")
@pytest.mark.parametrize("case", [*kernels.CHOICES, *REAL], ids=str)
def test_experts_equal_their_twin(case: tuple[int, ...], form: Format | None, dtype: torch.dtype) -> None:
    kernels.check_experts(case, form, dtype, "cuda")


@pytest.mark.parametrize("form", kernels.FORMS, ids=lambda form: form.name if form else "plain")
def test_experts_of_many_rows_equal_their_twin(form: Format | None) -> None:
    kernels.check_experts(MANY, form, torch.bfloat16, "cuda")


@pytest.mark.parametrize("form", [INT8, FP8], ids=lambda form: form.name)
def test_rounded_rows_are_those_of_their_twin(form: Format) -> None:
    for dtype in FLOATS:
        kernels.check_rounded(256, 2816, form, dtype, "cuda")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("form", kernels.FORMS[1:], ids=lambda form: form.name)
@pytest.mark.parametrize("case", [*kernels.PRODUCTS, (256, 4224, 2816)], ids=str)
def test_products_of_the_kernel_equal_their_twin(case: tuple[int, int, int], form: Format, dtype: torch.dtype) -> None:
    kernels.check_product(*case, form, dtype, "cuda")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", [*kernels.SPANS, (16, 8, 2, 256, 512, 1024, 2047)], ids=str)
def test_attention_equals_its_twin(case: tuple[int, ...], dtype: torch.dtype) -> None:
    kernels.check_spans(case, dtype, "cuda")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 7), (256, 2816), (256, 24, 256)], ids=str)
def test_norms_equal_their_twin(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weights = [torch.rand(shape[1:], device="cuda") + 0.5, None]
    kernels.check_norm(shape, weights, torch.randn(shape, device="cuda").to(dtype), dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("form", [None, TABLE8], ids=["plain", "int8"])
@pytest.mark.parametrize("case", [*kernels.TABLES, (262144, 2816, 256, 4096)], ids=str)
def test_the_head_equals_its_twin(case: tuple[int, ...], form: Format | None, dtype: torch.dtype) -> None:
    kernels.check_head(case, dtype, "cuda", form)


@pytest.mark.parametrize(("vocab", "wide"), [(70, 4), (262144, 2048)])
def test_tokens_by_class_equal_their_twin(vocab: int, wide: int) -> None:
    kernels.check_classes(vocab, wide, "cuda")


@pytest.mark.parametrize(
    "case", [*kernels.WALKS, (1000, 256, 300, 0, 3.0, None, 500), (90, 256, 200, 180, 30.0, (7, 9), 40)], ids=str
)
def test_messages_equal_their_twin(case: tuple[int, ...]) -> None:
    left = [kernels.check_walk(case, seed, "cuda", 2000) for seed in range(3)]
    assert any(left)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("form", [form for form in kernels.FORMS if form], ids=lambda form: form.name)
@pytest.mark.parametrize("rows", [1, 31, 256])
def test_packed_products_equal_their_twin(rows: int, form: Format, dtype: torch.dtype) -> None:
    made = torch.Generator("cuda").manual_seed(rows)
    packed = kernels.some_packed((4096, 2816), form, made)
    x = torch.randn(rows, 2816, generator=made, device="cuda").to(dtype)
    ours, twin = multiply(x, packed).float(), multiply_unpacked(x, packed).float()
    assert float((ours - twin).norm() / twin.norm()) < 0.01
