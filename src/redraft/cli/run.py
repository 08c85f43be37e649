"""`redraft run`: a file of requests, answered into another."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from redraft import __version__
from redraft.cli.backend import backend_of
from redraft.cli.common import SOME_WRONG, Commands, command, load_engine, note, print_json, refuse_utf16
from redraft.cli.flags import backend_flags, model_flags, sampling_flags
from redraft.cli.fleet import fleet_of, ray_flags, wants_ray
from redraft.errors import RedraftError, RequestError

if TYPE_CHECKING:
    from redraft.cli.row import Row
    from redraft.cli.rows import Body, Done, RowAnswer
    from redraft.measure.remote import Backend
    from redraft.server.http.settings import Settings

EPILOG = """A row of the input is a JSON object: OpenAI's batch form (custom_id, url, body), or a body alone, with
`messages` or `prompt` and the fields that the server takes (docs/server.md). An `image` beside `messages`, a file
or a list of files, named from the folder of IN.jsonl, is shown with the last turn. Row i of the output answers
row i of the input. Run the same command again after an interruption: rows that are done stay, the others follow.
Rows that were edited since are refused, and so are other settings than the run began with. A row without an
answer has its error in its place; stderr counts these rows and names the first ones. To ask these again, as
they are or edited in their places, name another output, and the one that has their errors with --answered. Exit
codes: 0 all rows have an answer, 3 some have an error, 1 the run ended early (run it again), 2 a mistake in the
call.
With --ray IN may also be a folder, Parquet or a URL of a store, and OUT Parquet or a URL (docs/scale.md).

examples:
  redraft run questions.jsonl answers.jsonl --seed 1
  redraft run questions.jsonl answers.jsonl --seed 1 --ray --replicas 4 --address auto
  redraft run s3://bucket/questions s3://bucket/answers.parquet --seed 1 --ray --address auto
  redraft run questions.jsonl mended.jsonl --seed 1 --answered answers.jsonl
  echo '{"messages":[{"role":"user","content":"Well?"}]}' > in.jsonl
  redraft run in.jsonl out.jsonl"""

DECIDING = ("model", "seed", "preset", "device", "dtype", "backend")
"""Flags that decide the answers."""

EVERY_SEC = 30


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "run", "answer a file of requests into another, resumable", run, epilog=EPILOG)
    parser.add_argument("source", metavar="IN.jsonl", help="requests, one a line")
    parser.add_argument("target", metavar="OUT.jsonl", help="answers; continued if it exists")
    answered = "an earlier output: its answers are kept; rows with an error, edited or new ones are asked"
    parser.add_argument("--answered", metavar="FILE.jsonl", help=answered)
    parser.add_argument("--seed", type=int, help="row i has this seed plus i, unless it brings its own")
    sampling_flags(parser, only=("preset",), own={"preset": "sampler rules of rows that name none"})
    at_once = (
        "answers under way, at most 4096 (default: 64), an eighth of them beside a row of more; one of --backend has at"
        " most 512 MiB / N"
    )
    parser.add_argument("--at-once", type=int, default=64, metavar="N", help=at_once)
    backend_flags(parser)
    model_flags(parser)
    ray_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer what is not answered yet."""
    from redraft.cli.datasets import needs_ray
    from redraft.cli.rows import MOST_AT_ONCE

    if "-" in (arguments.source, arguments.target):
        raise RequestError(
            "- was given for a file, and a run goes on from what its files have; name both, or pipe texts, one a line,"
            " through redraft json --many"
        )
    on_ray = wants_ray(arguments)
    for name in () if on_ray else (arguments.source, arguments.target):
        if needs_ray(name):
            raise RequestError(f"{name} is no file of lines; folders, Parquet and URLs need --ray")
    if not (needs_ray(arguments.source) or Path(arguments.source).is_file()):
        raise RequestError(f"{arguments.source} is not a file; pass one with a request a line")
    if not on_ray and Path(arguments.source).suffix.lower() in (".csv", ".tsv", ".xlsx"):
        raise RequestError(
            f"{arguments.source} is a table; a row is a JSON object. redraft json --many reads a text a line, and"
            " engine.extract_many any texts in Python"
        )
    # Row i has this plus i, which is below 2^64.
    if arguments.seed is not None and not 0 <= arguments.seed < 2**63:
        raise RequestError(f"--seed is {arguments.seed}; it must be an integer from 0 to 2^63-1")
    if arguments.answered is not None and not Path(arguments.answered).is_file():  # a pipe would be waited for
        raise RequestError(f"--answered is {arguments.answered}, which is not a file; pass an earlier run's output")
    if not 1 <= arguments.at_once <= MOST_AT_ONCE:
        raise RequestError(f"--at-once is {arguments.at_once}; it must be from 1 to {MOST_AT_ONCE}")
    backend = backend_of(arguments)
    began = time.monotonic()
    if on_ray:
        done = _fleet(arguments)
    else:
        arguments.source, arguments.target = Path(arguments.source), Path(arguments.target)
        rows = count_rows(arguments.source)
        done = _here(arguments, rows) if backend is None else _there(backend, arguments, rows)
    seconds = time.monotonic() - began
    if arguments.json:
        print_json({"rows": done.rows, "errors": done.errors, "tokens": done.tokens, "forwards": done.forwards})
    else:
        said = f"{done.rows} row{'' if done.rows == 1 else 's'}, {done.errors} with an error in place of an answer"
        print(f"{said}; {done.tokens} tokens, {done.forwards} forwards, {seconds:.1f} s", file=sys.stderr)
        for line in done.failed:
            note(line)
        if done.errors > len(done.failed):
            note(f"and {done.errors - len(done.failed)} more, each with its error in {arguments.target}")
        if done.errors and isinstance(arguments.target, Path):
            mended = arguments.target.with_stem(f"{arguments.target.stem}-mended")
            again = shlex.join(map(str, ("redraft", "run", arguments.source, mended, "--answered", arguments.target)))
            note(f"once they are mended, {again} asks these rows alone (with the other options as they were)")
    return SOME_WRONG if done.errors else 0


def _here(arguments: argparse.Namespace, rows: int) -> Done:
    from redraft.cli.earlier import earlier_of
    from redraft.cli.rows import run_batch
    from redraft.server.openai.batch import service_for_rows

    settings = _settings(arguments)
    with earlier_of(arguments.answered, arguments.source, arguments.target, settings) as earlier:
        engine = load_engine(arguments)
        engine.loop.start()
        service = service_for_rows(served(arguments), engine)
        how = {"seed": arguments.seed, "at_once": arguments.at_once, "settings": settings, "earlier": earlier}
        try:
            with _bar(rows) as report:
                return run_batch(service, arguments.source, arguments.target, **how, report=report)
        finally:
            engine.loop.stop()


def _fleet(arguments: argparse.Namespace) -> Done:
    """By the engines of a Ray cluster."""
    from redraft.cli.datasets import as_files
    from redraft.cli.earlier import earlier_of
    from redraft.cli.row import check_length, with_images
    from redraft.cli.rows import write_rows
    from redraft.distributed.cluster import check_nodes, joined
    from redraft.server.http.errors import ApiError

    fleet = fleet_of(arguments, served(arguments))
    folder = here if (here := Path(arguments.source)).is_dir() else here.parent
    with joined(arguments.address) as ray, as_files(ray, arguments.source, arguments.target) as (source, target):
        check_nodes(ray, fleet)
        from redraft.distributed.batch import answers

        settings = _settings(arguments)

        async def answered(left: Iterator[Row], first: int) -> AsyncGenerator[RowAnswer, None]:
            under_way: deque[tuple[Row, tuple[int, Body] | None]] = deque()

            def data() -> Iterator[bytes]:
                for number, row in enumerate(left, first):
                    sent, known = b"{}", cast("tuple[int, Body] | None", None)
                    try:
                        check_length(row)
                        if (kept := earlier(number, row.data)) is not None:
                            known = 200, kept
                        else:
                            sent = with_images(row.data, folder)
                    except ApiError as error:
                        known = error.status, error.body
                    under_way.append((row.named(), known))
                    yield sent

            for status, body in answers(ray, fleet, data(), first=first, seed=arguments.seed):
                row, known = under_way.popleft()
                yield row, *(known or (status, body))

        before = earlier_of(arguments.answered, source, target, settings)
        with before as earlier, _bar(count_rows(source), replicas=fleet.replicas) as report:
            return write_rows(answered, source, target, settings=settings, report=report)


def _there(backend: Backend, arguments: argparse.Namespace, rows: int) -> Done:
    """By another server. A refusal answers its row, and so does a failure at that row; a server that does not answer at
    all ends the run, to be resumed."""
    from redraft.cli.earlier import earlier_of
    from redraft.cli.row import with_images
    from redraft.cli.rows import MOST_ANSWERS_BYTES, answer_rows
    from redraft.measure.failures import StatusError
    from redraft.measure.remote import MOST_BYTES, Remote
    from redraft.measure.wire import encoded
    from redraft.server.http.connections import room_for
    from redraft.server.http.errors import ApiError
    from redraft.server.openai.batch import read_row

    if (most := room_for(arguments.at_once, reserve=32)) < arguments.at_once:
        said = f"--at-once is {arguments.at_once}, and the system lets this process open {most} connections"
        raise RequestError(f"{said}; ask fewer at once, or raise ulimit -n")
    # What waits for an earlier row is held.
    each = MOST_ANSWERS_BYTES // arguments.at_once
    remote, settings = Remote(backend, most_bytes=min(MOST_BYTES, each), note=note), _settings(arguments)
    before = earlier_of(arguments.answered, arguments.source, arguments.target, settings)

    async def answered(row: bytes, number: int) -> tuple[int, Body]:
        if (kept := earlier(number, row)) is not None:
            return 200, kept
        row = with_images(row, arguments.source.parent)
        path, body = read_row(row, None if arguments.seed is None else arguments.seed + number)
        if not isinstance(body, dict) or body.get("stream"):
            raise ApiError(400, "the body is no object, or stream is true; a row's answer comes whole", param="stream")
        plain = {name: value for name, value in body.items() if value is not None}
        try:
            encoded(plain)  # what cannot be sent is this row's mistake, and ends no run
        except RequestError as error:
            raise ApiError(400, str(error)) from None
        try:
            return 200, await remote.post(path.removeprefix("/v1/"), plain)
        except StatusError as error:
            raise ApiError(error.status, str(error), code="elsewhere") from None

    with before as earlier, _bar(rows) as report:
        return answer_rows(
            answered,
            arguments.source,
            arguments.target,
            at_once=arguments.at_once,
            settings=settings,
            report=report,
            within=aclosing(remote),
        )


def served(arguments: argparse.Namespace) -> Settings:
    """What rows are answered by, as a server of the model would."""
    from redraft.server.http.settings import Settings
    from redraft.weights.source import is_asked_by_fields

    names = (Path(arguments.model).name, "*")
    asks = is_asked_by_fields(arguments.model, getattr(arguments, "adapter", None))
    return Settings(names, preset=arguments.preset, ask_fields=asks, version=__version__)


def _settings(arguments: argparse.Namespace) -> dict[str, str | int]:
    """What decides the answers, flags and the model's weights; an output is resumed with these alone."""
    from redraft.weights.fingerprint import known_fingerprint, texts_digest
    from redraft.weights.source import locate

    given = {name: getattr(arguments, name, None) for name in DECIDING}
    said = {name: value if isinstance(value, int) else str(value) for name, value in given.items() if value is not None}
    with suppress(RedraftError, OSError):  # which loading it will raise, or it lies elsewhere
        if arguments.backend is None:
            folder = locate(str(arguments.model))
            said |= {"weights": known_fingerprint(folder)[:16], "tokenizer": texts_digest(folder)[:16]}
    return said


@contextmanager
def _bar(rows: int, *, replicas: int = 0) -> Iterator[Callable[[Done], None]]:
    """A bar on a terminal's stderr: rows, what is left, rows and tokens a second, engines of a fleet. Elsewhere a line
    each `EVERY_SEC`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task, began = bar.add_task("rows", total=rows, said=""), time.monotonic()
        answered, before, shown = 0, -1, began

        def report(done: Done) -> None:
            nonlocal answered, before, shown
            answered, before, now = done.rows, done.rows - 1 if before < 0 else before, time.monotonic()
            seconds = max(1e-6, now - began)
            said = f"{(answered - before) / seconds:.0f} rows/s, {done.tokens / seconds:.0f} tokens/s"
            if not console.is_terminal and now > shown + EVERY_SEC:
                shown = now
                note(f"{answered} of {rows} rows, {said}")
            bar.update(task, completed=done.rows, said=said + (f", {replicas} replicas" if replicas else ""))

        try:
            yield report
        except (KeyboardInterrupt, SystemExit) as error:
            said = f"interrupted behind {answered} of {rows} rows" if answered else "interrupted"
            if isinstance(error, SystemExit):  # by SIGTERM, as others end a program
                note(f"{said}; the same command goes on")
                raise
            raise KeyboardInterrupt(f"{said}; the same command goes on") from None


def count_rows(path: Path) -> int:
    """Rows of a file."""
    from redraft.cli.row import rows_of

    try:
        with path.open("rb") as file:
            refuse_utf16(file.read(2), str(path))
            file.seek(0)
            return sum(1 for _ in rows_of(file))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None
