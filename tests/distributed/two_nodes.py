"""A Ray cluster of two nodes on this machine, in a process of its own: prints its address, ends a node for each line.

It ends with its stdin. Ray's own warnings stay out of the tests' process, where a warning is an error.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

STORE = 150_000_000
"""Bytes of each node's object store."""

cluster = Cluster()
head = cluster.add_node(num_cpus=1, include_dashboard=False, object_store_memory=STORE)
other = cluster.add_node(num_cpus=1, object_store_memory=STORE)
print(cluster.address, flush=True)  # noqa: T201  # its purpose
for line in sys.stdin:
    if line == "end a node\n":
        cluster.remove_node(other, allow_graceful=False)
    else:
        other = cluster.add_node(num_cpus=1, object_store_memory=STORE)
    print("done", flush=True)  # noqa: T201  # its purpose
cluster.shutdown()
