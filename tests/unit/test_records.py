"""Records read back from their sentences by other means, and the scorer on answers marked by hand."""

from __future__ import annotations

import json
import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import RecipeError
from redraft.tasks import Example, Records, Split, task

KAROMI = Example("record\nSend 417 melu to Karomi.", '{"who":"Karomi","qty":417,"item":"melu"}')
CV = "[bdfghklmnprstvz][aeiou]"
NAME = re.compile(rf"\b(?=[A-Z])(?i:(?:{CV}){{2,3}})\b")
ITEM = re.compile(rf"\b(?:{CV}){{2}}\b")


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_every_sentence_says_its_answer_and_no_second_one(split: Split) -> None:
    """A form with a word such as "note" or "Make" would be a second item or name."""
    orders = set()
    for example in islice(Records().examples(split, seed=5), 2000):
        title, sentence = example.prompt.split("\n")
        (who,), (item,), (qty,) = NAME.findall(sentence), ITEM.findall(sentence), re.findall(r"\d+", sentence)
        assert title == "record"
        assert example.answer == json.dumps({"who": who, "qty": int(qty), "item": item}, separators=(",", ":"))
        assert 1 <= int(qty) <= 999
        orders.add(tuple(sorted((who, qty, item), key=sentence.index)) == (who, qty, item))
    assert orders == {True, False}, "the values must not always stand in the answer's order"


def test_splits_share_no_name_whatever_the_seeds() -> None:
    def names(split: Split, *seeds: int) -> set[str]:
        return {json.loads(e.answer)["who"] for s in seeds for e in islice(Records().examples(split, s), 10_000)}

    train, held_out = names("train", 0, 1), names("held_out", 0, 2)
    assert len(train) > 10_000
    assert len(held_out) > 5_000
    assert not train & held_out


@pytest.mark.parametrize(
    ("answer", "exact", "valid", "who", "qty", "item"),
    [
        ('{"who":"Karomi","qty":417,"item":"melu"}', True, 1, 1, 1, 1),
        ('{"item": "melu", "qty": 417, "who": "Karomi"}', False, 1, 1, 1, 1),
        ('{"who":"Karo","qty":417,"item":"melu"}', False, 1, 0, 1, 1),
        ('{"who":"Karomi","qty":"417","item":"melu"}', False, 0, 1, 0, 1),
        ('{"who":"Karomi","qty":417.0,"item":"melu"}', False, 0, 1, 0, 1),
        ('{"who":"Karomi","qty":417}', False, 0, 1, 1, 0),
        ('{"who":"Karomi","qty":417,"item":"melu","why":1}', False, 0, 1, 1, 1),
        ('{"who":"Kise","who":"Karomi","qty":417,"item":"melu"}', False, 0, 0, 0, 0),
        ('{"who":"Karomi","qty":417,"item":"melu"', False, 0, 0, 0, 0),
        ('["Karomi",417,"melu"]', False, 0, 0, 0, 0),
        ('[["who","Karomi"],["qty",417],["item","melu"]]', False, 0, 0, 0, 0),
        ("", False, 0, 0, 0, 0),
    ],
)
def test_score_of_an_answer_marked_by_hand(answer: str, exact: bool, valid: int, who: int, qty: int, item: int) -> None:
    score = Records().score(KAROMI, answer)
    assert score.exact is exact
    assert score.parts == {"valid": valid, "who": who, "qty": qty, "item": item}


def test_true_is_not_the_quantity_one() -> None:
    example = Example("record\nSend 1 melu to Karomi.", '{"who":"Karomi","qty":1,"item":"melu"}')
    score = Records().score(example, '{"who":"Karomi","qty":true,"item":"melu"}')
    assert (score.parts["valid"], score.parts["qty"]) == (0, 0)


@given(st.text(), st.text(), st.text())
def test_no_string_makes_a_scorer_raise(prompt: str, right: str, answer: str) -> None:
    for name in ("records", "sudoku-4x4"):
        task(name).score(Example(prompt, right), answer)


def test_an_unknown_split_is_refused_at_the_call() -> None:
    with pytest.raises(RecipeError, match="split is 'dev'; known: train, held_out"):
        Records().examples("dev", seed=0)
