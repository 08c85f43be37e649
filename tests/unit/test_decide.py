"""Decisions against brute force: every way to spell a choice in tokens, its probability multiplied out by hand."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from tests.helpers import ANSWER, PROMPT, Shell

from redraft.cache import Prefix
from redraft.constraints.sources import choices_source
from redraft.diffusion.canvas import fresh
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.seed import SeedCanvas
from redraft.engine.request import Options, Request
from redraft.errors import ConstraintError, RequestError
from redraft.operations.decide import Decision, decide, decide_all, read_form
from redraft.operations.engine import Engine

pytestmark = pytest.mark.usefixtures("own_cache")


def test_shares_are_those_of_all_spellings_of_a_choice(engine: Engine) -> None:
    request = engine.resolve(Request(PROMPT, chat=True, options=Options(seed=3, canvas=4)))
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
    assert found.log_mass == pytest.approx(math.log(sum(wanted)), rel=1e-4, abs=1e-5)


def test_the_right_answer_has_nearly_all_of_it(engine: Engine) -> None:
    request = engine.resolve(Request(PROMPT, chat=True, options=Options(seed=1)))
    choices = [ANSWER.replace("417", "418"), ANSWER, ANSWER.replace("Karomi", "Karoma")]
    found = decide(engine, request, choices, canvases=2)
    assert found.best == ANSWER
    assert found.shares[ANSWER] > 0.99
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found == decide(engine, request, choices, canvases=2)


def test_a_score_is_the_expected_number(engine: Engine) -> None:
    request = engine.resolve(Request(PROMPT, options=Options(seed=1)))
    found = decide(engine, request, ["1", "2", "5"])
    assert found.mean == pytest.approx(sum(float(choice) * share for choice, share in found.shares.items()))
    with pytest.raises(RequestError, match="not all numbers"):
        _ = decide(engine, request, ["yes", "no"]).mean


def test_what_cannot_be_decided_is_refused(engine: Engine) -> None:
    request = engine.resolve(Request(PROMPT, options=Options(seed=1, canvas=4)))
    with pytest.raises(RequestError, match="canvases is 0"):
        decide(engine, request, ["yes"], canvases=0)
    with pytest.raises(ConstraintError, match="choices is empty"):
        decide(engine, request, [])
    with pytest.raises(ConstraintError, match="shortest valid answer"):
        decide(engine, request, ["a long answer, longer than four tokens"])
    pins = SeedCanvas(pins=((0, 7),))
    causal, seeded = (
        engine.resolve(Request(PROMPT, options=one)) for one in (Options(causal=True), Options(seed_canvas=pins))
    )
    held = engine.resolve(Request(PROMPT, constraint=engine.language(choices_source(["a"]))))
    for other, name in ((causal, "causal"), (held, "a language"), (seeded, "seed_canvas")):
        with pytest.raises(RequestError, match=f"{name} was given; a decision is read off a canvas of noise"):
            decide(engine, other, ["a", "b"])
        with pytest.raises(RequestError, match=f"{name} was given"):
            decide_all(engine, other, [["a", "b"]])


def test_every_slot_of_a_form_is_read_from_one_canvas(engine: Engine) -> None:
    """Expected: the canvas built by hand, denoised, and each choice's tokens multiplied out."""
    request = engine.resolve(Request(PROMPT, chat=True, options=Options(seed=3, canvas=16, max_tokens=16)))
    form: list[str | list[str]] = ['{"who":"', ["Karo", "Kami"], '","qty":', ["4", "5", "x"], "}"]
    model, noise, at = engine.model, SeededNoise(3), 0
    tokens, places = fresh(noise, 0, 16, request.vocab).tokens, list[tuple[int, list[str]]]()

    def encode(text: str) -> list[int]:
        return engine.text.encode(text, bos=False)

    for part in form:
        size = len(encode(part if isinstance(part, str) else part[0]))
        if isinstance(part, str):
            tokens[at : at + size] = torch.tensor(encode(part))
        else:
            assert len({len(encode(choice)) for choice in part}) == 1
            places.append((at, part))
        at += size
    tokens[at:] = 1
    with torch.inference_mode():
        prefix = Prefix(model.config.layers, room=len(request.prompt), dtype=model.dtype, device=model.device)
        model.encode(torch.tensor(request.prompt), prefix)
        p = torch.softmax(model.denoise(tokens, None, prefix).double(), -1)
    forwards = engine.loop.forwards
    found = decide_all(engine, request, form)
    assert engine.loop.forwards == forwards
    for one, (begin, choices) in zip(found, places, strict=True):
        each = [
            math.prod([float(p[begin + i, token]) for i, token in enumerate(encode(choice))], start=1.0)
            for choice in choices
        ]
        assert list(one.shares) == choices
        assert one.shares[choices[0]] == pytest.approx(each[0] / sum(each), rel=1e-4)
        assert one.log_mass == pytest.approx(math.log(sum(each)), rel=1e-4, abs=1e-5)


def test_a_temperature_divides_the_logs_of_the_shares() -> None:
    own = Decision({"a": 0.7, "b": 0.2, "c": 0.1}, -1.0)
    roots = [math.sqrt(share) for share in own.shares.values()]
    humbler = own.at(2.0)
    assert list(humbler.shares.values()) == pytest.approx([root / sum(roots) for root in roots])
    assert humbler.temperature == 2.0
    assert list(humbler.at(1.0).shares.values()) == pytest.approx(list(own.shares.values()))
    assert Decision({"a": 1.0, "b": 0.0}, 0.0).at(3.0).shares["a"] == pytest.approx(1)
    assert own.at(5e-324).shares == {"a": 1.0, "b": 0.0, "c": 0.0}


@pytest.mark.parametrize(
    ("form", "complaint"),
    [
        ("no slot", "the form has no slot"),
        ("{{Karomi|a}}", "slot 1: 'Karomi' has . tokens and 'a' 1"),
        ("x{{a|b}}" + "7" * 300, "split it"),
        ("{{}}", "slot 1 has an empty choice"),
    ],
)
def test_what_is_no_form_is_refused(engine: Engine, form: str, complaint: str) -> None:
    request = engine.resolve(Request(PROMPT, options=Options(seed=1)))
    with pytest.raises(RequestError, match=complaint):
        decide_all(engine, request, read_form(form))
    for temperature in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(RequestError, match="temperature is"):
            Decision({"a": 1.0}, 0.0).at(temperature)


def test_the_command_prints_shares(shell: Shell) -> None:
    reported = json.loads(shell(["decide", PROMPT, "--choice", "yes", "--choice", "no", "--json"]).out)
    assert set(reported["shares"]) == {"yes", "no"}
    assert reported["best"] in reported["shares"]


def test_the_command_says_where_shares_say_nothing(shell: Shell) -> None:
    """A share of 89% between two things that the model would never say had no warning."""
    words = ["decide", "--model", "nano-sudoku", "--chat", "record\nSend 417 melu to Karomi."]
    said = "the model would say none of these (log_mass -"
    assert said in shell([*words, "--choice", "spam", "--choice", "ham"]).err
    right = '{"who":"Karomi","qty":417,"item":"melu"}'
    assert said not in shell([*words, "--choice", right, "--choice", right.replace("7", "8")]).err
