"""`redraft serve`: an OpenAI-compatible server, and a page to watch the canvas."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from redraft import __version__
from redraft.cli.common import Commands, check_range, command, engine_of, loaded, note, print_json, set_up
from redraft.cli.flags import model_flags, sampling_flags
from redraft.cli.fleet import config_of, fleet_of, ray_flags, wants_ray
from redraft.cli.trace import traced_apart
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.operations.engine import Engine
    from redraft.server.http.log import Log
    from redraft.server.http.settings import Settings

PORT = 8642
KEYS = "REDRAFT_API_KEYS"
TRY = (
    r'{"messages":[{"role":"user","content":"Send 3 apples to Maria."}],'
    r'"structured_outputs":{"json":"who, qty int, item"}}'
)
TRY_SUDOKU = r'{"messages":[{"role":"user","content":"sudoku\n1..4\n..1.\n..42\n4..."}]}'

EPILOG = f"""Point any tool with a "base URL" at http://127.0.0.1:{PORT}/v1; `redraft connect` prints the lines for
some. The page is at the URL itself. A server that others can reach needs API keys, one a line in --api-key-file
or separated by commas in {KEYS}. SIGTERM lets answers finish, a second one does not.

examples:
  redraft serve
  redraft serve ./checkpoint --port 9000 --alias gpt-4o-mini
  redraft serve --host 0.0.0.0 --api-key-file keys.txt --allow-host gpu.lan
  redraft serve --ray --autoscale 1:4"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "serve", "answer over HTTP, in the forms that other tools speak", run, epilog=EPILOG)
    model_flags(parser, positional=True, plan=True)
    sampling_flags(parser, only=("preset",), own={"preset": "sampler rules of requests that name none"})
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=PORT, help=f"0 for a free one (default: {PORT})")
    parser.add_argument("--name", metavar="NAME", help="what the model is called (default: its name or folder)")
    parser.add_argument(
        "--alias", action="append", default=[], metavar="NAME", help='another name it answers to; "*" for any'
    )
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help="API keys, one a line")
    parser.add_argument("--insecure", action="store_true", help="let others reach a server without keys")
    parser.add_argument(
        "--cors-origin", action="append", default=[], metavar="URL", help="a web page elsewhere that may call it"
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help='a name it is reached by; "*" for any'
    )
    parser.add_argument(
        "--image-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host that images may be fetched from (default: none; images come in the request)",
    )
    parser.add_argument(
        "--ask-fields",
        action="store_true",
        help="where a schema is sent, ask for its fields as nano is asked, and read the answer back (for models that"
        " were tuned on such prompts; by default of nano alone)",
    )
    parser.add_argument("--no-page", action="store_true", help="serve no web page")
    parser.add_argument("--log-file", type=Path, metavar="FILE", help="append the log there (default: stderr)")
    parser.add_argument("--log-prompts", action="store_true", help="write prompts to the log, too")
    parser.add_argument("--quiet", action="store_true", help="no log")
    parser.add_argument(
        "--trace", type=Path, metavar="FOLDER", help="write every step there, a file each of the newest 1000 requests"
    )
    parser.add_argument("--max-running", type=int, default=64, metavar="N", help="requests at a time (default: 64)")
    parser.add_argument("--max-waiting", type=int, default=1024, metavar="N", help="answers under way (default: 1024)")
    parser.add_argument("--per-key", type=int, default=256, metavar="N", help="of one key (default: 256)")
    parser.add_argument("--max-seconds", type=float, default=600.0, metavar="SEC", help="longest answer (default: 600)")
    parser.add_argument(
        "--clip-max-tokens",
        action=argparse.BooleanOptionalAction,
        help="answer with less where max_tokens passes the context, instead of refusing (default: for embedded models)",
    )
    parser.add_argument("--drain", type=float, default=30.0, metavar="SEC", help="to finish on SIGTERM (default: 30)")
    ray_flags(parser, autoscale=True)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal."""
    # Huge pages under numpy's large arrays leave a server with whole ones where a few bytes are still in use.
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    if wants_ray(arguments):
        return _fleet(arguments)
    set_up(arguments.threads)

    from redraft.engine.warm import warm_up
    from redraft.server.http.process import serve
    from redraft.server.http.service import Service

    def loader(progress: Callable[[int, int], None]) -> Engine:
        def report(done: int, total: int) -> None:
            progress(done, total)
            loaded(done, total)

        engine = engine_of(arguments, report)
        warm_up(engine, note)
        return engine

    settings = settings_of(arguments)
    service, ready = Service(settings, traced_apart(arguments, "serve")), partial(_say, keyed=bool(settings.keys))
    with _logged(arguments) as log:
        serve(service, loader, host=arguments.host, port=arguments.port, log=log, ready=ready)
    return 0


def _fleet(arguments: argparse.Namespace) -> int:
    """Serve with many engines, or print what would be served."""
    fleet = fleet_of(arguments, settings_of(arguments))
    where = {"host": arguments.host, "port": arguments.port}
    if arguments.print_config:
        print_json(config_of(fleet, **where))
        return 0

    from redraft.distributed.cluster import serve_fleet

    def ready(url: str) -> None:
        many = f"{fleet.replicas}" if fleet.most is None else f"{fleet.replicas} to {fleet.most}"
        note(f"serving {fleet.model} by {many} replica{'s' if many != '1' else ''} on {fleet.device}")
        print(url, flush=True)

    serve_fleet(fleet, address=arguments.address, **where, ready=ready)
    return 0


@contextmanager
def _logged(arguments: argparse.Namespace) -> Iterator[Log]:
    """The log, and its file closed at the end. Raises RequestError for one that cannot be written."""
    from redraft.server.http.log import Log

    path, sink = arguments.log_file, sys.stderr
    try:
        sink = sink if path is None else path.open("a", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"--log-file {path} cannot be written: {error.strerror}") from None
    try:
        yield Log(None if arguments.quiet else sink)
    finally:
        if path is not None:
            with suppress(OSError):  # what could not be written is lost
                sink.close()


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The server's settings. Raises RequestError for those that would leave it open to others."""
    from redraft.server.http.fetch import Fetcher
    from redraft.server.http.keys import read_keys
    from redraft.server.http.limits import ServerLimits
    from redraft.server.http.settings import LOOPBACK, Settings
    from redraft.weights.source import EMBEDDED, is_asked_by_fields

    _check(arguments)
    keys = read_keys(arguments.api_key_file, os.environ.get(KEYS))
    local = arguments.host in ("localhost", "::1") or arguments.host.startswith("127.")
    if not local and not keys and not arguments.insecure:
        raise RequestError(f"--host is {arguments.host} and there are no API keys; use --api-key-file, or --insecure")
    name = arguments.name or Path(arguments.model).name or "model"
    hosts = (*LOOPBACK, arguments.host, *arguments.allow_host)
    limits = ServerLimits(
        in_flight=arguments.max_waiting,
        per_key=arguments.per_key,
        request_sec=arguments.max_seconds,
        drain_sec=arguments.drain,
    )
    return Settings(
        names=tuple(dict.fromkeys((name, *arguments.alias))),
        keys=keys,
        origins=tuple(arguments.cors_origin),
        # A key is what keeps a page elsewhere out; without one, the name that it asks for is.
        hosts=("*",) if keys and not local else tuple(dict.fromkeys(hosts)),
        limits=limits,
        fetcher=Fetcher(tuple(arguments.image_host)),
        preset=arguments.preset,
        clip=arguments.model in EMBEDDED if arguments.clip_max_tokens is None else arguments.clip_max_tokens,
        ask_fields=arguments.ask_fields or is_asked_by_fields(arguments.model, arguments.adapter),
        page=not arguments.no_page,
        log_prompts=arguments.log_prompts,
        version=__version__,
    )


def _check(arguments: argparse.Namespace) -> None:
    """Raise RequestError for a value that no server can have, by the flag's own name."""
    check_range("port", arguments.port, 0, 65535)
    for flag, value in (("--max-seconds", arguments.max_seconds), ("--drain", arguments.drain)):
        if not value > 0:
            raise RequestError(f"{flag} is {value:g}; it must be above 0 (seconds)")
    for flag in ("max-running", "max-waiting", "per-key"):
        check_range(flag, getattr(arguments, flag.replace("-", "_")), 1)
    for origin in arguments.cors_origin:
        if not re.fullmatch(r"https?://[^/?#\s]+", origin):
            raise RequestError(f"--cors-origin is {origin!r}; it must be as browsers send it, like https://app.example")
    for host in arguments.image_host:
        if not re.fullmatch(r"[\w-]+(\.[\w-]+)*(:\d{1,5})?|[\da-f:]+", host, re.ASCII | re.IGNORECASE):
            raise RequestError(f"--image-host is {host!r}; it must be a name, like img.example, or img.example:8080")
    for flag, names in (("--name", [arguments.name or "nano"]), ("--alias", arguments.alias)):
        if not all(name.strip() for name in names):
            raise RequestError(f"{flag} is empty; give a name, or leave it out")


def _say(engine: Engine, url: str, *, keyed: bool) -> None:
    model, key = engine.model, " -H 'authorization: Bearer YOUR-KEY'" if keyed else ""
    bits = str(model.dtype).removeprefix("torch.")
    body = TRY_SUDOKU if engine.folder is not None and engine.folder.name == "nano-sudoku" else TRY
    note(f"serving {engine.folder or 'a model'} on {model.device}, {bits}")
    if body is TRY and not engine.by_fields:  # where nothing is said, a conversation is sent as it is
        body = TRY.removesuffix("}") + ',"canvas":{"ask_fields":true}}'
    note(f"try  curl {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{body}'")
    print(url, flush=True)
