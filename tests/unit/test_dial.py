"""The dial: tables kept and refused, notches in order, and answers paced by a clock that the test turns."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import listen, nano_copy, tiny_checkpoint, tiny_config, tiny_model

from redraft.__main__ import main
from redraft.config import CheckpointConfig, GenerationConfig
from redraft.diffusion.accept import EntropyBound
from redraft.diffusion.halt import StableAndConfident, UntilEnd
from redraft.engine.dial import Dial, Notch, Rules, read_dial, write_dial
from redraft.engine.events import Draft, Event, Finished
from redraft.engine.loop import Loop
from redraft.engine.pace import Pace
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.errors import RequestError
from redraft.measure.dial import bench_dial, candidates
from redraft.measure.record import read_record
from redraft.operations.engine import Engine
from redraft.weights.fingerprint import fingerprint
from redraft.weights.source import locate

SHIPPED = GenerationConfig(max_new_tokens=16, max_denoising_steps=9, eos_token_ids=())


def notch(steps: int, forwards: float, *canvases: int) -> Notch:
    return Notch(Rules(steps, 0.1, 1, 0.005), 0.5, 0.4, 0.6, forwards, canvases)


DIAL = Dial(
    "",
    "2026-11-21",
    ("records",),
    10,
    10.0,
    (notch(2, 2.0, 0, 0, 10), notch(4, 4.0, 0, 0, 0, 0, 10), notch(8, 6.0, 0, 5, 0, 0, 0, 0, 5)),
)


def request(**options: object) -> ResolvedRequest:
    config = CheckpointConfig(replace(tiny_config(), canvas_length=16), SHIPPED)
    return build_request([2, 17, 31], replace(Options(seed=1), **options), config, DIAL)  # type: ignore[arg-type]


@pytest.mark.parametrize(("effort", "place"), [(0.0, 0), (0.01, 1), (0.5, 1), (0.51, 2), (1.0, 2)])
def test_an_effort_is_the_cheapest_setting_that_is_no_lower(effort: float, place: int) -> None:
    assert DIAL.place(effort) == place
    assert replace(DIAL, notches=DIAL.notches[:1]).place(effort) == 0


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 9))
def test_cost_never_falls_along_the_dial(a: float, b: float, notches: int) -> None:
    dial = replace(DIAL, notches=tuple(notch(1, 1.0 + i, 0, 1) for i in range(notches)))
    low, high = (dial.notches[dial.place(effort)].forwards for effort in sorted((a, b)))
    assert low <= high


def test_an_effort_sets_the_rules_and_nothing_else() -> None:
    asked = request(effort=0.5, temperature=0.7)
    assert asked.policy.max_steps == 4
    assert asked.policy.accept == EntropyBound(0.1)
    assert asked.policy.halt == UntilEnd(StableAndConfident(1, 0.005), frozenset())
    assert asked.policy.shaping.temperature == 0.7
    assert asked.pace is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"effort": 1.5}, "effort is 1.5"),
        ({"effort": -0.1}, "effort is -0.1"),
        ({"effort": float("nan")}, "effort is nan"),
        ({"effort": 0.5, "min_effort": 0.2}, "min_effort is 0.2 without target_ms"),
        ({"min_effort": 0.2}, "min_effort is 0.2 without target_ms"),
        ({"target_ms": 10.0, "effort": 0.5, "min_effort": 0.6}, "min_effort is 0.6"),
        ({"target_ms": 0.0}, "target_ms is 0.0"),
        ({"target_ms": float("inf")}, "target_ms is inf"),
        ({"effort": 0.5, "preset": "fast"}, "with preset"),
        ({"effort": 0.5, "steps": 3}, "with steps"),
        ({"target_ms": 9.0, "accept": ("factor",)}, "with accept"),
        ({"effort": 0.5, "causal": True}, "causal and effort"),
    ],
)
def test_contradictions_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        request(**options)


def test_an_effort_without_a_table_is_refused_with_the_remedy() -> None:
    config = CheckpointConfig(tiny_config(), SHIPPED)
    with pytest.raises(RequestError, match="redraft bench --dial"):
        build_request([2], Options(effort=0.5), config)


def test_a_table_is_kept_beside_its_checkpoint_and_refused_by_another(tmp_path: Path) -> None:
    here, there = tmp_path / "a", tmp_path / "b"
    tiny_checkpoint(here)
    with pytest.raises(RequestError, match=r"has none; measure one with `redraft bench --dial` on the checkpoint a$"):
        read_dial(here)
    kept = replace(DIAL, checkpoint=fingerprint(here))
    assert write_dial(kept, here) == here / "dial.json"
    assert read_dial(here) == kept
    shutil.copytree(here, there)
    assert read_dial(there) == kept, "a copy is the same checkpoint"
    weights = there / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-3] ^= 1
    weights.write_bytes(changed)
    os.utime(weights, ns=(1, 1))
    with pytest.raises(RequestError, match=r"^dial\.json was measured on another checkpoint"):
        read_dial(there)
    (there / "dial.json").write_text("[]")
    with pytest.raises(RequestError, match=r"^dial\.json is no table of settings") as refused:
        read_dial(there)
    assert str(there) not in str(refused.value), "a server's clients read it"


def pace(target_sec: float, step_sec: float = 0.01) -> Pace:
    return Pace(DIAL.notches, tuple(one.rules.policy(SHIPPED) for one in DIAL.notches), target_sec, step_sec)


def test_pace_by_hand() -> None:
    """Notches take 2, 4 and 3.5 steps, of 10 ms; when one step is taken 1, 3 and 5 are left."""
    assert [pace(sec).first() for sec in (0.001, 0.03, 0.036, 0.1)] == [0, 0, 2, 2]
    assert pace(0.1).after(2, 1, 1, 0.01, 0.01) == 2
    assert pace(0.1).after(2, 1, 1, 0.06, 0.01) == 1, "40 ms for 5 steps"
    assert pace(0.1).after(2, 1, 1, 0.09, 0.01) == 0
    assert pace(0.1).after(2, 1, 1, 0.5, 0.01) == 0, "late is no reason to go below the floor"
    assert pace(0.1).after(0, 1, 1, 0.05, 0.01) == 0, "30 of 50 ms is not half"
    assert pace(0.1).after(0, 1, 1, 0.01, 0.01) == 1, "one notch at a time"
    assert pace(0.1).after(0, 1, 4, 0.01, 0.01) == 0, "three more canvases of 4 steps"


def steps_of(asked: ResolvedRequest, forward_sec: float) -> int:
    """Denoising steps of a request whose forwards take so long by the loop's clock."""
    now, told = [0.0], list[Event]()

    def clock() -> float:
        return now[0]

    loop = Loop(tiny_model(replace(tiny_config(), canvas_length=16)), clock=clock)
    listen(loop, asked, told.append, drafts=True)
    while loop.tick():
        loop.check()
        now[0] += forward_sec
    assert isinstance(told[-1], Finished)
    return sum(isinstance(event, Draft) for event in told)


def test_a_target_lowers_the_effort_of_a_slow_answer_and_leaves_a_fast_one_alone() -> None:
    """This model never settles: every canvas goes to its cap, which the notches set."""
    assert steps_of(request(target_ms=1000.0), 0.001) == 8
    assert steps_of(request(target_ms=60.0), 0.02) in (2, 3, 4)
    assert steps_of(request(target_ms=1.0), 0.02) == 2
    assert steps_of(request(target_ms=1.0, min_effort=0.5), 0.02) == 4, "the floor is kept"
    assert steps_of(request(target_ms=1000.0, effort=0.0), 0.001) == 2, "effort is the most"


def test_the_command_measures_keeps_and_records_a_dial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.measure.dial.TASKS", ("records",))
    monkeypatch.setattr("redraft.measure.dial.candidates", lambda config: candidates(config)[:3])
    folder = tmp_path / "nano"
    nano_copy(folder, without="dial.json")
    place = tmp_path / "dial.json"
    asked = ["bench", "--dial", "4", "--model", str(folder), "--threads", "1", "--record", str(place)]
    assert main(asked) == 0
    kept = read_dial(folder)
    assert kept.tasks == ("records",)
    assert kept.examples == 4
    record = read_record(place)
    assert record.name == "dial-nano"
    assert len(record.figures["tried"]) == 3
    assert [one["forwards"] for one in record.figures["dial"]] == [one.forwards for one in kept.notches]


def test_a_checkpoint_that_knows_nothing_has_no_dial(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.measure.dial.TASKS", ("sudoku-9x9",))
    with pytest.raises(RequestError, match="answers none of the built-in tasks"):
        bench_dial(locate("nano-sudoku"), engine, count=1)
