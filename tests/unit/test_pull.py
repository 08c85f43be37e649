"""Fetching a checkpoint, with the hub client replaced: what is asked for, and what a failure leaves."""

import errno
import signal
import socket
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import DryRunError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import close_session, filter_repo_objects
from huggingface_hub.utils._runtime import is_xet_available
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from tests.helpers import beside

from redraft.errors import RunError, WeightsError
from redraft.files import alone
from redraft.weights import pull as module
from redraft.weights.pull import pull

FILES = {
    "README.md": 9,
    "config.json": 2,
    "generation_config.json": 2,
    "tokenizer.json": 50,
    "chat_template.jinja": 7,
    "special_tokens_map.json": 5,
    "added_tokens.json": 5,
    "model-00001-of-00002.safetensors": 400,
    "model-00002-of-00002.safetensors": 300,
    "model.safetensors.index.json": 30,
    "pytorch_model.bin": 700,
    "modeling_surprise.py": 12,
    "consolidated.safetensors": 700,
}
WANTED = set(FILES) - {"README.md", "pytorch_model.bin", "modeling_surprise.py", "consolidated.safetensors"}
WANTED -= {"special_tokens_map.json", "added_tokens.json"}  # they repeat what tokenizer.json says; nobody reads them


@dataclass
class Hub:
    """Stands in for the hub client: a repository of `files`, fetched into `folder`, failing where asked."""

    folder: Path
    files: dict[str, int] = field(default_factory=lambda: dict(FILES))
    fail_at: str = ""
    error: Exception | None = None
    plan_error: Exception | None = None
    bars_disabled: list[bool] = field(default_factory=list)

    def snapshot_download(
        self, name: str, *, revision: str = "main", allow_patterns: list[str], dry_run: bool = False
    ) -> object:
        assert revision in ("main", self.folder.name)
        self.bars_disabled.append(are_progress_bars_disabled())
        chosen = list(filter_repo_objects(self.files, allow_patterns=allow_patterns))
        if dry_run:
            if self.plan_error:
                raise self.plan_error
            return [self.described(file) for file in chosen]
        for file in chosen:
            if file == self.fail_at:
                (self.folder / file).write_bytes(b"x" * (self.files[file] // 2))
                if self.error:
                    raise self.error
            else:
                (self.folder / file).write_bytes(b"x" * self.files[file])
        return str(self.folder)

    def described(self, file: str) -> SimpleNamespace:
        path = self.folder / file
        return SimpleNamespace(
            filename=file, file_size=self.files[file], local_path=str(path), will_download=not path.exists()
        )


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    snapshot = tmp_path / "models--owner--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    fake = Hub(snapshot)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return fake


def there(hub: Hub) -> set[str]:
    return {path.name for path in hub.folder.iterdir()}


def free(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=num_bytes))


def test_only_what_the_model_needs_is_fetched(hub: Hub) -> None:
    assert pull("owner/model") == hub.folder
    assert there(hub) == WANTED


def test_too_small_a_disk_is_found_before_fetching(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 790)
    with pytest.raises(RunError, match=r"needs 791 more bytes in .*, which has 790 bytes free"):
        pull("owner/model")
    assert there(hub) == set()


@pytest.mark.parametrize("place", ["/proc/none", "/dev/null/none"])
def test_a_cache_that_cannot_be_written_is_said_to_be(hub: Hub, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """It was a disk without room, or the network."""
    monkeypatch.setattr(module, "_cache", lambda: Path(place))
    with pytest.raises(RunError, match=f"{place} cannot be written .*; set HF_HOME"):
        pull("org/model")


def test_a_disk_that_fills_up_leaves_no_half_file(hub: Hub) -> None:
    hub.fail_at, hub.error = "model-00002-of-00002.safetensors", OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RunError, match=r"disk of .* is full; free space, or set HF_HOME") as caught:
        pull("owner/model")
    assert "\n" not in str(caught.value)
    assert "model-00002-of-00002.safetensors" not in there(hub)
    assert "model-00001-of-00002.safetensors" in there(hub)
    hub.fail_at = ""
    pull("owner/model")
    assert there(hub) == WANTED


def test_an_interrupt_leaves_no_half_file(hub: Hub) -> None:
    hub.fail_at, hub.error = "model-00001-of-00002.safetensors", None

    def interrupt(name: str, **how: Any) -> object:
        found = Hub.snapshot_download(hub, name, **how)
        if not how.get("dry_run"):
            raise KeyboardInterrupt
        return found

    huggingface_hub.snapshot_download = interrupt  # type: ignore[assignment]  # the fixture puts it back
    with pytest.raises(KeyboardInterrupt):
        pull("owner/model")
    assert hub.fail_at not in there(hub)
    assert "config.json" not in there(hub)


def test_no_network_is_one_line(hub: Hub) -> None:
    hub.plan_error = DryRunError("Dry run cannot be performed.\nPlease check")
    hub.plan_error.__cause__ = httpx2.ConnectError("Name or service not known")
    with pytest.raises(RunError, match=r"owner/model could not be fetched \(Name or service not known\)"):
        pull("owner/model")


def test_a_hub_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The client of the hub has no time for its questions: a pull waited for ever, without a word."""
    monkeypatch.setattr(module, "PATIENCE_SEC", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    before = huggingface_hub.get_session().event_hooks
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(RunError, match=r"could not be fetched \(timed out\); check the network and pull again"):
            pull("owner/model")
    assert huggingface_hub.get_session().event_hooks == before


@pytest.mark.parametrize("sent", ["right", "wrong"])
def test_weights_other_than_the_hub_says_are_not_kept(hub: Hub, sent: str) -> None:
    """Bytes that a crash or a proxy had changed were taken for the model, as long as they were as many. The client
    names a file's blob by its SHA-256."""
    name = "model-00001-of-00002.safetensors"
    digest = sha256(b"x" * FILES[name]).hexdigest() if sent == "right" else "0" * 64
    blob = hub.folder.parent / digest
    (hub.folder / name).symlink_to(blob)
    if sent == "right":
        pull("owner/model")
        assert there(hub) == WANTED
    else:
        with pytest.raises(RunError, match=f"{name} came cut short or changed and was removed; run: redraft pull"):
            pull("owner/model")
        assert not blob.exists()
        assert there(hub) == WANTED - {name, "config.json"}, "what has a config is taken for whole"


def test_what_a_disk_has_lost_since_is_fetched_again(hub: Hub) -> None:
    """The client takes the size of a file that is there for that of the hub's: a cut one was whole for ever."""
    name = "model-00001-of-00002.safetensors"
    blob = hub.folder.parent / sha256(b"x" * FILES[name]).hexdigest()
    (hub.folder / name).symlink_to(blob)
    pull("owner/model")
    write = hub.snapshot_download

    def as_it_is(asked: str, **how: Any) -> Any:
        path = hub.folder / name
        hub.files[name] = path.stat().st_size if how.get("dry_run") and path.exists() else FILES[name]
        if how.get("dry_run"):
            return write(asked, **how)
        missing = not path.exists()
        return write(asked, **{**how, "allow_patterns": how["allow_patterns"] if missing else ["config.json"]})

    huggingface_hub.snapshot_download = as_it_is  # type: ignore[assignment]  # the fixture puts it back
    for size in (100, 0):
        blob.write_bytes(b"x" * size)
        assert pull("owner/model") == hub.folder
        assert (hub.folder / name).stat().st_size == FILES[name]
        (hub.folder / name).unlink()
        (hub.folder / name).symlink_to(blob)


def test_a_hub_that_has_another_snapshot_by_now_is_asked_for_what_that_holds(hub: Hub) -> None:
    """Weights that came changed were kept, since the files of the first snapshot were looked at."""
    name, later = "model-00001-of-00002.safetensors", hub.folder.with_name("def")
    blob = hub.folder.parent / ("0" * 64)
    later.mkdir()
    (later / name).symlink_to(blob)

    def moving(asked: str, **how: Any) -> object:
        if not how.get("dry_run"):
            hub.folder = later
        return Hub.snapshot_download(hub, asked, **how)

    huggingface_hub.snapshot_download = moving  # type: ignore[assignment]  # the fixture puts it back
    with pytest.raises(RunError, match=f"{name} came cut short or changed and was removed"):
        pull("owner/model")
    assert not blob.exists()
    assert pull("owner/model") == later
    assert there(hub) == WANTED


def test_a_file_over_the_limit_of_the_process_is_no_fault_of_the_network(hub: Hub) -> None:
    hub.fail_at, hub.error = "tokenizer.json", OSError(errno.EFBIG, "File too large")
    with pytest.raises(RunError, match="larger than this process may write; raise ulimit -f"):
        pull("owner/model")


def test_a_connection_that_breaks_is_one_line(hub: Hub) -> None:
    hub.fail_at, hub.error = "tokenizer.json", httpx2.ReadTimeout("The read operation timed out")
    with pytest.raises(RunError, match="timed out"):
        pull("owner/model")
    assert "tokenizer.json" not in there(hub)


def test_an_unknown_or_gated_repository_is_the_callers_mistake(hub: Hub) -> None:
    response = httpx2.Response(404, request=httpx2.Request("GET", "https://huggingface.co/api/models/owner/model"))
    hub.plan_error = DryRunError("Dry run cannot be performed")
    hub.plan_error.__cause__ = RepositoryNotFoundError("404 Client Error", response=response)
    with pytest.raises(WeightsError, match="does not exist, or is private or gated"):
        pull("owner/model")


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_the_hub_refuses_is_no_fault_of_the_network(hub: Hub, status: int) -> None:
    response = httpx2.Response(status, request=httpx2.Request("GET", "https://huggingface.co/api/models/owner/model"))
    hub.plan_error = HfHubHTTPError("Client Error", response=response)
    with pytest.raises(WeightsError, match="run: hf auth login"):
        pull("owner/model")


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors.index.json"])
def test_a_repository_that_cannot_be_loaded_is_not_fetched(hub: Hub, missing: str) -> None:
    del hub.files[missing]
    with pytest.raises(WeightsError, match=r"has no config\.json with model\.safetensors"):
        pull("owner/model")
    assert there(hub) == set()


@pytest.mark.parametrize("name", ["nano", "", "owner/model/file", "../model", "https://huggingface.co/owner/model"])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(WeightsError, match="is not a repository name"):
        pull(name)


@pytest.mark.parametrize("header", ["etag", "x-linked-etag"])
@pytest.mark.parametrize("tag", ['"../../../victim"', '"a/b"', '"."', "W/x/y", '""', "", 'W/""'])
def test_a_tag_of_the_hub_that_is_a_path_is_refused(hub: Hub, header: str, tag: str) -> None:
    """The client names files by it: a hub could have any file of the user removed, and files written anywhere."""
    with module._guarded(), pytest.raises(WeightsError, match="which is no digest"):
        answered(header, tag)


@pytest.mark.parametrize("tag", [f'"{"a" * 40}"', f'"{"b" * 64}"', 'W/"ab-12_c"', "abc"])
def test_the_tags_of_hubs_are_taken(hub: Hub, tag: str) -> None:
    with module._guarded():
        answered("etag", tag)
        answered("etag", 'W/"1a/b+c="', "GET")  # of what is not named by it


@pytest.mark.parametrize("commit", ["../../victim", "", "a" * 39, "A" * 40, "main"])
def test_a_commit_of_the_hub_that_is_none_is_refused(hub: Hub, commit: str) -> None:
    """The client names a file after it, and writes another commit's name into that."""
    with module._guarded(), pytest.raises(WeightsError, match=r"x-repo-commit is .*, which is no digest"):
        answered("x-repo-commit", commit)
    with pytest.raises(WeightsError, match=r"the hub's sha is .*, which is no digest"):
        informed({"sha": commit})


def test_what_the_hub_says_is_checked_whatever_becomes_of_a_connection(hub: Hub) -> None:
    """The client makes another session where a connection fails, and hf_xet has connections of its own: a hub that sent
    the client to a dead port had files written anywhere."""
    before = constants.HF_HUB_DISABLE_XET
    with module._guarded():
        close_session()
        with pytest.raises(WeightsError, match="which is no digest"):
            answered("etag", '"../../../victim"')
        assert not is_xet_available()
    assert constants.HF_HUB_DISABLE_XET is before
    answered("etag", '"../../../victim"')  # others' use of the client is theirs


def test_a_list_that_goes_on_elsewhere_is_refused(hub: Hub) -> None:
    """Nothing checked that page, and the cache kept it for its next client."""
    url, listed = "https://hub.example/api/models/owner/model/tree/a", httpx2.Request("GET", "https://hub.example/api")
    listed.extensions["asked"] = "/api/models/owner/model/tree/a"
    with module._guarded():
        elsewhere = "https://hub.example/elsewhere"
        climbing = f"{url}/../../../../../../else?cursor=b"  # which the client takes for /else
        for page, refused in [
            (f"{url}?cursor=b", False),
            (f"{url}/../b?cursor=b", False),
            (elsewhere, True),
            (f"{elsewhere}?/api/models/", True),
            (climbing, True),
        ]:
            reply = httpx2.Response(200, json=[], headers={"link": f'<{page}>; rel="next"'}, request=listed)
            with pytest.raises(WeightsError, match="list goes on outside") if refused else nullcontext():
                for hook in huggingface_hub.get_session().event_hooks["response"]:
                    hook(reply)


def test_a_list_without_an_end_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PAGES", 3)
    page = httpx2.Request("GET", "https://hub.example/api", extensions={"asked": "/api/models/owner/model/tree/a"})
    with module._guarded():
        hook = huggingface_hub.get_session().event_hooks["response"][-1]
        for _ in range(3):
            hook(httpx2.Response(200, json=[], request=page))
        with pytest.raises(WeightsError, match="list has over 3 pages"):
            hook(httpx2.Response(200, json=[], request=page))


def test_a_list_of_one_page_without_an_end_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTED_BYTES", 3000)
    with module._guarded():
        informed([{"path": "a" * 1000}])
        informed([{"path": "a" * 1000}])
    with pytest.raises(WeightsError, match="lists and errors have over 3000 bytes"):
        informed([{"path": "a" * 3000}])
    asked = httpx2.Request("GET", "https://hub.example/f")
    for status in 404, 302:  # whose bodies the client reads whole
        refused = httpx2.Response(status, content=b"a" * 4000, headers={"location": "/g"}, request=asked)
        with module._guarded():
            hook = huggingface_hub.get_session().event_hooks["response"][-1]
            with pytest.raises(WeightsError, match="lists and errors have over 3000 bytes"):
                hook(refused)


def test_ctrl_c_ends_a_file_that_is_still_coming(hub: Hub) -> None:
    """It was waited for, in a thread of the client's: a file of weights takes minutes, and nothing was said."""
    before = signal.getsignal(signal.SIGINT)
    reply = httpx2.Response(200, content=iter([b"a", b"b"]), request=httpx2.Request("GET", "https://hub.example/f"))
    with module._guarded():
        huggingface_hub.get_session().event_hooks["response"][-1](reply)
        parts = reply.iter_bytes()
        assert next(parts) == b"a"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(RunError, match="interrupted"):
            next(parts)
        with pytest.raises(RunError, match="interrupted"):  # which the client asks where the hub is silent
            huggingface_hub.get_session().event_hooks["request"][-1](httpx2.Request("GET", "https://hub.example/f"))
    assert signal.getsignal(signal.SIGINT) is before


def test_what_a_hub_listed_earlier_is_asked_again(hub: Hub) -> None:
    """A mirror that was being filled named no tokenizer, and that stayed so; and a lie that was kept would."""
    kept = hub.folder.parents[1] / "trees" / "abc.json"
    kept.parent.mkdir()
    kept.write_text("{}")
    pull("owner/model")
    assert not kept.exists()


def test_pulls_of_one_process_wait_for_each_other_and_leave_the_client_to_others(hub: Hub) -> None:
    """The first of two that ended took the other's checks away; and connections of others were closed at each."""
    session, hooks = huggingface_hub.get_session(), huggingface_hub.get_session().event_hooks
    inside, over, order = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        with module._guarded():
            inside.set()
            over.wait(20)
            order.append("first")

    def second() -> None:
        with module._guarded():
            order.append("second")

    with beside(first):
        inside.wait(20)
        with beside(second):
            over.set()
    assert order == ["first", "second"]
    assert huggingface_hub.get_session() is session
    assert session.event_hooks == hooks
    assert not session.is_closed


@pytest.mark.parametrize("lie", [{"oid": "../../x"}, {"lfs": {"oid": "/home/x/.bashrc", "size": 1}}, {"oid": None}])
def test_a_file_that_the_hub_lists_under_a_path_is_refused(hub: Hub, lie: dict[str, object]) -> None:
    """The client names what it keeps by it: a hub could have files of its own content written anywhere."""
    honest = {"type": "file", "path": "a", "size": 1, "oid": "a" * 40, "lfs": {"oid": "b" * 64, "size": 1}}
    with module._guarded(), pytest.raises(WeightsError, match=r"the hub's oid is .*, which is no digest"):
        informed([honest, honest | lie])
    with module._guarded():
        informed([honest, {"type": "directory", "oid": "c" * 40, "path": "b"}])


def test_the_commits_of_hubs_are_taken(hub: Hub) -> None:
    with module._guarded():
        answered("x-repo-commit", "a1" * 20)
    assert informed({"sha": "a1" * 20}).json() == {"sha": "a1" * 20}
    assert informed([{"path": "a"}]).json() == [{"path": "a"}], "the list of files"


def informed(body: object) -> httpx2.Response:
    """A hub's answer to what a repository holds, which it gives at another place, as the client gets it."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/elsewhere":
            return httpx2.Response(200, json=body)
        return httpx2.Response(307, headers={"location": "/elsewhere"})

    with module._guarded():
        hooks = huggingface_hub.get_session().event_hooks
        with httpx2.Client(transport=httpx2.MockTransport(answer), event_hooks=hooks, follow_redirects=True) as client:
            return client.get("https://hub.example/api/models/owner/model/revision/main")


def answered(header: str, tag: str, method: str = "HEAD") -> None:
    """An answer of a hub with that header, as the client gets it."""
    reply = httpx2.Response(200, headers={header: tag}, request=httpx2.Request(method, "https://hub.example/f"))
    for hook in huggingface_hub.get_session().event_hooks["response"]:
        hook(reply)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_link_to_no_file_is_no_file(hub: Hub, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A hub that gave empty tags had links to a folder made, and nothing was fetched, as if all had come."""
    write = Path.write_bytes

    def linked(path: Path, data: bytes) -> None:
        path.symlink_to(hub.folder.parent) if path.name == name else write(path, data)

    monkeypatch.setattr(Path, "write_bytes", linked)
    with pytest.raises(RunError, match=f"owner/model: {name} came cut short or changed and was removed"):
        pull("owner/model")
    assert name not in there(hub)


def test_a_config_whose_blob_is_gone_is_fetched_again_and_is_not_empty(hub: Hub, tmp_path: Path) -> None:
    (hub.folder / "config.json").symlink_to(tmp_path / "absent")
    pull("owner/model")
    hub.files["config.json"] = 0
    with pytest.raises(RunError, match=r"config\.json came cut short"):
        pull("owner/model")


def test_nothing_outside_of_the_cache_is_removed(hub: Hub, tmp_path: Path) -> None:
    name, other = "model-00001-of-00002.safetensors", tmp_path.parent / "other"
    other.write_text("mine")
    (hub.folder / name).symlink_to(other)
    hub.fail_at = name
    with pytest.raises(RunError, match="came cut short or changed"):
        pull("owner/model")
    assert other.exists()
    assert not (hub.folder / name).exists()


def test_halves_that_a_killed_pull_left_are_removed(hub: Hub) -> None:
    """The client goes on with none of them: each was there for good. Behind a link they may be somebody else's."""
    half = hub.folder.parents[1] / "blobs" / "abc.1234.incomplete"
    half.parent.mkdir()
    half.touch()
    with alone(half.parents[1], half):
        pull("owner/model")
    assert half.exists(), "another pull may still write it"
    pull("owner/model")
    assert not half.exists()
    half.parent.rename(mine := hub.folder / "mine")
    half.parent.symlink_to(mine)
    half.touch()
    pull("owner/model")
    assert half.exists()
