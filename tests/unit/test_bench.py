"""What benchmarks send, how they count, and what they record; two passes on tiny loads, never a timing."""

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from redraft import load
from redraft.cli.main import build_parser
from redraft.engine.loop import LoopConfig
from redraft.errors import RedraftError, RequestError
from redraft.measure import bench, knee, peak, sides, throughput
from redraft.measure.record import Record, percentiles_ms, read_record, write_record
from redraft.measure.scenario import (
    SCENARIOS,
    Job,
    Material,
    Outcome,
    Pass,
    Scenario,
    arrivals,
    find_scenarios,
    plain,
    random_checkpoint,
)
from redraft.measure.sides import Ours, Theirs
from redraft.measure.throughput import Runs, run_pairs
from redraft.operations.engine import Engine
from redraft.weights.source import locate


@pytest.fixture
def material(engine: Engine) -> Material:
    return Material(engine.text, engine.config)


# -- scenarios --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if one.positions is None])
def test_a_scenario_is_the_same_for_the_same_seed(material: Material, name: str) -> None:
    scenario = SCENARIOS[name]
    assert scenario.jobs(material) == scenario.jobs(material)
    assert scenario.jobs(material) != scenario.jobs(replace(material, seed=1))


def test_mixed_jobs_differ_in_prompt_and_limit(material: Material) -> None:
    jobs = [job for seed in range(3) for job in SCENARIOS["together"].jobs(replace(material, seed=seed))]
    lengths, limits = ([f(job.request) for job in jobs] for f in (lambda r: len(r.prompt), lambda r: r.max_tokens))
    assert min(lengths) < 40
    assert 150 < max(lengths) <= 200
    assert min(limits) >= 8
    assert max(limits) <= 64
    assert len({job.request.seed for job in jobs}) == len(jobs)


def test_an_answer_that_does_not_fit_is_not_scored(material: Material) -> None:
    for job in SCENARIOS["poisson"].jobs(material):
        if job.example is not None:
            assert len(material.text.encode(job.example.answer, bos=False)) <= job.request.max_tokens
    assert all(job.example is None for job in plain(replace(material, scored=False), 4))


def test_variants_share_a_prompt_and_no_seed(material: Material) -> None:
    jobs = SCENARIOS["variants"].jobs(material)
    assert len({job.request.prompt for job in jobs}) == 1
    assert len({job.request.seed for job in jobs}) == len(jobs) == 8


def test_long_questions_share_their_beginning(material: Material) -> None:
    prompts = [job.request.prompt for job in SCENARIOS["long"].jobs(material)]
    shared = next(i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)
    assert len(prompts) == 5
    assert shared > 700
    assert all(650 < len(prompt) < 768 for prompt in prompts)


def test_arrivals_are_a_poisson_stream() -> None:
    times = arrivals(4000, 50.0, 1)
    gaps = torch.tensor(times).diff()
    assert times == arrivals(4000, 50.0, 1)
    assert times[0] == 0.0
    assert float(gaps.mean()) == pytest.approx(1 / 50, rel=0.05)
    assert float(gaps.std()) == pytest.approx(1 / 50, rel=0.08)  # an exponential's deviation is its mean


def test_unknown_scenarios_are_refused_and_repeated_ones_run_once() -> None:
    assert [one.name for one in find_scenarios(["poisson", "one", "poisson"])] == ["poisson", "one"]
    assert [one.name for one in find_scenarios(["one", "all"])] == list(SCENARIOS)
    with pytest.raises(RequestError, match="scenario is 'two'; known: one, together"):
        find_scenarios(["one", "two"])


def test_the_random_checkpoint_answers_at_full_length() -> None:
    with random_checkpoint(locate("nano"), 4096) as place:
        found = load(place)
        assert found.config.model.max_positions == 4096
        assert len(found.generate("record\nx", chat=True, max_tokens=20, seed=1, steps=2).tokens) == 20
    assert not place.exists()


# -- counting ---------------------------------------------------------------------------------------------------------


def test_percentiles_by_hand() -> None:
    assert percentiles_ms([0.007], 95) == {"p95": 7.0}
    assert percentiles_ms([0.010, 0.030, 0.020], 50, 95) == {"p50": 20.0, "p95": 29.0}
    assert math.isnan(percentiles_ms([], 50)["p50"])


def outcome(material: Material, max_tokens: int, arrives: float = 1.0) -> Outcome:
    (job,) = plain(material, 1)
    return Outcome(replace(job.request, max_tokens=max_tokens, eos=frozenset({1})), arrives)


def test_only_useful_tokens_count(material: Material) -> None:
    ended = outcome(material, 10)
    ended.take([9, 9, 1, 9], 3.0)
    ended.take([9, 9], 4.0)
    ended.close(5.0)
    assert (ended.tokens, ended.first_sec, ended.latency) == ([9, 9], 2.0, 2.0)
    full = outcome(material, 5)
    full.take([9] * 4, 2.0)
    full.take([9] * 4, 3.0)
    assert (full.tokens, full.first_sec, full.latency) == ([9] * 5, 1.0, 2.0)


def test_an_empty_answer_is_first_heard_of_at_its_end(material: Material) -> None:
    empty = outcome(material, 10)
    empty.take([1, 9], 2.5)
    assert (empty.tokens, empty.first_sec, empty.latency) == ([], 1.5, 1.5)


def test_the_knee_is_the_smallest_that_is_near_the_best() -> None:
    assert knee.knee({32: 10.0, 64: 18.0, 128: 20.0, 256: 19.0}) == 64
    assert knee.knee({32: 10.0, 64: 17.9, 128: 20.0}) == 128


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hand a parent's peak to its children")
def test_a_child_does_not_inherit_the_peak_of_its_parent() -> None:
    """getrusage would tell of it: the child's peak would be at least the parent's 400 MiB."""
    ballast = torch.ones(100 * 2**20)
    code = "from redraft.measure.peak import peak_here_mib; print(peak_here_mib())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=child_env())
    assert float(told.stdout) + 50 < peak.peak_here_mib()
    assert ballast.numel() > 0


def child_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(throughput.__file__).parents[2])}


# -- sides and records ------------------------------------------------------------------------------------------------


class Stand:
    """A stand-in for transformers' model: it answers every row with its prompt's length in tokens, then the end."""

    def __init__(self, canvas: int) -> None:
        self.model, self.generation_config, self.canvas = self, self, canvas
        self.encoder, self.decoder = torch.nn.Identity(), torch.nn.Identity()
        self.pad_token_id = 0
        self.batches: list[int] = []

    def generate(
        self, prompts: torch.Tensor, *, attention_mask: torch.Tensor, max_new_tokens: int, streamer: Any
    ) -> None:
        self.batches.append(len(prompts))
        assert attention_mask[:, -1].all(), "padding belongs on the left"
        streamer.put(prompts)
        self.decoder(prompts)
        for _ in range(0, max_new_tokens, self.canvas):
            streamer.put(torch.full((len(prompts), self.canvas), 9))
        streamer.end()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """No child processes, no transformers, a short stream, few sizes."""
    monkeypatch.setattr(throughput, "peak_mib", lambda *_: 100.0)
    monkeypatch.setattr(throughput, "load_reference", lambda *_: (Stand(32), "a stand-in"))
    monkeypatch.setattr("redraft.measure.scenario.STREAM", 4)
    monkeypatch.setattr(knee, "CANVASES", (1, 2))


def test_a_batch_is_what_has_arrived(material: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on only while somebody sleeps: a machine may take its time."""
    (job, *_), stand, slept = plain(material, 1), Stand(32), [0.0]
    clock = SimpleNamespace(perf_counter=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(sides, "time", clock)
    jobs = [replace(job, arrives=when) for when in (0.0, 0.0, 0.0, 0.7, 0.7)]
    one = Theirs(stand).serve(jobs, serial=False)
    assert stand.batches == [3, 2]
    assert one.forwards == 2
    assert one.seconds == 0.7
    assert one.tokens == 5 * 32


def test_ours_answers_as_the_engine_does(engine: Engine, material: Material) -> None:
    jobs = SCENARIOS["variants"].jobs(material)[:3]
    wanted = [list(engine.run(job.request).tokens) for job in jobs]
    for serial in (False, True):
        one = Ours(engine.model, LoopConfig()).serve(jobs, serial=serial)
        assert [outcome.tokens for outcome in one.outcomes] == wanted
    late = Ours(engine.model).serve([replace(jobs[0], arrives=0.0), replace(jobs[1], arrives=0.03)], serial=False)
    assert late.seconds >= 0.03
    assert [outcome.tokens for outcome in late.outcomes] == wanted[:2]


def test_the_order_of_sides_alternates_and_the_first_pass_is_not_counted(engine: Engine, material: Material) -> None:
    order: list[str] = []

    class Side:
        def __init__(self, name: str) -> None:
            self.name, self.ours = name, Ours(engine.model)

        def serve(self, jobs: Sequence[Job], *, serial: bool) -> Pass:
            order.append(self.name)
            return self.ours.serve(jobs, serial=serial)

    made = [plain(replace(material, seed=seed), 1) for seed in range(3)]
    found = run_pairs({name: Side(name) for name in "ab"}, made, serial=True)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert [len(one.passes) for one in found.values()] == [2, 2]
    assert list(found["a"].jobs) == made[1:]
    assert isinstance(found["a"], Runs)


def check_record(record: Record, tmp_path: Path) -> None:
    path = tmp_path / f"{record.name}.json"
    write_record(record, path)
    assert read_record(path) == msgspec.json.decode(msgspec.json.encode(record), type=Record)
    assert record.summary
    assert all(claim.figure and claim.value for claim in record.summary)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["one", "variants"])
def test_a_scenario_ends_as_a_record(name: str, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    scenario: Scenario = SCENARIOS[name]
    record = throughput.bench_scenario(scenario, locate("nano"), runs=1, progress=lambda *one: told.append(one))
    assert record.name == f"throughput-{name}"
    assert told == [(name, 0, 1), (name, 1, 1)]
    assert record.workload["paired_passes"] == 1
    assert record.figures["ours"]["exact"]["of"] == record.figures["ours_fast"]["exact"]["of"] == 8
    assert record.figures["ours_fast"]["forwards"] > 0
    assert record.figures["ratio_median"].keys() == {"ours", "ours_fast"}
    assert record.figures["transformers"]["tokens"] == 8 * 32
    assert record.figures["peak_mib"] == {"ours": 100.0, "transformers": 100.0}
    check_record(record, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_knee_ends_as_a_record(tmp_path: Path) -> None:
    found = knee.bench_knee(locate("nano"), runs=1)
    assert [one["rows"] for one in found.figures["by_rows"]] == [256, 512]
    assert found.figures["knee_rows"] in (256, 512)
    check_record(found, tmp_path)


# -- the command ------------------------------------------------------------------------------------------------------


def arguments(*given: str) -> argparse.Namespace:
    return build_parser().parse_args(["bench", *given])


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (("--runs", "0"), "--runs is 0; it must be at least 1"),
        (("--dial", "-3"), "--dial is -3; it must be at least 1"),
        (("--scenario", "two"), "scenario is 'two'; known: one, together, poisson, variants, long, long-4k, all"),
        (("--scenario", "--record", "x.json"), "use --record-dir"),
        (("--scenario", "one", "--scenario", "long", "--record", "x.json"), "use --record-dir"),
        (("--dial", "--knee"), "--knee and --dial were given together"),
        (("--rate", "0"), "--rate is 0.0; it must be above 0"),
        (("--rate", "nan"), "--rate is nan; it must be above 0"),
        (("--device", "cuda"), "runs on cpu"),
        (("--device-card", "--graphs"), "--graphs was given; --device-card times steps both ways"),
    ],
)
def test_the_command_refuses_before_it_loads(given: tuple[str, ...], complaint: str) -> None:
    asked = arguments(*given)
    with pytest.raises(RedraftError) as refused:
        asked.run(asked)
    assert complaint in str(refused.value)
    assert refused.value.exit_code == 2


def test_the_command_compares_single_answers_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[int] = []

    def fake(folder: Path, *, runs: int, **_: Any) -> Record:
        asked_for.append(runs)
        return Record("against-transformers", "", "", {}, {}, {}, [])

    monkeypatch.setattr(bench, "bench_against", fake)
    for given in ((), ("--against", "transformers", "--runs", "3")):
        asked = arguments(*given, "--threads", "1")
        assert asked.run(asked) == 0
    assert asked_for == [30, 3]
