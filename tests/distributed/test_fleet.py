"""The flags and the config of a fleet, without a cluster."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.helpers import Shell

from redraft.__main__ import main
from redraft.cli.datasets import as_files
from redraft.cli.rows import Done
from redraft.cli.run import _bar
from redraft.distributed.cluster import check_nodes, joined
from redraft.distributed.fleet import Fleet, fleet_of
from redraft.errors import RequestError, RunError
from redraft.server.http.keys import digest_of
from redraft.server.http.settings import Settings
from redraft.version import __version__

scale = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'redraft[scale]'")


def config(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["serve", "--print-config", *words]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_the_config_is_the_fleet_of_the_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a-long-secret\n")
    words = ("--autoscale", "2:5", "--threads", "3", "--port", "9", "--api-key-file", str(tmp_path / "keys"))
    found = config(capsys, *words, "--device", "cpu")
    assert found["http_options"] == {"host": "127.0.0.1", "port": 9}
    (application,) = found["applications"]
    assert application["import_path"] == "redraft.distributed:app"
    fleet = fleet_of(application["args"])
    assert (fleet.replicas, fleet.most, fleet.cpus, fleet.gpus) == (2, 5, 3, 0)
    assert fleet.settings.keys == (digest_of("a-long-secret"),)
    assert "a-long-secret" not in json.dumps(found)


def test_a_replica_on_a_gpu_takes_one(capsys: pytest.CaptureFixture[str]) -> None:
    (application,) = config(capsys, "--device", "cuda", "--replicas", "4")["applications"]
    fleet = fleet_of(application["args"])
    assert (fleet.replicas, fleet.most, fleet.gpus) == (4, None, 1)


def test_a_fleet_survives_json() -> None:
    fleet = Fleet(most=3, settings=Settings(keys=(b"\x00\xff",), origins=("*",)))
    assert fleet_of(msgspec.json.decode(msgspec.json.encode(fleet.args))) == fleet


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--replicas", "2"), "--replicas was given without --ray; add that"),
        (("--ray", "--autoscale", "4:1"), "--autoscale is '4:1'; write the fewest and the most replicas, as 1:4"),
        (
            ("--ray", "--autoscale", f"1:1{'0' * 9}"),
            "--autoscale is '1:1000000000'; write the fewest and the most replicas, as 1:4",
        ),
        (("--ray", "--autoscale", "1:2", "--replicas", "2"), "--replicas and --autoscale were both given; choose one"),
        (("--ray", "--replicas", "0"), "--replicas is 0; it must be at least 1"),
        (
            ("--ray", "--device", "cuda:1"),
            "--device is 'cuda:1'; with --ray each replica is given a GPU of its own: cuda",
        ),
        (("--ray", "--trace", "t"), "--trace and --ray were both given; leave one out"),
        (
            ("--ray", "--host", "0.0.0.0"),
            "--host is 0.0.0.0 and there are no API keys; use --api-key-file, or --insecure",
        ),
    ],
)
def test_flags_that_no_fleet_has_are_refused(words: tuple[str, ...], message: str, shell: Shell) -> None:
    assert shell(["serve", *words], 2).err == f"redraft: {message}\n"


@pytest.mark.parametrize("verb", ["serve", "run"])
def test_without_ray_the_remedy_is_said(
    verb: str, monkeypatch: pytest.MonkeyPatch, shell: Shell, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "in").write_text("{}\n")
    words = [str(tmp_path / "in"), str(tmp_path / "out")] if verb == "run" else []
    assert "Ray cannot be imported" in (error := shell([verb, *words, "--ray", "--device", "cpu"], 2).err)
    assert "pip install 'redraft[scale]'" in error


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"replica": 2}, "args has 'replica', which no fleet has"),
        ({"replicas": "two"}, "args of the fleet"),
        ({"replicas": 3, "most": 2}, "most is 2; it must be at least replicas"),
        ({"cpus": 0}, "a replica must have some of either"),
    ],
)
def test_a_config_that_is_no_fleet_is_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        fleet_of(args)


def test_another_version_is_refused_by_the_replica() -> None:
    with pytest.raises(RequestError, match=r"the fleet wants 0\.0\.0; install the same on all nodes"):
        Fleet(version="0.0.0").load()


def cluster_of(*cpus: float, answer: tuple[str, str | None] | Exception = (__version__, None)) -> Any:
    """What `check_nodes` asks of Ray: nodes of so many CPUs, each of which says the same of itself."""
    nodes = [
        {"Alive": True, "Resources": {"CPU": n}, "NodeManagerAddress": "10.0.0.7", "NodeID": "a" * 56} for n in cpus
    ]
    asked = SimpleNamespace(remote=lambda *_: answer)
    errors = SimpleNamespace(GetTimeoutError=TimeoutError, RayError=ConnectionError, TaskUnschedulableError=LookupError)

    def get(found: Any, timeout: float) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    return SimpleNamespace(nodes=lambda: nodes, remote=lambda **_: lambda _: asked, get=get, exceptions=errors)


@scale
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (("0.0.9", None), f"node 10.0.0.7 has redraft 0.0.9 and this one {__version__}; install the same on all"),
        ((__version__, "m is no folder"), "node 10.0.0.7: m is no folder; put the model where all nodes see it"),
        (
            ConnectionError("Traceback:\n  ...\nModuleNotFoundError: No module named 'redraft'\n"),
            "node 10.0.0.7 cannot run redraft .*No module named 'redraft'.*; install redraft .* with the extra scale",
        ),
    ],
)
def test_a_node_that_would_fail_is_named(answer: tuple[str, str | None] | Exception, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_nodes(cluster_of(2, answer=answer), Fleet(replicas=2))


@scale
def test_a_node_that_has_gone_or_hangs() -> None:
    check_nodes(cluster_of(2, answer=LookupError()), Fleet(replicas=2))
    with pytest.raises(RunError, match=r"node 10\.0\.0\.7 did not answer within 180 s; see ray status"):
        check_nodes(cluster_of(2, answer=TimeoutError()), Fleet(replicas=2))


@scale
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Serve's own models
def test_a_cluster_of_its_own_reports_nothing_and_has_no_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def init(**given: Any) -> None:
        seen.update(given)
        raise ValueError("seen")

    names = ("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ray.init", init)
    with pytest.raises(RequestError), joined(None):
        pass
    assert (seen["address"], seen["include_dashboard"]) == ("local", False)
    assert [os.environ[name] for name in names] == ["0", "0"]


@scale
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Serve's own models
def test_a_cluster_of_another_version_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray says it in seven lines."""

    def init(**_: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n    Python: 3.12.1\n")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(RequestError) as found, joined("auto"):
        pass
    said = "the Ray cluster at auto cannot be joined: Version mismatch: The cluster was started with: Ray: 2.59.0"
    assert str(found.value) == f"{said} Python: 3.12.1; install the same versions on all nodes"


@scale
def test_a_replica_does_not_spread_over_nodes() -> None:
    check_nodes(cluster_of(3, 3), Fleet(cpus=3, replicas=2))
    with pytest.raises(RequestError, match="2 replicas of 3 CPU each do not fit on the cluster, which has room for 1"):
        check_nodes(cluster_of(4, 2), Fleet(cpus=3, replicas=2))


@scale
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Serve's own models
@pytest.mark.parametrize(("rows", "wanted"), [({}, 1), ({"a": 0.0}, 1), ({"a": 32, "b": 0}, 1), ({"a": 33}, 2)])
def test_a_fleet_grows_and_shrinks_by_rows(rows: dict[str, float], wanted: int) -> None:
    from redraft.distributed.serving import ROWS, by_rows

    config = SimpleNamespace(get_target_ongoing_requests=lambda: 32)
    assert by_rows(SimpleNamespace(aggregated_metrics={ROWS: rows}, config=config))[0] == wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ray",), "--ray was given without --file; a task is answered by the model at hand: add --file"),
        (("--replicas", "2"), "--replicas was given without --ray; add that"),
        (("--ray", "--file", "ROWS", "--causal"), "--ray was given with --causal, or for a file with images"),
    ],
)
def test_scores_that_no_fleet_gives_are_refused(
    words: tuple[str, ...], message: str, tmp_path: Path, shell: Shell
) -> None:
    (tmp_path / "rows").write_text('{"prompt": "a", "response": "b"}\n')
    assert message in shell(["eval", *(str(tmp_path / "rows") if word == "ROWS" else word for word in words)], 2).err


def test_a_run_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten seconds after it began."""
    clock = iter([100.0, *[110.0] * 9])
    monkeypatch.setattr("redraft.cli.run.time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "150")
    with _bar(60, replicas=2) as report:
        report(Done(10, 0, tokens=10))
        report(Done(39, 0, tokens=500))
    assert " 3 rows/s, 50 tokens/s, 2 replicas " in capsys.readouterr().err


@pytest.mark.parametrize("words", [("FOLDER", "out"), ("s3://a/b", "out"), ("in.parquet", "out"), ("in", "s3://a/b")])
def test_what_is_no_file_of_lines_needs_ray(
    words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *(str(tmp_path) if word == "FOLDER" else word for word in words)]) == 2
    assert "is no file of lines; folders, Parquet and URLs need --ray" in capsys.readouterr().err


@scale
def test_inputs_and_outputs_that_no_run_has_are_refused(tmp_path: Path) -> None:
    def message(source: str, target: str) -> str:
        with pytest.raises(RequestError) as found, as_files(None, source, target):
            pass
        return str(found.value)

    (tmp_path / "in").write_text("{}\n")
    (tmp_path / "out.parquet").mkdir()
    assert "out.parquet exists; name another output" in message(str(tmp_path / "in"), str(tmp_path / "out.parquet"))
    assert "write a URL as s3://bucket/folder" in message("nowhere://a/b", "out")
    assert "s3://a/b/ names no file" in message(str(tmp_path / "in"), "s3://a/b/")
    assert "all of which is read; name an output elsewhere" in message(str(tmp_path), str(tmp_path / "a" / "out"))
    assert "has no Parquet or JSON file" in message(str(tmp_path / "out.parquet"), "out")
    (tmp_path / "out.parquet" / "a.parquet").touch()
    (tmp_path / "out.parquet" / "a.jsonl").touch()
    assert "has both Parquet and JSON files" in message(str(tmp_path / "out.parquet"), "out")
