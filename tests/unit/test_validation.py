"""A validator's verdicts: the same in a process of its own, and within bounds whatever the schema."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jsonschema_rs
import pytest
from jsonschema import Draft202012Validator
from tests.helpers import BYTES, beside, forked, holding

from redraft.constraints import isolated, validation
from redraft.constraints.compile import limits
from redraft.constraints.compile.dialect import URIS
from redraft.constraints.compile.ecma import ecma_search
from redraft.constraints.compile.limits import UNTIL, TimeLimitError
from redraft.constraints.compile.schema import compile_schema
from redraft.constraints.isolated import Helper
from redraft.constraints.language import ready
from redraft.constraints.sources import schema_source
from redraft.constraints.validation import MOST_LEVELS, check_form, check_readable, schema_problems, verdicts
from redraft.errors import BusyError, ConstraintError, DeadlineError


def fanned(levels: int, how: str) -> dict[str, Any]:
    """A schema of a few bytes a level, each of which applies the next one twice to the same value."""

    def twice(name: str) -> dict[str, Any]:
        parts = [{"$ref": name}, {"$ref": name}]
        return {"dependentSchemas": dict(zip("ab", parts, strict=True))} if how == "dependent" else {how: parts}

    defs = {f"d{i}": twice(f"#/$defs/d{i + 1}") for i in range(levels)} | {f"d{levels}": {"required": ["c"]}}
    keys = {"a": {"const": 1}, "b": {"const": 2}}
    return {"$defs": defs, "type": "object", "properties": keys, "required": ["a", "b"], "$ref": "#/$defs/d0"}


@pytest.mark.parametrize("how", ["dependent", "allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("levels", [13, 30])
def test_references_that_branch_take_neither_time_nor_memory(how: str, levels: int) -> None:
    """Thirty levels took 21 GB and the server with them."""
    began = time.monotonic()
    assert schema_problems(fanned(levels, how), '{"a":1,"b":2}')
    assert time.monotonic() - began < validation.JUDGE_SEC + 3
    began = time.monotonic()
    assert schema_problems(fanned(levels, how), '{"a":1,"b":2}')
    assert time.monotonic() - began < validation.JUDGE_SEC, "what took too long is known for a while"


def unevaluated(levels: int) -> dict[str, Any]:
    """A schema that asks at each level which properties those below it looked at."""
    found: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    for _ in range(levels):
        found = {"unevaluatedProperties": False, "allOf": [found]}
    return found


def named_apart(levels: int) -> dict[str, Any]:
    """Definitions that branch, inside one with a name of its own: there `#/$defs/l0` is another than at the top."""
    inner: dict[str, Any] = {f"l{i}": {"allOf": [{"$ref": f"#/$defs/l{i + 1}"}] * 12} for i in range(levels)}
    last = {f"l{levels}": {"required": ["a"]}}
    there = {"$id": "http://x.y/a", "properties": {"x": {"allOf": [{"$ref": "#/$defs/l0"}]}}, "$defs": inner | last}
    return {"l0": {}, "a": there}


BACK = [{"pattern": rf"^(a*)*\1b{i}"} for i in range(1500)]
LARGE = [{"pattern": rf"^[\p{{L}}\p{{N}}]{{20}}{i}$"} for i in range(1500)]
TOO_LARGE = [{"pattern": r"^[\p{L}\p{N}]{200}$"}]


@pytest.mark.parametrize(
    "schema",
    [
        {"const": "a" * 30, "not": {"anyOf": BACK}},
        {"enum": [[f"{'a' * 30}{i}" for i in range(50)]], "items": {"not": {"anyOf": BACK[:100]}}},
        {"enum": ["a" * 30, "b"], "allOf": BACK[:100]},
        {"enum": [f"{'a' * 30}{i}" for i in range(100)], "allOf": BACK[:1] * 400},
        {"const": "a", "not": {"anyOf": LARGE}},
        {"const": "a", "not": {"anyOf": TOO_LARGE}},
        {"enum": [r"[\p{L}\p{N}]{200}" + str(i) for i in range(100)], "format": "regex"},
        {"enum": ["a" * 60_000], "allOf": [{"pattern": rf"^(?:(?=[^b{c}]*b)|.)*$"} for c in "cdefghijklmnop"]},
        unevaluated(22),
        {"if": {"$ref": "#/$defs/a/properties/x"}, "then": {"type": "string"}, "$defs": named_apart(9)},
    ],
    ids=[
        *("search back", "in a list", "beside a list", "one often", "large", "too large", "as values", "a long one"),
        *("unevaluated", "below a name"),
    ],
)
def test_patterns_stop_no_other_thread(schema: dict[str, Any]) -> None:
    """The library holds Python's lock while it builds them and while they search: a request took a minute of everybody,
    and gigabytes."""
    gaps, over = [0.0], threading.Event()
    value = '{"a": true}' if "enum" not in schema and "const" not in schema else json.dumps(["a" * 30] * 50)

    def tick() -> None:
        last = time.monotonic()
        while not over.wait(0.01):
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticking = threading.Thread(target=tick)
    ticking.start()
    began = time.monotonic()
    for judge in (lambda: compile_schema(schema), lambda: schema_problems(schema, value)):
        with contextlib.suppress(ConstraintError):
            judge()
    took = time.monotonic() - began
    over.set()
    ticking.join()
    assert took < 3 * validation.JUDGE_SEC + 5
    assert max(gaps) < 1.5, "not the minute that it took"


def test_a_caller_who_has_no_time_learns_so_and_nothing_is_kept(tmp_path: Path) -> None:
    """It was refused for good: the refusal was kept on disk."""
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    many = {"type": "object", "properties": {f"k{i}": {"type": "string", "pattern": f"^{i}$"} for i in range(17)}}
    sleeping = Helper("import time\ndef answer(_): time.sleep(60)", "jsonschema_rs", 60, validation.JUDGE_BYTES)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_QUICK", "_SLOW"):
            patch.setattr(validation, name, sleeping)
        patch.setattr(validation, "LEAST_SEC", 0.1)
        for work in (lambda: verdicts(schema, {}), lambda: ready(schema_source(many), BYTES, kept_in=tmp_path)):
            with holding(UNTIL, time.monotonic() + 1.0), pytest.raises(DeadlineError):
                work()
    sleeping.end()
    assert ready(schema_source(many), BYTES, kept_in=tmp_path).holds([byte + 2 for byte in b"{}"])


def test_a_schema_of_references_is_quick_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging by it may take exponential time, reading it does not."""
    monkeypatch.setattr(validation, "_SLOW", None)
    check_readable(fanned(30, "allOf"))
    check_readable({"patternProperties": {"^x-": {"type": "integer"}}})
    with pytest.raises(ConstraintError, match="gone"):
        check_readable({"$ref": "#/$defs/gone"})
    with pytest.raises(AttributeError):
        check_readable(fanned(30, "allOf") | {"unevaluatedProperties": False})  # 3 GB


@pytest.mark.parametrize(
    ("schema", "held"),
    [
        ({"$schema": URIS[4], "minimum": 1, "exclusiveMinimum": True, "enum": [1, 2]}, "2"),
        ({"$schema": URIS[7], "type": "string", "format": "uuid", "enum": ["x", "0" * 36]}, None),
        ({"$schema": URIS[6], "type": "string", "format": "duration", "enum": ["x", "P1D"]}, '"P1D"'),
    ],
)
def test_what_stands_beside_a_list_is_read_by_the_schemas_own_draft(schema: dict[str, Any], held: str | None) -> None:
    if held is None:
        with pytest.raises(ConstraintError, match="no JSON value satisfies"):
            compile_schema(schema)
        return
    dfa = compile_schema(schema).dfa
    assert [dfa.matches(json.dumps(value).encode()) for value in schema["enum"]] == [False, True]


SCHEMAS: list[tuple[Any, list[Any]]] = [
    (fanned(3, "allOf"), [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, {"a": 1}]),
    ({"type": "object", "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}}, [{"next": {"v": 1.5}}, {}]),
    ({"$ref": "#node", "$defs": {"n": {"$anchor": "node", "type": "string"}}}, ["a", 1]),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "string", "format": "date"}, ["2026-01-02", "x"]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^a+$"}, ["a", "b", 1]),
    (True, [1]),
    (False, [1]),
]


@pytest.mark.parametrize(("schema", "values"), SCHEMAS)
def test_verdicts_are_those_of_the_library_in_this_process(schema: Any, values: list[Any]) -> None:
    judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    for value in values:
        found = verdicts(schema, value)
        assert found == [(list(one.instance_path), str(one.message)) for one in judge.iter_errors(value)]
        if "draft-04" not in str(schema):
            assert (not found) == Draft202012Validator(schema).is_valid(value)


PLAIN = b'["Draft202012Validator", [], {}, {}, {"type": "integer"}, 1.5, 20]'


def test_a_helper_that_was_killed_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    helper = Helper(validation._JUDGE, "jsonschema_rs", 2, validation.JUDGE_BYTES)
    answer = helper.ask(PLAIN, 9.0)
    assert b"is not of type" in (answer or b"")
    assert helper._process is not None
    helper._process.kill()
    helper._process.wait()
    assert helper.ask(PLAIN, 9.0) == answer
    forked(lambda: helper.ask(PLAIN, 9.0) == answer or os._exit(1))
    assert helper.ask(PLAIN, 9.0) == answer

    def interrupt(*_: object) -> bytes:
        raise KeyboardInterrupt

    for late in (False, True):  # before an answer came, and when none came in time
        with monkeypatch.context() as patch:
            patch.setattr(isolated, "_line", (lambda *_: None) if late else interrupt)
            if late:
                patch.setattr(helper, "end", interrupt)
            with pytest.raises(KeyboardInterrupt):
                helper.ask(PLAIN.replace(b"1.5", b"1"), 9.0)
        assert helper.ask(PLAIN, 9.0) == answer, "not that of the question before"
    helper.end()


def test_a_value_with_half_a_character_is_invalid_and_nothing_is_remembered() -> None:
    """The library cannot read it, and its end was taken for slowness: a minute of refusals for that schema."""
    (said,) = verdicts({"type": "string", "maxLength": 5}, "\ud800")
    assert "surrogates" in said[1]
    assert verdicts({"type": "string", "maxLength": 5}, "a") == []


def test_who_is_judged_within_its_turn_waits_for_no_other_kind_of_process() -> None:
    """A schema that compiles waited with its quick verdict for another's grammar."""
    held, over = threading.Event(), threading.Event()

    def make_grammar() -> None:
        with limits.TURNS.turn("slow"), limits.GRAMMARS.turn("slow"):
            held.set()
            over.wait(60)

    with beside(make_grammar):
        held.wait(60)
        began = time.monotonic()
        with limits.TURNS.turn("small"), limits.QUICK_JUDGES.turn("small"):
            pass
        assert time.monotonic() - began < 5
        over.set()


def _take(turns: limits.Turns) -> None:
    with turns.turn("of a fork"):
        pass


def test_a_fork_waits_for_no_thread_that_it_has_not_got() -> None:
    """The place of one that judged in the parent was taken for good."""
    over = threading.Event()

    def judge() -> None:
        while not over.is_set():
            verdicts({"type": "integer"}, 1)

    with beside(judge):
        for _ in range(4):
            forked(lambda: verdicts({"type": "integer"}, "a") or os._exit(1))
        over.set()
    for turns in (limits.TURNS, limits.QUICK_JUDGES):
        with turns.turn("held"):
            forked(partial(_take, turns))


# What node 20 says, with the flag u: pattern, text, whether it matches.
ECMA = [
    (r"^[A-Z]\w{2,11}(?<!s)$", "Zoë", False), (r"^(\d)\1$", "٣٣", False), (r"^(\d)\1$", "33", True),
    (r"^Jos\B", "José", False), (r"^(\s)\1$", "\x85\x85", False), (r"^(.)\1$", "\r\r", False),
    (r"^(?!x)\s$", "\ufeff", True), (r"^\W(?!x)$", "é", True), (r"\bfoo", "éfoo", True), (r"\bfoo", "xfoo", False),
    (r"^(?!\w+$).{2,12}$", "Zoë", True), (r"^(?=.*\d)(?=.*\W).{4,12}$", "añ2025", True),
    (r"^[^](?!x)$", "\n", True), (r"^[](?!x)$", "a", False), (r"^(?<a>x)\k<a>0$", "xx0", True),
    (r"^[\b](?!x)$", "\b", True), (r"^\0(?!x)$", "\0", True), (r"^[+--](?!z)$", ",", True),
    (r"^[^\W](?!x)$", "é", False), (r"^[^\W](?!x)$", "e", True), (r"^[^\d\S](?!x)$", " ", True),
    (r"^[\D3](?!x)$", "٣", True), (r"^[\]x](?!z)$", "]", True), (r"^\u00e9(?!x)$", "é", True),
    (r"^[\S^a].$", " b", False), (r"^[\D^0].$", "5a", False), (r"^[\S^].$", "^b", True),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "text", "matches"), ECMA)
def test_a_pattern_that_no_automaton_keeps_is_read_as_ecmas(pattern: str, text: str, matches: bool) -> None:
    """The library hands it to an engine whose classes and borders are Unicode's, and whose dot is wider."""
    for schema, value in (({"pattern": pattern}, text), ({"patternProperties": {pattern: False}}, {text: 1})):
        check_form(schema)
        assert bool(verdicts(schema, value)) == (matches == ("patternProperties" in schema))
    (said,) = verdicts({"pattern": r"^(\d)\1$"}, "3")
    assert said[1] == r'"3" does not match "^(\d)\1$"', "as it was sent"


PARTS = r"""a 2 é _ ٣ \d \D \w \W \s \S . \b \B (?= (?! (?<= (?<! (?: ( ) ) ) (a) | * + ? {2} ^ $
[^\W] [\D_] [^\d\S] [a-b] [^a] \u00e9 [\b] (?=.*\d) (?!\w) (?<!é) [] [^] (?<n>a|b)"""
NODE = """
const found = JSON.parse(require("fs").readFileSync(0, "utf8")).map(([pattern, texts]) => {
  try { const read = new RegExp(pattern, "u"); return texts.map((text) => read.test(text)); } catch { return null; }
});
console.log(JSON.stringify(found));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_patterns_are_read_as_a_browser_reads_them() -> None:
    """Random ones: by the validator, and by the automaton where there is one."""
    draw, automata, read = random.Random(1), 0, 0
    asked = [["".join(draw.choices(PARTS.split(), k=draw.randint(1, 7))), list[str]()] for _ in range(1500)]
    for _, texts in asked:
        texts += ["".join(draw.choices("ab2é_ ٣-\n\r\u2028\ufeff\x85\x08x", k=draw.randint(0, 4))) for _ in range(20)]
    said = subprocess.run(["node", "-e", NODE], input=json.dumps(asked), capture_output=True, text=True, check=True)
    for (pattern, texts), wanted in zip(asked, json.loads(said.stdout), strict=True):
        if wanted is None:
            continue
        with suppress(ConstraintError):
            assert [not verdicts({"pattern": pattern}, text) for text in texts] == wanted, pattern
            read += 1
        with suppress(ConstraintError):
            assert [ecma_search(pattern).matches(text.encode()) for text in texts] == wanted, pattern
            automata += 1
    assert min(read, automata) > 100


def test_no_exact_answer_is_lost_where_something_ends_the_validator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation._QUICK, "ask", Mock(side_effect=BusyError("something ended 3 processes")))
    assert validation.contradictions({"type": "integer"}, '"a"') == []
    with pytest.raises(BusyError):
        schema_problems({"type": "integer"}, '"a"')


def test_a_fork_begins_threads_of_its_own() -> None:
    """A thread that stood idle in the parent was waited for."""

    async def judge(work: Callable[[], object]) -> object:
        return await asyncio.wait_for(validation.judged(work), 20)

    async def both() -> None:
        held, begun = threading.Event(), asyncio.create_task(judge(lambda: held.wait(60)))
        await asyncio.sleep(0.1)
        await judge(lambda: 7)  # whose thread is idle, and the other's is not
        await asyncio.to_thread(forked, lambda: os._exit(asyncio.run(judge(lambda: 7)) != 7))
        held.set()
        await begun

    asyncio.run(both())


def test_no_answer_waits_behind_those_of_another_caller() -> None:
    """Those of one caller, whose clients had left, took all threads: others' answers waited for 48 seconds."""
    over = threading.Event()

    async def ask(caller: str, work: Callable[[], object]) -> object:
        with holding(limits.CALLER, caller):
            return await validation.judged(work)

    async def ask_all() -> None:
        many = [asyncio.create_task(ask("many", partial(over.wait, 60))) for _ in range(600)]
        await asyncio.sleep(0.1)
        assert await asyncio.wait_for(ask("one", lambda: 7), 30) == 7
        assert len(validation._POOLS._pools) == 1
        over.set()
        await asyncio.gather(*many)

    asyncio.run(ask_all())
    assert not validation._POOLS._pools


def test_an_answer_that_nobody_waits_for_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that had left had its verdicts all the same, one after another."""
    monkeypatch.setattr(validation._QUICK, "ask", lambda *_: pytest.fail("nobody asked"))
    ended = threading.Event()

    def work() -> None:
        try:
            verdicts({"type": "integer"}, 1)
        except DeadlineError:
            ended.set()

    async def leave() -> None:
        task = asyncio.create_task(validation.judged(work))
        while len(limits.QUICK_JUDGES._turns) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with limits.QUICK_JUDGES.turn("of another"):
        asyncio.run(leave())
    assert ended.wait(60)


def test_by_a_slow_schema_the_first_answer_alone_is_asked_about_among_the_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 64 answers took the quick process its 0.1 seconds and its life, though the first had shown as much."""
    asked = list[float]()
    monkeypatch.setattr(validation._QUICK, "ask", lambda _, seconds: asked.append(seconds))
    monkeypatch.setattr(validation._SLOW, "ask", lambda *_: b"[]\n")
    schema = {"type": "integer", "title": "of this test alone"}
    works = [partial(verdicts, schema, value) for value in range(8)]
    with limits.QUICK_JUDGES.turn("of another"), beside(*works):
        while len(limits.QUICK_JUDGES._turns) <= len(works):
            time.sleep(0.01)
        limits.QUICK_JUDGES._end(limits.QUICK_JUDGES._now[0])
    assert asked == [validation.QUICK_SEC]


def test_a_helper_that_says_nothing_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "_BOOT_SEC", 0.1)
    helper = Helper("import time; time.sleep(1)\ndef answer(asked): return asked", "jsonschema_rs", 9, 1 << 29)
    assert helper.ask(b"1", 0.1) is None
    monkeypatch.undo()
    assert helper.ask(b"2", 9.0) == b"2\n"
    helper.end()


def test_a_helper_that_stands_still_takes_no_longer_than_another() -> None:
    """A question longer than a pipe waited for ever for one to read it, and the server's end for that."""
    helper = Helper("def answer(asked): return len(asked)", "jsonschema_rs", 9, 1 << 29)
    assert helper.ask(b'"a"', 9.0) == b"1\n"
    assert helper._process is not None
    helper._process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert helper.ask(json.dumps("a" * 300_000).encode(), 0.2) is None
    assert time.monotonic() - began < 5
    assert helper.ask(json.dumps("a" * 300_000).encode(), 9.0) == b"300000\n"
    helper.end()


def test_a_helper_that_somebody_ends_is_no_verdict(tmp_path: Path) -> None:
    """A system without memory ends what it likes: a valid answer was called invalid, and its schema so for a minute."""
    code = "import os, pathlib\ndef answer(path):\n    left = int(pathlib.Path(path).read_text())\n"
    code += "    pathlib.Path(path).write_text(str(left - 1))\n"
    code += "    if left > 0: os.kill(os.getpid(), 9)\n    return 'said'"
    helper, left = Helper(code, "jsonschema_rs", 9, 1 << 29), tmp_path / "left"
    left.write_text("2")
    assert helper.ask(json.dumps(str(left)).encode(), 9.0) == b'"said"\n'
    helper.end()
    left.write_text("9")
    with pytest.raises(BusyError, match="something ended 3 processes"):
        helper.ask(json.dumps(str(left)).encode(), 9.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("subprocess.Popen", Mock(side_effect=OSError(24, "Too many open files")))
        helper.end()
        with pytest.raises(BusyError, match=r"could be begun .Too many open files"):
            helper.ask(b"1", 9.0)
    aborting = Helper("import os\ndef answer(_): os.abort()", "jsonschema_rs", 9, 1 << 29)
    assert aborting.ask(b"1", 9.0) is None


def test_a_helper_ends_with_the_program_that_asks() -> None:
    script = "import os; from redraft.constraints.validation import _QUICK, verdicts; verdicts({}, 1); "
    script += "print(_QUICK._process.pid, flush=True); "
    for kill in (False, True):
        command = [sys.executable, "-c", script + "os.kill(os.getpid(), 9)" * kill]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (-9 if kill else 0, "")
        for _ in range(600):
            if not Path(f"/proc/{int(done.stdout)}/cmdline").exists():
                break
            time.sleep(0.1)
        else:
            pytest.fail("it runs on")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('{"items":' * 320 + "{}" + "}" * 320, f"nests too deeply: over {MOST_LEVELS} levels"),
        ({"$id": "http://[::1", "type": "null", "$ref": "//[x"}, "is no URL"),
    ],
)
def test_what_a_library_does_not_read_is_refused_by_name(schema: Any, said: str) -> None:
    with pytest.raises(ConstraintError, match=said):
        ready(schema_source(schema), BYTES)


def _doubling(times: int) -> dict[str, Any]:
    """Definitions of which each names the next one twice."""
    found: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(times)}
    return found | {f"d{times}": {"type": "integer"}}


def test_what_branches_is_judged_apart_wherever_its_references_begin() -> None:
    """Below a name of its own, and in a property that is called as a keyword is."""
    inner = {"$id": "http://o/", "$ref": "#/$defs/d0", "$defs": _doubling(30)}
    moved = {"$ref": "#/$defs/x", "$defs": {"x": inner}}
    called = {"properties": {"definitions": {"$ref": "#/$defs/d0"}}, "$defs": _doubling(30)}
    began = time.monotonic()
    for schema, value in ((moved, 1), (called, {"definitions": 1})):
        assert verdicts(schema, value) == [([], validation.TOO_MUCH)]
    called["properties"]["definitions"]["unevaluatedProperties"] = False
    with pytest.raises(TimeLimitError):
        check_readable(called)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("schema", "text", "wrong"),
    [
        ({"minProperties": 2}, '{"a":1, "a":2}', '"a"'),
        ({"properties": {"q": {"minProperties": 3}}}, '{"q":{"a":1,"b":1,"a":3}}', '"a"'),
        ({"uniqueItems": True}, '[1, "x", 1.0, 2]', "1.0"),
        ({"properties": {"q": {"uniqueItems": True}}}, '{"q":[[1],[2],[1]]}', "[1]"),
        ({"minProperties": 2}, '{"a":1}', None),
        ({"properties": {"q": {"minProperties": 2}}}, '{"q":{"a":1}}', '{"a":1}'),
    ],
)
def test_what_stands_twice_is_repaired_where_it_stands(schema: Any, text: str, wrong: str | None) -> None:
    """The whole list was written anew, and again so."""
    (problem,) = schema_problems(schema, text)
    assert (None if problem.span is None else text[slice(*problem.span)]) == wrong
    assert problem.span is None or text.rindex(str(wrong)) == problem.span[0]  # the second of the two
