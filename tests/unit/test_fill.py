"""Templates: what stands around the holes is untouched, what goes in them is of their kind."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import Shell

import redraft
from redraft.__main__ import main
from redraft.cli import common
from redraft.constraints.compile import template
from redraft.constraints.compile.template import read_template
from redraft.engine.request import Options
from redraft.errors import ConstraintError, RequestError, UnsatisfiedError
from redraft.operations.engine import Engine

pytestmark = pytest.mark.usefixtures("own_cache")

CONFIG = """[server]
port = {{port: int(1..65535)}}
mode = "{{mode: enum(fast|safe)}}"
name = "{{name: string(1..12)}}"
ratio = {{ratio: number(0..1)}}
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_config_file_is_filled_and_parses(engine: Engine, seed: int) -> None:
    filled = engine.fill(CONFIG, prompt="a small server", options=Options(seed=seed))
    server = tomllib.loads(filled.text)["server"]
    assert 1 <= server["port"] <= 65535
    assert server["mode"] in ("fast", "safe")
    assert 1 <= len(server["name"]) <= 12
    assert 0 <= server["ratio"] <= 1
    assert filled.values["port"] == str(server["port"])
    outside = re.split(r"\{\{.*?\}\}", CONFIG)
    at = 0
    for literal in outside:
        assert filled.text.find(literal, at) >= 0
        at = filled.text.find(literal, at) + len(literal)
    assert filled.text.startswith(outside[0])
    assert filled.text.endswith(outside[-1])


def test_schemas_beside_the_template_and_names_that_repeat(engine: Engine) -> None:
    kinds: dict[str, Any] = {
        "a": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "f": "identifier(1..8)",
    }
    filled = engine.fill("def {{f}}(): return {{a}} + {{a}}", kinds, options=Options(seed=1))
    both = filled.values["a"]
    assert isinstance(both, list)
    assert len(both) == 2
    assert all(len(json.loads(one)) <= 3 for one in both)
    assert str(filled.values["f"]).isidentifier()
    compile(filled.text, "filled", "exec")


def test_kinds_have_the_names_of_types_too() -> None:
    """A schema's short form says integer and str."""
    for one, other in (("integer(1..9)", "int(1..9)"), ("str", "string"), ("float", "number"), ("boolean", "bool")):
        made = [read_template(f"{{{{a: {kind}}}}}").source().options for kind in (one, other)]
        assert made[0] == made[1]


@pytest.mark.parametrize(
    ("template", "kinds", "complaint"),
    [
        ("no holes", {}, "has no hole"),
        ("x {{a", {}, "the hole '{{a' in line 1 of the template is not closed; end it with }}"),
        ("x\n{{a: int} y {{b: int}}", {}, "the hole '{{a: int} y {{b' in line 2"),
        ("{{a: int}} {{b: int}", {}, "the hole '{{b: int}' in line 1"),
        ("{{a}}", {}, "hole 'a' has no kind"),
        ("{{a: int}}", {"a": "int"}, "is typed in the template and beside it"),
        ("{{a: int}}", {"b": "int"}, "no hole 'b'; it has a"),
        ("{{a.b: bool}} {{a: int}}", {}, "the hole '{{a.b: bool}}' has a name that is none"),
        ("{{a: enum}}", {}, "hole 'a': 'enum' has nothing in it; write enum(one|two)"),
        ("{{a: whole}}", {}, "hole 'a': no kind is 'whole'"),
        ("{{a: int(3)}}", {}, "hole 'a': 'int(3)' has no range; write it as"),
        ("{{a: int(1..x)}}", {}, "hole 'a': 'int(1..x)' has no range; write it as"),
        ("{{a: int(5..1)}}", {}, "hole 'a': nothing fits 'int(5..1)'"),
        ("{{a: string(5..1)}}", {}, "hole 'a': string is to have"),
        ("{{a: string(..5000)}}", {}, "hole 'a': string is to have"),
        ("{{a: enum()}}", {}, "hole 'a': 'enum()' has nothing in it"),
        ("{{a: regex(()}}", {}, "hole 'a': regex '(' cannot be made into an automaton"),
        (
            "{{a: string(1.." + "9" * 5000 + ")}}",
            {},
            "to have 1 to 1.000e+5000 characters; both must be from 0 to 1000",
        ),
        ("{{a}}", {"a": {"type": "text"}}, "hole 'a': schema at #/type"),
    ],
)
def test_a_template_that_cannot_be_read_is_refused_by_its_hole(
    template: str, kinds: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConstraintError) as error:
        read_template(template, kinds)
    assert complaint in str(error.value)


@pytest.mark.parametrize("kind", [r"regex(\{{2}a)", "regex(x{2})", "regex((a{1})+)"])
def test_braces_that_begin_no_hole_are_text(kind: str) -> None:
    """Such a template was never refused: a kind may have braces, and what stands around may be another's template."""
    template = read_template(f"{{{{ .Values.x }}}} int m[1][2] = {{{{a, b}}}}; {{{{a: {kind}}}}} {{{{% x %}}")
    assert [hole.name for hole in template.holes] == ["a"]


@pytest.mark.parametrize("name", ["नाम", "ชื่อ", "நாம்", "e\u0301tat", "名前"])
def test_a_hole_may_have_a_name_of_any_language(name: str) -> None:
    """Letters of many are made with marks, which stayed text without a word."""
    assert [hole.name for hole in read_template(f"{{{{ {name}: string(1..5)}}}}").holes] == [name]


@pytest.mark.parametrize(
    "text",
    ["{{ a | times: number }}", "{{ ok ? a : number }}", "style={{ 'w': int(x) }}", r"{{\bf Date: date}}", "{{:date}}"],
)
def test_braces_of_other_languages_are_text(text: str) -> None:
    assert [hole.name for hole in read_template(text + " {{a: int}}").holes] == ["a"]


def test_max_tokens_below_the_shortest_filling_is_refused(engine: Engine) -> None:
    with pytest.raises(ConstraintError, match="the shortest valid answer has"):
        engine.fill(CONFIG, options=Options(max_tokens=8))


def test_a_text_over_the_context_is_refused_before_anything_is_compiled(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template took nine seconds to compile, and then its text was too long all the same."""
    monkeypatch.setattr("redraft.operations.fill.read_template", lambda *_: pytest.fail("it was compiled"))
    for how in ({"source": "a word " * 4000}, {"prompt": "a word " * 4000}):
        with pytest.raises(RequestError, match="context"):
            engine.fill(CONFIG, **how)


words = st.text("ab -", max_size=4)


@given(
    outside=st.lists(st.text("xy:=\n", min_size=1, max_size=3), min_size=3, max_size=3), inside=st.tuples(words, words)
)
def test_what_went_into_the_holes_is_found_again(outside: list[str], inside: tuple[str, str]) -> None:
    template = read_template(outside[0] + "{{a: regex([ab -]*)}}" + outside[1] + "{{b: regex([ab -]*)}}" + outside[2])
    text = outside[0] + inside[0] + outside[1] + inside[1] + outside[2]
    assert template.values(text) == [("a", inside[0]), ("b", inside[1])]


def test_ambiguous_holes_are_read_from_the_left_as_long_as_can_be() -> None:
    template = read_template("{{a: regex(x*)}}{{b: regex(x+)}}.")
    assert template.values("xxx.") == [("a", "xx"), ("b", "x")]
    with pytest.raises(ConstraintError, match="no filling"):
        template.values("xyx.")


def test_the_command_fills_and_tells_the_values(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["fill", "port = {{port: int(1..9)}}, {{word}}", "--kind", "word=enum(on|off)", "--seed", "1", "--json"]
    )
    reported = json.loads(capsys.readouterr().out)
    assert code == 0
    assert re.fullmatch(r"port = [1-9], (on|off)", reported["text"])
    assert reported["values"]["word"] in ("on", "off")
    assert main(["fill", "{{a: whole}}"]) == 2
    assert "hole 'a': no kind is 'whole'" in capsys.readouterr().err
    assert main(["fill", "{{a}}", "--kind", "a"]) == 2


def test_what_only_a_validator_can_read_of_a_hole_holds_too(engine: Engine) -> None:
    """Whichever of two values the model would rather say, `not` makes it the other."""
    for barred in (1, 2):
        kinds = {"x": {"enum": [1, 2], "not": {"const": barred}}}
        filled = engine.fill("é = {{x}}; {{y: int(7..7)}}", kinds, options=Options(seed=1))
        assert filled.text == f"é = {3 - barred}; 7"
    with pytest.raises(UnsatisfiedError, match="hole 'x'"):
        engine.fill("x = {{x}}", {"x": {"enum": [1, 2], "not": {"type": "integer"}}}, options=Options(seed=1))


def test_a_hole_that_was_compiled_wrongly_is_an_error(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = template.compile_schema({"type": "string", "maxLength": 2})
    monkeypatch.setattr(template, "compile_schema", lambda schema, verbatim: compiled)
    with pytest.raises(UnsatisfiedError, match="hole 'n'"):
        engine.fill("n = {{n}}", {"n": {"type": "integer"}}, options=Options(seed=1))


def test_options_are_those_of_the_filling(engine: Engine) -> None:
    """The length of the text was checked with one token, below the least of its answer."""
    done = engine.fill('{"who": "{{who: string}}"}', source="Ada", options=Options(min_tokens=5, seed=1))
    assert done.text.startswith('{"who": "')


def test_a_hole_that_is_a_guess_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first text says all of it, the second nothing."""
    template, nano = "{{who: string}} wants {{qty: int}} {{item: string}}.", redraft.load("nano")
    done = nano.fill(template, source="Send 3 apples to Maria.", seed=1)
    assert (done.text, done.guesses) == ("Maria wants 3 apples.", ())
    assert "qty" in (nano.fill(template, source="The weather is nice.", seed=1).guesses or ())
    assert nano.fill(template, source="Send 3 apples to Maria.", seed=1, read_back=False).guesses is None
    monkeypatch.setattr(common, "at_a_terminal", lambda: True)
    words = ["fill", "--seed", "1", "--text", "The weather is nice.", template]
    assert "a guess: " in shell(words).err
    assert "qty" in json.loads(shell([*words, "--json"]).out)["guesses"]
