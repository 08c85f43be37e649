"""The map between stored tensors and ours."""

import json

import pytest
import torch
from tests.helpers import DATA, released_json, tiny_config

from redraft.config import parse_model
from redraft.errors import WeightsError
from redraft.model.gemma import DiffusionGemma
from redraft.weights.names import check_filled, slots, sort_names


def shapes_of(model: DiffusionGemma) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.fixture(scope="module")
def released() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the 1047 tensors in the released 26B checkpoint."""
    return {name: tuple(shape) for name, shape in json.loads((DATA / "real_26b_tensors.json").read_text()).items()}


def test_the_released_checkpoint_is_covered_exactly(released: dict[str, tuple[int, ...]]) -> None:
    config, unknown = parse_model(released_json())
    wanted = slots(config)
    names = sort_names(released, wanted)
    assert len(released) == 1047
    assert (names.missing, names.surplus, names.tied, unknown) == ((), (), (), ())
    assert len(names.vision) == 356
    assert len(wanted) == 691 == len(released) - len(names.vision)
    assert {slot.stored: slot.shape for slot in wanted}.items() <= released.items()


def test_the_26b_network_is_filled_exactly() -> None:
    config, _ = parse_model(released_json())
    with torch.device("meta"):
        model = DiffusionGemma(config)
    wanted = slots(config)
    check_filled(wanted, shapes_of(model))
    assert sum(slot.num_elements for slot in wanted) == sum(t.numel() for t in model.state_dict().values())


def test_each_stored_tensor_has_one_slot() -> None:
    wanted = slots(tiny_config())
    assert len({slot.stored for slot in wanted}) == len(wanted)


def test_full_layers_have_no_value_projection() -> None:
    stored = {slot.stored for slot in slots(tiny_config())}
    assert "model.decoder.layers.0.self_attn.v_proj.weight" in stored
    assert "model.decoder.layers.1.self_attn.v_proj.weight" not in stored


@pytest.mark.parametrize(
    ("copy", "original"),
    [
        ("lm_head.weight", "model.decoder.embed_tokens.weight"),
        ("model.encoder.language_model.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
        ("model.encoder.language_model.norm.weight", "model.decoder.norm.weight"),
        ("model.encoder.language_model.layers.0.mlp.up_proj.weight", "model.decoder.layers.0.mlp.up_proj.weight"),
    ],
)
def test_a_tied_name_leads_to_its_original(copy: str, original: str) -> None:
    wanted = slots(tiny_config())
    names = sort_names([*(slot.stored for slot in wanted), copy], wanted)
    assert names.tied == ((copy, original),)
    assert names.surplus == ()


def test_a_model_with_replaced_matrices_is_refused() -> None:
    """An adapter renames the matrix it wraps; saving around it would drop what was learnt."""
    config = tiny_config()
    shapes = shapes_of(DiffusionGemma(config))
    shapes["layers.0.mlp.down.base.weight"] = shapes.pop("layers.0.mlp.down.weight")
    with pytest.raises(WeightsError, match=r"layers\.0\.mlp\.down\.base\.weight.*merge adapters"):
        check_filled(slots(config), shapes)


def test_a_row_not_filled_is_refused() -> None:
    config = tiny_config()
    shapes = shapes_of(DiffusionGemma(config))
    rows, columns = shapes["layers.0.attention.qkv.weight"]
    shapes["layers.0.attention.qkv.weight"] = (rows + 1, columns)
    with pytest.raises(WeightsError, match=r"qkv\.weight is \[65, 32\]; the stored layout fills \[64, 32\]"):
        check_filled(slots(config), shapes)
