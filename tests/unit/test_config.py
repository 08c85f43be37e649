"""What a checkpoint's config files say: both spellings, every refusal, and the way back to JSON."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import FULL, ORACLE, SLIDING, released_json, tiny_config, tiny_json

from redraft.config import (
    GenerationConfig,
    LayerConfig,
    ModelConfig,
    RopeConfig,
    generation_json,
    model_json,
    parse_generation,
    parse_model,
    read_config,
)
from redraft.errors import ConfigError
from redraft.files import read_small

SAMPLER = {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1}
SHIPPED = {
    "max_new_tokens": 256,
    "max_denoising_steps": 48,
    "t_min": 0.4,
    "t_max": 0.8,
    "sampler_config": SAMPLER,
    "stability_threshold": 1,
    "confidence_threshold": 0.005,
    "eos_token_id": [1, 106, 50],
    "pad_token_id": 0,
    "bos_token_id": 2,
}


def saved_spelling(root: dict[str, Any], pad: int = 0) -> dict[str, Any]:
    """The same model as transformers writes it back: full layers by number, padded to `pad` digits."""
    root = copy.deepcopy(root)
    text = root["text_config"]
    full = {"head_dim": text.pop("global_head_dim"), "num_key_value_heads": text.pop("num_global_key_value_heads")}
    kinds = enumerate(text["layer_types"])
    text["per_layer_config"] = {f"{i:0{pad}}": dict(full) for i, kind in kinds if kind == FULL}
    return root


def write(folder: Path, config: object, generation: object = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


# -- what is read ------------------------------------------------------------------------------------------------------


def test_the_released_model_is_read_as_published() -> None:
    config, unknown = parse_model(released_json())
    assert unknown == ()
    assert (config.vocab_size, config.hidden_size, config.num_heads) == (262144, 2816, 16)
    assert (config.num_experts, config.top_k_experts, config.canvas_length, config.window) == (128, 8, 256, 1024)
    sliding = LayerConfig(1024, 8, 256, RopeConfig(1e4))
    full = LayerConfig(None, 2, 512, RopeConfig(1e6, 0.25))
    assert config.layers == (*[sliding] * 5, full) * 5
    assert config.eos_token_ids == (1, 106, 50)
    assert (config.norm_eps, config.logit_cap, config.pad_token_id, config.bos_token_id) == (1e-6, 30.0, 0, 2)


@pytest.mark.parametrize("pad", [0, 2])
def test_both_spellings_are_one_model(pad: int) -> None:
    """transformers writes layer 5 of 30 as "05"; read as a plain number's text it was no layer, and was ignored."""
    assert parse_model(saved_spelling(released_json(), pad)) == parse_model(released_json())


def test_what_transformers_writes_of_the_released_config_is_the_released_config(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.DiffusionGemmaConfig(**released_json()).save_pretrained(tmp_path)
    assert read_config(tmp_path).model == parse_model(released_json())[0]


@pytest.mark.parametrize("absent", ["global_head_dim", "num_global_key_value_heads", "rope_parameters", "layer_types"])
def test_an_absent_key_means_what_it_means_to_transformers(absent: str) -> None:
    transformers = pytest.importorskip("transformers")
    root = tiny_json(num_hidden_layers=8, layer_types=[SLIDING] * 5 + [FULL] + [SLIDING] + [FULL])
    del root["text_config"][absent]
    assert geometry(parse_model(root)[0]) == their_geometry(transformers.DiffusionGemmaConfig(**root))


def test_a_missing_generation_config_falls_back_to_the_models_tokens(tmp_path: Path) -> None:
    """`bos_token_id` was not carried over."""
    root = tiny_json(bos_token_id=7, pad_token_id=3) | {"eos_token_id": [4, 5]}
    found = read_config(write(tmp_path, root)).generation
    assert (found.bos_token_id, found.pad_token_id, found.eos_token_ids) == (7, 3, (4, 5))


def test_a_generation_config_overrides_the_models_tokens_key_by_key(tmp_path: Path) -> None:
    root = tiny_json(bos_token_id=7) | {"eos_token_id": [4, 5]}
    found = read_config(write(tmp_path, root, {"eos_token_id": 9})).generation
    assert (found.bos_token_id, found.eos_token_ids) == (7, (9,))


def test_a_checkpoint_says_for_which_preset_it_was_trained(tmp_path: Path) -> None:
    """In a file of our own: transformers raises ValueError for a key that it does not know."""
    folder = write(tmp_path, tiny_json(), {})
    assert read_config(folder).generation.preset == "reference"
    (folder / "redraft.json").write_text('{"preset": "fast", "colour": 1}')
    found = read_config(folder)
    assert (found.generation.preset, found.unknown_keys) == ("fast", ("redraft.colour",))
    for wrong, said in (
        ("fats", "preset is 'fats'; it must be one of reference, fast"),
        ([], "preset is \\[\\]; it must"),
    ):
        (folder / "redraft.json").write_text(json.dumps({"preset": wrong}))
        with pytest.raises(ConfigError, match=said):
            read_config(folder)


def test_every_unknown_key_is_reported(tmp_path: Path) -> None:
    root = tiny_json(new_trick=1) | {"zoom": None}
    root["text_config"]["rope_parameters"][FULL]["twist"] = 2
    generation = SHIPPED | {"top_k": 5, "sampler_config": SAMPLER | {"mood": "calm"}}
    assert set(read_config(write(tmp_path, root, generation)).unknown_keys) == {
        "zoom",
        "text_config.new_trick",
        "text_config.rope_parameters.full_attention.twist",
        "generation_config.top_k",
        "generation_config.sampler_config.mood",
    }


# -- what is refused ---------------------------------------------------------------------------------------------------

ROPES = released_json()["text_config"]["rope_parameters"]
BAD_TEXT: list[tuple[dict[str, Any], str, str, str]] = [
    # change, and what the message must name: key, value, what is supported
    ({"hidden_activation": "relu"}, "text_config.hidden_activation", "'relu'", "'gelu_pytorch_tanh'"),
    ({"attention_bias": True}, "text_config.attention_bias", "True", "False"),
    ({"tie_word_embeddings": False}, "text_config.tie_word_embeddings", "False", "True"),
    ({"use_bidirectional_attention": "all"}, "text_config.use_bidirectional_attention", "'all'", "'vision', None"),
    (
        {"rope_parameters": ROPES | {FULL: {"rope_type": "yarn"}}},
        "rope_parameters.full_attention.rope_type",
        "'yarn'",
        "'default', 'proportional'",
    ),
    (
        {"rope_parameters": ROPES | {SLIDING: {"partial_rotary_factor": 0.5}}},
        "partial_rotary_factor",
        "0.5",
        "supported: 1.0",
    ),
    ({"rope_parameters": "default"}, "text_config.rope_parameters", "'default'", "an object"),
    ({"rope_parameters": {FULL: {"rope_theta": 0}}}, "full_attention.rope_theta", "0", "above 0"),
    ({"layer_types": [SLIDING, "chunked"]}, "text_config.layer_types[1]", "'chunked'", "'full_attention'"),
    ({"layer_types": [FULL, SLIDING]}, "text_config.layer_types[1]", "'sliding_attention'", "must be 'full_attention'"),
    ({"layer_types": [FULL]}, "text_config.layer_types", "['full_attention']", "num_hidden_layers (2)"),
    ({"num_hidden_layers": 10**9, "layer_types": None}, "num_hidden_layers", "1000000000", "to 10000"),
    ({"vocab_size": "64"}, "text_config.vocab_size", "'64'", "an integer"),
    ({"hidden_size": -32}, "text_config.hidden_size", "-32", "from 1 to"),
    ({"num_experts": 0}, "text_config.num_experts", "0", "from 1 to"),
    ({"sliding_window": 10**30}, "text_config.sliding_window", str(10**30), "from 2 to 2147483647"),
    ({"sliding_window": 1}, "text_config.sliding_window", "1", "from 2 to"),
    ({"top_k_experts": 5}, "top_k_experts", "5", "num_experts (4)"),
    ({"num_key_value_heads": 3}, "num_key_value_heads", "3", "divide 4"),
    ({"num_global_key_value_heads": 8}, "num_key_value_heads", "8", "divide 4"),
    ({"head_dim": 7}, "head_dim", "7", "even"),
    ({"pad_token_id": 64}, "pad_token_id", "64", "vocab_size (64)"),
    ({"bos_token_id": -1}, "bos_token_id", "-1", "from 0 to"),
    ({"eos_token_id": "1"}, "text_config.eos_token_id", "'1'", "an integer"),
    ({"rms_norm_eps": "1e-6"}, "text_config.rms_norm_eps", "'1e-6'", "a number above 0"),
    ({"final_logit_softcapping": 10**400}, "text_config.final_logit_softcapping", "1000", "a number above 0"),
    ({"per_layer_config": [1]}, "text_config.per_layer_config", "[1]", "an object"),
    ({"per_layer_config": {"2": {}}}, "per_layer_config.2", "{}", "below 2"),
    ({"per_layer_config": {"1": {}, "01": {}}}, "per_layer_config.01", "{}", "once"),
    ({"per_layer_config": {"1": {"sliding_window": 4}}}, "per_layer_config.1.sliding_window", "4", "head_dim"),
]
BAD_ROOT: list[tuple[dict[str, Any], str, str, str]] = [
    ({"model_type": "gemma3"}, "model_type", "'gemma3'", "'diffusion_gemma'"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings", "False", "True"),
    ({"text_config": [1]}, "text_config", "[1]", "an object"),
    ({"canvas_length": 0}, "canvas_length", "0", "from 1 to"),
    ({"canvas_length": 10**12}, "canvas_length", "1000000000000", "from 1 to 65536"),
    ({"canvas_length": 257}, "canvas_length", "257", "at most the context, max_positions (256)"),
    ({"eos_token_id": "1"}, "eos_token_id", "'1'", "an integer"),
    ({"eos_token_id": []}, "eos_token_id", "[]", "a list of them"),
    ({"eos_token_id": [1, 64]}, "eos_token_id", "64", "vocab_size (64)"),
]
BAD_GENERATION: list[tuple[dict[str, Any], str, str, str]] = [
    ({"max_new_tokens": 0}, "max_new_tokens", "0", "from 1 to"),
    ({"max_denoising_steps": -1}, "max_denoising_steps", "-1", "from 1 to"),
    ({"t_min": 0}, "t_min", "0", "above 0"),
    ({"t_min": 0.9}, "t_min", "0.9", "t_max (0.8)"),
    ({"t_max": "0.8"}, "t_max", "'0.8'", "a number"),
    ({"sampler_config": {"_cls_name": "TopKSamplerConfig"}}, "_cls_name", "'TopKSamplerConfig'", "EntropyBound"),
    ({"sampler_config": "entropy"}, "sampler_config", "'entropy'", "an object"),
    ({"sampler_config": SAMPLER | {"entropy_bound": 0}}, "entropy_bound", "0", "above 0"),
    ({"stability_threshold": -1}, "stability_threshold", "-1", "from 0 to"),
    ({"confidence_threshold": -0.1}, "confidence_threshold", "-0.1", "above 0"),
    ({"eos_token_id": "1"}, "eos_token_id", "'1'", "an integer"),
    ({"pad_token_id": -1}, "pad_token_id", "-1", "from 0 to"),
]


def refused(read: Any, *words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


READERS: dict[str, tuple[Callable[[Any], object], list[tuple[dict[str, Any], str, str, str]]]] = {
    "text": (lambda change: parse_model(tiny_json(**change)), BAD_TEXT),
    "root": (lambda change: parse_model(tiny_json() | change), BAD_ROOT),
    "sampler": (lambda change: parse_generation(SHIPPED | change), BAD_GENERATION),
}


@pytest.mark.parametrize(("part", "bad"), [(part, bad) for part, (_, bads) in READERS.items() for bad in bads])
def test_a_setting_that_is_not_supported_is_refused(part: str, bad: tuple[dict[str, Any], str, str, str]) -> None:
    change, *named = bad
    refused(lambda: READERS[part][0](change), *named)


@pytest.mark.parametrize(
    "absent", ["vocab_size", "hidden_size", "num_hidden_layers", "num_experts", "head_dim", "sliding_window"]
)
def test_a_size_that_is_missing_is_refused_by_name(absent: str) -> None:
    root = tiny_json()
    del root["text_config"][absent]
    refused(lambda: parse_model(root), f"text_config.{absent}")


def test_a_config_without_a_text_part_is_refused() -> None:
    refused(lambda: parse_model({"model_type": "diffusion_gemma"}), "text_config.")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"model_type": ', "not valid JSON"),
        (b"", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[1, 2]", "holds a list"),
        (b"null", "holds a NoneType"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
    ids=["cut", "empty", "not UTF-8", "list", "null", "nested", "digits"],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_file_that_is_no_json_object_is_refused_by_name(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    write(tmp_path, tiny_json())
    (tmp_path / name).write_bytes(content)
    refused(lambda: read_config(tmp_path), name, words)


def test_a_missing_config_is_refused(tmp_path: Path) -> None:
    refused(lambda: read_config(tmp_path), "config.json does not exist")
    (tmp_path / "config.json").mkdir()
    refused(lambda: read_config(tmp_path), "config.json cannot be read")


def test_a_pipe_or_an_endless_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    refused(lambda: read_config(tmp_path), "config.json cannot be read: it is no regular file")
    with (tmp_path / "long.json").open("wb") as file:
        file.truncate(2**27)
    with pytest.raises(OSError, match="it has over"):
        read_small(tmp_path / "long.json")


# -- the way back ------------------------------------------------------------------------------------------------------


def geometry(config: ModelConfig) -> list[tuple[str, int, int]]:
    return [(FULL if layer.is_full else SLIDING, layer.head_dim, layer.num_kv_heads) for layer in config.layers]


def their_geometry(config: Any) -> list[tuple[str, int, int]]:
    text = config.text_config
    own = text.per_layer_config
    return [(kind, own[i].head_dim, own[i].num_key_value_heads) for i, kind in enumerate(text.layer_types)]


def configs() -> dict[str, ModelConfig]:
    tiny = tiny_config(num_key_value_heads=4)
    first = replace(tiny.layers[0], head_dim=16, num_kv_heads=1)
    stretched = replace(tiny.layers[1], rope=RopeConfig(5e5, 0.5, 8.0))
    return {
        "released": parse_model(released_json())[0],
        "tiny": tiny,
        "no sliding layer": tiny_config(layer_types=[FULL, FULL]),
        "a sliding layer of another shape": replace(tiny, layers=(tiny.layers[0], first, tiny.layers[1])),
        "other rope": replace(tiny, layers=(tiny.layers[0], stretched)),
        "other constants": replace(tiny, norm_eps=1e-5, logit_cap=50.0, bos_token_id=0, eos_token_ids=(3, 4)),
    }


@pytest.mark.parametrize("name", configs())
def test_a_config_survives_the_way_through_json(name: str) -> None:
    """The cap of the logits, the factor of the rotation and a sliding layer's own shape were not written."""
    config = configs()[name]
    written = json.loads(json.dumps(model_json(config, "float32")))
    assert parse_model(written) == (config, ())


@pytest.mark.parametrize("name", configs())
def test_transformers_reads_the_same_model_from_it(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = configs()[name]
    theirs = transformers.DiffusionGemmaConfig(**model_json(config, "float32"))
    text = theirs.text_config
    assert their_geometry(theirs) == geometry(config)
    assert text.final_logit_softcapping == config.logit_cap
    assert (text.vocab_size, text.hidden_size, text.num_experts) == (
        config.vocab_size,
        config.hidden_size,
        config.num_experts,
    )
    assert text.sliding_window == (config.window or config.max_positions)
    assert text.rope_parameters[FULL]["rope_theta"] == config.layers[-1].rope.theta
    assert text.rope_parameters[FULL].get("factor", 1.0) == config.layers[-1].rope.factor


def test_what_a_file_says_of_the_vision_part_is_passed_on() -> None:
    root = json.loads((ORACLE / "ckpt" / "config.json").read_text())
    config, _ = parse_model(root)
    written = model_json(config, "float32")
    assert written["vision_config"] == root["vision_config"]
    assert written["image_token_id"] == root["image_token_id"]


@pytest.mark.parametrize("config", [GenerationConfig(), GenerationConfig(7, 3, 0.1, 0.1, 2.5, 0, 1.0, (4,), 5, 6)])
def test_sampler_settings_survive_the_way_through_json(config: GenerationConfig) -> None:
    other = GenerationConfig(9, 9, 0.2, 0.3, 9.0, 9, 9.0, (9,), 9, 9)
    assert parse_generation(json.loads(json.dumps(generation_json(config))), other) == (config, ())


# -- anything at all ---------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([SLIDING, FULL]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path to a value in some JSON."""
    if path:
        yield path
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


WHOLE = {
    "config.json": saved_spelling(tiny_json(per_layer_config={}, bos_token_id=2, final_logit_softcapping=30.0))
    | {"vision_config": {"hidden_size": 8}},
    "generation_config.json": SHIPPED,
}


PLACES = [path for path in places(WHOLE) if len(path) > 1]


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=3))
def test_any_damage_is_a_config_error_or_nothing(damage: list[tuple[tuple[Any, ...], Any]]) -> None:
    """A list for an object, a string for a number, null anywhere: never a traceback, and what is read can be used."""
    files: Any = copy.deepcopy(WHOLE)
    for (*path, last), value in damage:
        with suppress(LookupError, TypeError):  # an earlier damage has taken the place away
            put = reduce(getitem, path, files)
            put[last] = value
    try:
        model, unknown = parse_model(files["config.json"])
        generation, more = parse_generation(files["generation_config.json"])
    except ConfigError:
        return
    assert parse_model(model_json(model, "float32"))[0] == model
    assert parse_generation(generation_json(generation))[0] == generation
    assert all(isinstance(key, str) for key in unknown + more)
