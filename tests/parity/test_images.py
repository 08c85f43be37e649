"""Images against live transformers: soft tokens of random small towers, and the text model under both rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.helpers import CLOSE, FULL, SLIDING, new_prefix, reference
from tests.pictures import (
    PLACEHOLDER,
    asking,
    drawn,
    image_config,
    image_json,
    own_tower,
    pictures,
    vision_json,
    write_model,
    write_whole,
)
from torch import Tensor

import redraft
import vision_tower
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.seed import seeded
from redraft.engine.request import Options, Request, ResolvedRequest
from redraft.images.config import ImageConfig
from redraft.images.pixels import Picture
from redraft.images.prompt import Run, next_cut, place_images
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import FAST, REFERENCE
from redraft.model.rows import Mode, SoftTokens, Span
from redraft.model.vision import VisionTower
from redraft.operations.engine import Engine
from redraft.weights.load import load_model
from redraft.weights.vision import load_vision, stored_tensors

transformers = pytest.importorskip("transformers", minversion="5.23.0")
pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to fix

TOWER = "model.encoder.vision_tower."


def soft_tokens(tower: VisionTower, shown: list[Picture]) -> list[Tensor]:
    with torch.no_grad():
        return [tower(torch.from_numpy(one.patches()), one.columns) for one in shown]


def padded(shown: list[Picture]) -> dict[str, Tensor]:
    """As the reference's processor hands images over: one batch, filled with zeros at position (-1, -1)."""
    most = shown[0].config.most_tokens * shown[0].config.vision.pooling ** 2
    pixels = torch.zeros(len(shown), most, shown[0].config.vision.patch_values)
    places = torch.full((len(shown), most, 2), -1)
    for i, one in enumerate(shown):
        pixels[i, : one.num_patches] = torch.from_numpy(one.patches())
        places[i, : one.num_patches] = torch.from_numpy(one.positions())
    return {"pixel_values": pixels, "image_position_ids": places}


def their_tower(vision: dict[str, Any], tower: VisionTower) -> Any:
    """Gemma 4's vision model with our numbers under their stored names, every one of them used."""
    model = transformers.Gemma4VisionModel(transformers.Gemma4VisionConfig(**vision, attn_implementation="eager"))
    named = {name.removeprefix(TOWER): t for name, t in stored_tensors(tower).items() if name.startswith(TOWER)}
    model.load_state_dict(named, strict=True)
    return model.to(tower.dtype).eval()


GENERATE = (Phase.explicit, Phase.generate)  # shrinking takes minutes and finds nothing simpler than a tiny model
SIZES = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=3)


@st.composite
def towers(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.sampled_from([1, 2, 4]))
    return vision_json(
        hidden_size=draw(st.sampled_from([8, 24, 32])),
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=heads,
        num_key_value_heads=draw(st.sampled_from([1, heads])),
        head_dim=draw(st.sampled_from([4, 8, 12])),
        patch_size=draw(st.sampled_from([2, 4])),
        pooling_kernel_size=draw(st.integers(2, 3)),  # with 1 the reference returns its padding
        use_clipped_linears=draw(st.booleans()),
        standardize=draw(st.booleans()),
        rope_parameters={"rope_type": "axial", "rope_theta": draw(st.sampled_from([10.0, 100.0]))},
    )


@settings(max_examples=25, deadline=None, phases=GENERATE)
@given(towers(), SIZES, st.integers(0, 2**16))
def test_soft_tokens_of_any_small_tower_equal_transformers(
    vision: dict[str, Any], sizes: list[tuple[int, int]], seed: int
) -> None:
    """One image at a time and unpadded here, all at once and padded there."""
    model, config = image_config(image_json(vision))
    shown = pictures(sizes, config)
    wanted: list[Tensor] = []
    for kernels in (FAST, REFERENCE):
        tower = own_tower(config.vision, model.hidden_size, seed, kernels)
        if not wanted:
            inputs = padded(shown)
            with torch.no_grad():
                out = their_tower(vision, tower)(inputs["pixel_values"], inputs["image_position_ids"])
                unit = torch.nn.functional.rms_norm(out.last_hidden_state, out.last_hidden_state.shape[-1:], eps=1e-6)
                wanted = list((unit @ tower.projection.weight.T).split([one.num_tokens for one in shown]))
        for got, theirs in zip(soft_tokens(tower, shown), wanted, strict=True):
            assert float((got - theirs).abs().max()) <= CLOSE * (1 + float(theirs.max() - theirs.min()))


def test_bfloat16_soft_tokens_are_near_bit_equal() -> None:
    """The same roundings in the same places; a mean is summed in another order, which moves few last bits."""
    vision = vision_json()
    model, config = image_config(image_json(vision))
    shown = pictures([(60, 40)], config)
    tower = own_tower(config.vision, model.hidden_size, 5, REFERENCE).to(torch.bfloat16)
    inputs = padded(shown)
    with torch.no_grad():
        out = their_tower(vision, tower)(inputs["pixel_values"], inputs["image_position_ids"]).last_hidden_state
        unit = torch.nn.functional.rms_norm(out.float(), out.shape[-1:], eps=1e-6).to(out.dtype)
        theirs = unit @ tower.projection.weight.T
    (got,) = soft_tokens(tower, shown)
    assert got.dtype == theirs.dtype == torch.bfloat16
    assert float((got - theirs).float().abs().max()) <= 2**-5 * float(theirs.float().abs().max())


@pytest.mark.slow
def test_the_released_towers_shape_equals_transformers() -> None:
    """27 layers of the real width with random numbers; the record has a picture of 280 tokens."""
    ours, theirs, _ = vision_tower.soft_tokens(12)
    assert ours.shape == theirs.shape == (8, 2816)
    assert float((ours - theirs).abs().max()) <= 2e-4


# -- the text model ----------------------------------------------------------------------------------------------------


def checkpoint(folder: Path, root: dict[str, Any], seed: int) -> tuple[DiffusionGemma, VisionTower, ImageConfig]:
    """A random model with a tower, saved in a folder; the tower is the one that is loaded from there."""
    model, images = write_model(folder, root, seed)
    return model, load_vision(folder), images


def prompt_of(order: list[int], shown: list[Picture], config: ImageConfig, seed: int) -> tuple[list[int], list[Run]]:
    """Pieces of random text, as long as `order` says, with an image between each two."""
    draw = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    for i, length in enumerate(order):
        tokens += ([config.placeholder] if i else []) + torch.randint(0, 58, (length,), generator=draw).tolist()
    placed, runs = place_images(tokens, [one.num_tokens for one in shown], config)
    return placed, list(runs)


@torch.no_grad()
def run_ours(
    model: DiffusionGemma, tokens: list[int], runs: list[Run], soft: list[Tensor], canvas: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Hidden states of the prompt, encoded in chunks that cut no image, and logits of the canvas behind it."""
    prefix, start, hidden = new_prefix(model), 0, []
    while start < len(tokens):
        end = min(len(tokens), next_cut(start, start + chunk, runs))
        inside = [(run, one) for run, one in zip(runs, soft, strict=True) if start <= run.start < end]
        images = tuple(SoftTokens(run.start - start, one) for run, one in inside)
        rows = model.rows([Span(prefix, end - start, Mode.ENCODE, images=images)])
        hidden.append(model(torch.tensor(tokens[start:end]), None, rows))
        rows.commit()
        start = end
    return torch.cat(hidden), model.denoise(canvas, None, prefix)


@torch.no_grad()
def run_theirs(
    model: Any, tokens: list[int], shown: list[Picture], canvas: Tensor, placeholder: int = PLACEHOLDER
) -> tuple[Tensor, Tensor]:
    """As `generate` does it: masks first, then the encoder with the pixels, then the decoder on the cache."""
    ids = torch.tensor([tokens])
    cache = transformers.DynamicCache(config=model.config.text_config)
    masks = model.model.encoder.create_masks_for_generate(
        config=model.config.text_config,
        inputs_embeds=model.get_input_embeddings()(ids),
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        position_ids=torch.arange(len(tokens))[None],
        mm_token_type_ids=(ids == placeholder).int(),
    )
    out = model.model.encoder(input_ids=ids, attention_mask=masks, past_key_values=cache, **padded(shown))
    logits = model(past_key_values=cache, decoder_input_ids=canvas[None]).logits
    return out.last_hidden_state[0], logits[0]


@torch.no_grad()
def run_gemma4(
    folder: Path, model: DiffusionGemma, tokens: list[int], shown: list[Picture], placeholder: int = PLACEHOLDER
) -> tuple[Tensor, Tensor]:
    """Hidden states and next-token logits of Gemma 4, the causal model of the same shape, with the same numbers."""
    theirs = reference(folder)
    keys = theirs.config.text_config.to_dict()
    keys = {key: value for key, value in keys.items() if key not in ("model_type", "architectures")}
    text = transformers.Gemma4TextConfig(
        **keys, enable_moe_block=True, attention_k_eq_v=True, hidden_size_per_layer_input=0
    )
    config = transformers.Gemma4Config(
        text_config=text, vision_config=theirs.config.vision_config, image_token_id=placeholder, audio_config=None
    )
    config._attn_implementation = "eager"
    gemma = transformers.Gemma4ForConditionalGeneration(config)
    encoder = theirs.model.encoder.state_dict()
    missing = gemma.model.load_state_dict(encoder, strict=False)
    assert not missing.unexpected_keys, missing
    assert not missing.missing_keys, missing
    gemma.eval().set_attn_implementation("eager")
    ids = torch.tensor([tokens])
    out = gemma(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == placeholder).int(),
        output_hidden_states=True,
        **padded(shown),
    )
    return out.hidden_states[-1][0], out.logits[0]


def check_near(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    """Within 2e-4, or 2e-5 of the range of the reference's numbers where that is more: float32, summed otherwise."""
    for ours, theirs in zip(got, wanted, strict=True):
        width = float(theirs.max() - theirs.min())
        assert float((ours - theirs).abs().max()) <= max(2e-4, 2e-5 * width)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """Lengths of the pieces of text and sizes of the images between them; the last piece may be empty."""
    sizes = draw(SIZES)
    inner = draw(st.lists(st.integers(0, 9), min_size=len(sizes) - 1, max_size=len(sizes) - 1))
    return [draw(st.integers(1, 14)), *inner, draw(st.integers(0, 12))], sizes


@st.composite
def checkpoints(draw: st.DrawFn) -> dict[str, Any]:
    """A window narrower and wider than an image's 12 tokens, and layers of both kinds."""
    kinds = draw(st.sampled_from([[SLIDING], [FULL, SLIDING], [SLIDING, FULL]]))
    vision = vision_json(use_clipped_linears=draw(st.booleans()), standardize=draw(st.booleans()))
    window = draw(st.sampled_from([3, 8, 20]))
    return image_json(vision, layer_types=[*kinds, FULL], num_hidden_layers=len(kinds) + 1, sliding_window=window)


@pytest.mark.parametrize("like_gemma4", [False, True], ids=["DiffusionGemma", "Gemma 4"])
@settings(max_examples=6, deadline=None, phases=GENERATE)
@given(checkpoints(), prompts(), st.integers(4, 40), st.integers(0, 2**16))
def test_prompts_with_images_equal_transformers(
    tmp_path_factory: pytest.TempPathFactory,
    like_gemma4: bool,
    root: dict[str, Any],
    prompt: tuple[list[int], list[tuple[int, int]]],
    chunk: int,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("model")
    model, tower, config = checkpoint(folder, root, seed)
    shown = pictures(prompt[1], config)
    tokens, runs = prompt_of(prompt[0], shown, config, seed)
    canvas = torch.randint(0, 58, (6,), generator=torch.Generator().manual_seed(seed))
    if like_gemma4:
        wanted = run_gemma4(folder, model, tokens, shown)
        model, _ = load_model(folder, image_attention="gemma4")
        hidden, _ = run_ours(model, tokens, runs, soft_tokens(tower, shown), canvas, chunk)
        got: tuple[Tensor, ...] = hidden, model.logits(hidden)
    else:
        wanted = run_theirs(reference(folder), tokens, shown, canvas)
        got = run_ours(model, tokens, runs, soft_tokens(tower, shown), canvas, chunk)
    check_near(got, wanted)


# -- the engine --------------------------------------------------------------------------------------------------------


def engine_logits(engine: Engine, request: ResolvedRequest, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Logits of the first step that the engine's loop takes for a request, among others."""
    seen: list[Tensor] = []
    found = engine.model.logits

    def logits(hidden: Tensor) -> Tensor:
        seen.append(found(hidden).clone())
        return seen[-1]

    monkeypatch.setattr(engine.model, "logits", logits)
    engine.run(request)
    return seen[0]


@pytest.mark.parametrize("rule", ["reference", "gemma4"])
def test_what_the_engine_reads_of_messages_equals_transformers(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From messages to the first step: template, placeholders, tower, chunks cut beside an image, canvas."""
    folder = write_whole(tmp_path, seed=3)
    engine = redraft.load(folder, device="cpu", dtype="float32", image_attention=rule)
    shown = [drawn(48, 36, 1), drawn(10, 80, 2), drawn(60, 40, 3)]
    messages = asking("look:" * 49, shown[0], "and " * 30, shown[1], shown[2], "what?")
    causal = rule == "gemma4"  # a causal model alone follows that rule in transformers
    options = Options(seed=5, max_tokens=1, steps=1, logprobs=0, causal=causal)
    request = engine.resolve(Request(messages, options))
    assert any(image.run.start < 256 < image.run.stop for image in request.images)
    got = engine_logits(engine, request, monkeypatch)
    tokens, placed = list(request.prompt), [image.picture for image in request.images]
    ids = (placed[0].config.placeholder, placed[0].config.begin)
    if causal:
        wanted = run_gemma4(folder, engine.model, tokens, placed, ids[0])[1][-1:]
    else:
        canvas = seeded(SeededNoise(5), request.width, request.vocab, None).tokens
        wanted = run_theirs(reference(folder), tokens, placed, canvas, ids[0])[1]
    check_near((got,), (wanted,))
