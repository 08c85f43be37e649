"""Training from a checkpoint on data of one's own, whole or by adapters; and what can go wrong on the way."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from random import Random
from unittest.mock import Mock

import msgspec
import pytest
import torch
from tests.helpers import Shell, tiny_checkpoint, tiny_config
from tests.training import SHAPE, stop_behind

import redraft
from redraft.config import read_config
from redraft.errors import RecipeError, RedraftError, RunError
from redraft.measure.forgotten import forgotten
from redraft.tasks import names
from redraft.tune import objective
from redraft.tune import train as trainer
from redraft.tune.base import Base, read_base
from redraft.tune.data import Feed
from redraft.tune.objective import Batch, Corruption, corrupt
from redraft.tune.parallel import World
from redraft.tune.recipe import Recipe, read_recipe
from redraft.tune.state import FILE, restore
from redraft.tune.train import ADAPTER, LOG, train
from redraft.weights.adapter import merge_adapter
from redraft.weights.load import load_model
from redraft.weights.plan import PLANS
from redraft.weights.quantize import quantize_checkpoint
from redraft.weights.source import locate

RECIPE = """
name = "own"
start = "nano-sudoku"
[data]
files = {{ "{rows}" = 1.0 }}
held_out = 3
fit_share = 1.0
{lora}
[train]
steps = {steps}
batch_size = 3
warmup = 1
threads = 1
save_every = 2
probe_every = 2
probe_examples = 1
"""
LATER = 'probe_examples = 1\n[[stages]]\nfrom_step = 3\n[stages.data]\nfiles = { "absent.jsonl" = 1.0 }'
LORA = "[lora]\nrank = 2\nalpha = 4.0"


def recipe(folder: Path, lora: str = "", steps: int = 4) -> Recipe:
    rows = folder / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "say {i}", "response": "melu {i}"}}\n' for i in range(40)))
    (folder / "own.toml").write_text(RECIPE.format(rows=rows, lora=lora, steps=steps))
    return read_recipe(folder / "own.toml")


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["denoise"] for line in (folder / LOG).read_text().splitlines()]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted")
    return train(recipe(folder, LORA), folder / "out")


def test_a_checkpoint_is_tuned_on_rows_and_keeps_its_text_side(tmp_path: Path) -> None:
    out = train(recipe(tmp_path, steps=2), tmp_path / "out")
    tuned, before = redraft.load(out), redraft.load("nano-sudoku")
    assert tuned.text.chat([{"role": "user", "content": "a"}]) == before.text.chat([{"role": "user", "content": "a"}])
    assert tuned.config.generation == before.config.generation
    one, other = load_model(out)[0].state_dict(), load_model(locate("nano-sudoku"))[0].state_dict()
    assert one.keys() == other.keys()
    assert not torch.equal(one["embed.weight"], other["embed.weight"])
    row = json.loads((out / LOG).read_text().splitlines()[-1])
    assert {"rows.jsonl exact", "rows.jsonl steps", "rows.jsonl tokens per forward"} <= row.keys()
    assert any(name.startswith(("corrupted ", "clean ")) for name in row)


def test_the_rows_and_the_recipe_of_the_page_make_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/tutorials/fine-tune.md has a newcomer write, and the rows of docs/tuning.md; a few small steps."""
    docs = Path(__file__).resolve().parents[2] / "docs"
    pages = "".join((docs / name).read_text(encoding="utf-8") for name in ("tutorials/fine-tune.md", "tuning.md"))
    rows, script, toml = (
        re.findall(rf"```{kind}\n(.*?)```", pages, re.DOTALL)[0] for kind in ("json", "python", "toml")
    )
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    file = tmp_path / "orders.jsonl"
    assert len(file.read_text().splitlines()) == 2000
    file.write_text(rows + file.read_text())
    (tmp_path / "orders.toml").write_text(toml)
    wanted = read_recipe(tmp_path / "orders.toml")
    few = {"steps": 2, "batch_size": 4, "warmup": 1, "probe_examples": 1}
    out = train(msgspec.structs.replace(wanted, train=msgspec.structs.replace(wanted.train, **few)), tmp_path / "out")
    assert redraft.load(str(out)).generate("order\n7 koru", chat=True, steps=1, max_tokens=4).tokens
    assert (out / ADAPTER).is_dir()


def test_old_tasks_that_are_answered_less_often_are_named() -> None:
    """nano stands for a model that was made of nano-sudoku and has forgotten its records."""
    before, after = redraft.load("nano-sudoku"), redraft.load("nano")
    others = [name for name in names("nano-sudoku") if name != "records"]
    (found,) = forgotten("nano-sudoku", before, after, others)
    assert found.task == "records"
    assert found.before > 0.8 > 0.2 > found.after
    assert forgotten("nano-sudoku", before, before, others) == []
    assert forgotten("a folder", before, after, ()) == [], "what a stranger's model was trained for nobody knows"


def test_tune_says_what_was_forgotten_and_how_to_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    """One step at a rate that wrecks everything."""
    recipe(tmp_path, steps=1)
    words = (tmp_path / "own.toml").read_text().replace("warmup = 1", "warmup = 1\nlr = 1.0")
    (tmp_path / "own.toml").write_text(words)
    monkeypatch.setattr("redraft.measure.forgotten.names", lambda _: ("records", "repair"))
    said = shell(["tune", str(tmp_path / "own.toml"), "--out", str(tmp_path / "out")]).err
    assert "forgotten: records, 0% right where nano-sudoku has" in said
    assert "old task 2/2" in said
    assert re.search(r"\[data\] tasks = \{ (records|repair) = 0.1, (records|repair) = 0.1 \}", said)
    monkeypatch.setattr("redraft.measure.forgotten.forgotten", Mock(side_effect=KeyboardInterrupt))
    said = shell(["tune", str(tmp_path / "own.toml"), "--out", str(tmp_path / "other")]).err
    assert f"what was forgotten is not counted; {tmp_path / 'other'} is complete" in said


def test_a_strangers_file_in_the_records_place_is_found_before_the_first_step(tmp_path: Path, shell: Shell) -> None:
    recipe(tmp_path, steps=1)
    (tmp_path / "training-record.json").write_text("mine")
    said = shell(["tune", str(tmp_path / "own.toml"), "--out", str(tmp_path)], 2).err
    assert "training-record.json holds something that is no record; give another name, or move it away" in said
    assert not (tmp_path / LOG).exists()


def test_an_adapter_is_trained_alone_and_shipped_merged_and_apart(adapted: Path) -> None:
    before, merged = load_model(locate("nano-sudoku"))[0], load_model(adapted)[0]
    changed = [n for n, v in merged.state_dict().items() if not torch.equal(v, before.state_dict()[n])]
    assert changed
    assert all("attention.qkv" in n or "attention.out" in n or "mlp." in n or "experts." in n for n in changed)
    merge_adapter(before, adapted / ADAPTER)
    for name, value in merged.state_dict().items():
        assert torch.allclose(before.state_dict()[name], value, atol=1e-6), name


@pytest.mark.parametrize("lora", ["", LORA], ids=["whole", "adapters"])
def test_a_run_that_is_interrupted_loses_nothing(lora: str, tmp_path: Path) -> None:
    whole = recipe(tmp_path, lora)
    straight = losses(train(whole, tmp_path / "straight"))

    with pytest.raises(KeyboardInterrupt):
        train(whole, tmp_path / "cut", stop_behind(3))
    assert losses(train(whole, tmp_path / "cut")) == straight
    one, other = (load_model(tmp_path / name)[0].state_dict() for name in ("straight", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("left_out", [False, True])
def test_plain_text_is_probed_by_its_losses(left_out: bool, tmp_path: Path) -> None:
    """Held-out files have no right answer; the weights that lose least on them are shipped. Against a sum by hand."""
    (tmp_path / "texts").mkdir()
    for i in range(40):
        (tmp_path / "texts" / f"{i}.txt").write_text(f"def area_{i}(r):\n    return {i} * r ** 2\n" * 3)
    (tmp_path / "rows.jsonl").touch()
    text = RECIPE.format(rows="", lora="", steps=4).replace("files = ", "folders = ").replace("fit_share = 1.0", "")
    text += f"[objective]\nleave_one_out = {str(left_out).lower()}\n"
    (tmp_path / "text.toml").write_text(text.replace('{ "" = 1.0 }', f'{{ "{tmp_path / "texts"}" = 1.0 }}'))
    found = read_recipe(tmp_path / "text.toml")
    out = train(found, tmp_path / "out")
    rows = [json.loads(line) for line in (out / LOG).read_text().splitlines()]
    name = f"{tmp_path / 'texts'} canvas nats"
    probed = [row[name] for row in rows if name in row]
    state = torch.load(out / FILE, weights_only=True)
    assert len(probed) == 2
    assert state["score"] == pytest.approx(max(-(row[name] + row[causal(name)]) / 2 for row in rows if name in row))
    feed = Feed(found, read_base(found, tmp_path))
    (sample,) = feed.sources[0][0].held_out(1)
    (batch,) = feed.pack([feed.row(sample, Random(0), 256)])
    noisy = corrupt(batch, 631, torch.Generator().manual_seed(0))
    lost = objective.losses(load_model(out)[0], batch, noisy, objective.ObjectiveRecipe(leave_one_out=left_out))
    best = rows[1] if state["score"] == -(rows[1][name] + rows[1][causal(name)]) / 2 else rows[3]
    assert lost.denoise is not None
    assert (lost.encode.item(), lost.denoise.item()) == pytest.approx((best[causal(name)], best[name]), rel=1e-4)


def causal(name: str) -> str:
    return name.replace("canvas", "causal")


def test_parts_of_a_step_add_up_to_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of a step do not depend on how its rows are cut into forwards: they are counted in tokens.

    Canvases show every second token of their target: noise is drawn part by part, and would be another.
    """
    monkeypatch.setattr(trainer, "corrupt", half_shown)
    rows = tmp_path / "rows.jsonl"
    recipe(tmp_path)
    rows.write_text("".join(f'{{"prompt": "{"9" * i}", "response": "{"melu" * (1 + i % 5)}"}}\n' for i in range(40)))
    grads = []
    for most in (0, 150):
        found = read_recipe_with(tmp_path, most)
        base = read_base(found, tmp_path)
        feed = Feed(found, base)
        state = restore(found, base, tmp_path / "none", World(torch.device("cpu")), feed)
        if most:
            assert len(feed.batches(0)) > 1
        row = trainer._backward(found, state, feed.batches(0))
        grads.append(({n: v.grad.clone() for n, v in state.trained.items() if v.grad is not None}, row))
    (one, lost), (other, lost_in_parts) = grads
    assert lost == pytest.approx(lost_in_parts, rel=1e-4)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.allclose(value, other[name], rtol=1e-3, atol=1e-5), name


def half_shown(batch: Batch, *given: object) -> Corruption:
    canvas = batch.target.clone()
    canvas[:, ::2] = 7
    return Corruption(canvas, torch.full((len(canvas),), 0.5), torch.zeros(len(canvas), dtype=torch.bool))


def read_recipe_with(folder: Path, most: int) -> Recipe:
    text = (folder / "own.toml").read_text().replace("batch_size = 3", f"batch_size = 6\nmost_rows = {most}")
    text = text.replace("[train]", "[objective]\nself_conditioning = 0.0\n[train]").replace("fit_share = 1.0", "")
    (folder / "most.toml").write_text(text)
    return read_recipe(folder / "most.toml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('start = "nano-sudoku"', "", "neither start nor"),
        ('start = "nano-sudoku"', 'start = "absent/folder/here"', "no model 'absent/folder/here'"),
        ("[train]", "[lora]\nrank = 0\n[train]", "rank is 0"),
        ("[train]", "[lora]\nrank = 1000000\n[train]", "rank is 1000000 .* rank must be from 1 to 16384"),
        ("[train]", "[sampling]\nmax_new_tokens = 1024\n[train]", r"is 1024; it must be below .* nano-sudoku \(1024\)"),
        ("probe_examples = 1", LATER, r"absent\.jsonl cannot be read"),
        ("[train]", '[lora]\nparts = ["router"]\n[train]', r"parts is \['router'\]; known: attention"),
        ("held_out = 3", 'turns = "some"', "turns is 'some'"),
        ("held_out = 3", "most_blocks = 0", "most_blocks is 0; it must be from 1 to 1048576"),
        ("fit_share = 1.0", "fit_share = 1.5", "fit_share is 1.5; it must be from 0 to 1"),
        ("fit_share = 1.0", "widths = [16, 0]", "widths is 0"),
        ("steps = 4", "steps = 4\ndecay_steps = 5", "decay_steps is 5; it must be at most steps"),
        ("[train]", "[objective]\nrolled = -1.0\n[train]", "rolled is -1.0"),
        ("[train]", "[objective]\nown = 1.5\n[train]", "own is 1.5"),
        ("[train]", "[objective]\nown_steps = 3\n[train]", "own_steps is 3 and own is 0"),
        ("[train]", "[objective]\nown = 0.5\nown_steps = 49\n[train]", "own_steps is 49; it must be from 0 to 48"),
        ("[train]", "[objective]\ndraws = 0\n[train]", "draws is 0"),
        ("[train]", "[objective]\ncausal_weight = nan\n[train]", "causal_weight is nan"),
        ("[train]", "[objective]\nleave_one_out = true\nown = 0.1\n[train]", "uniform noise, and own is another"),
        ("steps = 4", 'steps = 4\ndevice = "tpu"', "device is 'tpu'; it must be"),
        ("steps = 4", 'steps = 4\ndevice = "cuda:99"', "device is 'cuda:99', which this machine does not have"),
        ("steps = 4", 'steps = 4\ndevice = "cuda:99999999999"', "device is 'cuda:99999999999'; it must be"),
        ("steps = 4", 'steps = 4\ndevice = "cuda:200"', "device is 'cuda:200'; it must be"),  # torch takes it for -56
        ("steps = 4", 'steps = 4\ndevice = "cuda:01"', "device is 'cuda:01'; it must be"),
        ("rows.jsonl", "absent.jsonl", r"absent\.jsonl cannot be read"),
        ("rows.jsonl", "a\\u0000b", r"\[data\] '.*a.x00b' cannot be read \(embedded null byte\); give another name"),
        ("rows.jsonl", "a" * 5000, r"\[data\] '.{,200} cannot be read \(File name too long\); give another name"),
    ],
)
def test_a_recipe_that_cannot_be_run_is_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    recipe(tmp_path)
    text = (tmp_path / "own.toml").read_text()
    assert text.count(old) == 1
    (tmp_path / "own.toml").write_text(text.replace(old, new))
    with pytest.raises(RedraftError, match=said):
        train(read_recipe(tmp_path / "own.toml"), tmp_path / "runs/out")
    assert not (tmp_path / "runs").exists()  # no folder is left that holds nothing


def test_a_folder_that_cannot_be_had_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot be looked at: File name too long; give another folder"):
        train(recipe(tmp_path), tmp_path / ("a" * 300))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ADAPTER).symlink_to("nowhere")
    with pytest.raises(RecipeError, match="adapter is a file where the adapter's folder would be"):
        train(recipe(tmp_path, LORA), tmp_path / "out")
    assert [one.name for one in (tmp_path / "out").iterdir()] == [ADAPTER]


@pytest.mark.parametrize("error", [ValueError("a bug of ours"), OSError(28, "No space left on device")])
def test_no_failure_before_the_first_step_leaves_a_folder(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recipe(tmp_path)
    monkeypatch.setattr(trainer, "restore", Mock(side_effect=error))
    with pytest.raises(ValueError if isinstance(error, ValueError) else RunError):
        train(whole, tmp_path / "runs/out")
    assert not (tmp_path / "runs").exists()


def test_a_start_of_another_shape_is_refused(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "tiny", tiny_config())
    shutil.copy(locate("nano-sudoku") / "tokenizer.json", tmp_path / "tiny")
    text = (Path(__file__).resolve().parents[2] / "recipes" / "nano-sudoku-second.toml").read_text()
    (tmp_path / "nano.toml").write_text(text.replace("runs/nano-sudoku-first", str(tmp_path / "tiny")))
    with pytest.raises(RecipeError, match=r"start is .*, where .* is .*; this recipe's is"):
        train(read_recipe(tmp_path / "nano.toml"), tmp_path / "out")


def started(folder: Path, start: str, vocabulary: str) -> Base:
    (folder / vocabulary).mkdir()
    head = f'name = "own"\n{start}{SHAPE}vocabulary = "{vocabulary}"\n[data]\ntasks = {{ records = 1 }}\n'
    (folder / "own.toml").write_text(head + "[train]\nsteps = 1\nbatch_size = 1\n")
    return read_base(read_recipe(folder / "own.toml"), folder / vocabulary)


@pytest.mark.parametrize(
    ("start", "vocabulary"), [("nano-sudoku", "plain"), ("nano-sudoku", "records"), ("nano", "python")]
)
def test_a_start_of_other_tokens_is_refused(start: str, vocabulary: str, tmp_path: Path) -> None:
    """It ended in a KeyError or a RuntimeError: more, fewer, and others."""
    said = f"vocabulary is '{vocabulary}', which does not begin with the tokens of the start, '.*{start}'; leave out"
    with pytest.raises(RecipeError, match=said):
        started(tmp_path, f'start = "{start}"', vocabulary).model()


def test_a_new_token_starts_as_the_mean_of_those_it_was_cut_into(tmp_path: Path) -> None:
    small = started(tmp_path, "", "records")
    small.save(small.model(), tmp_path / "records")
    large = started(tmp_path, f'start = "{tmp_path / "records"}"', "python")
    old, new = (read_config(tmp_path / "records").model.vocab_size, large.config.vocab_size)
    before, table = load_model(tmp_path / "records")[0].embed.weight.float(), large.model().embed.weight
    assert (old, new) == (432, 631)
    assert torch.equal(table[:old], before)
    (token,) = large.text.encode("return", bos=False)
    pieces = small.text.encode("return", bos=False)
    assert token >= old
    assert len(pieces) > 1
    torch.testing.assert_close(table[token], before[pieces].mean(0))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"),
    ],
    ids=["Python's", "torch's", "a GPU's"],
)
def test_too_little_memory_is_told_with_a_remedy(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "losses", Mock(side_effect=error))
    with pytest.raises(RunError, match=r"memory ran out; lower \[train\] batch_size"):
        train(recipe(tmp_path), tmp_path / "out")


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
@pytest.mark.parametrize("place", ["redraft.tune.state._take", "torch.load"])
def test_a_state_for_which_memory_is_too_small_is_not_called_damaged(
    error: Exception, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice for a damaged one is to remove it, and a whole run would go with it."""
    train(recipe(tmp_path, steps=2), tmp_path / "out")
    monkeypatch.setattr(place, Mock(side_effect=error))
    with pytest.raises(RunError, match="memory ran out"):
        train(recipe(tmp_path, steps=2), tmp_path / "out")
    assert (tmp_path / "out" / FILE).exists()


def test_a_packed_start_is_refused(tmp_path: Path) -> None:
    """Rounded numbers have no gradients: the run would move what is left of the model, and say nothing."""
    quantize_checkpoint(locate("nano-sudoku"), tmp_path / "packed", PLANS["int8"])
    own = msgspec.structs.replace(recipe(tmp_path), start=str(tmp_path / "packed"))
    (tmp_path / "out").mkdir()
    with pytest.raises(RecipeError, match="packed is packed; train the checkpoint that is not quantized"):
        read_base(own, tmp_path / "out").model()
