"""Text with tool calls: whatever a model would like to write, what is marked as a call is one, and valid."""

from __future__ import annotations

import re
from typing import Any

import jsonschema_rs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import written_on_noise

from redraft.constraints.compile.tool_calls import CLOSE, OPEN, QUOTE, THINK, THOUGHT, ContentLanguage, calls_source
from redraft.constraints.language import MARKS, Language, Vocabulary, ready
from redraft.constraints.sources import excluding, regex_source, schema_source
from redraft.engine.calls import read_call
from redraft.engine.request import ToolCall
from redraft.errors import ConstraintError

EOS, PAD = 0, 1
NAMES = [OPEN, CLOSE, QUOTE, THINK, THOUGHT]
WORDS = [b"call:", b'":', b"{", b"true", b"a:", b",b:", b"no", b"-1"]
PIECES = (None, None, *(MARKS[name] for name in NAMES), *WORDS, *(bytes([byte]) for byte in range(0xF8)))
SPELT = {2 + i: name.encode() for i, name in enumerate(NAMES)}
VOCABULARY = Vocabulary(PIECES, frozenset({EOS}), frozenset({EOS, PAD}))
TOOLS: dict[str, Any] = {
    "weather.now": {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 4}, "b": {"type": "integer", "minimum": -3, "maximum": 40}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "note": {
        "type": "object",
        "properties": {
            "kind": {"enum": ["x y", 'q"', 3, None, {"k": ["s"]}]},
            "of": {
                "type": "array",
                "items": {"type": "object", "additionalProperties": {"type": "boolean"}},
                "maxItems": 2,
            },
        },
    },
}


def spelt(tokens: list[int]) -> str:
    return b"".join(SPELT.get(token) or PIECES[token] or b"" for token in tokens).decode()


def tokens_of(text: str) -> list[int]:
    """A byte at a time, marks as tokens."""
    parts = re.split("(" + "|".join(map(re.escape, NAMES)) + ")", text)
    ids = {name: 2 + i for i, name in enumerate(NAMES)}
    return [
        token
        for part in parts
        for token in ([ids[part]] if part in ids else [2 + len(NAMES) + len(WORDS) + byte for byte in part.encode()])
    ]


def calls_in(text: str) -> list[tuple[str, Any]]:
    """The calls of a text, read as the server reads them; each is some tool's, with arguments that are valid."""
    found = []
    for part in text.split(OPEN)[1:]:
        written, closed, _ = part.partition(CLOSE)
        call = read_call(written)
        assert closed, text
        assert call.name is not None, written
        assert jsonschema_rs.validator_for(TOOLS[call.name]).is_valid(call.arguments), written
        found.append((call.name, call.arguments))
    return found


def written(language: Language, room: int, width: int, seed: int) -> list[int]:
    """An answer of a model that has no idea, but likes to call, in canvases."""
    draw = torch.Generator().manual_seed(seed)
    return written_on_noise(language.start(room), width, len(PIECES), EOS, draw, spread=4.0, lifted=(2, 60.0))


@pytest.fixture(scope="module")
def languages() -> dict[bool, Language]:
    return {several: ready(calls_source(TOOLS, several=several), VOCABULARY) for several in (True, False)}


@given(several=st.booleans(), room=st.integers(0, 150), width=st.integers(5, 60), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_noise_is_text_or_valid_calls(
    languages: dict[bool, Language], several: bool, room: int, width: int, seed: int
) -> None:
    reported = written(languages[several], room, width, seed)
    calls = calls_in(spelt(reported))
    assert len(reported) <= room
    assert several or len(calls) <= 1


@pytest.mark.parametrize("name", TOOLS)
def test_a_model_that_likes_to_call_does(name: str) -> None:
    """Else what noise says would be text, which proves nothing."""
    language = ready(calls_source({name: TOOLS[name]}), VOCABULARY)
    assert any(calls_in(spelt(written(language, 120, 40, seed))) for seed in range(4))


GOOD = f'{OPEN}call:weather.now{{a:{QUOTE}"x\n{QUOTE},b:40}}{CLOSE}'


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("Just text, naïvely: call:weather.now{}", True),
        (GOOD, True),
        (f"{THINK}thought\nhm{THOUGHT}See. {GOOD} so", True),
        (GOOD + GOOD, None),
        (f"{OPEN}call:note{{kind:{QUOTE}x y{QUOTE},of:[{{z:true}},{{}}]}}{CLOSE}", True),
        (f"{OPEN}call:note{{kind:{{k:[{QUOTE}s{QUOTE}]}}}}{CLOSE}", True),
        (GOOD.replace("b:40", "b:41"), False),
        (GOOD.replace("weather.now", "other"), False),
        (GOOD.replace(f'a:{QUOTE}"x\n{QUOTE},', ""), False),
        (GOOD.replace(CLOSE, ""), False),
        (GOOD.replace("a:", '"a":'), False),
        (f"{THINK}for ever", False),
        (f"{QUOTE}", False),
    ],
)
def test_what_is_of_the_language(languages: dict[bool, Language], text: str, holds: bool | None) -> None:
    """None: only if there may be several calls."""
    assert languages[True].holds(tokens_of(text)) == (holds is not False)
    assert languages[False].holds(tokens_of(text)) == (holds is True)


def test_where_content_has_a_form_an_answer_is_of_it_or_calls() -> None:
    content = schema_source({"enum": ["a", 1]})
    language = ready(calls_source(TOOLS, content=content), VOCABULARY)
    for text, holds in (('"a"', True), ("a", False), (GOOD, True), (GOOD + "1", False), ("", False), (GOOD * 2, True)):
        assert language.holds(tokens_of(text)) == holds
        assert language.holds(tokens_of(f"{THINK}x{THOUGHT}{text}")) == holds
    assert not language.is_text


def test_what_only_a_validator_can_judge_of_content_is_read_without_thoughts_and_calls() -> None:
    schema = {
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": 2},
        "maxItems": 2,
        "uniqueItems": True,
    }
    source = calls_source(TOOLS, content=schema_source(schema))
    plain = ready(source, VOCABULARY)
    assert plain.checked
    language = ContentLanguage(source, plain.layout, True, schema, *map(PIECES.index, (MARKS[OPEN], MARKS[THOUGHT])))
    thought = f"{THINK}[1,1]{THOUGHT}"
    for text, content, wrong in (
        ("[1,1]", "[1,1]", True),
        ("[1,2]", "[1,2]", False),
        (thought + "[2]", "[2]", False),
        (thought + "[2,2]", "[2,2]", True),
        (GOOD, "", False),
        (thought + GOOD, "", False),
    ):
        assert language.holds(tokens_of(text))
        assert spelt(list(language.answer(tokens_of(text)))) == content
        assert bool(language.problems(content)) == wrong
    rest = ready(excluding(source, ["[1,1]"]), VOCABULARY)
    held = ["[1,2]", thought + "[2,2]", GOOD, thought + GOOD]
    assert [rest.holds(tokens_of(text)) for text in held] == [True] * 4
    assert [rest.holds(tokens_of(text)) for text in ("[1,1]", thought + "[1,1]")] == [False] * 2


def test_other_languages_hold_no_marks() -> None:
    language = ready(regex_source("(?s).*"), VOCABULARY)
    assert language.holds(tokens_of("ab"))
    assert not any(language.holds(tokens_of(name)) for name in NAMES)


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({"two words": {}}, "the tool 'two words' cannot be written"),
        ({"a": {"type": "object", "properties": {"x:y": {}}}}, "the key 'x:y' cannot stand without quotes"),
    ],
)
def test_tools_that_cannot_be_written_are_refused_by_name(tools: dict[str, Any], said: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(said)):
        ready(calls_source(tools), VOCABULARY)


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("{}", {}),
        (
            f"{{ a :1,b:[{QUOTE}x,y:z{QUOTE},-2.5,null], c d:{{e:true}} }}",
            {"a": 1, "b": ["x,y:z", -2.5, None], "c d": {"e": True}},
        ),
        (f'{{a:{QUOTE}"\\\n{{,:}}]{QUOTE},}}', {"a": '"\\\n{,:}]'}),
        (f"{{{QUOTE}a:b{QUOTE}:[1,],k:2}}", {"a:b": [1], "k": 2}),
        ('{"a":1, "b c":"d"}', {"a": 1, "b c": "d"}),
        (f"{{ {QUOTE}a{QUOTE}: 1, {QUOTE}b:c{QUOTE}: 2}}", {"a": 1, "b:c": 2}),
        (f"{{a:[1, {QUOTE}b:c{QUOTE},\n{QUOTE}d{QUOTE}]}}", {"a": [1, "b:c", "d"]}),
        ('{a:["b", "c:d", "{e:", "f,]", "\\"g,}"]}', {"a": ["b", "c:d", "{e:", "f,]", '"g,}']}),
        ("{" + " " * 40_000 + "a}", None),
        ("{a" + " " * 40_000 + "b}", None),
        (f"{{a:{QUOTE}x,b:2}}", None),
        ("{a:NaN}", None),
        ("{a:}", None),
        ("{a:1}}", None),
        ("[1]", None),
        ("{a:" * 5000, None),
    ],
)
def test_the_notation_is_read_as_json_or_not_at_all(said: str, arguments: Any) -> None:
    written = f"call:weather.now {said}\n"
    wanted = ToolCall(written) if arguments is None else ToolCall(written, "weather.now", arguments)
    assert read_call(written) == wanted
