"""The network against live transformers, on random small configs that nobody chose to suit us."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import (
    FULL,
    ORACLE,
    SLIDING,
    new_prefix,
    oracle_model,
    reference,
    soften,
    tiny_json,
    tiny_model,
    vision_tensors,
    with_kernels,
)
from torch import Tensor

from redraft.config import GenerationConfig, parse_model, read_config
from redraft.model import moe
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import FAST, REFERENCE, Kernels, attend_eager, norm_exact
from redraft.model.packed import unpack
from redraft.model.rows import Mode, Span
from redraft.weights.load import load_model
from redraft.weights.names import slots
from redraft.weights.plan import PLANS, packed_matrices, plain_tensors
from redraft.weights.save import save_model

transformers = pytest.importorskip("transformers", minversion="5.23.0")
pytestmark = [pytest.mark.typed, pytest.mark.filterwarnings("default")]  # their warnings are not ours to fix

WIDE = {
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "moe_intermediate_size": 704,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_experts": 6,
    "top_k_experts": 4,
    "vocab_size": 8192,
}
GROUPED = Kernels(norm_exact, attend_eager, moe.experts_grouped)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """The JSON of a small model in the released spelling; the other spelling is what `save_model` writes.

    One layer slides at least, or a window would mean nothing.
    """
    kinds = [SLIDING, *draw(st.lists(st.sampled_from([SLIDING, FULL]), max_size=2))]
    heads = draw(st.sampled_from([2, 4]))
    experts = draw(st.integers(1, 6))
    text = tiny_json(
        hidden_size=draw(st.sampled_from([16, 32, 48])),
        num_hidden_layers=len(kinds) + 1,
        layer_types=[*draw(st.permutations(kinds)), FULL],
        num_attention_heads=heads,
        num_key_value_heads=draw(st.sampled_from([1, 2, heads])),
        num_global_key_value_heads=draw(st.sampled_from([1, 2, heads])),
        head_dim=draw(st.sampled_from([4, 8, 16])),
        global_head_dim=draw(st.sampled_from([8, 16, 32])),
        sliding_window=draw(st.integers(3, 14)),
        num_experts=experts,
        top_k_experts=draw(st.integers(1, experts)),
    )
    vision = json.loads((ORACLE / "ckpt" / "config.json").read_text())["vision_config"]
    return text | {"canvas_length": draw(st.integers(1, 8)), "vision_config": vision}


@contextmanager
def checkpoint(root: dict[str, Any], seed: int, released_spelling: bool) -> Iterator[tuple[DiffusionGemma, Path]]:
    """A random model of that config, and the folder it was saved in."""
    config, _ = parse_model(root)
    model = tiny_model(config, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vision = vision_tensors(config.hidden_size)
        save_model(
            model, folder, generation=GenerationConfig(eos_token_ids=(1,)), vision=vision, max_shard_bytes=50_000
        )
        assert read_config(folder).model == config
        if released_spelling:
            architectures = {"architectures": ["DiffusionGemmaForBlockDiffusion"], "dtype": "float32"}
            (folder / "config.json").write_text(json.dumps(root | architectures))
        yield model, folder


@torch.no_grad()
def run_theirs(
    model: Any, prompt: Tensor, block: Tensor, canvas: Tensor, logits: Tensor, pads: int = 0
) -> list[Tensor]:
    """Encode, first step, self-conditioned step, commit, first step of the next canvas.

    With `pads` the prompt is the second row of a batch, so many padding tokens before it; the first row has none.
    """
    rows = 2 if pads else 1
    padded = torch.cat([prompt.new_zeros(pads), prompt])
    prompts = torch.stack([(padded + 1) % 64, padded])[-rows:]
    mask = torch.ones(rows, len(padded) + 2 * len(canvas), dtype=torch.long)
    mask[-1, :pads] = 0
    cache = transformers.DynamicCache(config=model.config.text_config)

    def encode(ids: Tensor, length: int) -> Tensor:
        seen = {"attention_mask": mask[:, :length]} if pads else {}
        out = model.model.encoder.language_model(input_ids=ids, past_key_values=cache, **seen)
        return out.last_hidden_state[-1]

    def denoise(length: int, **conditioned: Tensor) -> Tensor:
        seen = {"decoder_attention_mask": mask[:, : length + len(canvas)]} if pads else {}
        ids = canvas.expand(rows, -1)
        return model(past_key_values=cache, decoder_input_ids=ids, **seen, **conditioned).logits[-1]

    conditioned = {"self_conditioning_logits": logits.expand(rows, -1, -1).to(model.dtype)}
    behind = len(padded) + len(block)
    out = [encode(prompts, len(padded))[pads:], denoise(len(padded)), denoise(len(padded), **conditioned)]
    return [*out, encode(block.expand(rows, -1), behind), denoise(behind, **conditioned)]


@torch.no_grad()
def run_ours(
    model: DiffusionGemma, prompt: Tensor, block: Tensor, canvas: Tensor, logits: Tensor, pads: int = 0
) -> list[Tensor]:
    """The same; padding is nothing but a shift of the position ids."""
    prefix = new_prefix(model)

    def run(tokens: Tensor, mode: Mode, soft: Tensor | None = None) -> Tensor:
        rows = model.rows([Span(prefix, len(tokens), mode, prefix.length + pads)])
        hidden = model(tokens, soft, rows)
        rows.commit()
        return hidden if mode is Mode.ENCODE else model.logits(hidden)

    soft = soften(model, logits.to(model.dtype))
    out = [run(prompt, Mode.ENCODE), run(canvas, Mode.DENOISE), run(canvas, Mode.DENOISE, soft)]
    return [*out, run(block, Mode.ENCODE), run(canvas, Mode.DENOISE, soft)]


def inputs(vocab: int, prompt: int, canvas: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prompt, block, canvas, and logits for self-conditioning."""
    draw = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(0, vocab, (length,), generator=draw) for length in (prompt, canvas, canvas)]
    return tokens[0], tokens[1], tokens[2], 3 * torch.randn(canvas, vocab, generator=draw)


@pytest.mark.parametrize("padded", [False, True], ids=["alone", "padded"])
@pytest.mark.parametrize("where", ["below", "at", "above"])
@settings(max_examples=3, deadline=None, derandomize=True, database=None)
@given(configs(), st.integers(1, 6), st.booleans(), st.integers(0, 2**16))
def test_any_small_model_equals_transformers(
    where: str, padded: bool, root: dict[str, Any], by: int, released_spelling: bool, seed: int
) -> None:
    """Prefixes below, at and above what a window sees of them, alone and left-padded, shared and own key heads, one
    expert or many, both config spellings. Off by at most 2e-5 of the range of the reference's numbers,
    several times what is seen: the order of sums differs from processor to processor."""
    assert SLIDING in root["text_config"]["layer_types"]
    seen = root["text_config"]["sliding_window"] - 1
    prompt = {"below": max(1, seen - by), "at": seen, "above": seen + by}[where]
    assert (prompt > seen) - (prompt < seen) == {"below": -1, "at": 0, "above": 1}[where]
    pads = by if padded else 0
    given_inputs = (*inputs(root["text_config"]["vocab_size"], prompt, root["canvas_length"], seed), pads)
    with checkpoint(root, seed, released_spelling) as (model, folder):
        wanted = run_theirs(reference(folder), *given_inputs)
        assert load_model(folder)[1].model == model.config
        for name, kernels in {"fast": FAST, "reference": REFERENCE}.items():
            got = run_ours(with_kernels(model, kernels), *given_inputs)
            for step, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
                worst, width = float((ours - theirs).abs().max()), float(theirs.max() - theirs.min())
                assert worst <= 2e-5 * width, f"{name}, tensor {step}: off by {worst:.2e} in a range of {width:.1f}"


@pytest.mark.parametrize(
    ("experts", "kernels"), [("eager", REFERENCE), ("grouped_mm", GROUPED)], ids=["eager", "grouped_mm"]
)
def test_bfloat16_equals_transformers_on_this_processor(experts: str, kernels: Kernels) -> None:
    """The same roundings in the same places. A router's choice that flips at a border moves a few rows by more than
    bfloat16's precision, so the mean is what is held to it."""
    given_inputs = inputs(512, 13, 16, 0)
    wanted = run_theirs(reference(ORACLE / "ckpt", torch.bfloat16, experts), *given_inputs)
    got = run_ours(oracle_model(torch.bfloat16, kernels), *given_inputs)
    for ours, theirs in zip(got, wanted, strict=True):
        off, spread = (ours.float() - theirs.float()).abs().mean(), theirs.float().std()
        assert off <= torch.finfo(torch.bfloat16).eps * spread


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sliding layer, a full one and a head of the released widths; fewer experts and tokens."""
    folder = tmp_path_factory.mktemp("wide")
    vision = json.loads((ORACLE / "ckpt" / "config.json").read_text())["vision_config"]
    root = tiny_json(**WIDE) | {"canvas_length": 16, "vision_config": vision}
    tower = {name: tensor for name, tensor in vision_tensors(1).items() if "embedding_projection" not in name}
    tower["model.encoder.embed_vision.embedding_projection.weight"] = torch.zeros(2816, vision["hidden_size"])
    save_model(tiny_model(parse_model(root)[0]), folder, generation=GenerationConfig(eos_token_ids=(1,)), vision=tower)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("plan", [None, *PLANS])
def test_the_released_widths_equal_transformers_in_every_format(wide: Path, plan: str | None) -> None:
    """transformers has the numbers of our codes. It does not round the rows of a product to 8 bits, so ours are not
    rounded here; `test_packed.py` and `test_linear.py` have that rounding. Sums are of 2,816 to 8,192 numbers, so they
    differ by more than those of small models: by 3e-5 of the range where this was written."""
    theirs, (ours, config) = reference(wide), load_model(wide, plan=PLANS[plan] if plan else None)
    packed, plain, there = packed_matrices(ours), plain_tensors(ours), theirs.state_dict()
    assert bool(packed) == (plan is not None)
    with torch.no_grad():
        for slot in slots(config.model):
            own = unpack(packed[slot.target].packed) if slot.target in packed else plain[slot.target]
            there[slot.stored].copy_(own[slot.rows])
    for matrix in packed.values():
        if matrix.format.round_rows:
            matrix.format = replace(matrix.format, name="not rounded", round_rows=False)
    given_inputs = inputs(8192, 20, 16, 0)
    wanted, got = run_theirs(theirs, *given_inputs), run_ours(ours, *given_inputs)
    for step, (one, other) in enumerate(zip(got, wanted, strict=True)):
        worst, width = float((one - other).abs().max()), float(other.max() - other.min())
        assert worst <= 1e-4 * width, f"tensor {step}: off by {worst:.2e} in a range of {width:.1f}"
