"""Questions about a text, asked by the openai client."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from openai import OpenAI
from tests.helpers import nano_copy
from tests.server.conftest import ANSWER, RECORD, Inside, Process, inside

from redraft.engine.request import Options, Request
from redraft.operations.decide import BELIEF, UNEXPECTED, Belief, decide_all, read_belief, read_form, write_belief
from redraft.operations.engine import Engine
from redraft.server.http.errors import ApiError
from redraft.server.http.limits import ServerLimits
from redraft.server.http.settings import Settings
from redraft.server.openai.decisions import Decisions
from redraft.weights.fingerprint import fingerprint

WRONG = ANSWER.replace("417", "418")


def test_shares_of_choices_sum_to_one_and_the_right_answer_leads(client: OpenAI) -> None:
    """The input is one that the model answers; its right answer and a wrong one are the choices."""
    done = client.decisions.create(
        model="nano",
        input=RECORD,
        questions=[
            {"type": "choice", "instructions": "", "choices": [{"value": WRONG}, {"value": ANSWER}], "name": "which"},
            {"type": "predicate", "instructions": "is it so?"},
            {"type": "score", "instructions": "how much?", "levels": [{"label": "1"}, {"label": "2"}, {"label": "3"}]},
        ],
        extra_body={"joint": False},
    )
    choice, predicate, score = done.answers
    assert choice.type == "choice"
    assert (choice.choice, choice.name) == (ANSWER, "which")
    assert sum(one.probability for one in choice.probabilities) == pytest.approx(1)
    assert predicate.type == "predicate"
    assert 0 <= predicate.probability <= 1
    assert score.type == "score"
    assert 0 <= score.score <= 2
    assert score.score == pytest.approx(sum(one.value * one.probability for one in score.probabilities))
    assert done.usage.output_tokens == 0


@pytest.mark.parametrize(
    "question",
    [
        {"type": "choice", "instructions": "", "choices": [{"value": "a"}]},
        {"type": "choice", "instructions": "", "choices": [{"value": "a"}, {"value": "a"}]},
        {"type": "choice", "instructions": "", "choices": [{"value": "true"}, {"value": True}]},
        {"type": "guess", "instructions": ""},
        {"type": "predicate"},
        {"type": "predicate", "instructions": [{"type": "input_image", "image_url": "data:image/png;base64,"}]},
    ],
)
def test_what_is_no_question_is_refused(server: Process, question: object) -> None:
    reported = httpx2.post(f"{server.base}/decisions", json={"input": "a", "questions": [question]}, timeout=100)
    assert reported.status_code == 400
    assert reported.json()["error"]["param"].startswith("questions")


def test_a_choice_may_be_a_plain_text(served: Inside) -> None:
    """It was refused: "Input should be a valid dictionary or object to extract fields from"."""
    answers = []
    for choices in (["spam", "ham"], [{"value": "spam"}, {"value": "ham"}], ["spam", {"value": "ham"}]):
        question = {"type": "choice", "instructions": "Which?", "choices": choices}
        body = {"input": "Buy now!", "questions": [question]}
        answers.append(httpx2.post(f"{served.base}/decisions", json=body, timeout=100).json()["answers"])
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0]["choice"] in ("spam", "ham")


def test_an_answer_says_how_likely_all_of_its_choices_are_together(served: Inside, nano: Engine) -> None:
    """A high share between two things that the model would never say looked like a belief."""
    log_masses = []
    for choices in ([ANSWER, WRONG], ["spam", "ham"]):
        question = {"type": "choice", "instructions": RECORD.partition("\n")[2], "choices": choices}
        body = {"input": RECORD.partition("\n")[0], "questions": [question]}
        answer = httpx2.post(f"{served.base}/decisions", json=body, timeout=100).json()["answers"][0]
        options = Options(seed=0, max_tokens=nano.config.model.canvas_length, preset="reference")
        asked = Request(RECORD, options, chat=True)
        assert answer["log_mass"] == pytest.approx(nano.decide(asked, choices).log_mass, abs=1e-3)
        log_masses.append(answer["log_mass"])
    assert UNEXPECTED < log_masses[0] <= 0
    assert log_masses[1] < UNEXPECTED


def test_a_question_without_a_type_is_refused_by_what_it_lacks(server: Process) -> None:
    """The check's own words were reported, of a tag that cannot be extracted by a discriminator."""
    body = {"input": "x", "questions": [{"instructions": "Is it?"}]}
    reported = httpx2.post(f"{server.base}/decisions", json=body, timeout=100)
    assert reported.status_code == 400
    error = reported.json()["error"]
    assert (error["param"], error["message"]) == ("questions.0.type", "questions.0.type is missing")


def test_questions_packed_in_one_canvas_are_read_as_the_form_they_make(nano: Engine, served: Inside) -> None:
    """One forward for all; the same shares as the engine reads from that form, by letter where lengths differ."""
    questions = [
        {"type": "choice", "instructions": "which?", "choices": [{"value": "4"}, {"value": "7"}]},
        {"type": "choice", "instructions": "who?", "choices": [{"value": "Karomi"}, {"value": "x"}, {"value": True}]},
        {"type": "score", "instructions": "how much?", "levels": [{"label": "1"}, {"label": "2"}]},
    ]
    reported = httpx2.post(
        f"{served.base}/decisions", json={"input": RECORD, "questions": questions}, timeout=100
    ).json()
    asked = f"{RECORD}\n1. which?\n2. who?\nA: Karomi\nB: x\nC: true\n3. how much?"
    request = nano.resolve(
        Request(asked, chat=True, options=Options(seed=0, max_tokens=nano.config.model.canvas_length))
    )
    wanted = decide_all(nano, request, read_form("1: {{4|7}}\n2: {{A|B|C}}\n3: {{1|2}}\n"))
    which, who, much = reported["answers"]
    temperature = reported["temperature"]
    assert [one["probability"] for one in which["probabilities"]] == [*wanted[0].at(temperature).shares.values()]
    assert [one["value"] for one in who["probabilities"]] == ["Karomi", "x", True]
    assert [one["probability"] for one in who["probabilities"]] == [*wanted[1].at(temperature).shares.values()]
    assert much["score"] == pytest.approx(wanted[2].at(temperature).shares["2"])
    assert (reported["usage"]["forwards"], reported["usage"]["input_tokens"]) == (1, len(request.prompt))


def test_more_questions_than_a_canvas_holds_take_as_few_as_hold_them(nano: Engine, served: Inside) -> None:
    questions = [{"type": "predicate", "instructions": "?"}] * 60
    body = {"input": "a", "questions": questions, "canvases": 2}
    reported = httpx2.post(f"{served.base}/decisions", json=body, timeout=100).json()
    size = len(nano.text.encode("60: ", bos=False)) + len(nano.text.encode("\n", bos=False)) + 1
    assert len(reported["answers"]) == 60
    assert 4 <= reported["usage"]["forwards"] <= 2 * (60 * size // nano.config.model.canvas_length + 1)
    alone = httpx2.post(
        f"{served.base}/decisions", json=body | {"questions": questions[:3], "joint": False}, timeout=100
    )
    assert alone.json()["usage"]["forwards"] == 6


def test_probabilities_are_given_at_a_temperature_and_with_what_is_known_of_it(nano: Engine, tmp_path: Path) -> None:
    """What was fitted for a checkpoint is used and reported; at another temperature, or for other weights, not."""
    engine = replace(nano, folder=nano_copy(tmp_path, without=BELIEF))
    question = {"type": "choice", "instructions": "", "choices": [{"value": WRONG}, {"value": ANSWER}]}
    for at in inside(engine, Settings()):

        def reported(url: str = f"{at.base}/decisions", **more: object) -> tuple[float, object, float]:
            body = {"input": RECORD, "questions": [question]} | more
            found = httpx2.post(url, json=body, timeout=100).json()
            return found["temperature"], found["calibration"], found["answers"][0]["confidence"]

        plain = reported()
        assert plain[:2] == (1.0, None)
        kept = Belief(fingerprint(tmp_path), "2026-11-21", ("sudoku-4x4",), 10, 1.5, 0.8, 0.79, 0.02, 0.04)
        write_belief(kept, tmp_path)
        temperature, calibration, confidence = reported()
        assert (temperature, calibration["decisions"], calibration["error"]) == (1.5, 10, 0.02)  # type: ignore[index]
        assert confidence < plain[2]
        assert reported(temperature=1) == plain
        assert read_belief(replace(engine, as_stored=False)) is None
        write_belief(replace(kept, checkpoint="another"), tmp_path)
        assert reported() == plain
        (tmp_path / BELIEF).write_text("{")
        assert reported() == plain


@pytest.mark.parametrize(("field", "value"), [("temperature", 0), ("temperature", "1"), ("canvases", 65), ("top_p", 1)])
def test_what_a_decision_cannot_honour_is_refused_by_name(server: Process, field: str, value: object) -> None:
    body = {"input": "a", "questions": [{"type": "predicate", "instructions": "?"}], field: value}
    reported = httpx2.post(f"{server.base}/decisions", json=body, timeout=100)
    assert (reported.status_code, reported.json()["error"]["param"]) == (400, field)


def test_questions_times_canvases_have_a_bound(server: Process) -> None:
    """400 questions of 64 canvases each were 25,600 forwards of one request."""
    body = {"input": "a", "questions": [{"type": "predicate", "instructions": "?"}] * 9, "canvases": 57}
    reported = httpx2.post(f"{server.base}/decisions", json=body, timeout=100)
    assert (reported.status_code, reported.json()["error"]["param"]) == (400, "canvases")
    assert "513; at most 512" in reported.json()["error"]["message"]


def test_all_choices_of_a_decision_have_a_bound_and_are_counted_before_they_are_read() -> None:
    """400 questions of 255 choices took 0.8 s of Python, again and again, while nobody else had an answer."""
    many = {"type": "choice", "instructions": "a", "choices": [str(i) for i in range(255)]}
    began = time.process_time()
    with pytest.raises(ApiError, match="have 102000 choices and levels; at most 4096 in all") as found:
        Decisions.read({"input": "x", "questions": [many] * 400})
    assert time.process_time() - began < 0.3
    assert found.value.param == "questions"
    assert len(Decisions.read({"input": "x", "questions": [many] * 16}).questions) == 16


def test_choices_over_a_canvas_are_refused_by_the_field_that_has_them(server: Process) -> None:
    """The remedy was to raise `max_tokens`, which a decision does not have."""
    asked = {"type": "choice", "instructions": "a", "choices": ["x" * 1000, "y" * 1000]}
    answer = httpx2.post(f"{server.base}/decisions", json={"input": "x", "questions": [asked]}, timeout=100)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "questions")
    assert error["message"].endswith("shorten its choices")


def test_a_decision_ends_when_the_time_is_up(nano: Engine) -> None:
    """It had no deadline: 64 canvases took ten seconds of a server that gives an answer one."""
    for at in inside(nano, Settings(limits=ServerLimits(request_sec=0.05))):
        body = {"input": "a", "questions": [{"type": "predicate", "instructions": "?"}] * 8, "canvases": 64}
        reported = httpx2.post(f"{at.base}/decisions", json=body, timeout=100)
        assert (reported.status_code, reported.json()["error"]["code"]) == (504, "deadline")
