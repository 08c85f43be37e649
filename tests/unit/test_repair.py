"""What a check rejects in an answer of several canvases is written anew, the rest stays."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.helpers import ANSWER, PROMPT, Shell

from redraft.constraints.checks import Check, command_check
from redraft.constraints.condition.infix import between
from redraft.constraints.language import Vocabulary, ready
from redraft.constraints.places import span_of
from redraft.constraints.sources import regex_source, schema_source
from redraft.constraints.thinking import after_thinking
from redraft.constraints.validation import Problem
from redraft.engine.request import Options, Request
from redraft.errors import ConstraintError
from redraft.operations.engine import Engine
from redraft.operations.repair import repair

pytestmark = pytest.mark.usefixtures("own_cache")

RECORD = {
    "type": "object",
    "properties": {
        "who": {"type": "string", "maxLength": 20},
        "qty": {"type": "integer", "minimum": 1, "maximum": 999},
        "item": {"type": "string", "maxLength": 20},
    },
    "required": ["who", "qty", "item"],
    "additionalProperties": False,
}


def refusing(*paths: str) -> Check:
    """A check that wants other values than those of ANSWER in some fields."""
    right = json.loads(ANSWER)

    def check(text: str) -> Sequence[Problem]:
        found = json.loads(text)
        return [
            Problem(f"{path} is {found[path]}", span_of(text, [path])) for path in paths if found[path] == right[path]
        ]

    return check


@pytest.mark.parametrize(
    ("canvas", "wrong", "schema"),
    [(12, ("item",), None), (8, ("who",), RECORD), (8, ("who", "item"), RECORD), (12, ("qty",), None)],
)
def test_only_what_is_wrong_changes_in_an_answer_of_several_canvases(
    engine: Engine, canvas: int, wrong: tuple[str, ...], schema: object
) -> None:
    """The last but one case needs two canvases, and neither may write again what was wrong there."""
    request = engine.resolve(
        Request(
            PROMPT,
            chat=True,
            options=Options(seed=1, canvas=canvas, max_tokens=24),
            constraint=None if schema is None else engine.language(schema_source(schema)),
        )
    )
    first = engine.run(request)
    assert len(first.steps) > 1
    assert first.text == ANSWER
    done = repair(engine, replace(request, check=refusing(*wrong) if schema else textually(*wrong)))
    assert len(done.tokens) == len(first.tokens)
    pieces = [engine.text.decode([token]) for token in first.tokens]
    inside = spans_of_tokens(pieces, [span_of(ANSWER, [path]) for path in wrong])
    changed = [i for i, (a, b) in enumerate(zip(first.tokens, done.tokens, strict=True)) if a != b]
    assert changed
    assert set(changed) <= inside
    assert done.text == engine.text.decode(done.tokens)
    assert len(done.steps) == len(first.steps) + len(wrong)
    assert done.steps[: len(first.steps)] == first.steps


def textually(*paths: str) -> Check:
    """The same for answers that need not be JSON: the characters where a value of ANSWER stands, if it stands there."""

    def check(text: str) -> Sequence[Problem]:
        places = [span_of(ANSWER, [path]) for path in paths]
        return [Problem("it is as before", (a, b)) for a, b in places if text[a:b] == ANSWER[a:b]]

    return check


def spans_of_tokens(pieces: list[str], spans: list[tuple[int, int]]) -> set[int]:
    """Tokens that have a character in one of the spans."""
    ends = list(itertools.accumulate(map(len, pieces)))
    starts = [0, *ends]
    return {i for i, end in enumerate(ends) for a, b in spans if starts[i] < b and a < end}


def test_the_middle_of_a_language_is_what_leads_from_one_text_to_the_other() -> None:
    """Every string of two tokens tried between two others, against Python's own regular expressions; the draft is the
    likeliest of those that fit."""
    pieces = (b"a", b"b", b"ab", b"ba", None)
    vocabulary = Vocabulary(pieces, frozenset((4,)), frozenset((4,)))
    for pattern in ("(ab)+", "a*b*a", "(a|bab)*"):
        language = ready(regex_source(pattern), vocabulary)
        for before, behind in itertools.product([(), (0,), (2, 2)], [(), (1,), (3, 0)]):
            fits = {
                pair
                for pair in itertools.product(range(4), repeat=2)
                if re.fullmatch(pattern, b"".join(pieces[i] or b"" for i in (*before, *pair, *behind)).decode())
            }
            try:
                middle = between(language, before, 2, behind)
                middle.start(2).check_pins(2, ())
            except ConstraintError:
                assert not fits
                continue
            assert {pair for pair in itertools.product(range(4), repeat=2) if middle.holds(pair)} == fits
            log_p = torch.log_softmax(torch.randn(2, 5, generator=torch.Generator().manual_seed(1)), -1)
            best = max(fits, key=lambda pair: float(log_p[0, pair[0]] + log_p[1, pair[1]]))
            assert tuple(middle.start(2)(log_p).draft.tolist()) == best
            for pair in itertools.product(range(4), repeat=2):
                pins = tuple(enumerate(pair))
                if pair in fits:
                    middle.start(2).check_pins(2, pins)
                else:
                    with pytest.raises(ConstraintError):
                        middle.start(2).check_pins(2, pins)


def test_the_command_repairs_what_another_command_rejects(shell: Shell) -> None:
    """The check wants another quantity than the sentence has, and names it; everything else stays."""
    judge = (
        f"""{sys.executable} -c 'import json, sys; sys.exit(json.load(sys.stdin)["qty"] == 417 and "/qty: not 417")'"""
    )
    asked = [
        "generate",
        "--model",
        "nano-sudoku",
        "--chat",
        PROMPT,
        "--schema",
        "who, qty int, item",
        "--seed",
        "1",
        "--check",
        judge,
    ]
    reported = json.loads(shell([*asked, "--json"]).out)
    assert json.loads(reported["text"]) == json.loads(ANSWER) | {"qty": json.loads(reported["text"])["qty"]}
    assert json.loads(reported["text"])["qty"] != 417
    assert len(reported["steps"]) > 1
    assert set(reported["confidence"]) == {"/who", "/qty", "/item"}


@pytest.mark.parametrize(
    ("text", "said", "wanted"),
    [
        ('{"a":[1,{"b/c":2}]}', "/a/1/b~1c: no", "2"),
        ('{"a":[1,2]}', "/a/0: no\nand more", "1"),
        ("a\nbc\nd", "line 2: no", "bc"),
        ('{"a":1}', "/b: no", None),
        ("[1,2]", "/-1: no", None),
        ('```json\n{"a":[1,2]}\n```', "/a/1: no", "2"),
        ("a\u2028b\x0c\r\nc\nd", "line 2: no", "c"),
        ("a", "line 2: no", None),
        ("no JSON", "/a: no", None),
        ("a", "no", None),
    ],
)
def test_a_command_may_name_what_is_wrong(text: str, said: str, wanted: str | None) -> None:
    (problem,) = command_check([sys.executable, "-c", f"import sys; sys.exit({said!r})"])(text)
    assert isinstance(problem, Problem)
    assert (None if problem.span is None else text[slice(*problem.span)]) == wanted
    assert problem.reason == (said if wanted is None else said.splitlines()[0])


def test_an_answer_behind_thinking_is_repaired_behind_thinking(engine: Engine) -> None:
    """Marked by tokens that nano has no other use for."""
    plain = engine.language(schema_source(RECORD))
    language = after_thinking(plain, closing=3, opening=4)
    request = engine.resolve(Request(PROMPT, chat=True, options=Options(seed=1, max_tokens=60), constraint=language))
    seen = list[str]()

    def check(text: str) -> str | tuple[()]:
        seen.append(text)
        return "once more" if len(seen) < 3 else ()

    done = repair(engine, replace(request, check=check))
    assert len(set(seen)) == 3
    assert not any(plain.problems(text) for text in seen), "the answer alone is read"
    assert language.holds(done.tokens)
    assert plain.holds(language.answer(done.tokens))
