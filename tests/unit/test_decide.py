"""Decisions against brute force: every way to spell a choice in tokens, its probability multiplied out by hand."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

import redraft
from redraft.__main__ import main
from redraft.cache import Prefix
from redraft.diffusion.canvas import fresh
from redraft.diffusion.noise import SeededNoise
from redraft.engine.decide import decide
from redraft.engine.engine import Engine
from redraft.engine.request import Options
from redraft.errors import ConstraintError, RequestError

PROMPT = "record\nSend 417 melu to Karomi."
ANSWER = '{"who":"Karomi","qty":417,"item":"melu"}'


@pytest.fixture(scope="module")
def engine() -> Engine:
    return redraft.load("nano")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_shares_are_those_of_all_spellings_of_a_choice(engine: Engine) -> None:
    request = engine.request(PROMPT, chat=True, options=Options(seed=3, canvas=4))
    choices = ["me", "lu", "4"]
    model = engine.model
    prefix = Prefix(model.config.layers, room=len(request.prompt), dtype=model.dtype, device=model.device)
    with torch.inference_mode():
        model.encode(torch.tensor(request.prompt), prefix)
        canvas = fresh(SeededNoise(3), 0, 4, request.vocab)
        log_p = torch.log_softmax(model.denoise(canvas.tokens, None, prefix), -1).double()
    pieces, ends = engine.vocabulary.pieces, sorted(engine.vocabulary.ends)
    tail = sorted(engine.vocabulary.tail)
    wanted = []
    for choice in choices:
        total = 0.0
        for size in range(1, len(choice) + 1):
            fitting = [i for i, piece in enumerate(pieces) if piece and piece.decode("latin1") in choice]
            for spelt in itertools.product(fitting, repeat=size):
                if b"".join(pieces[i] or b"" for i in spelt) == choice.encode():
                    score = math.exp(sum(float(log_p[i, token]) for i, token in enumerate(spelt)))
                    behind = [log_p[size, ends], *(log_p[i, tail] for i in range(size + 1, 4))]
                    total += score * math.prod(float(row.exp().sum()) for row in behind)
        wanted.append(total)
    found = decide(engine, request, choices)
    for choice, total in zip(choices, wanted, strict=True):
        assert found.shares[choice] == pytest.approx(total / sum(wanted), rel=1e-4)
    assert found.log_mass == pytest.approx(math.log(sum(wanted)), rel=1e-4)


def test_the_right_answer_has_nearly_all_of_it(engine: Engine) -> None:
    request = engine.request(PROMPT, chat=True, options=Options(seed=1))
    choices = [ANSWER.replace("417", "418"), ANSWER, ANSWER.replace("Karomi", "Karoma")]
    found = decide(engine, request, choices, canvases=2)
    assert found.best == ANSWER
    assert found.shares[ANSWER] > 0.99
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found == decide(engine, request, choices, canvases=2)


def test_a_score_is_the_expected_number(engine: Engine) -> None:
    request = engine.request(PROMPT, options=Options(seed=1))
    found = decide(engine, request, ["1", "2", "5"])
    assert found.mean == pytest.approx(sum(float(choice) * share for choice, share in found.shares.items()))
    with pytest.raises(RequestError, match="not all numbers"):
        _ = decide(engine, request, ["yes", "no"]).mean


def test_what_cannot_be_decided_is_refused(engine: Engine) -> None:
    request = engine.request(PROMPT, options=Options(seed=1, canvas=4))
    with pytest.raises(RequestError, match="canvases is 0"):
        decide(engine, request, ["yes"], canvases=0)
    with pytest.raises(ConstraintError, match="choices is empty"):
        decide(engine, request, [])
    with pytest.raises(ConstraintError, match="shortest valid answer"):
        decide(engine, request, ["a long answer, longer than four tokens"])


def test_the_command_prints_shares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decide", PROMPT, "--choice", "yes", "--choice", "no", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["shares"]) == {"yes", "no"}
    assert told["best"] in told["shares"]
