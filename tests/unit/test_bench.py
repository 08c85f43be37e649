"""What benchmarks send, how they count, and what they record; two passes on tiny loads, never a timing."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from redraft.cli.main import build_parser
from redraft.errors import RedraftError, RequestError
from redraft.measure import knee, throughput
from redraft.measure.record import Record, read_record, write_record
from redraft.measure.scenario import SCENARIOS, Material, Outcome, Scenario, arrivals, find_scenarios, plain
from redraft.operations.engine import Engine
from redraft.weights.source import locate


@pytest.fixture
def material(engine: Engine) -> Material:
    return Material(engine.text, engine.config)


# -- scenarios --------------------------------------------------------------------------------------------------------


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


# -- counting ---------------------------------------------------------------------------------------------------------


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
    record = throughput.bench_scenario(scenario, locate("nano-sudoku"), runs=1, progress=lambda *one: told.append(one))
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
    found = knee.bench_knee(locate("nano-sudoku"), runs=1)
    assert [one["rows"] for one in found.figures["by_rows"]] == [256, 512]
    assert found.figures["knee_rows"] in (256, 512)
    check_record(found, tmp_path)


# -- the command ------------------------------------------------------------------------------------------------------


def arguments(*given: str) -> argparse.Namespace:
    return build_parser().parse_args(["bench", *given])


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (("--runs", "0"), "--runs is 0; it must be from 1 to 10000"),
        (("--dial", "-3"), "--dial is -3; it must be from 1 to 100000"),
        (("--scenario", "two"), "scenario is 'two'; known: one, together, poisson, variants, long, long-4k, all"),
        (("--scenario", "--record", "x.json"), "use --record-dir"),
        (("--scenario", "one", "--scenario", "long", "--record", "x.json"), "use --record-dir"),
        (("--dial", "--knee"), "--knee and --dial were given together"),
        (("--rate", "0"), "--rate is 0.0; it must be from 0.001"),
        (("--rate", "nan"), "--rate is nan; it must be from 0.001"),
        (("--device", "cuda"), "runs on cpu"),
        (("--device-card", "--no-graphs"), "--no-graphs was given; --device-card times steps both ways"),
    ],
)
def test_the_command_refuses_before_it_loads(given: tuple[str, ...], complaint: str) -> None:
    asked = arguments(*given)
    with pytest.raises(RedraftError) as refused:
        asked.run(asked)
    assert complaint in str(refused.value)
    assert refused.value.exit_code == 2
