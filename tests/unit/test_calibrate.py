"""Rounding by what comes out: what matrices read, codes against a plain least-squares oracle, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import tiny_checkpoint, tiny_config
from torch import Tensor

from redraft.__main__ import main
from redraft.cache import Prefix
from redraft.config import CheckpointConfig, read_config
from redraft.errors import WeightsError
from redraft.model.moe import experts_loop
from redraft.model.packed import INT4, NVFP4, Format, pack, unpack
from redraft.model.rows import Mode, Span
from redraft.weights.calibrate import ROWS, Calibration, Chat, output_error, pack_for, sharing
from redraft.weights.layouts import matrices
from redraft.weights.load import load_model
from redraft.weights.names import slots
from redraft.weights.plan import PLANS
from redraft.weights.quantize import REPORT, quantize_checkpoint
from redraft.weights.source import Source

WIDE = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 64}
CHATS = [Chat([2, *range(5 + n, 20 + n)], range(30 + n, 37 + n)) for n in range(12)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "model"
    tiny_checkpoint(folder, tiny_config(**WIDE), max_shard_bytes=200_000)
    return folder


def correlated(seed: int, rows: int, width: int) -> Tensor:
    """Rows of few directions and a little of everything, as the rows of a network are."""
    draw = torch.Generator().manual_seed(seed)
    few = torch.randn(rows, width // 8, generator=draw) @ torch.randn(width // 8, width, generator=draw)
    return few + 0.1 * torch.randn(rows, width, generator=draw)


@pytest.mark.parametrize("form", [INT4, NVFP4], ids=lambda form: form.name)
def test_rows_that_favour_no_column_round_as_without_calibration(form: Format) -> None:
    weight = torch.randn(9, 96, generator=torch.Generator().manual_seed(1))
    ours, theirs = pack_for(sharing(torch.eye(96) * 96**0.5), weight, form, "x"), pack(weight, form)
    assert torch.equal(ours.codes, theirs.codes)
    assert torch.equal(ours.scale.float(), theirs.scale.float())


def test_codes_are_those_of_solving_least_squares_after_every_column() -> None:
    """The definition, without its algebra: fix a column at its nearest code, then refit all columns behind it."""
    form = replace(INT4, group=32)
    rows, weight = correlated(2, 200, 32).double(), torch.randn(5, 32, generator=torch.Generator().manual_seed(3))
    packed = pack_for(sharing(rows.float()), weight, form, "x")
    scale = packed.scale.double()
    damped = rows.T @ rows / len(rows)
    damped = damped + 0.01 * damped.diagonal().mean() * torch.eye(32)
    root = torch.linalg.cholesky(damped).T  # |root·v|² is what v costs, damping included
    found = weight.double().clone()
    for j in range(32):
        found[:, j] = (found[:, j] / scale[:, 0]).round().clamp(-8, 7) * scale[:, 0]
        if j < 31:
            left = (weight.double() - found)[:, : j + 1] @ root[:, : j + 1].T
            found[:, j + 1 :] = weight.double()[:, j + 1 :] + torch.linalg.lstsq(root[:, j + 1 :], left.T).solution.T
    torch.testing.assert_close(unpack(packed).double(), found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [INT4, NVFP4], ids=lambda form: form.name)
def test_what_comes_out_changes_less_on_these_rows_and_on_others_like_them(form: Format) -> None:
    rows, others = correlated(4, 600, 96).split(300)
    weight = torch.randn(40, 96, generator=torch.Generator().manual_seed(5))
    ours, theirs = pack_for(sharing(rows), weight, form, "x"), pack(weight, form)
    for seen, most in ((rows, 0.5), (others, 0.6)):
        assert output_error(seen, weight, ours)[0] < most * output_error(seen, weight, theirs)[0]


def test_an_expert_that_reads_only_zeros_is_rounded_by_its_own_numbers() -> None:
    weight = torch.randn(4, 32)
    assert torch.equal(pack_for(sharing(torch.zeros(3, 32)), weight, INT4, "x").codes, pack(weight, INT4).codes)


def test_matrices_read_what_they_read_in_the_model(plain: Path) -> None:
    """Every matrix of every layer, against hooks in the whole model on the same rows."""
    model, config = load_model(plain)
    calibration = Calibration(Source(plain), config, CHATS)
    spans, tokens, soft, seen = [], [], [], {}
    for number, (chat, canvas, answer) in enumerate(calibration.rounds):
        held = Prefix(model.config.layers)
        spans += [Span(held, len(chat.prompt), Mode.ENCODE), Span(held, len(canvas), Mode.DENOISE)]
        tokens += [*chat.prompt, *canvas]
        known = model.embed(torch.tensor(answer)) * model.embed_scale * (number % 2)
        soft += [torch.zeros(len(chat.prompt), 64), known]
    for i, layer in enumerate(model.layers):
        for name in ("attention.qkv", "attention.out", "mlp.gate_up", "mlp.down"):
            layer.get_submodule(name).register_forward_pre_hook(
                lambda _, read, key=f"layers.{i}.{name}.weight": seen.__setitem__(key, read[0])
            )
    routed: list[tuple[Tensor, Tensor]] = []

    def spied(experts: Any, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        routed.append((x, chosen))
        return experts_loop(experts, x, weights, chosen)

    for layer in model.layers:
        layer.kernels = replace(layer.kernels, experts=spied)
    with torch.no_grad():
        model(torch.tensor(tokens), torch.cat(soft), model.rows(spans))
    checked = 0
    for slot in slots(config.model):
        for matrix in matrices(slot):
            ours = calibration.inputs(matrix)
            if matrix.expert is None:
                theirs = seen[slot.target]
            elif slot.target.endswith("gate_up"):
                x, chosen = routed[int(slot.target.split(".")[1])]
                theirs = x[(chosen == matrix.expert).any(1)]
            else:
                continue
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
            checked += 1
    assert checked == 2 * (7 + 2 * 4) - 1  # the full layer has no value projection


def test_a_calibrated_folder_is_more_exact_where_it_matters_and_loads_like_any_other(
    plain: Path, tmp_path: Path
) -> None:
    report = quantize_checkpoint(plain, tmp_path / "fine", PLANS["int4"], chats=CHATS)
    assert report.outputs.keys() == {f"layers.{i}.experts.{name}" for i in (0, 1) for name in ("gate_up", "down")}
    for target, (with_it, without) in report.outputs.items():
        assert 0 < with_it < without, target
    assert json.loads((report.folder / REPORT).read_text())["output_error_with_and_without_calibration"]
    tokens = torch.arange(6) + 30
    model, exact = load_model(report.folder)[0], load_model(plain)[0]
    logits = [one.denoise(tokens, None, Prefix(one.config.layers)) for one in (model, exact)]
    assert 0 < float((logits[0] - logits[1]).norm() / logits[1].norm()) < 0.5


def test_an_interrupted_calibration_goes_on_and_ends_the_same(plain: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"chats": CHATS, "max_shard_bytes": 60_000}
    whole = quantize_checkpoint(plain, tmp_path / "whole", PLANS["int4"], **options)

    def stop(done: int, total: int) -> None:
        if done > 2 * total // 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(plain, tmp_path / "again", PLANS["int4"], progress=stop, **options)
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / ".again.quantizing").glob("*.safetensors")}
    again = quantize_checkpoint(plain, tmp_path / "again", PLANS["int4"], **options)
    assert kept
    assert {name: (again.folder / name).stat().st_mtime_ns for name in kept} == kept
    for path in whole.folder.iterdir():
        assert (again.folder / path.name).read_bytes() == path.read_bytes(), path.name
    assert again.outputs == whole.outputs


def test_no_stack_of_experts_is_ever_in_memory(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    for name in ("read", "read_rows"):
        kept = getattr(Source, name)

        def read(self: Source, *given: Any, kept: Any = kept) -> Tensor:
            found: Tensor = kept(self, *given)
            sizes.append(found.numel())
            return found

        monkeypatch.setattr(Source, name, read)
    quantize_checkpoint(plain, tmp_path / "out", PLANS["int4"], chats=CHATS)
    assert max(sizes) == 2 * 64 * 64, "one expert's gate and up"


def test_chats_that_cannot_be_read_are_refused(plain: Path) -> None:
    config: CheckpointConfig = read_config(plain)
    with pytest.raises(WeightsError, match="no chat to calibrate with has a prompt and fits 4096 rows"):
        Calibration(Source(plain), config, [Chat([2] * ROWS, [3])])
    kept = Calibration(Source(plain), config, [CHATS[0], Chat([2] * ROWS, [3])])
    assert [chat for chat, *_ in kept.rounds] == [CHATS[0]], "what is too long is left out"


def test_the_command_calibrates_nano_and_refuses_what_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "chats.jsonl", tmp_path / "out"
    rows = [(f"record\nSend {n} melu to Karomi.", f'{{"who":"Karomi","qty":{n}}}') for n in range(9)]
    file.write_text("\n".join(json.dumps({"prompt": asked, "response": said}) for asked, said in rows))
    command = ["quantize", "nano", "--plan", "int4", "--out", str(out), "--calibrate", str(file)]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["outputs"]
    assert len(found) == 10
    assert all(with_it < without for with_it, without in found.values())
    for content, plan, message in (
        ("", "int4", "holds no chats; write one a line"),
        ('{"prompt": "x"}', "int4", "chats.jsonl, line 1: there is no response"),
        (None, "int4", "cannot be read: No such file"),
        ("{}", "int8", "plan int8 writes nothing in 4 bits"),
    ):
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        refused = [*command[:2], "--plan", plan, "--out", str(tmp_path / "x"), "--calibrate", str(file)]
        assert main(refused) == 2
        assert message in capsys.readouterr().err
