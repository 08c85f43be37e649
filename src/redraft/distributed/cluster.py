"""A Ray cluster: joined or started for one command, and looked at before anything is sent there.

Ray reports usage and starts a dashboard unless it is kept from it; both are off here.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redraft.config import read_config
from redraft.distributed.fleet import Fleet
from redraft.errors import RedraftError, RequestError, RunError
from redraft.server.http.process import run
from redraft.version import __version__
from redraft.weights.source import locate

LOOK_SEC, REACH_SEC, END_SEC = 180.0, 10.0, 30.0
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_worker_niceness": "0",  # an answer is what the machine is for
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # in five seconds a busy machine imports too little
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}
NAME = "redraft"
"""Of the application in Serve."""


def ray_of() -> Any:
    """The module. Raises RequestError where it is not installed."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
        import ray.serve
    except ImportError as error:
        raise RequestError(
            f"--ray was given and Ray cannot be imported ({error}); run pip install 'redraft[scale]'"
        ) from None
    for name in ("ray", "ray.data", "ray.serve"):  # what a user has to know of is raised
        logging.getLogger(name).setLevel(logging.ERROR)
    return ray


@contextmanager
def joined(address: str | None) -> Iterator[Any]:
    """Ray, in the cluster at an address, or in one of this machine alone that ends with the context.

    Raises RequestError where none answers at an address, or one of other versions.
    """
    _check_address(address)
    local = {}
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # as on a desktop: it listens on loopback alone
        local = {"include_dashboard": False}
    ray, quiet = ray_of(), {"logging_level": "error", "log_to_driver": False, "configure_logging": False}
    try:
        ray.init(address=address or "local", namespace=NAME, **quiet, **local)
    except (ConnectionError, TimeoutError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise RequestError(f"no Ray cluster answers at {address}: {said}; start one with ray start") from None
    except Exception as error:  # a plain Exception where a node has not started within half a minute
        where = f"the Ray cluster at {address} cannot be joined" if address else "Ray does not start here"
        said = f"{where}: {' '.join(str(error).split())}"
        if "Version mismatch" in said:
            raise RequestError(f"{said}; install the same versions on all nodes") from None
        raise RunError(f"{said}; Ray's logs are in /tmp/ray/session_latest/logs") from None
    data = ray.data.DataContext.get_current()
    data.print_on_execution_start, data.execution_options.preserve_order = False, True
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str | None) -> None:
    """Raise RequestError where nothing listens: Ray would try for minutes."""
    if address is None or address == "auto" or "://" in address:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SEC).close()
    except (OSError, ValueError) as error:
        raise RequestError(
            f"no Ray cluster answers at {address} ({error}); write --address as HOST:6379, and start one with ray start"
        ) from None


def check_nodes(ray: Any, fleet: Fleet) -> None:
    """Raise RequestError for a cluster that cannot hold the replicas, or where one would fail to load."""
    each = {name: one for name, one in (("CPU", fleet.cpus), ("GPU", fleet.gpus)) if one > 0}
    nodes = [node for node in ray.nodes() if node["Alive"]]
    fits = [int(min(node["Resources"].get(name, 0.0) / one for name, one in each.items())) for node in nodes]
    if sum(fits) < fleet.replicas:
        said = " and ".join(f"{one:g} {name}" for name, one in each.items())
        raise RequestError(
            f"{fleet.replicas} replica{'s' if fleet.replicas > 1 else ''} of {said} each do not fit on the cluster,"
            f" which has room for {sum(fits)}; lower --replicas, give a replica less, or add nodes"
        )
    for node in (node for node, many in zip(nodes, fits, strict=True) if many):
        _look(ray, node["NodeManagerAddress"], node["NodeID"], fleet)


def _look(ray: Any, name: str, node: str, fleet: Fleet) -> None:
    """Whether one node has this version and the model."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
    try:
        version, problem = ray.get(there(seen).remote(fleet.model, fleet.adapter), timeout=LOOK_SEC)
    except ray.exceptions.GetTimeoutError:
        raise RunError(f"node {name} did not answer within {LOOK_SEC:g} s; see ray status") from None
    except ray.exceptions.TaskUnschedulableError:
        return  # the node has gone since it was listed; Ray uses those that are left
    except ray.exceptions.RayError as error:
        said = f"node {name} cannot run redraft ({_cause(str(error))})"
        raise RequestError(f"{said}; install redraft {__version__} with the extra scale there") from None
    if version != __version__:
        raise RequestError(f"node {name} has redraft {version} and this one {__version__}; install the same on all")
    if problem is not None:
        raise RequestError(f"node {name}: {problem}; put the model where all nodes see it, at the same path")


def seen(model: str, adapter: str | None) -> tuple[str, str | None]:
    """This node's version, and why it cannot load the model, if it cannot."""
    try:
        read_config(locate(model))
    except RedraftError as error:
        return __version__, str(error)
    if adapter is not None and not Path(adapter).is_dir():
        return __version__, f"the adapter {adapter} is not a folder there"
    return __version__, None


def serve_fleet(fleet: Fleet, *, address: str | None, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until a signal, which lets answers finish; a second one does not. `ready` is called with the URL.

    Raises RequestError for a cluster or an address that cannot be used, RunError for replicas that do not start.
    """
    with joined(address) as ray:
        check_nodes(ray, fleet)
        from ray import serve
        from ray.serve.schema import LoggingConfig

        from redraft.distributed.serving import Ingress, replicas_of

        if (there := serve.status()).proxies or there.applications:  # for others, who would lose it with ours
            raise RequestError("Ray Serve runs there already; add to it with --print-config, or end it: serve shutdown")
        quiet = LoggingConfig(log_level="ERROR", enable_access_log=False)
        try:
            serve.start(proxy_location="Disabled", logging_config=quiet)
            replicas = serve.run(replicas_of(fleet), name=NAME, route_prefix=None, logging_config=quiet)
            relay = Ingress(replicas, fleet.args).__serve_build_asgi_app__()
            run(relay, relay, host, port, lambda _, url: ready(url), last_sec=END_SEC)
            serve.delete(NAME)
        except (RuntimeError, ray.exceptions.RayError) as error:
            raise RunError(f"the replicas did not start: {_cause(str(error))}") from None
        finally:
            serve.shutdown()


def _cause(text: str) -> str:
    """Of a traceback as text, the line that says what happened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith("redraft.errors.")]
    return (ours or lines or ["no reason given"])[-1]
