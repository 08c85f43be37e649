"""bfloat16 on a processor without instructions for it: products are taken in float32, and rounded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import new_prefix, oracle_model, tiny_checkpoint, tiny_config
from tests.pictures import image_config, image_json, own_tower, pictures, vision_json
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from redraft.model import linear
from redraft.model.head import Head, read_head
from redraft.model.kernels import Causal, attend_eager, attend_fused
from redraft.model.linear import computed_in, has_bfloat16, multiply
from redraft.model.packed import FORMATS, Format, pack, unpack
from redraft.model.rows import Mode, Span
from redraft.shapes import Tensor
from redraft.weights.load import load_model

CPU = torch.device("cpu")
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "scaled_dot_product", "matmul")


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that has no such instructions."""
    monkeypatch.setattr(linear, "has_bfloat16", bool)


class Products(TorchDispatchMode):
    """The formats of what is multiplied within, and the numbers of the largest matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.formats, self.largest = set[torch.dtype](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.startswith(tuple(f"_{one}" for one in PRODUCTS) + PRODUCTS):
            tensors = [
                one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor) and one.is_floating_point()
            ]
            self.formats |= {one.dtype for one in tensors}
            self.largest = max(self.largest, *(one.numel() for one in tensors))
        return func(*args, **(kwargs or {}))


def drawn_numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("shape", [(1, 64, 48), (5, 512, 3000), (17, 2816, 704)])
def test_products_are_those_of_float32_rounded_once(shape: tuple[int, int, int]) -> None:
    rows, inner, outer = shape
    x, weight = drawn_numbers(rows, inner), drawn_numbers(outer, inner, seed=1)
    with Products() as seen:
        found = multiply(x, weight)
    assert found.dtype == torch.bfloat16
    wanted = (x.double() @ weight.double().T).float()
    torch.testing.assert_close(found.float(), wanted, rtol=2**-8, atol=1e-4)
    assert seen.formats == {torch.float32}
    assert seen.largest <= max(linear.RUN, linear.LEAST_RUN * inner), "a large table is never floats as a whole"


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_packed_products_are_taken_in_float32(form: Format) -> None:
    packed = pack(drawn_numbers(600, 2048).float(), form)
    x = drawn_numbers(16, 2048, seed=1)
    with Products() as seen:
        found = multiply(x, packed).float()
    assert torch.bfloat16 not in seen.formats
    wanted = x.float() @ unpack(packed).T
    assert float((found - wanted).norm() / wanted.norm()) < (0.05 if form.round_rows else 2**-8), (
        "rows are rounded, too"
    )


@pytest.mark.usefixtures("emulated")
def test_attention_is_taken_in_float32() -> None:
    q, k, v = drawn_numbers(6, 4, 32) / 32, drawn_numbers(2, 9, 32, seed=1), drawn_numbers(2, 9, 32, seed=2)
    with Products() as seen:
        found = attend_fused(q, k, v, None)
    assert found.dtype == torch.bfloat16
    assert torch.bfloat16 not in seen.formats
    wanted = attend_eager(q.double(), k.double(), v.double(), None).float()
    torch.testing.assert_close(found.float(), wanted, rtol=2**-7, atol=2**-7)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("encoded", [False, True])
def test_a_long_prefix_is_widened_in_parts(monkeypatch: pytest.MonkeyPatch, encoded: bool, window: int | None) -> None:
    monkeypatch.setattr("redraft.model.kernels.KEYS_AT_ONCE", 4)
    q, k, v = drawn_numbers(6, 4, 32) / 8, drawn_numbers(2, 19, 32, seed=1), drawn_numbers(2, 19, 32, seed=2)
    causal = Causal(6, 19, window, CPU) if encoded else None
    with Products() as seen:
        found = attend_fused(q, k, v, causal).float()
    assert seen.formats == {torch.float32}
    wanted = attend_eager(q.double(), k.double(), v.double(), causal).float()
    torch.testing.assert_close(found, wanted, rtol=2**-7, atol=2**-8)


@pytest.mark.usefixtures("emulated")
def test_no_product_of_a_generation_is_in_bfloat16(tmp_path: Path) -> None:
    """torch's own loop over bfloat16 took seven times as long as float32: a step of the 26B model minutes."""
    tiny_checkpoint(tmp_path, tiny_config(), dtype=torch.bfloat16)
    model = load_model(tmp_path, dtype=torch.bfloat16)[0]
    prefix = new_prefix(model)
    head = Head(model.table, 30.0, torch.bfloat16)
    with torch.inference_mode(), Products() as seen:
        model.encode(torch.arange(5, 9), prefix)
        rows = model.rows([Span(prefix, 8, Mode.DENOISE)])
        hidden = model(torch.arange(8), None, rows)
        read_head(hidden, head, torch.ones(8, 1), torch.full((8,), 0.5))
        model.soften(torch.softmax(model.logits(hidden), -1))
    assert seen.formats == {torch.float32}


@pytest.mark.usefixtures("emulated")
def test_nor_is_one_of_the_vision_tower() -> None:
    _, config = image_config(image_json(vision_json()))
    tower = own_tower(config.vision, 64, 0).to(torch.bfloat16)
    with torch.inference_mode(), Products() as seen:
        for picture in pictures([(60, 40)], config):
            tower(torch.from_numpy(picture.patches()), picture.columns)
    assert seen.formats
    assert torch.bfloat16 not in seen.formats


@pytest.mark.skipif(has_bfloat16(), reason="this processor multiplies bfloat16")
def test_it_is_no_further_from_float32_than_torchs_own_products(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.arange(3, 40)

    def median_error() -> float:
        with torch.inference_mode():
            plain, model = oracle_model(), oracle_model(torch.bfloat16)
            found = model.logits(model.encode(tokens, new_prefix(model)))
            return float((found - plain.logits(plain.encode(tokens, new_prefix(plain)))).abs().median())

    ours = median_error()
    monkeypatch.setattr(linear, "has_bfloat16", lambda: True)
    assert ours < 1.2 * median_error()


def test_other_formats_and_devices_are_computed_in_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "has_bfloat16", bool)
    assert computed_in(torch.bfloat16, CPU) == torch.float32
    assert computed_in(torch.float32, CPU) == torch.float32
    assert computed_in(torch.bfloat16, torch.device("cuda")) == torch.bfloat16
    monkeypatch.setattr(linear, "has_bfloat16", lambda: True)
    assert computed_in(torch.bfloat16, CPU) == torch.bfloat16
    x, weight = drawn_numbers(4, 64), drawn_numbers(8, 64, seed=1)
    assert torch.equal(multiply(x, weight), F.linear(x, weight))
