"""Schemas out of an automaton's reach: valid whatever the model says, in the tokens that there are, or refused."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.helpers import ORACLE, PROMPT, SCHEMA, beside

from redraft.config import read_config
from redraft.constraints.compile.hints import hints_of
from redraft.constraints.compile.limits import CompileLimits, TimeLimitError
from redraft.constraints.condition.guide import LOOK_WORK, POSITION_LOOKS, Guide
from redraft.constraints.condition.guided import GuidedProjection
from redraft.constraints.language import GuidedLanguage, Vocabulary, ready
from redraft.constraints.sources import excluding, regex_source, schema_source
from redraft.constraints.validation import verdicts
from redraft.engine.request import Options, Request
from redraft.engine.resolve import build_request
from redraft.engine.settings import MOST_CANVASES, extra_rows
from redraft.errors import ConstraintError, RequestError, UnsatisfiedError
from redraft.operations.engine import Engine
from redraft.options import SeedCanvas

WORDS = [b'"}', b'":', b'": ', b'","', b'{"', b"[]", b"}]", b"  ", b"\n  ", b"div", b"label", "größe".encode(), b" the"]
PIECES = (None, None, *(bytes([byte]) for byte in range(256)), *WORDS)
VOCABULARY = Vocabulary(PIECES, frozenset({0}), frozenset({0, 1}))
FEW = CompileLimits(states=60)
INTERFACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"enum": ["div", "button"]},
        "label": {"type": "string", "maxLength": 30},
        "size": {"type": "integer", "minimum": 100, "maximum": 500},
        "children": {"type": "array", "items": {"$ref": "#"}},
        "attributes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "pattern": "^[a-z]{2,5}$"}, "value": {"type": "string"}},
                "required": ["name", "value"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["type", "label", "size", "children", "attributes"],
    "additionalProperties": False,
}
"""The shape of OpenAI's own example of an interface."""


def guided(schema: Any, vocabulary: Vocabulary = VOCABULARY) -> GuidedLanguage:
    found = ready(schema_source(schema), vocabulary, limits=FEW)
    assert isinstance(found, GuidedLanguage)
    return found


def written(language: GuidedLanguage, left: int, width: int, seed: int, sharp: float) -> tuple[list[int], int]:
    """An answer on noise that is drawn anew at every step, as the engine lays canvases, and how many steps it took."""
    draw = torch.Generator().manual_seed(seed)
    goal, out, steps = language.start(left), list[int](), 0
    while True:
        pinned, tokens = torch.zeros(width, dtype=torch.bool), torch.zeros(width, dtype=torch.long)
        for _ in range(width + 1):
            log_p = torch.log_softmax(torch.randn(width, len(PIECES), generator=draw) * sharp, -1)
            certain = torch.full_like(log_p, -1e9).scatter_(-1, tokens[:, None], 0.0)
            found = goal(torch.where(pinned[:, None], certain, log_p))
            steps += 1
            assert (found.draft[pinned] == tokens[pinned]).all(), "what was fixed has stayed"
            assert found.fixed > int(pinned.sum()) or found.fixed == width
            pinned[: found.fixed], tokens[: found.fixed] = True, found.draft[: found.fixed]
            if found.doubt == 0:
                break
        draft = found.draft.tolist()
        end = next((i for i, token in enumerate(draft) if token == 0), width)
        content = draft[:end][: goal.left]
        assert len(found.log_mass(content)) == len(content)
        out += content
        goal = goal.after(content)
        if end < width or goal.left == 0 or goal.is_over:
            return out, steps


@pytest.mark.parametrize("seed", range(12))
def test_pure_noise_becomes_a_valid_answer_in_the_tokens_there_are(seed: int) -> None:
    """Canvases of any width, one after another; the shortest answer of all has 77 tokens by this way."""
    language = guided(INTERFACE)
    left, width = 80 + 17 * (seed % 5), (7, 16, 64, 200)[seed % 4]
    tokens, steps = written(language, left, width, seed, (0.0, 3.0, 30.0)[seed % 3])
    assert len(tokens) <= left
    assert language.holds(tokens)
    assert steps <= 1.5 * len(tokens) + 3 * (left // width + 1), "one forward for each token that had to be forced"
    text = b"".join(PIECES[token] or b"" for token in tokens).decode()
    assert not verdicts(INTERFACE, json.loads(text)), text


def node(value: Any, **others: Any) -> dict[str, Any]:
    """An object whose recursive keys may be left out and stand before the one that may not."""
    properties = {**others, "value": value}
    return {"type": "object", "properties": properties, "required": ["value"], "additionalProperties": False}


NUMBER, AGAIN = {"type": "integer", "minimum": 100, "maximum": 400}, {"$ref": "#/$defs/one"}
DEEPER: list[Any] = [
    node(NUMBER, child={"$ref": "#"}),
    {"$defs": {"one": node({"enum": ["red", "green"]}, left=AGAIN, right=AGAIN)}, "items": AGAIN, "minItems": 3}
    | {"type": "array"},
    {"$defs": {"one": {"anyOf": [{"type": "array", "minItems": 2, "items": AGAIN}, node({"const": "x"})]}}, **AGAIN},
    {"$defs": {"one": node(NUMBER, two={"$ref": "#/$defs/two"}), "two": node({"const": 1}, one=AGAIN)}}
    | node({"$ref": "#/$defs/two"}, first=AGAIN),
]


ENDED: list[Any] = [
    *({"format": name} for name in ("uri", "duration", "date-time", "ipv6", "hostname")),
    *({"pattern": pattern} for pattern in (
        r"^\d+\.\d+\.\d+$", r"\.png$", r"^.*\.png$", r"^[\w_]+\.(png|jpg)$", r"^[a-z]+ends$",
        r"^[^@]+@[^@]+\.[a-z]{2,}$",
        r"^/([a-z]+/)*[a-z]+\.json$", r"^[a-z0-9/]+:[a-z0-9.]+$", r"^arn:aws:[a-z0-9]+:[a-z0-9-]*:\d{12}:[a-z0-9/]+$",
    )),
    *({"type": "integer"} | bounds for bounds in (
        {"minimum": 1}, {"minimum": 5}, {"multipleOf": 15, "minimum": 1}, {"multipleOf": 60, "exclusiveMinimum": 0},
        {"multipleOf": 7, "maximum": -1},
    )),
    {"type": "number", "exclusiveMinimum": 0},
]  # fmt: skip


@pytest.mark.parametrize("schema", ENDED, ids=str)
def test_a_value_comes_to_an_end_that_another_key_follows(schema: Any) -> None:
    """Digits came without an end where no bracket may follow, and letters where a pattern wants more than they are."""
    seven = {"type": "integer", "multipleOf": 7, "minimum": 1}  # whose hint may stand in a string, too
    properties = {"first": {"type": "string", **schema}, "seven": seven, "last": {"enum": ["one", "two"]}}
    whole = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    language = ready(schema_source(whole), VOCABULARY, limits=CompileLimits(states=15))
    assert isinstance(language, GuidedLanguage)
    assert 0 < language.shortest < 90
    tokens, _ = written(language, 120, 32, 1, 3.0)
    text = b"".join(PIECES[token] or b"" for token in tokens).decode()
    assert not verdicts(whole, json.loads(text)), text


def test_hints_take_no_way_away() -> None:
    """64 equal characters were taken for a pattern's that waits; long hints were tried at each of 1,500 characters."""
    text = {"type": "string"}
    for count, other, least in ((100, {"format": "date"}, 125), (1500, {"pattern": "^c{800}x$"}, 2316)):
        properties = {"a": text | {"minLength": count}, "b": text | other}
        whole = {"type": "object", "properties": properties, "required": ["a", "b"], "additionalProperties": False}
        language, began = ready(schema_source(whole), VOCABULARY, limits=CompileLimits(states=15)), time.monotonic()
        assert isinstance(language, GuidedLanguage)
        assert language.shortest == least
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("pattern", ["^(?!a)a$", "^(?=b)a$", "^c{900}$", "(", "^(?<!a)b"])
def test_a_pattern_without_a_short_text_gives_no_hint(pattern: str) -> None:
    bounds = {"multipleOf": 7777, "minimum": 5000, "exclusiveMinimum": True}
    assert hints_of({"$defs": {"x": {"pattern": pattern}, "y": bounds}}) == ("7777", "15554")


@pytest.mark.parametrize("schema", DEEPER)
def test_a_way_that_leads_ever_deeper_is_left(schema: Any) -> None:
    """The key that recurs stands before the one that ends an object."""
    language = guided(schema)
    assert language.shortest < 70
    tokens, _ = written(language, 100, 32, 1, 3.0)
    text = b"".join(PIECES[token] or b"" for token in tokens).decode()
    assert not verdicts(schema, json.loads(text)), text


def test_one_step_looks_at_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sixty multiples each step tried three hints for each, over and over: all others waited for 3 seconds."""
    draw, drawn = random.Random(1), random.Random(2)
    numbers = [{"type": "integer", "multipleOf": draw.randrange(1000, 3000)} for _ in range(60)]
    language = guided(
        {"type": "array", "prefixItems": [*numbers, {"type": "string", "minLength": 1001}], "items": False}
    )
    goal, seen, plain = language.start(480), [0], Guide._may

    def may(guide: Guide, matcher: Any) -> bytes:
        seen[0] += 1
        return plain(guide, matcher)

    monkeypatch.setattr(Guide, "_may", may)
    likeliest = torch.tensor([2 + ord("["), *(2 + ord(drawn.choice("350")) for _ in range(255))])
    found = goal(torch.log_softmax(torch.zeros(256, len(PIECES)).scatter(1, likeliest[:, None], 9.0), -1))
    assert 0 < seen[0] <= POSITION_LOOKS * 256
    assert language.holds(found.plan)


@pytest.mark.parametrize("width", [64, 256])
def test_a_model_that_is_right_is_left_alone_where_much_is_owed(width: int) -> None:
    """Its canvas was overwritten by empty texts: completing all that a list still asked for took more looks than a
    step had."""
    names = ["name", "city", "street", "zip", "mail", "phone", "role", "note"]
    item = {"type": "object", "properties": {key: {"type": "string"} for key in names}, "required": names,
            "additionalProperties": False}  # fmt: skip
    language = guided({"type": "array", "items": item, "minItems": 60})
    text = json.dumps([{name: f"{name[:2]}{i}" for name in names} for i in range(60)])
    own = torch.tensor([2 + byte for byte in text.encode()[:width]])
    log_p = torch.log_softmax(torch.zeros(width, len(PIECES)).scatter(1, own[:, None], 20.0), -1)
    assert (language.start(len(text) + 200)(log_p).draft == own).all()


def test_a_model_that_is_right_is_left_alone() -> None:
    """One step, and not a token is forced."""
    language = guided(INTERFACE)
    text = '{"type": "div", "label": "a", "size": 123, "children": [], "attributes": []}'
    tokens = [byte + 2 for byte in text.encode()] + [0, 1, 1]
    log_p = torch.full((len(tokens), len(PIECES)), -20.0)
    log_p[torch.arange(len(tokens)), torch.tensor(tokens)] = 0.0
    found = language.start(200)(torch.log_softmax(log_p, -1))
    assert found.draft.tolist() == tokens
    assert not any(found.forced())
    assert found.doubt < 1e-3
    assert found.fixed == len(tokens)
    assert min(found.log_mass(tokens[:-3])) > -1e-3


def test_a_matcher_that_takes_nothing_more_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies share a lexer. Of a vocabulary of 262,144, it came to its end behind 128 tokens."""
    goal = guided(INTERFACE).start(200).after([byte + 2 for byte in b'{"type": "div"'])
    worn = goal.guide
    monkeypatch.setattr(Guide, "at", lambda one, tokens, at=Guide.at: None if one is worn else at(one, tokens))
    assert not goal.is_over


def test_too_few_tokens_are_refused_with_how_many_were_found_to_do() -> None:
    with pytest.raises(ConstraintError, match=r"no valid answer of 20 tokens was found, and the shortest .* has \d\d;"):
        guided(INTERFACE).start(20)


def test_a_long_text_in_a_schema_is_taken_at_once() -> None:
    """It was turned into tokens at each of its bytes: 12 to 90 seconds for one of 60,000."""
    text = "The quick brown fox, 12 " * 2500
    language, began = guided({"const": text}), time.monotonic()
    with pytest.raises(ConstraintError, match="no valid answer of 500 tokens was found; raise"):
        language.start(500)
    assert language.start(70_000).plan.tokens == [byte + 2 for byte in json.dumps(text).encode()]
    assert time.monotonic() - began < 5


def test_what_may_come_next_does_not_depend_on_how_far_llguidance_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schemas = [{"const": "é☃ ab" * 200}, {"enum": ["xyz " * 300, "xyz " * 300 + "b", {"a" * 400: ["yes" * 200]}]}]
    for schema in schemas:
        long, text = guided(schema), json.dumps(schema.get("const", schema.get("enum", [""])[-1]), ensure_ascii=False)
        with monkeypatch.context() as patch:
            patch.setattr("redraft.constraints.condition.guide.MOST_ASKED", 10**6)
            whole = guided(schema, Vocabulary(PIECES, frozenset({0}), frozenset({0, 1})))
            tokens = [byte + 2 for byte in text.replace('": [', '":[').encode()]
            for at in range(0, len(tokens), 7):
                there, here = whole.guide.at(tokens[:at]), long.guide.at(tokens[:at])
                assert there is not None
                assert here is not None
                assert (whole.guide.allowed(there) == long.guide.allowed(here)).all()


def test_a_schema_that_llguidance_takes_long_for_is_refused_and_nothing_else_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Properties and patterns for their names, of 40 kB: for minutes no other constraint was compiled."""
    schema = {
        "properties": {f"k{i}": True for i in range(1500)},
        "patternProperties": {f"^k{i}$": True for i in range(1200)},
    }
    monkeypatch.setattr("redraft.constraints.condition.guide.GRAMMAR_SEC", 2.0)
    refused, began = list[str](), threading.Event()

    def compile_it() -> None:
        began.set()
        with pytest.raises(TimeLimitError) as error:
            ready(schema_source(schema), VOCABULARY, limits=FEW)
        refused.append(str(error.value))

    with beside(compile_it):
        began.wait(60)
        waited = [0.0]
        while not refused:
            start = time.monotonic()
            assert ready(regex_source(f"[ab]{{{len(waited)}}}"), VOCABULARY).holds([ord("a") + 2] * len(waited))
            waited.append(time.monotonic() - start)
    assert refused == ["the schema takes over 2 seconds or 1024 MiB to be made a grammar; narrow it"]
    assert max(waited) < 2.0


def test_what_cannot_be_held_from_left_to_right_is_refused_by_name() -> None:
    language = guided(INTERFACE)
    config = read_config(ORACLE / "ckpt")
    pinned = Options(seed_canvas=SeedCanvas(pins=((3, 5),)))
    for name, options in ("min_tokens", Options(min_tokens=5)), ("draw", Options(draw=True)), ("seed_canvas", pinned):
        with pytest.raises(RequestError, match=f"{name} was given with a schema that can only be held from left"):
            build_request([2], options, config, language=language)
    with pytest.raises(ConstraintError, match="held from left to right"):
        _ = language.automaton
    for source in (regex_source("(ab|c){90}"), excluding(schema_source(INTERFACE), ["{}"])):
        with pytest.raises(ConstraintError, match="states"):
            ready(source, VOCABULARY, limits=FEW)


def test_forbidden_tokens_never_occur() -> None:
    """Also not where the answer is brought to its end."""
    forbidden = frozenset(
        i for i, piece in enumerate(PIECES) if piece is not None and (b"a" in piece or b"\n" in piece)
    )
    words = {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "string", "maxLength": 40}},
             "required": ["x", "y"], "additionalProperties": False}  # fmt: skip
    language = guided(words).without(forbidden)
    for seed in range(4):
        tokens, _ = written(language, 40, 16, seed, 3.0)
        assert language.holds(tokens)
        assert not forbidden & {*tokens}


def test_of_wide_guided_canvases_a_card_takes_four_in_a_forward(engine: Engine) -> None:
    """Its forwards take milliseconds, and what each of these looks at takes its host up to a tenth of a second."""
    rows, oracle = MOST_CANVASES * 256, build_request([2], Options(max_tokens=256), engine.config)
    held = replace(oracle, width=256, language=guided(INTERFACE), work=guided(INTERFACE).work_at(256))
    card = SimpleNamespace(config=engine.config.model, device=torch.device("cuda"))
    large = SimpleNamespace(config=replace(engine.config.model, moe_intermediate_size=2**20), device=card.device)
    for model in card, large:
        assert extra_rows(held, cast(Any, model), rows) >= rows // 4
    assert extra_rows(held, cast(Any, large), rows) == rows // 4
    assert extra_rows(oracle, cast(Any, large), rows) == 0


def test_what_a_step_looks_at_is_counted_by_its_positions_and_what_it_owes() -> None:
    """By hand: 16 looks a position, at least 1,000, and two for each token of the shortest answer."""
    small, large = guided(INTERFACE), guided({"type": "array", "minItems": 400, "items": {"const": "abcdef"}})
    assert [small.work_at(positions) // LOOK_WORK for positions in (1, 8, 256)] == [1000, 1000, 4096]
    assert large.work_at(64) // LOOK_WORK == 2 * large.shortest > 1024


def test_the_first_matcher_is_made_before_the_engine_has_it() -> None:
    """It may take seconds: made in a forward's turn, everybody waited for it."""
    language = guided(INTERFACE)
    for one in (language, language.without(frozenset({3}))):
        assert "begin" in vars(one.guide)


def test_a_guided_language_is_read_from_disk(tmp_path: Path) -> None:
    for _ in range(2):
        found = ready(schema_source({**INTERFACE, "oddity": 1}), VOCABULARY, kept_in=tmp_path, limits=FEW)
        assert found.held == "guided"
        assert found.ignored == ("/oddity",)
        assert isinstance(found.start(200), GuidedProjection)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("preset", ["reference", "fast"])
def test_the_engine_holds_a_schema_from_left_to_right(engine: Engine, preset: str) -> None:
    language = ready(schema_source(SCHEMA), engine.vocabulary, limits=FEW)
    assert isinstance(language, GuidedLanguage)
    options = Options(seed=1, max_tokens=60, preset=preset)
    request = Request(PROMPT, options, chat=True, constraint=language)
    done = engine.run(request)
    assert json.loads(done.text) == {"who": "Karomi", "qty": 417, "item": "melu"}
    assert engine.run(request).tokens == done.tokens
    off = engine.run(Request("?", options, constraint=language))
    assert not verdicts(SCHEMA, json.loads(off.text)), "of another task"
    assert len(off.tokens) <= 60


def test_an_answer_says_how_it_was_held_and_what_was_ignored(engine: Engine) -> None:
    words = {"type": "object", "properties": {"item": {"enum": ["melu", "vune"], "oddity": 1}}, "required": ["item"]}
    cases = {"exact": words, "checked": {**words, "not": {"required": ["qty"]}}}
    for how, schema in cases.items():
        done = engine.generate(PROMPT, chat=True, schema=schema, seed=1, max_tokens=40)
        assert (done.constraint, done.ignored) == (how, ("/properties/item/oddity",))
    assert engine.generate("Hi", max_tokens=4, seed=1).constraint is None


def test_a_guided_answer_that_a_validator_is_against_is_tried_again_or_an_error(engine: Engine) -> None:
    """What llguidance leaves out of a grammar is judged at the end."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 40}}, "required": ["a"],
              "additionalProperties": False, "not": {"properties": {"a": {"pattern": "^[^z]*$"}}}}  # fmt: skip
    language = ready(schema_source(schema), engine.vocabulary, limits=FEW)
    assert isinstance(language, GuidedLanguage)
    request = Request("Hi", Options(seed=1, max_tokens=30), constraint=language)
    with pytest.raises(UnsatisfiedError):
        engine.run(request)
    with contextlib.suppress(UnsatisfiedError):
        done = engine.generate(request)
        assert "z" in json.loads(done.text)["a"]
        assert done.constraint == "guided"


@pytest.mark.parametrize("limits", [CompileLimits(), FEW])
def test_without_max_tokens_an_answer_has_the_room_that_the_shortest_needs(
    engine: Engine, limits: CompileLimits
) -> None:
    """A valid schema was refused because the checkpoint's own number of tokens was below its shortest answer."""
    names = [f"n{i}" for i in range(16)]
    schema = {"type": "object", "properties": {key: {"type": "integer"} for key in names}, "required": names,
              "additionalProperties": False}  # fmt: skip
    language = ready(schema_source(schema), engine.vocabulary, limits=limits)
    assert language.shortest > engine.config.generation.max_new_tokens
    done = engine.run(Request("Hi", Options(seed=1), constraint=language))
    assert not verdicts(schema, json.loads(done.text))
    with pytest.raises(ConstraintError, match="raise"):
        engine.run(Request("Hi", Options(seed=1, max_tokens=20), constraint=language))
