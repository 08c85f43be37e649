"""`--ray`: a verb's work on many engines of a Ray cluster."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft.cli.common import check_range
from redraft.cli.flags import experts_of
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.distributed.fleet import Fleet
    from redraft.server.http.settings import Settings

BOUNDS = re.compile(r"(\d{1,9}):(\d{1,9})")


def ray_flags(parser: argparse.ArgumentParser, *, autoscale: bool = False) -> None:
    """Whether the work goes to a Ray cluster, to which, and to how many engines there."""
    group = parser.add_argument_group("many engines on Ray (docs/scale.md)")
    group.add_argument("--ray", action="store_true", help="one engine a replica, of a GPU or of --threads CPUs each")
    group.add_argument(
        "--address",
        metavar="HOST:PORT",
        help='the cluster; "auto" for this node\'s (default: one on this machine alone)',
    )
    group.add_argument("--replicas", type=int, metavar="N", help="engines (default: 1)")
    if autoscale:
        group.add_argument(
            "--autoscale", metavar="MIN:MAX", help="as many as the waiting answers need, of at most nine digits each"
        )
        group.add_argument(
            "--print-config", action="store_true", help="print it for `serve deploy` and KubeRay, and serve nothing"
        )


def wants_ray(arguments: argparse.Namespace) -> bool:
    """Whether `--ray` was given. Raises RequestError for a flag that means something with it alone, or nothing."""
    wanted = arguments.ray or getattr(arguments, "print_config", False)
    for name in () if wanted else ("address", "replicas", "autoscale"):
        if getattr(arguments, name, None) is not None:
            raise RequestError(f"--{name} was given without --ray; add that")
    for name in ("trace", "log_file", "backend") if wanted else ():
        if getattr(arguments, name, None) is not None:
            raise RequestError(f"--{name.replace('_', '-')} and --ray were both given; leave one out")
    return bool(wanted)


def fleet_of(arguments: argparse.Namespace, settings: Settings) -> Fleet:
    """The fleet of a verb's flags. Raises RequestError."""
    from redraft.distributed.fleet import Fleet
    from redraft.weights.defaults import device_of

    least, most = 1 if arguments.replicas is None else arguments.replicas, None
    if bounds := getattr(arguments, "autoscale", None):
        found = BOUNDS.fullmatch(bounds)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise RequestError(f"--autoscale is {bounds!r}; write the fewest and the most replicas, as 1:4")
        if arguments.replicas is not None:
            raise RequestError("--replicas and --autoscale were both given; choose one")
        least, most = int(found[1]), int(found[2])
    check_range("replicas", least, 1)
    if ":" in arguments.device:
        raise RequestError(f"--device is {arguments.device!r}; with --ray each replica is given a GPU of its own: cuda")
    # Of this machine, which is like the others: each replica asks the cluster for what it then finds.
    device = device_of("auto").type if arguments.device == "auto" else arguments.device
    check_range("threads", arguments.threads, 1)
    adapter = getattr(arguments, "adapter", None)
    return Fleet(
        model=_absolute(arguments.model),
        device=device,
        dtype=arguments.dtype,
        plan=getattr(arguments, "plan", None),
        adapter=None if adapter is None else _absolute(adapter),
        experts=experts_of(arguments),
        graphs=False if arguments.no_graphs else None,
        max_running=getattr(arguments, "max_running", 64),
        cpus=arguments.threads or 1,
        gpus=int(device == "cuda"),
        replicas=least,
        most=most,
        quiet=getattr(arguments, "quiet", True),
        settings=settings,
    )


def config_of(fleet: Fleet, *, host: str, port: int) -> dict[str, Any]:
    """What `serve deploy` and KubeRay's `serveConfigV2` read."""
    application = {"name": "redraft", "route_prefix": "/", "import_path": "redraft.distributed:app", "args": fleet.args}
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port},
        "logging_config": {"enable_access_log": False},
        "applications": [application],
    }


def _absolute(path: str) -> str:
    """A model or adapter as workers can find it: a folder by its whole path, any other name as it is."""
    return str(Path(path).resolve()) if Path(path).is_dir() else path
