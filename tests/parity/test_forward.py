"""The network against recorded activations of the reference (tests/oracle/README.md)."""

import hashlib
from collections.abc import Mapping

import pytest
import torch
from safetensors.torch import load_file
from tests.helpers import ORACLE, new_prefix, oracle_model, soften, stable_model
from torch import Tensor

from redraft.cache import Prefix
from redraft.config import ModelConfig
from redraft.model import moe
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import FAST, REFERENCE, Kernels, attend_eager, norm_exact
from redraft.model.rows import Mode, Span
from redraft.weights.names import slots

pytestmark = pytest.mark.typed

# The reference has two rules for summing experts (model spec 1.7); in bfloat16 they round differently.
GROUPED = Kernels(norm_exact, attend_eager, moe.experts_grouped)
KERNELS = {"fast": FAST, "reference": REFERENCE, "grouped": GROUPED}
BF16 = {"forward_bf16": GROUPED, "forward_bf16_eagermoe": REFERENCE}
TOLERANCE = 2e-4


def dump(name: str) -> dict[str, Tensor]:
    return load_file(ORACLE / f"{name}.safetensors")


@pytest.fixture(scope="module", params=KERNELS)
def model(request: pytest.FixtureRequest) -> DiffusionGemma:
    return oracle_model(kernels=KERNELS[request.param])


@pytest.fixture(scope="module")
def fp32() -> dict[str, Tensor]:
    return dump("forward_fp32")


def assert_close(got: Tensor, wanted: Tensor, what: str) -> None:
    assert got.shape == wanted.shape, f"{what}: shape {tuple(got.shape)}, reference {tuple(wanted.shape)}"
    worst = float((got.float() - wanted.float()).abs().max())
    assert worst <= TOLERANCE, f"{what}: max |difference| {worst:.2e}, allowed {TOLERANCE:.0e}"


def seen_by_a_canvas(prefix: Prefix, index: int) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer as the reference holds them: W-1 tokens on a sliding layer, else all."""
    layer = prefix.layers[index]
    first = 0 if layer.window is None else max(0, prefix.length - layer.window + 1)
    kept = slice(first - layer.origin, prefix.length - layer.origin)
    return layer.keys[:, kept], layer.values[:, kept]


def assert_cache_close(prefix: Prefix, wanted: Mapping[str, Tensor], tag: str) -> None:
    for index in range(len(prefix.layers)):
        keys, values = seen_by_a_canvas(prefix, index)
        assert_close(keys, wanted[f"{tag}.k{index}"][0], f"{tag}, keys of layer {index}")
        assert_close(values, wanted[f"{tag}.v{index}"][0], f"{tag}, values of layer {index}")


def run_b1(model: DiffusionGemma, given: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Prefix]]:
    """Prompt, a canvas without and with self-conditioning, a commit, the next canvas."""
    out: dict[str, Tensor] = {}
    prefix = new_prefix(model)
    soft = soften(model, given["in.sc1"][0].to(model.dtype))
    out["b1.enc.last_hidden"] = model.encode(given["in.prompt1"][0], prefix)
    out["b1.dec.nosc.logits"] = model.denoise(given["in.canvas1"][0], None, prefix)
    out["b1.dec.sc.logits"] = model.denoise(given["in.canvas1"][0], soft, prefix)
    short = new_prefix(model)
    model.encode(given["in.prompt1"][0], short)
    out["b1.commit.last_hidden"] = model.encode(given["in.block1"][0], prefix)
    out["b1.dec2.sc.logits"] = model.denoise(given["in.canvas1"][0], soft, prefix)
    return out, {"b1.kv": short, "b1.kv_after_commit": prefix}


def test_one_sequence_equals_the_reference(model: DiffusionGemma, fp32: dict[str, Tensor]) -> None:
    out, prefixes = run_b1(model, fp32)
    for name, tensor in out.items():
        assert_close(tensor, fp32[name][0], name)
    for tag, prefix in prefixes.items():
        assert_cache_close(prefix, fp32, tag)


@pytest.mark.parametrize("row", [0, 1])
def test_a_left_padded_row_equals_the_same_row_alone(model: DiffusionGemma, fp32: dict[str, Tensor], row: int) -> None:
    """The reference counts pads in the position ids; ours has no pads, only a first position."""
    pads = int((fp32["in.mask2"][row] == 0).sum())
    tokens, canvas = fp32["in.prompt2"][row, pads:], fp32["in.canvas2"][row]
    prefix = new_prefix(model)
    rows = model.rows([Span(prefix, len(tokens), Mode.ENCODE, pads)])
    hidden = model.forward(tokens, None, rows)
    rows.commit()
    assert_close(hidden, fp32["b2.enc.last_hidden"][row, pads:], "encoded")
    for index in range(len(prefix.layers)):
        keys, values = seen_by_a_canvas(prefix, index)
        # On a sliding layer the reference's buffer may still hold pads in front, which nobody sees.
        assert_close(keys, fp32[f"b2.kv.k{index}"][row, :, -keys.shape[1] :], f"keys of layer {index}")
        assert_close(values, fp32[f"b2.kv.v{index}"][row, :, -keys.shape[1] :], f"values of layer {index}")
    rows = model.rows([Span(prefix, len(canvas), Mode.DENOISE, pads + len(tokens))])
    first = model.logits(model.forward(canvas, None, rows))
    assert_close(first, fp32["b2.dec.nosc.logits"][row], "first step")
    again = model.logits(model.forward(canvas, soften(model, fp32["in.sc2"][row]), rows))
    assert_close(again, fp32["b2.dec.sc.logits"][row], "self-conditioned")


@pytest.mark.parametrize("name", BF16)
def test_bfloat16_agrees_on_any_processor(name: str, fp32: dict[str, Tensor]) -> None:
    """Bits depend on the processor's bfloat16 instructions; what must not: most likely tokens, and no drift."""
    wanted = dump(name)
    out, _ = run_b1(oracle_model(torch.bfloat16, BF16[name]), fp32)
    for key in ("b1.dec.nosc.logits", "b1.dec.sc.logits", "b1.dec2.sc.logits"):
        off = (out[key] - wanted[key][0]).abs()
        assert float(off.mean()) < 0.1, f"{key}: mean |difference| {float(off.mean()):.3f}"
        agree = (out[key].argmax(-1) == wanted[key][0].argmax(-1)).float().mean()
        assert float(agree) >= 0.9, f"{key}: {float(agree):.0%} of the most likely tokens agree"


def test_the_stable_checkpoint_is_made_right() -> None:
    """Its recipe is stored instead of the checkpoint; the digest is of the text tensors of the reference's own file."""
    model = stable_model()
    assert stored_digest(model, model.config) == "9be7468d05f4d1cfe162664ce7bf3ef42c0fa706b036e0fd1d8b04a7c472dcf6"


def stored_digest(model: DiffusionGemma, config: ModelConfig) -> str:
    """SHA-256 over stored names and float32 bytes, in the order of the names."""
    ours, digest = model.state_dict(), hashlib.sha256()
    for slot in sorted(slots(config), key=lambda slot: slot.stored):
        digest.update(slot.stored.encode())
        digest.update(ours[slot.target][slot.rows].contiguous().numpy().tobytes())
    return digest.hexdigest()
