"""A Ray cluster of two nodes on this machine, in a process of its own: prints its address, ends a node for each line.

It ends with its stdin. Ray's own warnings stay out of the tests' process, where a warning is an error.
"""

from __future__ import annotations

import sys
from typing import Any

from ray.cluster_utils import Cluster

STORE = 150_000_000
"""Bytes of each node's object store."""

TRIES = 4
"""A node has 30 seconds to start, which a busy machine may need more than once."""


def two() -> tuple[Cluster, Any]:
    """The cluster and its second node."""
    for left in reversed(range(TRIES)):
        found = Cluster()
        try:
            found.add_node(num_cpus=1, include_dashboard=False, object_store_memory=STORE)
            return found, found.add_node(num_cpus=1, object_store_memory=STORE)
        except Exception:  # Ray has no type of its own for it
            found.shutdown()
            if not left:
                raise
    raise AssertionError


cluster, other = two()
print(cluster.address, flush=True)  # noqa: T201  # its purpose
for line in sys.stdin:
    if line == "end a node\n":
        cluster.remove_node(other, allow_graceful=False)
    else:
        other = cluster.add_node(num_cpus=1, object_store_memory=STORE)
    print("done", flush=True)  # noqa: T201  # its purpose
cluster.shutdown()
