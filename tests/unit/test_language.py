"""Answers held to a language, through the whole engine: blocks, batches, the causal mode, repair."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from tests.helpers import ANSWER, PROMPT, listen

from constraints import RECORD
from redraft.constraints import validation
from redraft.constraints.checks import Check, command_check
from redraft.constraints.condition import edge_layout
from redraft.constraints.condition.edge_layout import EdgeLayout
from redraft.constraints.condition.span import SpanLanguage
from redraft.constraints.language import Source, Vocabulary, ready
from redraft.constraints.places import span_of
from redraft.constraints.sources import choices_source, regex_source, schema_source
from redraft.constraints.validation import Problem
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.seed import SeedCanvas
from redraft.engine import resolve
from redraft.engine.answer import Answer, Delta
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.request import Options, Request, ResolvedRequest
from redraft.engine.runner import run_alone
from redraft.engine.scheduler import piece_of
from redraft.errors import ConstraintError, RequestError, RunError, UnsatisfiedError
from redraft.operations.engine import Engine
from redraft.operations.repair import Repair, repair, repair_async
from redraft.operations.stream import stream

pytestmark = pytest.mark.usefixtures("own_cache")


def alone(engine: Engine, request: ResolvedRequest) -> list[int]:
    events = run_alone(engine.model, request, SeededNoise(request.seed), drafts=False)
    return [token for event in events if isinstance(event, Block) for token in event.tokens]


def test_an_answer_is_valid_whatever_the_prompt(engine: Engine) -> None:
    validator = jsonschema_rs.validator_for(RECORD)
    for seed, prompt in enumerate([PROMPT, "tell me a story", "}{][", "sudoku\n1..4\n..1.\n..42\n4..."]):
        done = engine.generate(prompt, chat=True, seed=seed, schema=RECORD)
        assert validator.is_valid(json.loads(done.text)), done.text
        assert done.finish == "stop"
        assert len(done.log_mass) == len(done.tokens)
        assert max(done.log_mass) <= 0
    assert engine.generate(PROMPT, chat=True, seed=1, schema=RECORD).text == ANSWER


@pytest.mark.parametrize("causal", [False, True])
def test_logprobs_are_those_of_what_the_language_allows(engine: Engine, causal: bool) -> None:
    options = Options(seed=1, logprobs=20, causal=causal)
    done = engine.generate(PROMPT, chat=True, choices=["yes", "no"], options=options)
    likely = [{token for token, value in one if value > -20} for one in done.logprobs]
    pieces = engine.vocabulary.pieces
    assert all((pieces[token] or b"")[:1] in (b"y", b"n") for token in likely[0])
    assert all(own[0][0] == token for own, token in zip(done.logprobs, done.tokens, strict=True))


def test_every_kind_of_language_holds(engine: Engine) -> None:
    said = [engine.generate(PROMPT, chat=True, seed=seed, choices=["yes", "no", "maybe"]).text for seed in range(3)]
    assert set(said) <= {"yes", "no", "maybe"}
    assert re.fullmatch(
        r"[A-Z][a-z]{3,8} \d\d", engine.generate(PROMPT, seed=1, regex=r"[A-Z][a-z]{3,8} [0-9]{2}").text
    )
    grammar = 'start: term ("+" term)*\nterm: /[0-9]{1,3}/ | "(" start ")"  // depth is bounded'
    text = engine.generate(PROMPT, chat=True, seed=1, grammar=grammar).text
    assert set(text) <= set("0123456789+()")
    assert isinstance(eval(re.sub(r"\b0+(?=\d)", "", text)), int)


@pytest.mark.parametrize("preset", ["reference", "fast", "flow"])
def test_blocks_of_a_few_tokens_make_one_valid_answer_and_batches_change_nothing(engine: Engine, preset: str) -> None:
    """State is carried from block to block, and the limit is met exactly when there is no end before it."""
    language = engine.language(schema_source(RECORD))
    try:
        options = [Options(seed=seed, max_tokens=24 + seed, canvas=8, steps=3, preset=preset) for seed in range(4)]
        requests = [engine.resolve(Request("zz", options=one, constraint=language)) for one in options]
    except RequestError as error:
        pytest.skip(f"no such preset here: {error}")
    answers = list(engine.map(requests))
    for request, done in zip(requests, answers, strict=True):
        jsonschema_rs.validate(RECORD, json.loads(done.text))
        assert len(done.tokens) <= request.max_tokens
        assert list(done.tokens) == alone(engine, request)


def test_left_to_right_is_held_too(engine: Engine) -> None:
    options = Options(seed=3, causal=True, max_tokens=20)
    request = engine.resolve(Request("zz", options=options, constraint=engine.language(schema_source(RECORD))))
    done = engine.run(request)
    jsonschema_rs.validate(RECORD, json.loads(done.text))
    assert list(done.tokens) == alone(engine, request)


def test_min_tokens_and_bad_words_are_honoured_within_the_language(engine: Engine) -> None:
    language = engine.language(schema_source(RECORD))
    done = engine.run(
        engine.resolve(Request(PROMPT, chat=True, options=Options(seed=1, min_tokens=25), constraint=language))
    )
    assert len(done.tokens) >= 25
    (four,) = engine.text.encode("4", bos=False)
    options = Options(seed=1, bad_words=((four,),))
    assert "4" not in engine.run(engine.resolve(Request(PROMPT, chat=True, options=options, constraint=language))).text


def test_pins_are_held_within_the_language(engine: Engine) -> None:
    language = engine.language(schema_source(RECORD))
    tokens = engine.text.encode('{"who":"Zo', bos=False)
    pins = SeedCanvas(pins=tuple(enumerate(tokens)))
    options = Options(seed=1, seed_canvas=pins)
    done = engine.run(engine.resolve(Request(PROMPT, chat=True, options=options, constraint=language)))
    assert done.text.startswith('{"who":"Zo')
    jsonschema_rs.validate(RECORD, json.loads(done.text))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (Options(max_tokens=5), "max_tokens leaves 5 tokens and the shortest valid answer has 11"),
        (Options(stop=("}",)), "stop is"),
        (Options(seed_canvas=SeedCanvas(pins=((0, 300),))), "pins contradict the constraint"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_the_first_step(
    engine: Engine, options: Options, complaint: str
) -> None:
    before = engine.loop.forwards
    with pytest.raises(RequestError) as error:
        engine.resolve(Request(PROMPT, chat=True, options=options, constraint=engine.language(schema_source(RECORD))))
    assert complaint in str(error.value)
    assert engine.loop.forwards == before


def test_a_constraint_of_many_ways_has_narrower_canvases(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of one with 1.7 million edges took 13 seconds on a canvas of 256, in which nobody else was answered."""
    language = engine.language(regex_source("([a-z]*[aeiou][a-z]{3}){1,2}!"))
    monkeypatch.setattr(resolve, "MOST_WORK", 12 * language.work)
    asked = engine.resolve(Request(PROMPT, Options(max_tokens=256, min_tokens=40, seed=1), constraint=language))
    assert asked.width == 12
    done = engine.run(asked)
    assert re.fullmatch("([a-z]*[aeiou][a-z]{3}){1,2}!", done.text)
    assert len(done.tokens) >= 40
    for width, refused in ((12, False), (13, True)):  # who gives a width has it, or is refused
        refusal = pytest.raises(ConstraintError, match=f"ways between them, too many for a canvas of {width} tokens")
        with refusal if refused else nullcontext():
            given = engine.resolve(Request(PROMPT, Options(canvas=width, max_tokens=256), constraint=language))
            assert given.width == width
    span = SpanLanguage(language.source, language.layout, language.checked, 8)  # of a canvas of 64 it weighs eight
    given = engine.resolve(Request(PROMPT, Options(canvas=64, max_tokens=64), constraint=span))
    assert (given.width, given.work) == (64, 8 * language.work)
    monkeypatch.setattr(resolve, "MOST_WORK", 1)
    assert engine.resolve(Request(PROMPT, Options(max_tokens=256), constraint=language)).width == resolve.LEAST_WIDTH


def test_what_many_prompts_ask_for_is_laid_out_once_and_before_the_loop_has_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prompt's own was sorted on the server's event loop, a second each, and 80 MB were kept for it."""
    asked = Request(PROMPT, Options(bad_words=((9,),), max_tokens=64), regex="[a-z]{1,8}(a|b)")
    first, second = engine.resolve(asked), engine.resolve(asked)
    assert first.language is not None
    assert second.language is not None
    assert first.language.layout is second.language.layout
    assert first.work == first.language.work * first.width > 0
    monkeypatch.setattr(EdgeLayout, "merged", property(lambda _: pytest.fail("it is laid out again")))
    handles = [engine.loop.submit(replace(one, width=width)) for one, width in ((first, 9), (second, 0))]
    canvas, causal = (handle.sequence for handle in handles)
    assert canvas.extra >= causal.extra
    assert piece_of(causal).extra == causal.extra
    for handle in handles:
        handle.abort()


def test_answers_of_at_least_so_many_tokens_are_counted_within_bounds(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a walk of every way, a token at a time; the table had a row for each token that an answer may have."""
    a = engine.language(regex_source("(ab|c){2,5}|(dd)*")).automaton
    layout, ends = EdgeLayout(a), [{state for state in range(a.end) if a.accepts[state]}]
    for _ in range(12):
        ends.append({int(s) for s, d in zip(a.src, a.dst, strict=True) if int(d) != a.end and int(d) in ends[-1]})
    for least, spare in ((3, 0), (1, 2), (6, 2), (3, 5), (7, 5), (0, 3)):
        assert set(np.flatnonzero(layout.fewest(least) <= least + spare)) == set().union(
            *ends[least : least + spare + 1]
        )
    assert len(layout.counted) == 8
    monkeypatch.setattr(edge_layout, "MOST_COUNTED", 40 * len(layout.merged.src))
    held = engine.language(regex_source("(ab|c){2,5}|(dd)*"))
    engine.resolve(Request(PROMPT, Options(min_tokens=40, max_tokens=200), constraint=held))
    with pytest.raises(ConstraintError, match="too many to look for answers of at least 41 tokens"):
        engine.resolve(Request(PROMPT, Options(min_tokens=41, max_tokens=200), constraint=held))


def test_a_choice_shorter_than_min_tokens_is_refused(engine: Engine) -> None:
    with pytest.raises(ConstraintError, match=r"no valid answer has 20 to \d+ tokens"):
        engine.generate(PROMPT, choices=["yes", "no"], options=Options(min_tokens=20))


def test_a_deadline_gives_a_valid_answer_or_an_error(engine: Engine) -> None:
    language = engine.language(schema_source(RECORD))
    valid = failed = 0
    for steps in range(4):
        request = engine.resolve(
            Request(PROMPT, options=Options(seed=1, canvas=8, deadline_sec=60.0), constraint=language)
        )
        events: list[Event] = []
        now = [0.0]
        engine.loop.clock, clock = (lambda: now[0]), engine.loop.clock  # noqa: B023
        try:
            listen(engine.loop, request, events.append)
            for _ in range(steps * 4 + 1):
                engine.loop.tick()
            now[0] = 100.0
            engine.loop.drain()
        finally:
            engine.loop.clock = clock
        answer = Answer(engine.text, request)
        for event in events[:-1]:
            answer.take(event)
        assert isinstance(events[-1], Finished)
        if language.holds(answer.tokens):
            answer.take(events[-1])
            jsonschema_rs.validate(RECORD, json.loads(answer.generation().text))
            valid += 1
        else:
            with pytest.raises(RunError, match=r"deadline_sec is 60\.0 and no valid answer"):
                answer.take(events[-1])
            failed += 1
    assert valid + failed == 4
    assert failed


def test_a_language_whose_answers_cannot_end_is_refused(engine: Engine) -> None:
    language = engine.language(choices_source(["yes", "no"]))
    ends = tuple((token,) for token in engine.config.generation.eos_token_ids)
    with pytest.raises(RequestError, match="every end token"):
        engine.resolve(Request("a", options=Options(bad_words=ends), constraint=language))
    done = engine.run(engine.resolve(Request("a", options=Options(bad_words=ends, causal=True), constraint=language)))
    assert done.text in ("yes", "no")


def test_a_language_is_kept_on_disk_and_read_again(engine: Engine, tmp_path: Path) -> None:
    source = schema_source(RECORD)
    first = ready(source, engine.vocabulary, kept_in=tmp_path / "kept")
    (path,) = (tmp_path / "kept").iterdir()
    silent = dataclasses.replace(source, compile=lambda limits: pytest.fail("compiled again"))
    again = ready(silent, engine.vocabulary, kept_in=tmp_path / "kept")
    for name in ("class_of", "src", "cls", "dst", "accepts"):
        assert np.array_equal(getattr(first.automaton, name), getattr(again.automaton, name))
    path.write_bytes(path.read_bytes()[:100])
    assert ready(source, engine.vocabulary, kept_in=tmp_path / "kept").automaton.states == first.automaton.states
    other = Vocabulary(engine.vocabulary.pieces, frozenset({1}), frozenset({1}))
    ready(source, other, kept_in=tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == 2, "another tokenizer has another automaton"


@dataclasses.dataclass
class Order:
    who: str
    qty: int


class Pydantic:
    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return RECORD


@pytest.mark.parametrize("schema", [Order, Pydantic, RECORD, json.dumps(RECORD)])
def test_a_schema_may_be_a_class_a_dict_or_text(engine: Engine, schema: Any) -> None:
    done = engine.generate(PROMPT, chat=True, seed=1, schema=schema)
    assert json.loads(done.text)["qty"] >= 0 or schema is Order
    assert {"who", "qty"} <= json.loads(done.text).keys()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"schema": "{"}, "the schema is not JSON"),
        ({"schema": int}, "int is no dataclass"),
        ({"schema": {"x": object()}}, "the schema is not JSON"),
        ({"schema": '{"items":' * 5000 + "{}" + "}" * 5000}, "nests too deeply"),
        ({"schema": {"const": "\ud800"}}, "unpaired surrogate"),
        ({"schema": {"enum": ["x" * 1_000_001]}}, "at most 1000000"),
        ({"choices": ["\ud800"]}, "unpaired surrogate"),
        ({"grammar": "start: " + '("b"' * 3000}, "nests too deeply"),
        ({"choices": []}, "choices is empty"),
        ({"choices": "yes"}, "choices is 'yes'"),
        ({"regex": "("}, "cannot be made into an automaton: missing ), unterminated subpattern at position 0"),
        ({"regex": "[[" + "(" * 5000}, "cannot be made into an automaton: "),
        ({"regex": "a{" + "9" * 5000 + "}"}, "cannot be made into an automaton: "),
        ({"regex": "[^\\x00-\\x{10FFFF}]"}, "a part of it matches no text at all"),
        ({"grammar": "begin: "}, "no rule start"),
        ({"grammar": "start: ?"}, "repeats nothing"),
        ({"grammar": "start: other"}, "no rule 'other'"),
        ({"grammar": 'start: ("a"'}, "never closed"),
        ({"grammar": 'start: "a" start'}, "no text satisfies the grammar"),
        ({"grammar": "start: $"}, "line 1"),
        ({"regex": "a", "choices": ["b"]}, "given together"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused_by_name(engine: Engine, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConstraintError) as error:
        engine.generate(PROMPT, **given)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_wrong_is_repaired_and_the_rest_stays(engine: Engine) -> None:
    """`not` is no matter for an automaton: the answer is checked, and only what it complains of is written anew."""
    schema = json.loads(json.dumps(RECORD))
    schema["properties"]["item"]["not"] = {"const": "melu"}
    done = engine.generate(PROMPT, chat=True, seed=1, schema=schema)
    assert done.text.startswith(ANSWER[: ANSWER.index("melu")])
    assert json.loads(done.text)["item"] != "melu"
    assert len(done.steps) > 1


def test_repair_gives_up_with_the_best_attempt_and_the_reasons(engine: Engine) -> None:
    def check(text: str) -> list[Problem]:
        return [Problem("qty is a prime of two digits or it is not", span_of(text, ["qty"]))]

    request = engine.resolve(
        Request(PROMPT, chat=True, options=Options(seed=1), constraint=engine.language(schema_source(RECORD)))
    )
    with pytest.raises(UnsatisfiedError, match="qty is a prime") as error:
        repair(engine, dataclasses.replace(request, check=check), rounds=2)
    assert error.value.attempt == ANSWER
    assert error.value.reasons == ["qty is a prime of two digits or it is not"]


@pytest.mark.parametrize("causal", [False, True])
def test_the_coldest_and_most_biased_distribution_still_has_its_valid_answer(engine: Engine, causal: bool) -> None:
    digits = tuple((token, -100.0) for token in range(engine.config.model.vocab_size)
                   if (engine.vocabulary.pieces[token] or b" ").isdigit())  # fmt: skip
    options = Options(seed=1, max_tokens=8, temperature=0.01, logit_bias=digits, causal=causal)
    assert re.fullmatch("[0-9]{3}", engine.generate("a", regex="[0-9]{3}", options=options).text)


def crashing(text: str) -> list[str]:
    return [str(1 // 0)]


def test_a_check_that_hangs_or_crashes_is_an_error_that_says_so(engine: Engine) -> None:
    cases: tuple[tuple[Check, type[Exception], str], ...] = (
        (command_check(["sleep", "5"], 0.1), RunError, "took over 0.1 seconds"),
        (command_check(["no-such-command"]), RequestError, "cannot be run"),
        (command_check(["false"]), UnsatisfiedError, "false ended with 1"),
        (crashing, RunError, "ZeroDivisionError"),
    )
    for check, kind, complaint in cases:
        with pytest.raises(kind, match=complaint):
            engine.generate("hello", seed=1, check=check, options=Options(steps=1))


def test_nobody_waits_for_the_check_of_an_answer_that_is_not_wanted_any_more(engine: Engine) -> None:
    """The program that had cancelled it did not end for the 20 seconds that a check may take."""
    over, begun = threading.Event(), threading.Event()

    def hang(text: str) -> list[str]:
        begun.set()
        over.wait(60)
        return []

    async def cancelled() -> None:
        request = engine.resolve(Request("hello", Options(seed=1, steps=1, max_tokens=4), check=hang))
        repairing = Repair(engine, request)
        answer = asyncio.create_task(repair_async(engine, repairing, engine.submit(repairing.asked)))
        await asyncio.to_thread(begun.wait, 60)
        answer.cancel()
        await asyncio.wait([answer])

    asyncio.run(cancelled())
    began = time.monotonic()
    for thread in threading.enumerate():
        if thread.name.startswith("judge"):
            thread.join(60)
    over.set()
    engine.loop.stop()
    assert time.monotonic() - began < 10


def test_the_draft_reported_on_the_way_is_always_a_valid_beginning(engine: Engine) -> None:
    language = engine.language(schema_source(RECORD))
    request = engine.resolve(Request("zz", options=Options(seed=5, max_tokens=32), constraint=language))
    assert language.automaton.states > 0
    for event in engine.submit(request, drafts=True).events():
        if isinstance(event, Draft):
            tokens = event.tokens
            state = language.automaton.after(0, tokens)
            whole = len(tokens) == 32 and state >= 0 and language.automaton.accepts[state]  # without room for an end
            assert state == language.automaton.end or whole, engine.text.decode(tokens)


def miscompiled(schema: Any, language: str) -> Source:
    """A schema whose automaton holds other texts than it says, as a bug of the compiler would make one."""
    return replace(regex_source(language), kind="schema", text=json.dumps(schema))


def test_what_was_compiled_wrongly_is_an_error_and_no_answer(engine: Engine) -> None:
    request = Request(PROMPT, Options(seed=1, max_tokens=8), constraint=miscompiled({"type": "integer"}, "[a-c]{2}"))
    assert engine.language(request.constraint).held == "exact"
    with pytest.raises(UnsatisfiedError, match="not JSON"):
        engine.run(request)

    async def streamed() -> list[Delta]:
        return [delta async for delta in stream(engine, request)]

    for answer in (engine.submit(request).aresult, streamed):
        with pytest.raises(UnsatisfiedError, match="not JSON"):
            asyncio.run(answer())
    right = replace(request, constraint=miscompiled({"type": "number"}, "[1-3]{2}"))
    assert engine.run(right).constraint == "exact"
    engine.loop.stop()


def test_a_validator_that_knows_no_answer_takes_none_away(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(PROMPT, Options(seed=1, max_tokens=8), constraint=miscompiled({"pattern": "("}, '"[a-c]{2}"'))
    assert engine.run(request).constraint == "exact", "a pattern that the validator cannot read"
    one = replace(request, constraint=miscompiled({"maximum": 5}, "[1-3]{2}"))
    monkeypatch.setattr(validation._QUICK, "ask", lambda question, seconds: None)
    monkeypatch.setattr(validation._SLOW, "ask", lambda question, seconds: pytest.fail("no answer waits for it"))
    assert engine.run(one).constraint == "exact"
