"""Every way a checkpoint folder can be wrong, as the caller of a command sees it: exit 2, one line, nothing changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers import Shell, edit_tensors, nano_copy

from redraft import load
from redraft.errors import WeightsError

WEIGHTS, CONFIG = "model.safetensors", "config.json"
NORM = "model.decoder.norm.weight"
Damage = Callable[[Path], object]


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    return lambda folder: edit_tensors(folder, change)


def settings(file: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        found = json.loads((folder / file).read_text())
        change(found)
        (folder / file).write_text(json.dumps(found))

    return damage


def shards(change: Callable[[torch.Tensor], torch.Tensor], misplaced: int = 0) -> Damage:
    """Two shards, of which the second has other tensors; the index puts so many of the first one's there."""

    def damage(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        names, files = sorted(found), [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
        half = len(names) // 2
        save_file({name: found[name] for name in names[:half]}, folder / files[0])
        save_file({name: change(found[name]) for name in names[half:]}, folder / files[1])
        index = {name: files[i < misplaced or i >= half] for i, name in enumerate(names)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))

    return damage


def cut(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "has neither model.safetensors nor"),
    "cut short": (cut, "is damaged or cut short"),
    "corrupt": (lambda folder: (folder / WEIGHTS).write_bytes(b"\x00" * 100), "is damaged or cut short"),
    "a tensor too few": (tensors(lambda found: found.pop(NORM)), "lacks 1 tensors"),
    "a tensor too many": (tensors(lambda found: found.update(extra=torch.ones(2))), "holds 1 tensors"),
    "another shape": (tensors(lambda found: found.update({NORM: torch.ones(7)})), "has shape [7]"),
    "NaN": (tensors(lambda found: found[NORM].fill_(float("nan"))), "holds NaN or infinity"),
    "shards beside their index": (
        shards(torch.clone, misplaced=1),
        "that model.safetensors.index.json does not put there",
    ),
    "a shard of a wider model": (shards(lambda t: torch.cat([t, t], -1)), "config.json makes it ["),
    "a shard of a packed model": (shards(lambda t: t.to(torch.int8)), "has no weight_scale beside it"),
    "no config": (lambda folder: (folder / CONFIG).unlink(), "config.json does not exist"),
    "another model": (settings(CONFIG, lambda found: found.update(model_type="llama")), "model_type is 'llama'"),
    "too large a number": (settings(CONFIG, lambda found: found.update(canvas_length=10**12)), "canvas_length is 1000"),
    "an id nobody has": (
        settings("generation_config.json", lambda found: found.update(eos_token_id=10**6)),
        "eos_token_id is 1000000, which tokenizer.json does not have",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json does not exist"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_one_line_and_left_alone(name: str, tmp_path: Path, shell: Shell) -> None:
    damage, said = DAMAGES[name]
    folder = tmp_path / "model"
    nano_copy(folder)
    damage(folder)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    out, err = shell(["generate", "hi", "--max-tokens", "1", "--model", str(folder)], 2)
    (line,) = err.splitlines()
    assert (out, line.startswith("redraft: "), said in line) == ("", True, True), err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_whose_name_is_no_utf8_is_named_as_the_reason(tmp_path: Path) -> None:
    """What had been trained into it looked lost: its weights were said to be cut short."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has no such names")
    nano_copy(folder)
    with pytest.raises(WeightsError, match="its name is no UTF-8, and such files cannot be opened; rename the folder"):
        load(folder)


@pytest.mark.parametrize("how", [[], ["--causal"], ["--watch"]])
def test_numbers_that_overflow_while_running_are_one_line(how: list[str], tmp_path: Path, shell: Shell) -> None:
    """Finite weights whose products are not: the answer was a blank line, and the exit code 0."""
    folder = tmp_path / "model"
    nano_copy(folder)
    tensors(lambda found: found[NORM].fill_(3e38))(folder)
    out, err = shell(["generate", "hi", "--max-tokens", "1", "--model", str(folder), *how], 1)
    assert out == ""
    assert "the network's numbers overflow to NaN" in err.splitlines()[-1]
