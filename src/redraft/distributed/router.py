"""The rule of `places` as Ray Serve's request router.

Serve runs it in each process that passes requests on, and tells it how many requests each replica has.
"""

from __future__ import annotations

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from redraft.server.http.places import Places


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray's types are not read
    """For Serve's `request_router_class`. The blocks are the keyword `blocks` of a request."""

    def initialize_state(self) -> None:
        self._places = Places()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica of the prefix, and behind it two others for the case that it is full."""
        replicas = self.curr_replicas
        if not replicas:
            return []
        blocks = () if pending_request is None else pending_request.kwargs.get("blocks", ())
        load = self.replica_queue_len_cache.get
        first = self._places.choose(blocks, list(replicas), replicas, lambda name: load(name) or 0)
        others = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        return [[replicas[first]], others]
