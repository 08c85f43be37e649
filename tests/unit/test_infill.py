"""Gaps, edits and variants: how a canvas is laid out, which candidate wins, what is refused."""

from __future__ import annotations

import itertools
import json
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import listen

import redraft
from redraft.cli.file_lines import read_lines
from redraft.cli.infill import show
from redraft.engine.events import Draft, Event
from redraft.engine.request import Options, Request, ResolvedRequest
from redraft.engine.scope import CancelScope, Observer, Submitted
from redraft.engine.settings import LoopConfig
from redraft.errors import DeadlineError, RequestError
from redraft.operations.compete import Drop, compete
from redraft.operations.edit import renoised
from redraft.operations.engine import Engine
from redraft.operations.gap import GapContext
from redraft.operations.gap_constraint import GapConstraint
from redraft.operations.variants import mean, rank
from redraft.server.openai.replies import whole_answer

SUDOKU = "sudoku\n....\n2.1.\n....\n.243"
BEFORE, BEHIND = '{"who":"Karomi","qty":', ',"item":"melu"}'
END = 1
NOTHING = whole_answer("", seed=1, finish="deadline", forwards=0)
"""What is there where the time is up before a step."""


# -- a gap as a canvas -------------------------------------------------------------------------------------------------


def test_a_gap_is_noise_and_everything_behind_it_is_pinned(engine: Engine) -> None:
    around = GapContext((2, 40, 41), (50, 51))
    asked = around.request(3, Options(seed=1), engine)
    assert asked.prompt == (2, 40, 41)
    assert asked.width == 16
    assert asked.seed_canvas is not None
    assert asked.seed_canvas.given == ()
    assert asked.seed_canvas.pins == ((3, 50), (4, 51), *((i, END) for i in range(5, 16)))
    assert set(asked.policy.shaping.forbidden) == engine.text.special_ids


def test_a_long_prefix_loses_its_beginning_and_keeps_its_bos(engine: Engine) -> None:
    before = (2, *(i % 300 + 50 for i in range(3000)))
    asked = GapContext(before, ()).request(3, Options(), engine)
    room = engine.config.model.max_positions - asked.width
    assert len(asked.prompt) == room
    assert asked.prompt[0] == 2
    assert asked.prompt[1:] == before[-room + 1 :]


# -- choosing a width --------------------------------------------------------------------------------------------------


def test_the_best_score_is_the_answer_and_a_width_alone_is_that_width(engine: Engine) -> None:
    done = engine.infill(BEFORE, BEHIND, max_tokens=8, seed=3, heal=False)
    assert done.tried == 8
    assert len(done.candidates) == 4
    readable = [one for one in done.candidates if "\ufffd" not in one.gap]
    assert [one.score for one in readable] == sorted(one.score for one in readable)
    assert done.gap == done.candidates[0].gap
    for candidate in done.candidates:
        alone = engine.infill(BEFORE, BEHIND, width=candidate.width, seed=3)
        assert alone.gap == candidate.gap
        assert (alone.tried, alone.candidates[0].steps) == (1, candidate.steps)


def test_a_score_is_the_mean_entropy_of_the_gap_after_two_steps(engine: Engine) -> None:
    """Expected: each width alone, read off its second draft."""
    done = engine.infill(BEFORE, BEHIND, max_tokens=5, seed=4, heal=False)
    around = GapContext(tuple(engine.text.encode(BEFORE, bos=True)), tuple(engine.text.encode(BEHIND, bos=False)))
    means = {}
    for width in range(1, 6):
        events = engine.submit(around.request(width, Options(seed=4), engine), drafts=True).events()
        second = next(event for event in events if isinstance(event, Draft) and event.step == 2)
        events.close()
        means[width] = mean(second.entropy[:width])
    assert {one.width: one.score for one in done.candidates} == {
        width: pytest.approx(means[width]) for width in sorted(means, key=means.__getitem__)[:4]
    }


def test_an_infill_does_not_depend_on_what_else_runs(engine: Engine) -> None:
    alone = engine.infill(BEFORE, BEHIND, max_tokens=6, seed=5)
    for i in range(5):
        listen(engine.loop, engine.resolve(Request(SUDOKU, chat=True, options=Options(seed=i))), lambda event: None)
    assert engine.infill(BEFORE, BEHIND, max_tokens=6, seed=5) == alone
    engine.loop.drain()


# -- races -------------------------------------------------------------------------------------------------------------


def contenders(engine: Engine) -> list[ResolvedRequest]:
    asked = engine.resolve(Request(SUDOKU, chat=True, options=Options(seed=0, temperature=4.0)))
    return [replace(asked, seed=seed) for seed in range(9)]


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [LoopConfig(), LoopConfig(max_running=1), LoopConfig(max_running=4, max_rows=70)])
def test_the_least_certain_are_dropped_whatever_ran_first(engine: Engine, bounds: LoopConfig) -> None:
    """Expected: each alone, its entropy at the step of judgement read off its events."""
    asked, wanted = contenders(engine), []
    for place, one in enumerate(asked):
        second = next(
            event for event in engine.submit(one, drafts=True).events() if isinstance(event, Draft) and event.step == 2
        )
        wanted.append((mean(second.entropy), place))
    small = replace(engine, loop=type(engine.loop)(engine.model, bounds, text=engine.text))
    found = list(compete(small, asked, lambda _, entropy: mean(entropy), Drop(3)))
    assert sorted((result.doubt, result.place) for result in found) == sorted(wanted)[:3]
    for result in found:
        assert result.done.text == engine.run(asked[result.place]).text
    assert not small.loop.is_busy


def test_variants_are_merged_and_the_commonest_comes_first(engine: Engine) -> None:
    asked = engine.resolve(Request(SUDOKU, chat=True, options=Options(seed=0, temperature=4.0, steps=3, canvas=32)))
    plain = [engine.run(replace(asked, seed=seed)) for seed in range(12)]
    told: list[Any] = []
    found = engine.variants(asked, 12, on_answer=told.append)
    texts = [done.text for done in plain]
    assert sorted(done.seed for done in told) == list(range(12))
    assert {one.text: len(one.answers) for one in found} == {text: texts.count(text) for text in texts}
    assert [one.agreement for one in found] == sorted((texts.count(text) / 12 for text in set(texts)), reverse=True)
    assert 1 < len(found) < 12, "nothing was merged, or everything: the test tests nothing"
    assert rank(list(reversed(told))) == found


# -- edits -------------------------------------------------------------------------------------------------------------


def test_strength_is_the_share_of_noise_and_more_of_it_only_adds() -> None:
    tokens: list[int | None] = list(range(4000))
    noisy = [
        {i for i, token in enumerate(renoised(tokens, 7, 0, strength)) if token is None}
        for strength in (0.1, 0.4, 0.9, 1.0)
    ]
    for few, many, share in zip(noisy, [*noisy[1:], noisy[-1]], (0.1, 0.4, 0.9, 1.0), strict=True):
        assert few <= many
        assert len(few) == pytest.approx(4000 * share, abs=130)  # four standard deviations
    assert renoised(tokens, 7, 1, 0.4) != renoised(tokens, 7, 0, 0.4)


def test_a_weak_edit_of_what_the_model_would_say_changes_nothing(engine: Engine) -> None:
    """The right answer, a little of it noise: what is left says what was there."""
    text = '{"who":"Karomi","qty":417,"item":"melu"}'
    prompt = "record\nSend 417 melu to Karomi."
    tokens = tuple(engine.text.encode(text, bos=False))
    around = GapContext(tuple(engine.text.chat([{"role": "user", "content": prompt}])), ())
    shown = renoised(list(tokens), 3, 0, 0.3)
    assert None in shown
    asked = around.seeded(shown, Options(seed=3), engine)
    assert engine.run(asked).text == text


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ('{"who":"Karomi","qty":417}', (0, 26)),
        ('{"who":"Karomi","qty":417}\n', (0, 26)),
        ("first line\nSend 417 melu.\nlast (line) [a-z]* \\ {{x}}\n", (11, 25)),
        (b"\xff first\nSend 417 melu.\nlast", (8, 22)),
        ("Send 417 melu.\nlast \0 line", (0, 14)),
    ],
)
def test_what_an_instruction_rewrites_has_no_width_and_all_else_stays(
    engine: Engine, text: str | bytes, span: tuple[int, int]
) -> None:
    data = text.encode() if isinstance(text, str) else text
    hot = Options(temperature=4.0)
    edits = [engine.edit(text, span, instruction="Make it longer.", seed=seed, options=hot) for seed in range(6)]
    for done in edits:
        assert done.data.startswith(data[: span[0]])
        assert done.data.endswith(data[span[1] :])
        assert done.data == data[: span[0]] + done.after.encode() + data[span[1] :]
        assert done.canvases == 1
    counts = {len(engine.text.encode(done.after, bos=False)) for done in edits}
    assert len(counts) > 1, "they are as long as they get"
    assert engine.edit(text, span, instruction="Make it longer.", seed=3, options=hot).data == edits[3].data


def test_what_an_instruction_rewrites_is_no_larger_than_its_room(engine: Engine) -> None:
    text = "Send 417 melu."
    tokens = len(engine.text.encode(text, bos=False))
    for room in (0, 3):
        edits = [engine.edit(text, (0, 14), instruction="Longer.", room=room, seed=seed) for seed in range(4)]
        assert all(len(engine.text.encode(done.after, bos=False)) <= tokens + room for done in edits)


@pytest.mark.usefixtures("own_cache")
def test_an_edit_keeps_no_language_and_empties_nothing_where_the_time_is_up(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.edit("Send 417 melu.", (0, 14), instruction="Longer.", seed=1)
    assert not [*tmp_path.rglob("*.language")]
    with pytest.raises(DeadlineError, match="time was up"):
        engine.edit("Send 417 melu.", (0, 14), instruction="Longer.", seed=1, options=Options(deadline_sec=1e-6))
    for seed in (-1, 2**64, 1.5):
        with pytest.raises(RequestError, match=rf"seed is {seed}; it must be an integer from 0 to 2\^64-1"):
            engine.edit("Send 417 melu.", (0, 14), seed=seed)  # type: ignore[arg-type]  # no integer
    monkeypatch.setattr(type(engine), "run", lambda *_: NOTHING)
    with pytest.raises(DeadlineError, match="before anything had been drafted"):
        engine.edit("Send 417 melu.", (0, 14), instruction="Longer.", seed=1)


def test_both_ways_of_an_edit_share_one_deadline(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.operations.edit.rewritten", lambda *_: time.sleep(0.3))
    with pytest.raises(DeadlineError):
        engine.edit("Send 417 melu.", (0, 14), instruction="Longer.", seed=1, options=Options(deadline_sec=0.2))


@pytest.mark.parametrize("more", [{}, {"instruction": "Longer."}])
def test_an_edit_that_the_time_cut_says_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """An editor wrote noise over code, as it had ended with "stop"."""
    text = "Send 417 melu."
    assert engine.edit(text, (0, 14), seed=1, **more).finish == "stop"
    looked = itertools.count()
    monkeypatch.setattr(engine.loop, "clock", lambda: float(next(looked)))
    cut = engine.edit(text, (0, 14), seed=1, options=Options(deadline_sec=3.0), **more)
    assert cut.finish == "deadline"
    assert 0 < cut.forwards < 4
    gap = engine.infill("Send ", " melu.", width=4, heal=False, seed=1, options=Options(deadline_sec=3.0))
    assert gap.finish == "deadline"


@pytest.mark.parametrize("is_cut", [False, True])
def test_no_draft_is_written_over_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], is_cut: bool) -> None:
    """An edit that --deadline had cut was, without a word."""
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    source = read_lines(f"{path}:1", to_write=True)
    assert show(source, b"two\n", {}, Namespace(json=True, write=True), is_cut=is_cut) == is_cut
    assert path.read_text() == ("one\n" if is_cut else "two\n")
    said = capsys.readouterr()
    assert json.loads(said.out)["written"] is not is_cut
    assert ("before the new text had settled, so nothing is written" in said.err) is is_cut


def test_an_instruction_with_a_width_or_a_condition_keeps_to_it(engine: Engine) -> None:
    text = "Send 417 melu."
    tokens = len(engine.text.encode(text, bos=False))
    for more in ({"slack": 0}, {"strength": 0.99}):
        done = engine.edit(text, (0, len(text)), instruction="Make it longer.", seed=1, **more)
        assert len(engine.text.encode(done.after, bos=False)) <= tokens
    held = GapConstraint(words=((1, "88"),))
    assert engine.edit(text, (0, len(text)), instruction="Longer.", constraint=held, seed=1).after.split()[0] == "88"


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; a gap takes from 1 to 256"),
        ({"max_tokens": 257}, "max_tokens is 257"),
        ({"width": 0}, "width is 0"),
        ({"max_tokens": 3, "width": 2}, "max_tokens and width were both given"),
        ({"options": Options(max_tokens=3)}, "max_tokens was given; infill sets it"),
        ({"options": Options(stop=("x",))}, "stop was given"),
        ({"options": Options(causal=True)}, "causal was given"),
        ({"options": Options(canvas=16)}, "canvas was given"),
        ({"options": Options(preset="flow")}, "preset is 'flow'; a gap needs whole canvases"),
        ({"options": Options(steps=0)}, "steps is 0"),
    ],
)
def test_an_infill_that_cannot_be_is_refused(engine: Engine, options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        engine.infill("a", "b", **options)


@pytest.mark.parametrize(
    ("span", "options", "words"),
    [
        ((2, 9), {}, r"the span is \(2, 9\); it must be two places of the text, which has 5 characters"),
        ((0,), {}, r"the span is \(0,\)"),
        ((0.0, 1.0), {}, r"the span is \(0.0, 1.0\)"),
        ((-1, 2), {}, r"the span is \(-1, 2\)"),
        ((3, 2), {}, r"the span is \(3, 2\)"),
        ((2, 2), {}, "is empty; use infill"),
        ((1, 3), {"strength": 0.0}, "strength is 0.0; it must be above 0"),
        ((1, 3), {"strength": 1.5}, "strength is 1.5"),
        ((1, 3), {"strength": float("nan")}, "strength is nan"),
        ((1, 3), {"slack": -1}, "slack is -1"),
        ((1, 3), {"instruction": " "}, "instruction is empty; say what to change"),
        ((1, 3), {"options": Options(min_tokens=2)}, "min_tokens was given; edit sets it"),
    ],
)
def test_an_edit_that_cannot_be_is_refused(
    engine: Engine, span: tuple[int, int], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        engine.edit("hello", span, **options)


def test_a_deadline_before_the_first_step_is_told(engine: Engine) -> None:
    with pytest.raises(DeadlineError, match="after 1e-09 s"):
        engine.infill("a", "b", max_tokens=2, heal=False, options=Options(deadline_sec=1e-9))
    with pytest.raises(DeadlineError, match="after 1e-09 s"):
        engine.edit("hello", (1, 3), options=Options(deadline_sec=1e-9))


class Deadlines(Observer):
    """Those of all requests, in the order of their first events."""

    def __init__(self) -> None:
        self.seen: dict[Submitted, float | None] = {}

    def event(self, handle: Submitted, event: Event) -> None:
        self.seen.setdefault(handle, handle.request.deadline_sec)


def test_a_deadline_is_for_all_gaps_of_a_call(engine: Engine) -> None:
    """Each gap once had the whole of it, so a document of 64 gaps took 64 times as long as was allowed."""
    noted = Deadlines()
    with CancelScope(noted) as scope:
        engine.within(scope).infill_all(["a", "b", "c", "d"], width=2, heal=False, options=Options(deadline_sec=100.0))
    given = [*noted.seen.values()]
    assert len(given) == 3
    assert 100 > given[0] > given[1] > given[2] > 0  # type: ignore[operator]


RECORDS = (
    '{"name":"Ada","city":"Paris","age":36}',
    '{"who":"Maria","qty":7,"item":"apples"}',
    '{"name":"Tom","city":"London","age":41}',
)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("at", "instruction", "wanted"),
    [
        (0, "Set city to Rome.", {"name": "Ada", "city": "Rome", "age": 36}),
        (1, "The item is now pears.", {"who": "Maria", "qty": 7, "item": "pears"}),
        (2, "Remove age.", {"name": "Tom", "city": "London"}),
    ],
)
def test_nano_edits_a_record_among_others_as_it_does_alone(
    at: int, instruction: str, wanted: object, end: str, taught: Engine
) -> None:
    """Shown the whole file, it wrote rubbish: none of nine were right, and three of three alone."""
    text = "".join(record + end for record in RECORDS)
    begin = sum(len(record + end) for record in RECORDS[:at])
    span = (begin, begin + len(RECORDS[at]))
    done = taught.edit(text, span, instruction=instruction, seed=1)
    assert json.loads(done.after) == wanted
    assert "\n" not in done.after
    assert done.text == text[: span[0]] + done.after + text[span[1] :]
    whole = taught.edit(text.encode(), (begin, span[1] + len(end)), instruction=instruction, seed=1)
    assert whole.data == done.data, "a line's end is not the record's"


def test_an_object_on_a_line_stays_one_whatever_nano_is_told(taught: Engine) -> None:
    text = "\n".join(RECORDS)
    for seed in range(3):
        hot = Options(temperature=3.0)
        done = taught.edit(text, (0, len(RECORDS[0])), instruction="Sing, O goddess", seed=seed, options=hot)
        assert isinstance(json.loads(done.after), dict)
        assert "\n" not in done.after


@pytest.fixture(scope="module")
def taught() -> Iterator[Engine]:
    """nano, which was taught to edit records."""
    engine = redraft.load("nano")
    yield engine
    engine.loop.stop()
