"""The network against live transformers, on random small configs that nobody chose to suit us."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.helpers import FULL, ORACLE, SLIDING, new_prefix, oracle_model, soften, tiny_json, tiny_model, with_kernels
from torch import Tensor

from redraft.config import GenerationConfig, parse_model, read_config
from redraft.model import moe
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import FAST, REFERENCE, Kernels, attend_eager, norm_exact
from redraft.weights.load import load_model
from redraft.weights.save import save_model
from redraft.weights.source import Source

transformers = pytest.importorskip("transformers", minversion="5.23.0")
pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to fix

GROUPED = Kernels(norm_exact, attend_eager, moe.experts_grouped)
PROJECTION = "model.encoder.embed_vision.embedding_projection.weight"


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """The JSON of a small model in the released spelling; the other spelling is what `save_model` writes."""
    depth = draw(st.integers(1, 4))
    heads = draw(st.sampled_from([2, 4]))
    experts = draw(st.integers(1, 6))
    text = tiny_json(
        hidden_size=draw(st.sampled_from([16, 32, 48])),
        num_hidden_layers=depth,
        layer_types=[*draw(st.lists(st.sampled_from([SLIDING, FULL]), min_size=depth - 1, max_size=depth - 1)), FULL],
        num_attention_heads=heads,
        num_key_value_heads=draw(st.sampled_from([1, 2, heads])),
        num_global_key_value_heads=draw(st.sampled_from([1, 2, heads])),
        head_dim=draw(st.sampled_from([4, 8, 16])),
        global_head_dim=draw(st.sampled_from([8, 16, 32])),
        sliding_window=draw(st.integers(2, 14)),
        num_experts=experts,
        top_k_experts=draw(st.integers(1, experts)),
    )
    vision = json.loads((ORACLE / "ckpt" / "config.json").read_text())["vision_config"]
    return text | {"canvas_length": draw(st.integers(1, 8)), "vision_config": vision}


def vision_tensors(hidden: int) -> dict[str, Tensor]:
    """The oracle's vision tower, its projection cut to another width: transformers insists on having one."""
    source = Source(ORACLE / "ckpt")
    tensors = {name: source.read(name) for name in source.tensors if "vision" in name}
    return {name: tensor[:hidden] if name == PROJECTION else tensor for name, tensor in tensors.items()}


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


def reference(folder: Path, dtype: torch.dtype = torch.float32, experts: str = "eager") -> Any:
    """The checkpoint in transformers, every tensor found, none left over."""
    transformers.utils.logging.disable_progress_bar()
    model, info = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation=experts, output_loading_info=True
    )
    found = {key: info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    assert not found, found
    return model.eval()


@torch.no_grad()
def run_theirs(model: Any, prompt: Tensor, block: Tensor, canvas: Tensor, logits: Tensor) -> list[Tensor]:
    """Encode, first step, self-conditioned step, commit, first step of the next canvas."""
    cache = transformers.DynamicCache(config=model.config.text_config)
    encoder = model.model.encoder.language_model
    out = [encoder(input_ids=prompt[None], past_key_values=cache).last_hidden_state]
    out.append(model(past_key_values=cache, decoder_input_ids=canvas[None]).logits)
    conditioned = {"self_conditioning_logits": logits[None].to(model.dtype)}
    out.append(model(past_key_values=cache, decoder_input_ids=canvas[None], **conditioned).logits)
    out.append(encoder(input_ids=block[None], past_key_values=cache).last_hidden_state)
    out.append(model(past_key_values=cache, decoder_input_ids=canvas[None], **conditioned).logits)
    return [tensor[0] for tensor in out]


@torch.no_grad()
def run_ours(model: DiffusionGemma, prompt: Tensor, block: Tensor, canvas: Tensor, logits: Tensor) -> list[Tensor]:
    prefix = new_prefix(model)
    soft = soften(model, logits.to(model.dtype))
    out = [model.encode(prompt, prefix), model.denoise(canvas, None, prefix), model.denoise(canvas, soft, prefix)]
    return [*out, model.encode(block, prefix), model.denoise(canvas, soft, prefix)]


def inputs(vocab: int, prompt: int, canvas: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prompt, block, canvas, and logits for self-conditioning."""
    draw = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(0, vocab, (length,), generator=draw) for length in (prompt, canvas, canvas)]
    return tokens[0], tokens[1], tokens[2], 3 * torch.randn(canvas, vocab, generator=draw)


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(configs(), st.integers(1, 16), st.booleans(), st.integers(0, 2**16))
def test_any_small_model_equals_transformers(
    root: dict[str, Any], prompt: int, released_spelling: bool, seed: int
) -> None:
    """Windows below, at and above the prefix, shared and own key heads, one expert or many, both config spellings."""
    window = root["text_config"]["sliding_window"]
    event("prefix " + ("below" if prompt < window - 1 else "at" if prompt == window - 1 else "above") + " window - 1")
    given_inputs = inputs(root["text_config"]["vocab_size"], prompt, root["canvas_length"], seed)
    with checkpoint(root, seed, released_spelling) as (model, folder):
        wanted = run_theirs(reference(folder), *given_inputs)
        assert load_model(folder)[1].model == model.config
        for name, kernels in {"fast": FAST, "reference": REFERENCE}.items():
            got = run_ours(with_kernels(model, kernels), *given_inputs)
            for step, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
                worst, width = float((ours - theirs).abs().max()), float(theirs.max() - theirs.min())
                assert worst <= 2e-4 * width, f"{name}, tensor {step}: off by {worst:.2e} in a range of {width:.1f}"


@pytest.mark.parametrize(
    ("experts", "kernels"), [("eager", REFERENCE), ("grouped_mm", GROUPED)], ids=["eager", "grouped_mm"]
)
def test_bfloat16_is_bit_equal_on_this_processor(experts: str, kernels: Kernels) -> None:
    """The same roundings in the same places, whatever this processor's arithmetic is."""
    given_inputs = inputs(512, 13, 16, 0)
    wanted = run_theirs(reference(ORACLE / "ckpt", torch.bfloat16, experts), *given_inputs)
    got = run_ours(oracle_model(torch.bfloat16, kernels), *given_inputs)
    off = [float((ours.float() - theirs.float()).abs().max()) for ours, theirs in zip(got, wanted, strict=True)]
    assert off == [0.0] * 5
