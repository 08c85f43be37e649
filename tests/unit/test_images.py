"""What a checkpoint says of images, where they stand in a prompt, and what their rows see."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import ORACLE, new_prefix, released_json, tiny_config, tiny_model

from redraft.config import parse_model
from redraft.errors import ConfigError, RequestError
from redraft.images.config import TINY_VISION, ImageConfig, VisionConfig, parse_images, read_images
from redraft.images.messages import frames
from redraft.images.prompt import Run, cached_names, next_cut, place_images
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import Causal
from redraft.model.rows import Mode, SoftTokens, Span
from redraft.weights.load import load_model

RELEASED = {
    "model_type": "gemma4_vision",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 72,
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "position_embedding_size": 10240,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "standardize": True,
}
IDS = {"boi_token_id": 255999, "image_token_id": 258880, "eoi_token_id": 258882}
SHAPE = VisionConfig(1152, 4304, 27, 16, 16, 72, standardize=True)
CONFIG = ImageConfig(SHAPE, begin=7, placeholder=8, end=9)


def read(vision: dict[str, Any] | None, processor: dict[str, Any] | None = None, **root: Any) -> ImageConfig | None:
    found = released_json() | IDS | root | ({} if vision is None else {"vision_config": vision})
    return parse_images(parse_model(found)[0], processor or {})


def test_the_released_config_is_read() -> None:
    assert read(RELEASED) == ImageConfig(SHAPE, 255999, 258880, 258882, 280)
    assert SHAPE.patch_values == 768
    assert SHAPE.token_side == 48


def test_a_text_model_has_no_images() -> None:
    """Neither without a section, nor with the tower that only fills the format; a file of numbers has one."""
    assert read(None) is None
    assert read(TINY_VISION) is None
    oracle, _ = parse_model(json.loads((ORACLE / "ckpt" / "config.json").read_text()))
    found = parse_images(oracle, {})
    assert found is not None
    assert (found.begin, found.placeholder, found.end) == (510, 511, 509)


def test_the_size_comes_from_the_processor_then_the_config() -> None:
    sizes = [
        read(RELEASED),
        read(RELEASED, vision_soft_tokens_per_image=140),
        read(RELEASED, {"max_soft_tokens": 560}, vision_soft_tokens_per_image=140),
    ]
    assert [one.most_tokens for one in sizes if one] == [280, 140, 560]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("processor_config.json", {"image_processor": {"max_soft_tokens": 70}, "image_seq_length": 280}),
        ("preprocessor_config.json", {"max_soft_tokens": 70, "do_resize": True, "resample": 3}),
    ],
)
def test_both_processor_files_are_read(name: str, content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    found = read_images(tmp_path, parse_model(released_json() | IDS | {"vision_config": RELEASED})[0])
    assert found is not None
    assert found.most_tokens == 70


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "siglip"}, r"vision_config\.model_type is 'siglip'; supported: 'gemma4_vision'"),
        ({"head_dim": 70}, r"head_dim is 70; it must be a multiple of 4"),
        ({"num_key_value_heads": 5}, r"num_key_value_heads is 5; it must divide 16"),
        ({"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"standardize": "yes"}, "standardize is 'yes'; it must be true or false"),
        ({"patch_size": 0}, "patch_size is 0"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters\.rope_type is 'yarn'"),
    ],
)
def test_a_tower_that_is_not_supported_is_refused_by_key(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(RELEASED | change)


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        ({"max_soft_tokens": 0}, r"image_processor\.max_soft_tokens is 0"),
        ({"patch_size": 14}, r"image_processor\.patch_size is 14; supported: 16"),
        ({"do_normalize": True}, "do_normalize is True"),
        ({"resample": 2}, "resample is 2"),
        ({"rescale_factor": 0.5}, "rescale_factor is 0.5; supported: 1/255"),
    ],
)
def test_a_processor_that_does_something_else_is_refused(processor: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(RELEASED, processor)


def test_ids_are_of_the_vocabulary_and_apart() -> None:
    with pytest.raises(
        ConfigError, match=r"image_token_id is 262144; it must be in the vocabulary, below .* \(262144\)"
    ):
        read(RELEASED, image_token_id=262144)
    with pytest.raises(ConfigError, match="they must differ"):
        read(RELEASED, eoi_token_id=255999)


def test_keys_that_nobody_knows_are_named() -> None:
    found = read(RELEASED | {"use_magic": True, "dtype": "bfloat16"})
    assert found is not None
    assert found.unknown_keys == ("vision_config.use_magic",)


# -- in a prompt -------------------------------------------------------------------------------------------------------


def test_an_image_stands_between_its_marks() -> None:
    assert place_images([1, 8, 2, 3, 8], [2, 3], CONFIG) == (
        [1, 7, 8, 8, 9, 2, 3, 7, 8, 8, 8, 9],
        (Run(2, 4), Run(8, 11)),
    )
    assert place_images([1, 2], [], CONFIG) == ([1, 2], ())


@pytest.mark.parametrize("lengths", [[], [1], [1, 1, 1]])
def test_places_and_images_are_as_many(lengths: list[int]) -> None:
    with pytest.raises(RequestError, match=rf"has 2 places for images and {len(lengths)} images were given"):
        place_images([8, 1, 8], lengths, CONFIG)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=5), st.integers(0, 20), st.integers(1, 25))
def test_chunks_cut_no_image_and_grow_only_for_one(pieces: list[tuple[int, int]], tail: int, size: int) -> None:
    tokens = [token for length, _ in pieces for token in [*[1] * length, 8]] + [1] * tail
    placed, runs = place_images(tokens, [length for _, length in pieces], CONFIG)
    start, ends = 0, []
    while start < len(placed):
        end = min(len(placed), next_cut(start, start + size, runs))
        assert end > start
        assert not any(run.start < end < run.stop for run in runs)
        assert end - start <= size or Run(start, end) in runs
        # A prompt that goes on otherwise behind this cut is cut alike up to here.
        assert end == min(len(placed), next_cut(start, start + size, [run for run in runs if run.start < start + size]))
        ends.append(start := end)
    assert not placed or ends[-1] == len(placed)


def test_names_of_cached_tokens_carry_the_pixels() -> None:
    placed, runs = place_images([1, 8, 2], [2], CONFIG)
    one, other = (cached_names(placed, runs, [digest]) for digest in (b"\x01\x02", b"\x01\x03"))
    assert one == [1, 7, "0102.0", "0102.1", 9, 2]
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, True, False, False, True, True]


# -- in a forward ------------------------------------------------------------------------------------------------------


def seen(window: int | None, images: tuple[tuple[int, int], ...], windowed: bool) -> list[str]:
    """Rows by keys: five rows behind two keys of the prefix."""
    mask = Causal(5, 7, window, torch.device("cpu"), images, windowed).mask
    return ["".join("x" if one else "." for one in row) for row in mask.tolist()]


def test_masks_of_both_rules_are_these() -> None:
    image = ((1, 4),)
    assert seen(None, (), False) == ["xxx....", "xxxx...", "xxxxx..", "xxxxxx.", "xxxxxxx"]
    assert seen(None, image, False) == ["xxx....", "xxxxxx.", "xxxxxx.", "xxxxxx.", "xxxxxxx"]
    assert seen(2, image, False) == [".xx....", "..xxxx.", "...xxx.", "...xxx.", ".....xx"]
    assert seen(2, image, True) == [".xx....", "..xxxx.", "...xxx.", "....xx.", ".....xx"]


def spans_of(width: int, hidden: int) -> tuple[SoftTokens, SoftTokens]:
    draw = torch.Generator().manual_seed(width)
    first, second = (torch.randn(length, hidden, generator=draw) for length in (width, 2))
    return SoftTokens(2, first), SoftTokens(2 + width + 1, second)


def ruled_by(rule: str) -> DiffusionGemma:
    """The tiny model under a rule."""
    model = DiffusionGemma(tiny_config(), image_attention=rule)
    model.load_state_dict(tiny_model().state_dict())
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("rule", ["reference", "gemma4"])
def test_images_do_not_depend_on_neighbours(rule: str) -> None:
    """A prompt with two images alone, and between a text prompt and a canvas: the same bits. The rule counts."""
    model = ruled_by(rule)
    images = spans_of(5, model.config.hidden_size)
    tokens, others = torch.arange(13), torch.arange(20, 33)

    def encoded(*spans: Span, canvas: bool = False) -> torch.Tensor:
        given_tokens = torch.cat([tokens if span.images else others[: span.rows] for span in spans])
        return model(given_tokens, None, model.rows(list(spans)))

    alone = encoded(Span(new_prefix(model), 13, Mode.ENCODE, images=images))
    prefix = new_prefix(model)
    among = encoded(
        Span(new_prefix(model), 7, Mode.ENCODE),
        Span(prefix, 13, Mode.ENCODE, images=images),
        Span(new_prefix(model), 6, Mode.DENOISE),
    )
    assert torch.equal(alone, among[7:20])
    text = model(tokens, None, model.rows([Span(new_prefix(model), 13, Mode.ENCODE)]))
    assert torch.equal(alone[:2], text[:2])  # what stands before an image does not see it
    assert not torch.isclose(alone[2:], text[2:]).all(-1).any()
    other = ruled_by("gemma4" if rule == "reference" else "reference")
    ruled = other(tokens, None, other.rows([Span(new_prefix(other), 13, Mode.ENCODE, images=images)]))
    assert not torch.allclose(alone[2:], ruled[2:])


@torch.no_grad()
def test_the_tokens_below_an_image_are_not_read() -> None:
    model = tiny_model()
    images = spans_of(5, model.config.hidden_size)
    out = []
    for below in (3, 60):
        tokens = torch.arange(13)
        tokens[2:7] = below
        tokens[8:10] = below
        out.append(model(tokens, None, model.rows([Span(new_prefix(model), 13, Mode.ENCODE, images=images)])))
    assert torch.equal(*out)


def test_spans_hold_whole_images_in_order() -> None:
    model = tiny_model()
    first, second = spans_of(5, model.config.hidden_size)
    for rows, images in ((9, (first, second)), (13, (second, first)), (13, (first, first))):
        with pytest.raises(AssertionError, match="overlap or leave"):
            Span(new_prefix(model), rows, Mode.ENCODE, images=images)
    with pytest.raises(AssertionError, match="a canvas holds no images"):
        Span(new_prefix(model), 13, Mode.DENOISE, images=(first,))


def test_a_rule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RequestError, match="image_attention is 'both'; supported: reference, gemma4"):
        load_model(ORACLE / "ckpt", image_attention="both")


def test_frames_stand_behind_their_times_as_in_transformers() -> None:
    """transformers writes the prompt of a video; ours is the same with images in place of its video tokens."""
    processing = pytest.importorskip("transformers.models.gemma4.processing_gemma4")
    seconds = [0.0, 9.99, 61.5, 3725.0]
    theirs = processing.Gemma4Processor.__new__(processing.Gemma4Processor)
    theirs.boi_token, theirs.video_token, theirs.eoi_token = "<", "v", ">"
    metadata = SimpleNamespace(fps=24, timestamps=seconds)
    wanted = theirs.replace_video_token({"num_soft_tokens_per_video": [1], "video_metadata": [metadata]}, 0)
    parts = frames([b""] * 4, seconds)
    assert " ".join(text["text"] + "<v>" for text in parts[::2]) == wanted
    assert [part["type"] for part in parts] == ["text", "image"] * 4


def test_frames_without_a_time_are_refused() -> None:
    with pytest.raises(RequestError, match="2 images and 1 times"):
        frames([b"", b""], [0.0])
    with pytest.raises(RequestError, match=r"seconds\[1\] is nan"):
        frames([b"", b""], [0.0, math.nan])
