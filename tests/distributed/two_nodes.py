"""A Ray cluster of two nodes on this machine, in a process of its own: prints its address, ends a node for each line.

It ends with its stdin. Ray's own warnings stay out of the tests' process, where a warning is an error.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from inspect import signature
from typing import Any

from ray._private import services
from ray._raylet import DASHBOARD_AGENT_LISTEN_PORT_NAME, persist_port
from ray.cluster_utils import Cluster

STORE = 150_000_000
"""Bytes of each node's object store."""

PATIENCE_SEC = 300.0
"""For a node to start. Ray gives it 30 seconds, which a busy machine does not keep."""


def patient(find: Callable[..., Any]) -> Callable[..., Any]:
    """Ray's function that finds a node which has just been started, asked again until the node is there."""

    def found(*where: Any) -> Any:
        until = time.monotonic() + PATIENCE_SEC
        while True:
            try:
                return find(*where)
            except RuntimeError:
                if time.monotonic() > until:
                    raise

    return found


def add_node(**more: Any) -> Any:
    """A node of one CPU. Of its agent's ports Ray is told, because it ends a node whose agent has found none itself
    within 15 seconds."""
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        ports = {name: one.getsockname()[1] for name, one in zip(names, sockets, strict=True)}
    return cluster.add_node(num_cpus=1, object_store_memory=STORE, **ports, **more)


def known(start: Callable[..., Any]) -> Callable[..., Any]:
    """Ray's function that starts a raylet, which finds the port of its agent written down."""

    def started(*given: Any, **named: Any) -> Any:
        bound = signature(start).bind(*given, **named).arguments
        port = bound["dashboard_agent_listen_port"]
        persist_port(bound["session_dir"], bound["node_id"], DASHBOARD_AGENT_LISTEN_PORT_NAME, port)
        return start(*given, **named)

    return started


services.get_node, services.start_raylet = patient(services.get_node), known(services.start_raylet)
cluster = Cluster()
add_node(include_dashboard=False)
other = add_node()
print(cluster.address, flush=True)  # noqa: T201  # its purpose
for line in sys.stdin:
    if line == "end a node\n":
        cluster.remove_node(other, allow_graceful=False)
    else:
        other = add_node()
    print("done", flush=True)  # noqa: T201  # its purpose
cluster.shutdown()
