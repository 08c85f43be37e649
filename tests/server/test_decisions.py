"""Questions about a text, asked by the openai client."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from openai import OpenAI
from tests.server.conftest import ANSWER, RECORD, Process

WRONG = ANSWER.replace("417", "418")


@pytest.fixture(scope="module")
def client(server: Process) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base, api_key="none", max_retries=0) as made:
        yield made


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
    ],
)
def test_what_is_no_question_is_refused(server: Process, question: object) -> None:
    told = httpx2.post(f"{server.base}/decisions", json={"input": "a", "questions": [question]}, timeout=30)
    assert told.status_code == 400
    assert told.json()["error"]["param"].startswith("questions")
