"""Calls and folders that were not as they should be: other files behind an engine's back, values of other types."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers import nano_copy
from tests.pictures import asking, drawn, write_whole
from tests.unit.test_tune_own import RECIPE

import redraft
from redraft import Options
from redraft.__main__ import main
from redraft.errors import CallerError, RecipeError, WeightsError
from redraft.tune.recipe import read_recipe
from redraft.tune.train import train
from redraft.weights.plan import PLANS
from redraft.weights.quantize import quantize_checkpoint


def scaled(folder: Path, part: str, factor: float) -> None:
    """The same checkpoint with other numbers in some of its tensors, and the time that it had."""
    (file,) = folder.glob("*.safetensors")
    before = file.stat()
    tensors = {name: value * (factor if part in name else 1) for name, value in load_file(file).items()}
    save_file(tensors, file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_tower_is_that_of_the_model_that_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read with the first image, by a path that could lead elsewhere by then, or to other files."""
    folders = [write_whole(tmp_path / name / "m") for name in ("a", "b")]
    (tmp_path / "empty").mkdir()
    scaled(folders[1], "vision", 0.3)
    asked, options = asking(drawn(40, 30), "What?"), Options(seed=1, max_tokens=4)
    wanted = redraft.load(folders[0], device="cpu", dtype="float32").generate(asked, options=options)
    for elsewhere in ("b", "empty"):
        monkeypatch.chdir(tmp_path / "a")
        engine = redraft.load("m", device="cpu", dtype="float32")
        monkeypatch.chdir(tmp_path / elsewhere)
        assert engine.generate(asked, options=options).entropy == wanted.entropy
    engine = redraft.load(folders[0], device="cpu", dtype="float32")
    for file in folders[1].glob("*.safetensors"):
        shutil.copy(file, folders[0])
    with pytest.raises(WeightsError, match="were changed since the model was loaded; load it anew"):
        engine.generate(asked, options=options)


def test_a_quantization_does_not_go_on_with_other_weights(tmp_path: Path) -> None:
    """Of the same name, size and time: six of ten shards were of one checkpoint, four of the other."""
    one, other = (nano_copy(tmp_path / name) for name in ("one", "other"))
    scaled(other, "", -1.0)
    calls = []

    def stop(done: int, whole: int) -> None:
        calls.append(done)
        if done > whole / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(one, tmp_path / "mixed", PLANS["int8"], max_shard_bytes=1_000_000, progress=stop)
    for name in ("mixed", "whole"):
        quantize_checkpoint(other, tmp_path / name, PLANS["int8"], max_shard_bytes=1_000_000)
    for file in (tmp_path / "whole").glob("*.safetensors"):
        assert (tmp_path / "mixed" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "redraft.json", "config.json"])
def test_a_checkpoint_that_changes_while_it_is_quantized_is_refused(tmp_path: Path, name: str) -> None:
    """Half of the tensors were the one's and half the other's, and nothing said so: a tuning run replaces its
    checkpoint as it goes."""
    folder = nano_copy(tmp_path / "m")
    (other := tmp_path / "new").write_bytes((folder / name).read_bytes() + b" " * (not name.endswith("safetensors")))
    changed = [lambda: os.replace(other, folder / name)]

    def progress(done: int, whole: int) -> None:
        if done > whole / 2 and changed:
            changed.pop()()

    with pytest.raises(WeightsError, match="was changed meanwhile; run the same command again"):
        quantize_checkpoint(folder, tmp_path / "out", PLANS["int8"], progress=progress)
    assert not (tmp_path / "out").exists()
    quantize_checkpoint(folder, tmp_path / "out", PLANS["int8"])
    quantize_checkpoint(folder, tmp_path / "whole", PLANS["int8"])
    found, whole = ((tmp_path / one / "model.safetensors").read_bytes() for one in ("out", "whole"))
    assert found == whole


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "redraft.json"])
def test_a_run_does_not_go_on_with_another_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = nano_copy(tmp_path / "m")
    rows = [json.dumps({"prompt": "a", "max_tokens": 2}) + "\n" for _ in range(3)]
    (tmp_path / "in.jsonl").write_text("".join(rows[:2]))
    command = ["run", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--seed", "1", "--model", str(folder)]
    assert main(command) == 0
    (folder / name).write_text((folder / name).read_text() + " ")
    (tmp_path / "in.jsonl").write_text("".join(rows))
    assert main(command) == 2
    assert "was begun with tokenizer" in capsys.readouterr().err


def test_a_run_does_not_go_on_with_other_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = nano_copy(tmp_path / "m")
    rows = [json.dumps({"prompt": "a", "max_tokens": 2}) + "\n" for _ in range(3)]
    (tmp_path / "in.jsonl").write_text("".join(rows[:2]))
    command = ["run", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--seed", "1", "--model", str(folder)]
    assert main(command) == 0
    scaled(folder, "", -1.0)
    (tmp_path / "in.jsonl").write_text("".join(rows))
    assert main(command) == 2
    assert "was begun with weights" in capsys.readouterr().err
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for line in lines:  # as older versions wrote it
        del line["settings"]["weights"], line["settings"]["tokenizer"]
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(command) == 0


class Failing:
    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        raise ZeroDivisionError("no schema")


CALLS: dict[str, tuple[Callable[[redraft.Engine], Any], str]] = {
    "a seed canvas that is none": (
        lambda e: e.generate("hi", options=Options(max_tokens=6, seed_canvas={"pin": [[0, 50]]})),  # type: ignore[arg-type]  # none, on purpose
        "seed_canvas is .* it must be a SeedCanvas",
    ),
    "a source of several": (lambda e: e.fill("{{a: int}}", source=["x"]), "the source is .* must be a string"),
    "an instruction that is none": (lambda e: e.edit("abc", (0, 1), instruction=5), "the instruction is 5"),
    "kinds as text": (lambda e: e.fill("{{a}}", "int"), "kinds is 'int'; it must be a mapping"),
    "an array": (lambda e: e.generate(np.array([2, 5, 6])), "the prompt is ndarray"),
    "a tensor": (lambda e: e.generate(torch.tensor([2, 5, 6])), "the prompt is Tensor"),
    "a class without a schema": (
        lambda e: e.generate("a", schema=Failing),
        "Failing makes no schema .ZeroDivisionError: no schema",
    ),
    "token ids as a chat": (lambda e: e.generate([5, 6, 7], chat=True), "chat is True and the prompt is token ids"),
    "one text as parts": (lambda e: e.infill_all("hey"), "parts is one text"),
    "slack that is none": (lambda e: e.edit("abc", (0, 1), slack=[]), "slack is"),
    "slack that is true": (lambda e: e.edit("abc", (0, 1), slack=True), "slack is True"),
    "a plan that is none": (lambda _: redraft.load(plan=(1, 2)), "plan"),
    "a format that is none": (lambda _: redraft.load(dtype=(1, 2)), "dtype"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_value_of_another_type_is_refused_by_its_name(call: str) -> None:
    """Most ended with an error of Python's, some changed nothing."""
    work, said = CALLS[call]
    with pytest.raises(CallerError, match=said):
        work(redraft.load("nano"))


def test_a_run_is_refused_among_the_texts_that_it_learns_from(tmp_path: Path) -> None:
    """It could not be continued: its own files were texts to learn from by then."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("def area(r):\n    return r\n" * 9)
    folders = RECIPE.format(rows="", lora="", steps=4).replace("files = ", "folders = ").replace("fit_share = 1.0", "")
    (tmp_path / "text.toml").write_text(folders.replace('{ "" = 1.0 }', f'{{ "{tmp_path / "texts"}" = 1.0 }}'))
    recipe = read_recipe(tmp_path / "text.toml")
    for out in (tmp_path / "texts", tmp_path / "texts" / "runs" / "mine"):
        with pytest.raises(RecipeError, match="whose files are what the run learns from; give another folder"):
            train(recipe, out)
    assert [one.name for one in (tmp_path / "texts").iterdir()] == ["a.txt"]
