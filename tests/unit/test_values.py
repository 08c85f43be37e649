"""Texts of plain values and patterns, against Python's decimals, regular expressions and JSON."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from contextlib import suppress
from decimal import Decimal
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import python

from redraft.constraints.compile.ecma import ecma_search
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.compile.schema import compile_schema
from redraft.constraints.compile.values import multiple, number, quoted, text_of
from redraft.constraints.validation import verdicts
from redraft.errors import ConstraintError

NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
SHORT = ["".join(letters) for size in range(5) for letters in itertools.product("0159.-", repeat=size)]

bounds = st.none() | st.integers(-120, 120).map(Decimal) | st.integers(-1200, 1200).map(lambda n: Decimal(n) / 100)


@settings(max_examples=30)
@given(low=bounds, high=bounds, open_low=st.booleans(), open_high=st.booleans(), whole=st.booleans())
def test_numbers_are_those_between_the_bounds(
    low: Decimal | None, high: Decimal | None, open_low: bool, open_high: bool, whole: bool
) -> None:
    dfa = number(low, high, open_low=open_low, open_high=open_high, whole=whole)
    for text in SHORT:
        wanted = NUMBER.fullmatch(text) is not None and not (whole and "." in text)
        if wanted:
            value = Decimal(text)
            wanted = not (text[0] == "-" and value == 0)
            wanted &= low is None or value > low or (value == low and not open_low)
            wanted &= high is None or value < high or (value == high and not open_high)
        assert dfa.matches(text.encode()) == wanted, text


@pytest.mark.parametrize("of", ["1", "2", "3", "7", "10", "0.5", "0.25", "0.01", "2.5"])
def test_multiples_are_what_the_remainder_says(of: str) -> None:
    places = len(of.partition(".")[2])
    for text in SHORT:
        behind = len(text.partition(".")[2])
        if NUMBER.fullmatch(text) and behind <= places:
            assert multiple(Decimal(of)).matches(text.encode()) == (Decimal(text) % Decimal(of) == 0), text


@given(text=st.text(max_size=5), low=st.integers(0, 3), size=st.none() | st.integers(0, 3))
def test_texts_are_counted_in_characters(text: str, low: int, size: int | None) -> None:
    high = None if size is None else low + size
    assert text_of(low, high).matches(text.encode()) == (low <= len(text) and (high is None or len(text) <= high))


@pytest.mark.parametrize(
    "wrong", [b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xff", b"\xe2\x82"]
)
def test_what_is_no_utf8_is_no_text(wrong: bytes) -> None:
    assert not text_of().matches(wrong)


@given(text=st.text(st.characters(codec="utf-8"), max_size=6))
def test_strings_are_written_as_json_writes_them(text: str) -> None:
    odd = any(ord(letter) < 32 and letter not in "\b\f\n\r\t" for letter in text)
    assert quoted(text_of()).matches(json.dumps(text, ensure_ascii=False).encode()) != odd


PATTERNS = ["^a+$", "b", "^[a-z]{2,3}", "\\d+$", "^\\w\\s", "a|^b", "^(a|ab)$", "^\\S*$", "[^\\d]", "\\u00e9", "\\/",
            "^a|b$", "^[\\w.-]+@x$", "^(?:a|ab)(?:c|bcd)$"]  # fmt: skip
PROBES = [
    "",
    "a",
    "aa",
    "b",
    "ab",
    "abc",
    "12",
    "x1",
    "a b",
    "é",
    "a\n",
    "/",
    "_ ",
    "ab@x",
    "bc",
    "\r",
    "1",
    "abcd",
    "ac",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_somewhere_as_ecma_has_it(pattern: str) -> None:
    dfa = ecma_search(pattern)
    for text in PROBES:
        wanted = re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None
        if pattern == "^\\S*$":  # Python's ASCII mode takes é for a space-free letter too, and ECMA's spaces are wider
            wanted = not any(letter.isspace() for letter in text)
        assert dfa.matches(text.encode()) == wanted, text


PARTS = ["a", "b", "2", ",", "{", "}", "{2}", "{2, 3}", "{ 2}", "{,2}", "{1,}", *"*+?()|^$.[]-&~/:#", "(?:", "[^",
         "a-b", "\\d", "\\W", "\\s", "\\-", "\\{", "\\]", "\\u0061", "é", "[:alpha:]", "\\p{L}"]  # fmt: skip


def test_a_pattern_is_what_a_validator_takes_it_for() -> None:
    """Rust counts {2, 3} where ECMA has seven characters, and what was counted before. Of 1,233 such patterns eleven
    were read in another way; those that nobody reads alike are refused."""
    draw, read = random.Random(1), 0
    for _ in range(500):
        pattern = "".join(draw.choices(PARTS, k=draw.randint(1, 7)))
        pattern = draw.choice(["^{}$", "^{}", "{}", "^[{}]+$", "^(?:{}){{2}}$"]).format(pattern)
        with suppress(ConstraintError, ValueError):
            validator, dfa = jsonschema_rs.Draft202012Validator({"pattern": pattern}), ecma_search(pattern)
            letters = "ab2,{}-[]^.&~/ é\n_:#()" + pattern
            probes = ["".join(draw.choices(letters, k=draw.randint(0, 5))) for _ in range(40)]
            for text in {*PROBES, *probes, pattern.strip("^$")} - {"\r"}:  # a dot takes it there, as Rust's does
                assert dfa.matches(text.encode()) == validator.is_valid(text), (pattern, text)
            read += 1
    assert read > 150


@pytest.mark.parametrize("pattern", ["^x{2}{3}$", "^x*{2}$", "^x?+$", "^x{2}?+$", "^[]a]$", "^[^]$"])
def test_a_pattern_that_is_read_in_two_ways_is_refused(pattern: str) -> None:
    with pytest.raises(ConstraintError, match="pattern"):
        ecma_search(pattern)


def test_no_alternative_hides_a_longer_one() -> None:
    """The library behind keeps the first alternative that matches; as a language both belong."""
    assert whole_match("a|ab").matches(b"ab")
    assert whole_match("(?:a|ab)(?:c|bcd)").matches(b"abcd")
    assert whole_match("a*?").matches(b"aaa")


@pytest.mark.parametrize(
    "pattern", ["(^$)|(^[0-9]{2}$)", "(^$|^[0-9]{2}$)", "^(a$|b)", "^(?:(^a|b$)|c)$", "(?<n>^a|b)"]
)
def test_anchors_of_an_outermost_group_belong_to_its_alternatives(pattern: str) -> None:
    dfa = ecma_search(pattern)
    for length in range(4):
        for chars in itertools.product("ab1", repeat=length):
            text = "".join(chars)
            wanted = re.search(pattern.replace("?<n>", "?P<n>").replace("$", r"\Z"), text) is not None
            assert dfa.matches(text.encode()) == wanted, text


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "4111111111111111"),
        ({"type": "integer", "minimum": 0}, "18446744073709551615"),
        ({"type": "number"}, "-73.98765432"),
        ({"type": "number"}, "0.00000012"),
        ({"type": "number", "minimum": 3.141592653589793}, "1234567.5"),
        ({"type": "number", "minimum": -89.99999999999999, "maximum": 360}, "123.5"),
    ],
)
def test_numbers_have_the_digits_that_people_write(schema: dict[str, Any], text: str) -> None:
    """They were cut: 4111111111111111 became 411."""
    assert compile_schema(schema).dfa.matches(text.encode())
    assert not verdicts(schema, json.loads(text))


@pytest.mark.parametrize("pattern", ["(a)\\1", "(?!a)b", "\\bfoo", "a^b", "\\q"])
def test_what_no_automaton_can_do_is_refused(pattern: str) -> None:
    with pytest.raises(ConstraintError, match="pattern"):
        ecma_search(pattern)


def test_a_pattern_that_explodes_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.constraints.compile.regex.MOST_SECONDS", 1)
    with pytest.raises(ConstraintError, match="narrow its counts"):
        whole_match("(a|b)*a(a|b){26}")


def test_a_lower_limit_that_holds_already_is_no_fault_of_the_pattern() -> None:
    """Under `ulimit -t` of less than our own limit every pattern was said to need too many seconds."""
    lower = (
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (500, 500))\n"
        "from redraft.constraints.compile import regex; regex.MOST_SECONDS = 1000\n"
        "print(regex.whole_match('a+').matches(b'aaa'))"
    )
    done = python(lower)
    assert done.stdout == "True\n", done.stderr


NEAR = [n + d for n in (2**53, 10**12, 2**63, 10**23) for d in (-1, 0, 1)]


@pytest.mark.parametrize("word", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
@pytest.mark.parametrize("bound", [2**53, 2**53 + 1, 10**12, 1e12, 2**63, 1e23, 1e22, -(2**53) - 1])
def test_what_is_written_near_a_large_bound_is_valid(word: str, bound: float) -> None:
    """The validator rounds fractions to 53 bits, so that some were valid here alone. Integers both compare exactly."""
    schema = {"type": "number", word: bound}
    dfa = compile_schema(schema).dfa
    texts = [f"{sign}{n}{rest}" for sign in ("", "-") for n in NEAR for rest in ("", ".0", ".5", ".999999", ".000001")]
    written = [text for text in texts if dfa.matches(text.encode())]
    wrong = [text for text in written if verdicts(schema, json.loads(text))]
    assert not wrong


CLOSE = [(0.1, 0.10000000000000002), (0.3, 0.30000000000000004), (1234567.1, 1234567.1000000003), (0.1, 0.2),
         (-0.1, 0.12345678901234567), (1e-7, 2e-7), (-5.000000000000001, -5.0)]  # fmt: skip


@pytest.mark.parametrize(("low", "high"), CLOSE)
@pytest.mark.parametrize("words", [("exclusiveMinimum", "exclusiveMaximum"), ("minimum", "maximum")])
def test_what_is_written_between_close_bounds_is_a_double_between(
    words: tuple[str, str], low: float, high: float
) -> None:
    """0.10000000000000001 is 0.1, and so not above it."""
    schema = {"type": "number", **dict(zip(words, (low, high), strict=True))}
    try:
        dfa = compile_schema(schema).dfa
    except ConstraintError:
        assert words[0] == "exclusiveMinimum"
        assert high - low < 2e-7, "no double lies between, or none of so many digits"
        return
    draw = random.Random(1)
    inner = [f"{Decimal(draw.uniform(low, high)):.{draw.randrange(1, 19)}f}" for _ in range(300)]
    edges = [f"{Decimal(edge) + Decimal(i).scaleb(-17):f}" for edge in (low, high) for i in range(-30, 30)]
    written = [text for text in (*inner, *edges, repr(low), repr(high)) if dfa.matches(text.encode())]
    assert written
    for text in written:
        value = json.loads(text)
        assert low < value < high if words[0] == "exclusiveMinimum" else low <= value <= high, text


@pytest.mark.parametrize(
    ("schema", "wrong", "right"),
    [
        ({"type": "number", "exclusiveMinimum": 123456789012345.1}, "123456789012345.100001", "123456789012345.2"),
        ({"type": "number", "exclusiveMinimum": -5.5, "maximum": 1e-30}, "-5.49999999999999955591079015", "-5.4"),
        ({"type": "integer", "minimum": -(10**32) - 123}, f"-{10**32 + 124}", f"-{10**32 + 123}"),
        ({"type": "number", "exclusiveMinimum": -1e-7, "exclusiveMaximum": 10**309}, "-0.0000001", "5"),
    ],
)
def test_bounds_of_many_digits_are_what_a_validator_takes_them_for(
    schema: dict[str, Any], wrong: str, right: str
) -> None:
    """Of each the automaton took the wrong one, and the last was an OverflowError."""
    dfa = compile_schema(schema).dfa
    assert (dfa.matches(wrong.encode()), dfa.matches(right.encode())) == (False, True)
    assert verdicts(schema, json.loads(wrong))
    assert not verdicts(schema, json.loads(right))


def test_lists_are_compared_value_by_value_of_json() -> None:
    """By pairs, two lists of 5,500 took 12 seconds, in which no other constraint was compiled."""
    began = time.monotonic()
    one, other = [*range(1000, 6500)], [*range(-999, 0), *range(6500, 9999), *range(999), 1000]
    assert compile_schema({"allOf": [{"enum": one}, {"enum": other}]}).dfa.matches(b"1000")
    assert time.monotonic() - began < 5
    kinds: list[Any] = [1, True, "1", [1], {"a": 1, "b": [2]}, None, "null", [], {}, 0, False]
    for value in kinds:
        dfa = compile_schema({"allOf": [{"enum": [value]}, {"enum": kinds}]}).dfa
        assert [dfa.matches(json.dumps(other).encode()) for other in kinds] == [other is value for other in kinds]
    alike = [i * (2**61 - 1) for i in range(20_000)]  # whose hashes are all 0
    assert not compile_schema({"allOf": [{"enum": alike[:200]}, {"enum": alike}]}).dfa.is_empty
    assert time.monotonic() - began < 10
    for value, same in ((1, 1.0), ([1], [1.0]), ({"a": 1, "b": 2}, {"b": 2, "a": 1})):
        assert not compile_schema({"allOf": [{"enum": [value]}, {"enum": [same]}]}).dfa.is_empty
