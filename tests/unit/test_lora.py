"""Adapters: merged is unmerged, PEFT reads what we write, and what cannot be merged is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers import tiny_config, tiny_model

from redraft.cache import Prefix
from redraft.errors import WeightsError
from redraft.model.gemma import DiffusionGemma
from redraft.tune.initial import random_vision
from redraft.tune.lora import adapt, adapters, merge
from redraft.tune.recipe import LoraRecipe
from redraft.weights.adapter import CONFIG, PARTS, WEIGHTS, merge_adapter, write_adapter
from redraft.weights.load import load_model
from redraft.weights.save import save_model

pytestmark = pytest.mark.typed

LORA = LoraRecipe(rank=3, alpha=5.0)
CANVAS = torch.arange(20) % 60


def adapted(lora: LoraRecipe = LORA) -> DiffusionGemma:
    """A tiny model whose adapters change something: B starts at zero, so it is drawn here."""
    model = tiny_model(tiny_config())
    adapt(model, lora, seed=0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for low in adapters(model).values():
            low.b.copy_(0.05 * torch.randn(low.b.shape, generator=draw))
    return model


@torch.no_grad()
def said(model: DiffusionGemma) -> torch.Tensor:
    """Canvas logits behind a prompt, with self-conditioning."""
    prefix = Prefix(model.config.layers, room=40)
    model.encode(torch.arange(10), prefix)
    soft = model.soften(torch.softmax(model.denoise(CANVAS, None, prefix), -1))
    return model.denoise(CANVAS, soft, prefix)


def test_a_fresh_adapter_changes_nothing_and_is_all_that_is_trained() -> None:
    model, plain = tiny_model(tiny_config()), tiny_model(tiny_config())
    adapt(model, LORA, seed=0)
    assert torch.equal(said(model), said(plain))
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained
    assert all(".a." in name or ".b." in name for name in trained)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_changes_the_model_and_merging_does_not(part: str) -> None:
    model = adapted(LoraRecipe(rank=3, alpha=5.0, parts=(part,)))
    assert not torch.equal(said(model), said(tiny_model(tiny_config())))
    before = said(model)
    merge(model)
    assert torch.equal(said(model), before)
    assert model.state_dict().keys() == tiny_model(tiny_config()).state_dict().keys()


def written(model: DiffusionGemma, folder: Path) -> Path:
    write_adapter(adapters(model), folder, alpha=LORA.alpha, base="somewhere")
    return folder


def test_a_written_adapter_merges_into_the_plain_model(tmp_path: Path) -> None:
    model, plain = adapted(), tiny_model(tiny_config())
    merge_adapter(plain, written(model, tmp_path))
    assert torch.allclose(said(plain), said(model), atol=1e-5)


@pytest.mark.filterwarnings("default")  # theirs are not ours to fix
def test_peft_reads_the_adapter_as_it_was_trained(tmp_path: Path) -> None:
    """transformers' modules under PEFT, unmerged, give the logits that our adapted model gives."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    plain, model = tiny_model(tiny_config()), adapted()
    from redraft.config import GenerationConfig

    save_model(
        plain,
        tmp_path / "base",
        generation=GenerationConfig(eos_token_ids=(1,)),
        vision=random_vision(plain.config, seed=0),
    )
    written(model, tmp_path / "adapter")
    transformers.utils.logging.disable_progress_bar()
    base = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(tmp_path / "base", attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    given = {"input_ids": torch.arange(10)[None], "decoder_input_ids": CANVAS[None]}
    with torch.no_grad():
        guess = theirs(**given).logits
        mask = torch.ones(1, dtype=torch.bool)
        wanted = theirs(**given, self_conditioning_logits=guess, self_conditioning_mask=mask).logits[0]
        unchanged = said(plain)
    assert not torch.allclose(unchanged, wanted, atol=1e-2)
    assert torch.allclose(said(model), wanted, atol=1e-4)


def test_what_is_no_adapter_of_this_model_is_refused(tmp_path: Path) -> None:
    model = adapted()
    folder = written(model, tmp_path)
    plain = tiny_model(tiny_config())
    settings, tensors = json.loads((folder / CONFIG).read_text()), load_file(folder / WEIGHTS)

    def refused(match: str) -> None:
        before = {name: value.clone() for name, value in plain.state_dict().items()}
        with pytest.raises(WeightsError, match=match):
            merge_adapter(plain, folder)
        assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items()), "half merged"

    for key, value, match in [
        ("peft_type", "IA3", "peft_type is 'IA3'"),
        ("use_dora", True, "use_dora is True"),
        ("use_qalora", True, "use_qalora is True"),
        ("alora_invocation_tokens", [1], "alora_invocation_tokens is"),
        ("layer_replication", [[0, 2]], "layer_replication is"),
        ("init_lora_weights", "pissa", "init_lora_weights is 'pissa', which changes the model"),
        ("r", 0, "r is 0; it must be a number above 0"),
        ("lora_alpha", 10**400, "it must be a number above 0"),
        ("modules_to_save", ["lm_head"], "modules_to_save"),
    ]:
        (folder / CONFIG).write_text(json.dumps(settings | {key: value}))
        refused(match)
    (folder / CONFIG).write_text(json.dumps(settings))
    name = next(name for name in tensors if "decoder.layers.0.self_attn.q_proj.lora_A" in name)
    for changed, match in [
        (tensors | {name: tensors[name] + 1}, "adapted otherwise in the encoder"),
        (tensors | {name.replace("layers.0", "layers.77"): tensors[name].clone()}, "what this model does not have"),
        ({"nothing": torch.zeros(1)}, "what this model does not have"),
        ({key: torch.zeros(0, 0) for key in tensors}, "is adapted by an empty matrix"),
        ({key: value.to(torch.complex64) for key, value in tensors.items()}, "is adapted in torch.complex64"),
        ({key: value * 1e30 for key, value in tensors.items()}, "would be too large with its adapter"),
    ]:
        save_file(changed, folder / WEIGHTS)
        refused(match)
    (folder / WEIGHTS).write_bytes(b"garbage")
    refused("is damaged or cut short")
    with pytest.raises(WeightsError, match=f"no {CONFIG}"):
        merge_adapter(plain, tmp_path / "nowhere")


def test_a_plain_checkpoint_loads_with_its_adapter_merged(tmp_path: Path) -> None:
    from redraft.config import GenerationConfig

    plain, model = tiny_model(tiny_config()), adapted()
    save_model(plain, tmp_path / "base", generation=GenerationConfig(eos_token_ids=(1,)))
    written(model, tmp_path / "adapter")
    loaded, _ = load_model(tmp_path / "base")
    merge_adapter(loaded, tmp_path / "adapter")
    assert torch.allclose(said(loaded), said(model), atol=1e-5)
