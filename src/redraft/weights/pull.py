"""Fetching a checkpoint from the Hugging Face hub: the one place where redraft uses the network.

It fetches the files that loading reads: configs, tokenizer, chat template, safetensors weights; no code and no pickles.
The hub client draws progress bars, retries, and reuses files already fetched. This file checks that the disk is large
enough, gives up a silent hub, makes one-line errors, and removes files that are cut short or changed.
"""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from redraft.errors import RedraftError, RequestError, RunError, WeightsError
from redraft.files import alone, is_free
from redraft.weights.source import INDEX, SINGLE, TEXT_FILES, is_repository

LAST = "config.json"
"""Loading begins with it. It comes when all others are there, so a folder that has it is whole."""
PATIENCE_SEC = 30.0
"""Without a word of the hub."""
_TAG, _COMMIT, _OBJECT = re.compile(r'(?:W/)?"?[\w-]+"?'), re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{40,64}")
_NAMING = {"etag": _TAG, "x-linked-etag": _TAG, "x-repo-commit": _COMMIT, "sha": _COMMIT, "oid": _OBJECT}
"""What the client names files by, in headers and in what the hub lists."""
_LISTS = "/api/models/"
"""In the path of every answer that lists files."""
LISTED_BYTES, LISTED_SEC = 2**26, 300  # of all lists of a pull, and of each one
MOST_PAGES = 100  # of lists: the client asks for them as long as the hub names a next one
_ALONE = threading.RLock()
"""What a pull changes of the client is of the whole process: of several at a time each waits for its turn."""
_PARTS = ("connect", "read", "write", "pool")
OTHERS = ("generation_config.json", "redraft.json", *TEXT_FILES, SINGLE, "model-*.safetensors", INDEX)


@dataclass(frozen=True)
class _HubFile:
    """A file of the repository and where it will be. `num_bytes` is 0 if the hub does not say."""

    name: str
    num_bytes: int
    path: Path
    is_missing: bool


_REFUSED = {errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.ENOENT}


def pull(name: str, *, progress: bool = True) -> Path:
    """Fetch the checkpoint of repository `name` into the Hugging Face cache (HF_HOME) and return its folder.

    Files already there are not fetched again, unless a disk has lost some of them; until all are there an earlier
    snapshot stays the model of that name.
    `progress` draws the hub client's bars on stderr.

    Raises WeightsError for a name that is not a repository, or one that is private, gated or without safetensors
    weights; RunError for a disk with too little room, before fetching if sizes are known, and for a failing network.
    """
    if not is_repository(name):
        raise WeightsError(f"{name!r} is not a repository name; it must look like google/diffusiongemma-26B-A4B-it")
    with ExitStack() as within:
        for each in (_bars(progress), _one_line(name), _guarded()):
            within.enter_context(each)
        shutil.rmtree(_folder(name) / "trees", ignore_errors=True)  # lists of another hub, or of one not yet filled
        plan, wrong = _plan(name), list[str]()
        within.enter_context(_cleared(name))
        if not any(file.is_missing for file in plan) and _remove_wrong(plan, read=True):  # a disk has lost some since
            plan = _plan(name)
        _check_room(name, plan)
        try:
            folder = _fetch(name, OTHERS)
            if moved := not plan[0].path.is_relative_to(folder):  # the hub has another snapshot by now
                plan = _plan(name, folder.name)
            others = [file for file in plan if file.name != LAST or file.path.is_file()]
            wrong += _remove_wrong(others, read=moved or any(file.is_missing for file in plan))
            folder = folder if wrong else _fetch(name, (LAST,), folder.name)
        finally:
            wrong += _remove_wrong(plan)
        if wrong or not (folder / LAST).is_file():
            said = f"{', '.join(wrong) or LAST} came cut short or changed and was removed"
            raise RunError(f"{name}: {said}; run: redraft pull {name}")
        return folder


def _plan(name: str, revision: str = "main") -> list[_HubFile]:
    from huggingface_hub import snapshot_download  # imported here: 0.2 s, and only this command needs it

    found = snapshot_download(name, revision=revision, allow_patterns=[LAST, *OTHERS], dry_run=True)
    plan = [_HubFile(file.filename, file.file_size or 0, Path(file.local_path), file.will_download) for file in found]
    names = {file.name for file in plan}
    if LAST not in names or not names & {SINGLE, INDEX}:
        raise WeightsError(f"{name} has no {LAST} with {SINGLE} or {INDEX}; redraft reads only such checkpoints")
    return plan


def _fetch(name: str, files: Sequence[str], revision: str = "main") -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))


def _check_room(name: str, plan: Sequence[_HubFile]) -> None:
    needed = sum(file.num_bytes for file in plan if file.is_missing)
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)  # where this fails, nothing would come of a download
    free = shutil.disk_usage(cache).free
    if needed > free:
        raise RunError(
            f"{name} needs {needed} more bytes in {cache}, which has {free} bytes free;"
            " free space, or set HF_HOME to a larger disk"
        )


def _remove_wrong(plan: Sequence[_HubFile], *, read: bool = False) -> list[str]:
    """Remove files of a wrong size, if `read` of a wrong digest, and their blobs, so that no reader takes one for
    whole; and links that lead to no file."""
    removed = []
    for file in plan:
        if not file.path.is_file():
            if file.path.is_symlink():
                file.path.unlink()
                removed.append(file.name)
            continue
        size = file.path.stat().st_size
        is_cut_short = size != file.num_bytes if file.num_bytes else file.name == LAST and not size
        if is_cut_short or (read and _is_changed(file.path.resolve())):
            if (blob := file.path.resolve()).is_relative_to(_cache().resolve()):
                blob.unlink(missing_ok=True)
            file.path.unlink(missing_ok=True)
            removed.append(file.name)
    return removed


def _is_changed(blob: Path) -> bool:
    """Whether a file that the client has named by its SHA-256, as it does weights, has another."""
    if len(blob.name) != 64:
        return False
    with blob.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() != blob.name


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _folder(name: str) -> Path:
    """Where the client keeps what it has of a repository."""
    from huggingface_hub.file_download import repo_folder_name

    return _cache() / repo_folder_name(repo_id=name, repo_type="model")


@contextmanager
def _cleared(name: str) -> Iterator[None]:
    """Without the halves of files that killed pulls left: the client goes on with none. Where another pulls the same
    now, they are its own."""
    folder = _folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    ours = is_free(folder) and not (folder / "blobs").is_symlink()  # which may lead to a folder of others
    for half in folder.glob("blobs/*.incomplete") if ours else ():
        with suppress(OSError):  # another user's, in a cache that is shared
            half.unlink(missing_ok=True)
    with ExitStack() as held:
        with suppress(RequestError):
            held.enter_context(alone(folder, folder))
        yield


def _read(response: Any, most: int) -> int:
    """Reads the body of a response, as its own method does without a bound, and returns the number of its bytes. Raises
    WeightsError for more than `most`."""
    parts, size, began = list[bytes](), 0, time.monotonic()
    for part in response.iter_bytes():
        size += len(part)
        if size > most or time.monotonic() - began > LISTED_SEC:
            raise WeightsError(
                f"the hub's lists and errors have over {LISTED_BYTES} bytes, or take over {LISTED_SEC} seconds;"
                " take another hub"
            )
        parts.append(part)
    response._content = b"".join(parts)
    return size


def _until(stopped: threading.Event, parts: Callable[..., Iterator[bytes]], *how: Any, **more: Any) -> Iterator[bytes]:
    """The parts of a file, until Ctrl-C."""
    for part in parts(*how, **more):
        if stopped.is_set():
            raise RunError("interrupted")
        yield part


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets: else the client waits for the files in its threads, which may take hours."""
    stopped, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def interrupted(*_: object) -> None:
        stopped.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield stopped
        return
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _guarded() -> Iterator[None]:
    """Limits the time of the client's questions; its downloads have a limit of their own. Refuses answers by which the
    client would name a file with a path. Turns hf_xet off: it names files by the hub's lists, waits for a silent hub
    for ever, and does not always end by Ctrl-C."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import _http

    pages, left = 0, LISTED_BYTES

    def bound(request: Any) -> None:
        if stopped.is_set():  # the client asks again where a hub fell silent
            raise RunError("interrupted")
        given = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {part: given.get(part) or PATIENCE_SEC for part in _PARTS}
        request.extensions.setdefault("asked", request.url.path)  # which stays where the hub sends the client elsewhere

    def named(response: Any) -> None:
        nonlocal pages, left
        said = [response.headers] if response.request.method == "HEAD" else []
        if _LISTS in response.request.extensions.get("asked", ""):
            # The client would read a page elsewhere, and nothing here would check it.
            if _LISTS not in response.url.join(response.links.get("next", {}).get("url", _LISTS)).path:
                raise WeightsError(f"the hub's list goes on outside of {_LISTS}; take another hub")
            if (pages := pages + 1) > MOST_PAGES:
                raise WeightsError(f"the hub's list has over {MOST_PAGES} pages; take another hub")
            size = _read(response, left)  # beside other threads
            left -= size
            with suppress(ValueError):  # the client says of what else it cannot read
                found = response.json()
                said = [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]
        elif response.is_error or response.has_redirect_location:
            size = _read(response, left)  # the client reads what it says, whatever its length
            left -= size
        else:
            response.iter_raw = partial(_until, stopped, response.iter_raw)
        for one in (*said, *(large for one in said if isinstance(large := one.get("lfs"), dict))):
            for name, form in _NAMING.items():
                if name in one and not form.fullmatch(str(one[name])):
                    raise WeightsError(
                        f"the hub's {name} is {str(one[name])[:100]!r}, which is no digest; take another hub"
                    )

    def watched(client: Any) -> Any:
        hooks = client.event_hooks
        seen.append((client, hooks))
        client.event_hooks = {"request": [*hooks["request"], bound], "response": [*hooks["response"], named]}
        return client

    with _ALONE, _interruptible() as stopped:
        seen, make, xet = list[Any](), _http._GLOBAL_CLIENT_FACTORY, constants.HF_HUB_DISABLE_XET
        # The client makes another session where a connection failed. Neither is closed: others may use it.
        watched(get_session())
        _http._GLOBAL_CLIENT_FACTORY = lambda: watched(make())
        constants.HF_HUB_DISABLE_XET = True
        try:
            yield
        finally:
            constants.HF_HUB_DISABLE_XET, _http._GLOBAL_CLIENT_FACTORY = xet, make
            for client, hooks in reversed(seen):
                client.event_hooks = hooks


@contextmanager
def _bars(shown: bool) -> Iterator[None]:
    """Turns the client's progress bars off in the block; its only switch is global, so it is restored."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    silence = not shown and not are_progress_bars_disabled()
    if silence:
        disable_progress_bars()
    try:
        yield
    finally:
        if silence:
            enable_progress_bars()


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Turns any error of the hub client into one of ours."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        yield
    except RedraftError:
        raise
    except Exception as error:  # HTTP, TLS, disk and the client's own errors have no base in common
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        if isinstance(cause, RepositoryNotFoundError):
            raise WeightsError(
                f"the hub does not show {name!r} to this account: it does not exist, or is private or gated;"
                " check the name, accept its licence on its page, and run: hf auth login"
            ) from error
        if getattr(getattr(cause, "response", None), "status_code", None) in (401, 403):
            raise WeightsError(f"the hub refuses {name!r} to this account; run: hf auth login") from error
        found = {getattr(one, "errno", None) for one in (error, cause)}
        if found & _REFUSED and str(getattr(cause, "filename", "")).startswith(str(_cache())):
            raise RunError(f"{_cache()} cannot be written ({cause}); set HF_HOME to a folder that can") from error
        if found & {errno.ENOSPC, errno.EDQUOT}:
            raise RunError(
                f"the disk of {_cache()} is full; free space, or set HF_HOME to a larger disk, and pull again:"
                " files that are complete are kept"
            ) from error
        if errno.EFBIG in found:
            raise RunError(f"a file of {name} is larger than this process may write; raise ulimit -f") from error
        reason = str(cause).strip() or type(cause).__name__
        raise RunError(f"{name} could not be fetched ({reason}); check the network and pull again") from error
