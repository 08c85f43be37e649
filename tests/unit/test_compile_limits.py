"""What compiling may cost: sources made to explode end with a refusal that names the part, soon after the limit."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import BYTES, beside, holding

from redraft.constraints.compile import limits, schema
from redraft.constraints.compile.grammar import compile_grammar
from redraft.constraints.compile.limits import CompileLimits
from redraft.constraints.language import Source, ready
from redraft.constraints.sources import excluding, grammar_source, regex_source, schema_source
from redraft.errors import BusyError, ConstraintError, DeadlineError

TREE = {
    "type": "object",
    "properties": {c: {"$ref": "#/$defs/n"} for c in "abcdefghijkl"},
    "additionalProperties": False,
}
ALTERNATIVES = [[{"properties": {f"a{j}{i}": {"type": "integer"}}} for i in range(10)] for j in range(5)]
DIVISORS = [
    {"type": "number", "multipleOf": (9000 + 7 * i) / 10**6, "minimum": -i, "maximum": 10**14 + i} for i in range(30)
]
RULES = "".join(f"{name}: a b c d e f g\n" for name in "abcdefg")
# Where a clock strikes depends on the machine: any part that such a schema has may be the one in hand.
ANYWHERE = ('property "', "a key beside the declared ones", "the constraint")
HOSTILE: list[tuple[Callable[[], Source], str | tuple[str, ...]]] = [
    (lambda: schema_source({"$defs": {"n": TREE}, "$ref": "#/$defs/n"}), ANYWHERE),
    # A fast machine comes to the alternatives' own bound first.
    (lambda: schema_source({"allOf": [{"anyOf": some} for some in ALTERNATIVES]}), ("allOf, anyOf", *ANYWHERE)),
    (lambda: schema_source({"properties": {"x": {"type": "array", "prefixItems": DIVISORS}}}), ANYWHERE),
    (lambda: schema_source({"enum": [f"v{i}" for i in range(60_000)], "minLength": 2}), "the constraint"),
    (lambda: schema_source({"type": "string", "pattern": "(a|b)*a(a|b){18}"}), "pattern '(a|b)*a(a|b){18}'"),
    (lambda: schema_source(_patterns(200)), ("pattern '^[a-z]{", *ANYWHERE)),
    (lambda: regex_source("(a|b)*a(a|b){18}"), "regex '(a|b)*a(a|b){18}'"),
    (lambda: regex_source(r"(\w{1,60} ){1,30}"), "regex '("),
    (lambda: grammar_source(f"start: a\n{RULES}"), "the grammar's rule '"),
    (lambda: grammar_source("start: a\n" + RULES.replace(" g\n", ' g | "x"\n')), "the grammar's rule '"),
    (lambda: excluding(schema_source({"$defs": {"n": TREE}, "$ref": "#/$defs/n"}), ["{}"]), ANYWHERE),
]


def _patterns(count: int) -> dict[str, Any]:
    texts = [f"^[a-z]{{{i + 1},{i + 40}}}x{i}$" for i in range(count)]
    return {"properties": {f"k{i}": {"type": "string", "pattern": text} for i, text in enumerate(texts)}}


@pytest.mark.parametrize(("make", "part"), HOSTILE)
def test_every_compile_ends_soon_after_its_limit(make: Callable[[], Source], part: str | tuple[str, ...]) -> None:
    """Limits that were looked at between steps alone let one product take 40 seconds, and a grammar take for ever."""
    source, said = make(), ""
    began = time.process_time()
    try:
        found = ready(source, BYTES, limits=CompileLimits(seconds=0.5))
        assert source.kind == "schema", "all else is refused"
        assert found.held in ("exact", "guided"), "which of them depends on the machine"
    except ConstraintError as error:
        said = str(error)
    assert time.process_time() - began < 0.5 + 10
    if said:
        assert any(word in said for word in ("seconds to compile", "states", "edges", "alternatives"))
        assert said.startswith(part)
        assert "narrow" in said or "fewer" in said


def test_a_limit_in_states_names_its_part_too() -> None:
    wide = {"type": "object", "properties": {"long": {"type": "string", "maxLength": 150}}}
    with pytest.raises(ConstraintError, match='property "long" needs over 20 states; narrow its lengths'):
        schema_source(wide).compile(CompileLimits(states=20, seconds=60.0))


def test_a_small_constraint_waits_for_no_large_one() -> None:
    """24 slow schemas kept a tiny one waiting for 40 s. Those that wait do not lose their own time."""
    turns, ended, begun = limits.TURNS, list[str](), threading.Event()

    def work(name: str, seconds: float) -> None:
        limits.CALLER.set(name[0])
        with turns.turn(name), limits.time_limit(CompileLimits(seconds=seconds + 2.0)):
            begun.set()
            spent = 0.0
            while spent < seconds:
                time.sleep(0.005)
                spent += 0.005
                limits.check_time()
        ended.append(name)

    with beside(*(partial(work, f"a{i}", 0.5) for i in range(6))):
        begun.wait()
        with beside(*(partial(work, name, 0.01) for name in ("a-small", "b-small"))):
            pass
    assert set(ended[:2]) == {"a-small", "b-small"}
    assert len(ended) == 8, "six that took 3 s in all had 2.5 s each"


def test_large_constraints_are_compiled_one_after_another() -> None:
    """Those that had the least went first, so bombs that kept coming kept the older ones waiting for over 300 s, and
    all of them held memory."""
    turns, ended = limits.TURNS, list[int]()

    def work(number: int) -> None:
        limits.CALLER.set("large")
        with turns.turn(str(number)):
            spent = time.thread_time()
            while time.thread_time() - spent < 2 * limits.LARGE_SEC:
                limits.check_time()
        ended.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for i, thread in enumerate(threads):
        thread.start()
        while len(turns._turns) + len(ended) <= i:
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert ended == [0, 1, 2, 3]


def test_a_constraint_is_compiled_while_the_process_of_another_works() -> None:
    """An expression whose automaton is made elsewhere kept the turn for up to ten seconds."""
    turns, inside, over, order = limits.TURNS, threading.Event(), threading.Event(), list[str]()
    processes = limits.Turns(around=turns)

    def elsewhere(name: str) -> None:
        with turns.turn(name), processes.turn(name):
            order.append(name)
            inside.set()
            over.wait()
        order.append(f"{name} back")

    with beside(*(partial(elsewhere, name) for name in ("one", "two"))):
        inside.wait()
        with turns.turn("here"):
            order.append("here")
        assert order in (["one", "here"], ["two", "here"]), "one process at a time"
        over.set()
    assert len(order) == 5
    assert not turns._turns
    assert not turns._now


def test_waiting_for_a_turn_ends_with_the_callers_time() -> None:
    """The clock of one that waits stands still, so a client could wait for all that others compile."""
    turns, holds, over = limits.TURNS, threading.Event(), threading.Event()

    def hold() -> None:
        with turns.turn("a"):
            holds.set()
            over.wait()

    with beside(hold):
        holds.wait()
        began = time.monotonic()
        for name in ("b", "a"):  # its turn does not come; another compiles the same
            with holding(limits.UNTIL, began + 0.2), pytest.raises(DeadlineError), turns.turn(name):
                pytest.fail("it had a turn")
        assert 0.2 <= time.monotonic() - began < 5
        assert [one.name for one in turns._turns] == ["a"]
        assert turns._now == turns._turns, "one that gave up took the turn from the one that has it"
        over.set()
    with turns.turn("b"):
        pass


def test_one_caller_compiles_so_many_at_a_time_and_others_go_on() -> None:
    turns, held = limits.TURNS, threading.Event()

    def hold(number: int) -> None:
        limits.CALLER.set("c")
        with turns.turn(f"held {number}", counted=number < limits.MOST_PER_CALLER):
            held.wait()

    with beside(*(partial(hold, i) for i in reversed(range(limits.MOST_PER_CALLER + 4)))):  # 4 of repairs
        while len(turns._turns) < limits.MOST_PER_CALLER + 4:
            time.sleep(0.001)
        refusal = pytest.raises(BusyError, match="constraints of this client are compiled or wait to be")
        with holding(limits.CALLER, "c"), refusal, turns.turn("one more"):
            pass
        held.set()
        with turns.turn("of another"):
            pass


def test_a_caller_has_so_many_begun_and_its_others_wait_while_others_begin() -> None:
    """What has begun holds memory, so 256 bombs of one caller may not all begin."""
    turns, over, begun = limits.Turns(begun=2), threading.Event(), list[str]()

    def work(caller: str) -> None:
        limits.CALLER.set(caller)
        with turns.turn(f"{caller} {threading.get_ident()}"):
            begun.append(caller)
            with turns.aside():  # it has begun, and holds up nobody
                over.wait()

    with beside(*[partial(work, "c")] * 5):
        while begun.count("c") < 2 or len(turns._turns) < 5:
            time.sleep(0.001)
        with beside(partial(work, "other")):
            while "other" not in begun:
                time.sleep(0.001)
            assert begun == ["c", "c", "other"]
            over.set()
    assert begun == ["c", "c", "other", "c", "c", "c"]


def test_those_who_wait_for_the_same_look_it_up() -> None:
    turns, answers, begun = limits.Turns(), list[bool](), threading.Event()

    def want() -> None:
        with turns.turn("same") as turn:
            answers.append(turn.over.is_set())
            if not answers[-1]:
                begun.wait()
                turn.found = "made"
            found.append(turn.found)

    found = list[object]()
    with beside(*[want] * 40) as threads:
        while not turns._turns or sum(thread.is_alive() for thread in threads) < 40:
            time.sleep(0.001)
        time.sleep(0.3)  # until they wait
        begun.set()
    assert answers == [False] + [True] * 39, "one after another had a turn for what another had made"
    assert found == ["made"] * 40


def test_what_a_caller_has_had_counts_against_what_it_waits_for() -> None:
    turns, order = limits.Turns(), list[str]()

    def work(caller: str) -> None:
        limits.CALLER.set(caller)
        with turns.turn(f"{caller} {threading.get_ident()}"):
            order.append(caller)
            while len(order) == 1 and len(turns._turns) < 5:
                time.sleep(0.001)
            time.sleep(0.01)

    threads = [threading.Thread(target=work, args=(caller,), daemon=True) for caller in "aaaab"]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while len(turns._turns) < number:
            time.sleep(0.001)
    for thread in threads:
        thread.join(60)
    assert "".join(order) == "abaaa"


def test_who_waits_within_a_turn_gives_it_up_meanwhile() -> None:
    """A constraint whose values are judged elsewhere holds up no other, and its clock stands still while it waits."""
    turns = limits.TURNS
    judges, held, over = limits.Turns(9, turns), threading.Event(), threading.Event()

    def hold() -> None:
        with judges.turn("first"):
            held.set()
            over.wait()

    def compile_it() -> None:
        with turns.turn("slow"), limits.time_limit(CompileLimits(seconds=0.2)), judges.turn("second"):
            limits.check_time()
            passed.append(True)

    passed = list[bool]()
    with beside(hold):
        held.wait(60)
        with beside(compile_it):
            while len(judges._turns) < 2:
                time.sleep(0.001)
            with turns.turn("small"):
                time.sleep(0.3)
            over.set()
    assert passed
    assert turns.mine is None


def test_what_took_too_long_is_refused_at_once_for_a_while(tmp_path: Path) -> None:
    source = regex_source("(a|b)*a(a|b){14}x")
    short = CompileLimits(seconds=0.001)
    with pytest.raises(ConstraintError, match="seconds to compile"):
        ready(source, BYTES, kept_in=tmp_path, limits=short)
    began = time.monotonic()
    with pytest.raises(ConstraintError, match="seconds to compile"):
        ready(source, BYTES, kept_in=tmp_path, limits=short)
    assert time.monotonic() - began < 5
    assert not [*tmp_path.iterdir()], "on a quieter machine it may not"


def _nested(levels: int) -> Any:
    found: Any = {"type": "string"}
    for _ in range(levels):
        found = {"type": "object", "properties": {"a": found}, "required": ["a"]}
    return found


NAMES = [f"p{i}" for i in range(10_000)]
BOMBS: list[tuple[Callable[[], Any], str]] = [
    (lambda: _nested(3000), "nests too deeply"),
    (lambda: '{"items":' * 100_000 + "true" + "}" * 100_000, "nests too deeply"),
    (lambda: {"type": "string", "pattern": "^[a-z]{1,100000}$"}, "pattern"),
    (lambda: {"type": "object", "properties": {name: {"type": "string"} for name in NAMES}}, "states|seconds"),
    (lambda: {"enum": ["x" * 100 + name for name in NAMES] * 5}, "has 5.* bytes; at most"),
    (lambda: {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no JSON value|is no JSON Schema"),
    (lambda: {"type": "integer", "minimum": 5, "maximum": 4}, "contradict"),
    (lambda: {"$ref": "https://example.com/schema.json"}, "leads out of the document|is no JSON Schema"),
]


@pytest.mark.parametrize(("make", "said"), BOMBS)
def test_bombs_are_refused_by_name_and_soon(make: Callable[[], Any], said: str) -> None:
    """Ten thousand properties took thirteen seconds of the processor behind the limit, none of them on its clock."""
    schema, began = make(), time.process_time()
    with pytest.raises(ConstraintError, match=said):
        ready(schema_source(schema), BYTES, limits=CompileLimits(seconds=1.0))
    assert time.process_time() - began < 1 + 5


def test_the_parts_of_a_schema_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is far from the bound of states; all of them, kept until the whole is made, took 900 MB."""
    source = schema_source({"type": "object", "properties": {"a": _nested(3), "b": {"type": "number"}}})
    assert ready(source, BYTES).held == "exact"
    monkeypatch.setattr("redraft.constraints.compile.schema.MOST_MOVES", 5000)
    assert ready(source, BYTES).held == "guided"
    with pytest.raises(match="parts of the schema over 5000 moves"):
        source.compile(CompileLimits())


def test_a_slow_moment_does_not_decide_for_good_how_a_schema_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of fewer digits are tried in half of the time that is left, which may be too little just then."""
    numbers = {"type": "array", "items": {"type": "number", "minimum": -123.456, "maximum": 9876.54}, "minItems": 900}
    source, plain, late, asked = schema_source({**numbers, "maxItems": 900}), limits._time, [0.0], list[object]()

    def deepest(document: Any, depth: int, compiler: Any) -> Any:
        asked.append(document)
        if len(asked) == 2:
            late[0] = 6.0
            limits.check_time()
        return found(document, depth, compiler)

    found = schema._deepest
    monkeypatch.setattr(schema, "_deepest", deepest)
    monkeypatch.setattr(limits, "_time", lambda: plain() + late[0])
    for held in "guided", "exact":
        assert ready(source, BYTES, kept_in=tmp_path, limits=CompileLimits(seconds=10.0)).held == held
    assert len(asked) == 4


def test_a_list_of_a_billion_is_held_from_left_to_right() -> None:
    found = ready(schema_source({"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}), BYTES)
    assert found.held == "guided"
    assert found.holds([byte + 2 for byte in b"[1, 2]"])


def test_who_waits_is_woken_for_its_own_turn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice woke all 60 that waited, and each then took Python's lock: /live of a server took 6 seconds."""
    turns, looked, over, inside = limits.Turns(), list[int](), threading.Event(), threading.Event()
    plain = threading.Condition.wait

    def wait(self: threading.Condition, timeout: float | None = None) -> bool:
        found = plain(self, timeout)
        looked.append(1)
        return found

    def holds() -> None:
        with turns.turn("holds") as turn:
            inside.set()
            over.wait(60)
            for _ in range(20):
                turns._change(turn, aside=False)

    def waits(number: int) -> None:
        limits.CALLER.set("another")
        with turns.turn(str(number), counted=False):
            pass

    threads = [threading.Thread(target=holds, daemon=True)]
    threads[0].start()
    inside.wait(60)
    threads += [threading.Thread(target=waits, args=(number,), daemon=True) for number in range(40)]
    for number, thread in enumerate(threads[1:], 2):
        thread.start()
        while len(turns._turns) < number:
            time.sleep(0.001)
    monkeypatch.setattr(threading.Condition, "wait", wait)
    over.set()
    for thread in threads:
        thread.join(60)
    assert not turns._turns
    assert len(looked) < 150


JSON_GBNF = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


def test_a_grammar_that_is_too_large_four_deep_is_held_less_deep() -> None:
    """A grammar of all JSON, as users of GBNF have it, was refused."""
    dfa = compile_grammar(JSON_GBNF)
    for text in ('{"a": 1}', '{"a":[1,{"b":null}],"c":"x\\n"}', "{}"):
        assert dfa.matches(text.encode())
        json.loads(text)
    for text in ('{"a":x}', "[1]", '{"a":1'):
        assert not dfa.matches(text.encode())
    with pytest.raises(ConstraintError, match="needs over 20 states"):
        compile_grammar(JSON_GBNF, limits=CompileLimits(states=20, seconds=60.0))


@pytest.mark.parametrize(
    ("rule", "has", "lacks"),
    [
        (r"[\u0041-\u0043]{2}", ["AC"], ["AD", "u0"]),
        (r'"\U0001F600" [\U0001F600]', ["😀😀"], ["😀"]),
        (r'"\u0022a\x5c\x2d"', ['"a\\-'], ["a"]),
        (r"[\u005d\u002d]", ["]", "-"], ["5"]),
        (r'"\\u0041" # "\u0041 \uD800 \u2028', [r"\u0041"], ["A"]),
        (r'"\u2028" [\x85-\x9f]', ["\u2028\x85"], ["\u2028a"]),
        (r'"\u0020\u00e9\x0a"', [" é\n"], [" é"]),
        (r"[\u0600-\u06ff][\U00010000-\U0010FFFF]", ["\u0627😀"], ["a😀"]),
        ("[a-z&&aeiou]", ["&", "b"], ["A"]),
        (r'"\u00a0bc" "\u0085ab"', ["\xa0bc\x85ab"], ["\ua0bc"]),
        ("[^--z]", ["+", "{"], ["3", "a", "-"]),
        ("[--9]", ["-", ".", "5"], ["a", "+"]),
        ("[+--]", ["+", ",", "-"], ["*", "."]),
        (r"[^+--]", ["a"], ["+", ",", "-"]),
        (r"[a-][-b][\u002d-9][\]\\-\]]", ["--5]", "a-.\\"], ["b--]"]),
        (r'"\[\]\"a"', ['[]"a'], ["a"]),
        ('x # no " [\rx ::= "\\u0041BC"', ["ABC"], ["\u41bc"]),
    ],
)
def test_characters_of_gbnf_by_their_numbers(rule: str, has: list[str], lacks: list[str]) -> None:
    dfa = compile_grammar(f"root ::= {rule}")
    assert [one for one in (*has, *lacks) if dfa.matches(one.encode())] == has


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('start: a\n?a: "x"', "x", ""),
        ('?start: a "y"\n\n  ?a: "x"', "xy", "x"),
        ('start: a?\na: "x"', "", "xx"),
        ('start: a? ?a: "x"', "", "xx"),
        ('start: ("a"\n | "b")+ "c"', "abc", "ab"),
    ],
)
def test_a_question_mark_in_front_of_a_rule_repeats_nothing(grammar: str, good: str, bad: str) -> None:
    """As Lark writes a rule without a branch of its own: the end of the rule above might be left out."""
    dfa = compile_grammar(grammar)
    assert dfa.matches(good.encode())
    assert not dfa.matches(bad.encode())


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('start: "ab"i i\ni: "q"', "aBq", "abQ"),
        ('start: "a.b "i', "A.B ", "axb "),
        ('start: "a"item\nitem: "t"', "at", "a"),
        ("start: /[a-c]+/i", "aBC", "d"),
        ('start: /a.b/s "z"', "a\nbz", "abz"),
        ("start: /a b # c/x", "ab", "a b"),
        ('root ::= "a"i\ni ::= "q"', "aq", "A"),
    ],
)
def test_letters_behind_a_text_are_flags(grammar: str, good: str, bad: str) -> None:
    """They were a rule of that name, or an error."""
    dfa = compile_grammar(grammar)
    assert dfa.matches(good.encode())
    assert not dfa.matches(bad.encode())


@pytest.mark.parametrize("grammar", ['start: a\n+a: "x"', 'start: a\n?\na: "x"', 'start: ?a\na: "x"', "?", "start: ?"])
def test_a_mark_that_repeats_nothing_is_refused(grammar: str) -> None:
    with pytest.raises(ConstraintError, match=r"line [12]: '[?+]'"):
        compile_grammar(grammar)


@pytest.mark.parametrize(
    "rule",
    [
        r'"\uD800"',
        r"[\uD800-\uDFFF]",
        "[9--]",
        r"[\d-z]",
        r"[\UFFFFFFFF]",
        r'"\x1fabc"',
        r'"\u001bdef"',
        r'"\x00"',
        r'"\x7f"',
        '"\\' * 4000,
        "[" * 8000,
    ],
)
def test_what_gbnf_has_no_character_for_is_refused(rule: str) -> None:
    began = time.process_time()
    with pytest.raises(ConstraintError):
        compile_grammar(f"root ::= {rule}")
    assert time.process_time() - began < 2
