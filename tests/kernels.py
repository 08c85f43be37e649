"""Every kernel beside its twin on random shapes, on any device: under Triton's interpreter on a CPU, natively on a GPU.

Which of the two it is, `conftest.py` says.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.helpers import tiny_json
from torch import Tensor

from redraft.cache import Prefix
from redraft.config import parse_model
from redraft.constraints.compile.lift import TokenAutomaton
from redraft.constraints.condition.device_messages import device_messages
from redraft.constraints.condition.edge_layout import NONE, EdgeLayout, Weights, by_class
from redraft.constraints.condition.projection import DeviceProjected, Projection
from redraft.errors import ConstraintError
from redraft.model.gpu.attention import attend_spans
from redraft.model.gpu.automata import cut
from redraft.model.gpu.classes import classes_kernel
from redraft.model.gpu.dense import multiply_kernel
from redraft.model.gpu.experts import experts_kernel
from redraft.model.gpu.head import pass_fused
from redraft.model.gpu.kernels import CONDITION
from redraft.model.gpu.norm import norm_kernel
from redraft.model.gpu.rounding import rounded
from redraft.model.head import Head, Sums, pass_tiles, read_head
from redraft.model.kernels import attend_eager, norm_exact
from redraft.model.linear import PackedMatrix, multiply_unpacked
from redraft.model.moe import AnyExperts, Experts, PackedExperts, experts_grouped
from redraft.model.packed import FORMATS, INT4_ASYM, Format, Packed, pack, round_rows
from redraft.model.rows import IMAGE_ATTENTION, Mode, Rows, SoftTokens, Span
from redraft.weights.blocks import KINDS

BLOCKS = tuple(kind.format for name, kind in KINDS.items() if name != "Q4_0")
FORMS: tuple[Format | None, ...] = (None, *FORMATS.values(), INT4_ASYM, *BLOCKS)

# (rows, experts, hidden, ffn, choices, how many experts are ever chosen): one token, empty experts, ragged ones, all of
# them, and the odd widths of the real model (704 = 11·64, 2816 = 44·64) in small.
CHOICES = [(1, 4, 64, 64, 2, 4), (37, 6, 192, 64, 2, 2), (5, 8, 64, 192, 1, 8), (18, 3, 128, 320, 3, 3)]
CHOICES += [(70, 9, 64, 128, 2, 2)]  # two experts of nine have all of them: several blocks each
# (query heads, key heads of a sliding and of a full layer, their dims, window, rows of the prompt)
SPANS = [(4, 2, 1, 16, 32, 8, 7), (16, 8, 2, 16, 32, 8, 90), (2, 1, 1, 64, 64, 30, 40), (2, 2, 1, 256, 512, 8, 5)]
PRODUCTS = [(1, 70, 64), (17, 64, 192), (130, 130, 320)]
TABLES = [(1000, 32, 5, 256), (517, 32, 3, 128), (64, 16, 2, 64), (65, 16, 1, 64), (300, 48, 9, 512)]
# (states, positions, tokens left, tokens at least, how sharp, a pin, states that lead to one of them): an end inside
# the canvas and behind it, gates at every boundary, one position, weights beyond floats, rows of rows of rows.
WALKS = [
    (4, 6, 20, 0, 1.0, None, 0),
    (3, 8, 3, 0, 1.0, None, 0),
    (5, 7, 9, 5, 2.0, (3, 4), 0),
    (2, 1, 1, 0, 0.0, None, 0),
    (7, 9, 30, 0, 3000.0, (0, 5), 0),
    (6, 5, 4, 4, 40.0, None, 0),
    (300, 3, 3, 0, 5.0, None, 200),
    (40, 4, 60, 2, 1.0, None, 20),
]


def draw(seed: int, device: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def some_packed(shape: tuple[int, ...], form: Format, made: torch.Generator) -> Packed:
    """A random matrix, or a stack, whose rows have a length of about 1. Zero points are all over the place: packing
    puts them into the middle. Formats that are only read get random codes and scales of either sign."""
    device, (*stack, inner) = made.device, shape
    if form not in BLOCKS:
        packed = pack(torch.randn(shape, generator=made, device=device) * inner**-0.5, form)
        zero = packed.zero if packed.zero is None else torch.randint_like(packed.zero, 0, 16, generator=made)
        return replace(packed, zero=zero)

    def some(*size: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        if dtype.is_floating_point:
            largest = 2 ** (form.bits - 1) * (64 if form.block else 1)
            return (torch.randn(size, generator=made, device=device) * inner**-0.5 / largest).to(dtype)
        least, most = (-64, 64) if dtype == torch.int8 and form.bits != 8 else (0, 64)
        return torch.randint(least, most, size, generator=made, device=device).to(dtype)

    raw = torch.randint(0, 256, (*stack, inner * form.bits // 8), generator=made, device=device, dtype=torch.uint8)
    groups = inner // form.group
    top = some(*stack, form.tops(inner), dtype=form.top_dtype) if form.top_dtype else None
    zero = some(*stack, groups) if form.zeros else None
    return Packed(form, raw.view(form.dtype), some(*stack, groups, dtype=form.scale_dtype), top, zero=zero)


def whole(size: int, form: Format | None) -> int:
    """A number of inputs, made one of whole blocks of a format that has them."""
    return -(-size // form.block) * form.block if form and form.block else size


def check_experts(
    case: tuple[int, int, int, int, int, int],
    form: Format | None,
    dtype: torch.dtype,
    device: str,
    of_down: Format | None = None,
) -> None:
    """Beside the twin, also if experts that no row chose are not numbers: one that is read anywhere shows."""
    rows, count, hidden, ffn, choices, used = case
    hidden, ffn, made = whole(hidden, form), whole(ffn, of_down or form), draw(rows, device)
    experts: AnyExperts
    if form is None:
        experts = Experts(hidden, ffn, count).to(device).requires_grad_(False)
        experts.gate_up.copy_(torch.randn(experts.gate_up.shape, generator=made, device=device) * hidden**-0.5)
        experts.down.copy_(torch.randn(experts.down.shape, generator=made, device=device) * ffn**-0.5)
        experts = experts.to(dtype)
    else:
        shapes = (count, 2 * ffn, hidden), (count, hidden, ffn)
        held = [PackedMatrix(one, shape) for one, shape in zip((form, of_down or form), shapes, strict=True)]
        for matrix, shape in zip(held, shapes, strict=True):
            matrix.take(some_packed(shape, matrix.format, made))
        experts = PackedExperts(*held)
    x = torch.randn(rows, hidden, generator=made, device=device).to(dtype)
    chosen = torch.stack([torch.randperm(used, generator=made, device=device)[:choices] for _ in range(rows)])
    weights = torch.rand(rows, choices, generator=made, device=device)
    unused = sorted(set(range(count)) - set(chosen.flatten().tolist()))
    for matrix in (experts.gate_up, experts.down):
        spoilt = matrix if isinstance(matrix, Tensor) else matrix.scale
        if not spoilt.is_floating_point():
            assert isinstance(matrix, Packed)
            assert matrix.top is not None
            spoilt = matrix.top
        if spoilt.itemsize > 1:
            spoilt[unused] = torch.nan
        else:
            spoilt.view(torch.uint8)[unused] = 0x7F  # e4m3's
    ours, theirs = experts_kernel(experts, x, weights, chosen), experts_grouped(experts, x, weights, chosen)
    if form is not None and form.round_rows and dtype == torch.float32:
        # Between the two products numbers are rounded to 8 bits; one at a border may fall on either side of it.
        off = (ours - theirs).abs().amax(1) > 2e-5 * (1 + theirs.abs().amax(1))
        assert off.sum() <= 1 + rows // 10, off
        assert (ours - theirs).norm() <= 0.02 * theirs.norm()
    else:
        near(ours, theirs)


def check_spans(case: tuple[int, ...], dtype: torch.dtype, device: str, rule: str = IMAGE_ATTENTION[0]) -> None:
    """A commit and its canvas, another's canvas, a third's prompt with an image, in one launch, beside one span after
    the other."""
    heads, sliding, full, dim, wide, window, prompt = case
    shape = {"num_attention_heads": heads, "num_key_value_heads": sliding, "num_global_key_value_heads": full}
    shape |= {"head_dim": dim, "global_head_dim": wide, "sliding_window": window}
    (config, *_), made = parse_model(tiny_json(**shape)), draw(prompt, device)

    def some(rows: int, of: int, size: int) -> Tensor:
        return torch.randn(rows, of, size, generator=made, device=device).to(dtype)

    contexts = []
    filled = [[[some(n, one.num_kv_heads, one.head_dim) for one in config.layers] for n in (13, 3)] for _ in "kv"]
    for _ in range(2):
        prefixes = [Prefix(config.layers, dtype=dtype, device=device) for _ in range(3)]
        for i, prefix in enumerate(prefixes[:2]):
            for layer, k, v in zip(prefix.layers, filled[0][i], filled[1][i], strict=True):
                layer.place(0, k, v)
            prefix.advance(len(filled[0][i][0]))
        first, second, third = prefixes
        spans = [Span(first, 4, Mode.ENCODE), Span(first, 6, Mode.DENOISE), Span(second, 6, Mode.DENOISE)]
        spans.append(
            Span(third, prompt, Mode.ENCODE, images=(SoftTokens(1, some(prompt - 2, 1, config.hidden_size)[:, 0]),))
        )
        contexts.append(Rows(config, spans, torch.device(device), dtype, rule))
    ours, theirs = contexts
    for index, layer in enumerate(config.layers):
        tables, rows = ours.tables(index), 16 + prompt
        q = some(rows, heads, layer.head_dim) * layer.head_dim**-0.5
        k, v = (some(rows, layer.num_kv_heads, layer.head_dim) for _ in "kv")
        sizes = [span.rows for span in ours.spans]
        for span, start, *part in zip(ours.spans, ours.starts, k.split(sizes), v.split(sizes), strict=True):
            span.prefix.layers[index].place(start, *part)
        found = attend_spans(q, tables, index, layer.num_kv_heads)
        near(found, theirs.attend(index, q, k, v, attend_eager))


def check_product(rows: int, outer: int, inner: int, form: Format, dtype: torch.dtype, device: str) -> None:
    made, inner = draw(rows, device), whole(inner, form)
    packed = some_packed((outer, inner), form, made)
    x = torch.randn(rows, inner, generator=made, device=device).to(dtype)
    near(multiply_kernel(x, packed), multiply_unpacked(x, packed))


def check_rounded(rows: int, size: int, form: Format, dtype: torch.dtype, device: str) -> None:
    """Codes and scales, the very same: numbers of all sizes, halves between codes, and a row of zeros."""
    x = torch.randn(rows, size, generator=draw(size, device), device=device)
    x = x * torch.logspace(-9, 0, size, device=device)
    x[0], x[-1, 0] = 0.0, 127.0
    x[-1, 1:] = torch.arange(size - 1, device=device) % 127 + 0.5
    for ours, theirs in zip(rounded(x.to(dtype), form), round_rows(x.to(dtype), form), strict=True):
        assert torch.equal(ours.float(), theirs.float())


def check_norm(shape: tuple[int, ...], weights: list[Tensor | None], onto: Tensor | None, dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=draw(0, "cpu")).to(dtype)
    where = next((w.device for w in weights if w is not None), x.device)
    x = x.to(where)
    for ours, theirs in zip(norm_kernel(x, weights, 1e-6, onto), norm_exact(x, weights, 1e-6, onto), strict=True):
        near(ours, theirs)


def check_head(case: tuple[int, int, int, int], dtype: torch.dtype, device: str, form: Format | None = None) -> None:
    vocab, hidden, rows, tile = case
    made = draw(vocab, device)
    table = (0.2 * torch.randn(vocab, hidden, generator=made, device=device)).to(dtype)
    head = Head(pack(table, form) if form else table, 30.0, dtype)
    states = torch.randn(rows, hidden, generator=made, device=device).to(dtype)
    temperature = 0.3 + torch.rand(rows, 1, generator=made, device=device)
    ours, theirs = pass_fused(states, head, temperature, tile), pass_tiles(states, head, temperature, tile)
    assert torch.equal(ours.argmax, theirs.argmax)
    for name in Sums.__dataclass_fields__:
        near(getattr(ours, name), getattr(theirs, name))
    uniform = torch.rand(rows, generator=made, device=device)
    drawn = [read_head(states, head, temperature, uniform, one) for one in (lambda *a: ours, lambda *a: theirs)]
    assert torch.equal(drawn[0].sample, drawn[1].sample)


def some_automaton(states: int, heavy: int, seed: int, vocab: int = 24, classes: int = 7) -> TokenAutomaton:
    """A random one: tokens 0 and 1 are the end's, `heavy` states lead to state 1 whatever comes."""
    made = np.random.default_rng(seed)
    class_of = np.concatenate([[classes, classes], made.integers(0, classes, vocab - 2)]).astype(np.int32)
    table = np.where(made.random((states, classes)) < 0.5, made.integers(0, states, (states, classes)), -1)
    table[2 : heavy + 2], table[:, 0] = 1, -1  # class 0 is of no language
    accepts = np.append(made.random(states) < 0.6, False)
    src, cls = np.nonzero(table >= 0)
    ends = np.append(np.flatnonzero(accepts), states)
    src, cls, dst = (
        np.concatenate(both)
        for both in ((src, ends), (cls, np.full(len(ends), classes)), (table[src, cls], np.full(len(ends), states)))
    )
    order = np.argsort(dst, kind="stable")
    return TokenAutomaton(class_of, *(part[order].astype(np.int32) for part in (src, cls, dst)), accepts)


def check_classes(vocab: int, wide: int, device: str) -> None:
    """Tiles of tokens, put together to classes, beside classes on the host."""
    layout = EdgeLayout(some_automaton(5, 0, vocab, vocab))
    log_p = torch.log_softmax(5 * torch.randn(6, vocab, generator=draw(vocab, "cpu")), -1)
    log_p[2, 30:35] = -torch.inf  # what is forbidden, and pins
    log_p[4, :9] = -1e9
    order, present, at = layout.tokens
    tiles, firsts = cut(order, at, torch.device(device), wide)
    largest, sums, likeliest = (one.cpu() for one in classes_kernel(log_p.to(device), tiles))
    assert torch.equal(log_p.gather(1, likeliest.long()).clamp(min=NONE), largest)
    assert np.isin(layout.automaton.class_of[likeliest], present).all()
    best, mass = by_class(layout, log_p)
    peak = np.maximum.reduceat(largest.numpy(), firsts, axis=1)
    every = np.repeat(peak, np.diff(np.append(firsts, largest.shape[1])), axis=1)
    total = np.log(np.add.reduceat(sums.numpy() * np.exp(largest.numpy() - every), firsts, axis=1)) + peak
    there = best[:, present] > NONE / 2
    assert np.array_equal(np.where(there, peak, NONE), best[:, present])
    assert np.allclose(np.where(there, total, NONE), mass[:, present], rtol=1e-6, atol=1e-5)


def check_walk(
    case: tuple[int, int, int, int, float, tuple[int, int] | None, int], seed: int, device: str, vocab: int = 24
) -> bool:
    """Messages on the device beside the careful ones of the host; whether anything was left of the language."""
    states, width, left, least, sharp, pin, heavy = case
    project = Projection(EdgeLayout(some_automaton(states, heavy, seed, vocab)), 0, left, least)
    log_p = torch.log_softmax(sharp * torch.randn(width, vocab, generator=draw(seed, "cpu"), dtype=torch.float64), -1)
    if pin is not None:
        log_p[pin[0]] = -1e9
        log_p[pin[0], pin[1]] = 0.0
    there = Weights(project.layout, log_p.to(device))
    try:
        slow = project.log_messages(log_p)
    except ConstraintError:
        with pytest.raises(ConstraintError, match="no valid answer is left"):
            device_messages(CONDITION, there, project.state, project.gates(width))
        return False
    fast = DeviceProjected(
        project, there, *device_messages(CONDITION, there, project.state, project.gates(width)), CONDITION.shift
    )
    assert fast.log_total == pytest.approx(slow.log_total, rel=1e-6, abs=1e-5)
    torch.testing.assert_close(fast.shifted().exp().cpu(), slow.shifted().exp(), atol=1e-5, rtol=1e-4)
    assert fast.doubt == pytest.approx(slow.doubt, rel=1e-5, abs=1e-4)
    for ours, theirs in ((fast.draft, slow.draft), (fast.finished(), slow.finished())):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:  # of equal ones it may be another
            scores = [float(log_p[torch.arange(width), one.cpu()].sum()) for one in (ours, theirs)]
            assert scores[0] == pytest.approx(scores[1], rel=1e-9, abs=1e-9)
    tokens = fast.draft.tolist()
    assert fast.log_mass(tokens) == pytest.approx(slow.log_mass(tokens), rel=1e-6, abs=1e-5)
    after = project.layout.automaton.after(0, fast.draw(torch.rand(width, generator=draw(seed, "cpu"))).tolist())
    assert project.allowed(width)[after]
    return True


def near(ours: Tensor, theirs: Tensor) -> None:
    """Equal up to another order of additions; in bfloat16 as a whole, since a rounding may fall either way."""
    if theirs.dtype == torch.float32:
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)
    else:
        assert ours.dtype == theirs.dtype
        off = float((ours.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=1e-30))
        assert off < 0.02, off
