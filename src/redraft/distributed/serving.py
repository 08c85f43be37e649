"""Ray Serve: a relay in front, a whole server with an engine of its own in each replica.

client ──► the command's process, a relay ──gRPC──► replica          redraft serve --ray
client ──► Serve's proxy ──► a relay, deployed ──gRPC──► replica     serve deploy, KubeRay
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

from ray import serve
from ray._common.tls_utils import add_port_to_grpc_server
from ray.exceptions import RayActorError
from ray.serve._private import replica as serve_replica
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import ReplicaUnavailableError
from ray.util import get_node_ip_address
from starlette.types import Message

from redraft.distributed.fleet import Fleet, fleet_of
from redraft.distributed.router import PrefixRouter
from redraft.server.http.app import create_app
from redraft.server.http.limits import ServerLimits
from redraft.server.http.log import Log
from redraft.server.http.process import mind_memory, settle
from redraft.server.http.relay import Relay
from redraft.server.http.service import Service

PIECE_BYTES = 2**20
"""Of an answer that are carried at a time."""

ASKED_BYTES = 2 * ServerLimits().image_body_bytes
"""Of a request, its body and its head: Ray's replicas refuse more than 4 MiB otherwise."""

ROWS = "rows"
"""The figure that a fleet grows and shrinks by."""


def _on_one_address(server: Any, _: str) -> int:
    """Open the port of a replica, which Ray opens on all addresses of its node, on the one that the cluster knows."""
    ip = get_node_ip_address()
    return int(add_port_to_grpc_server(server, f"[{ip}]:0" if ":" in ip else f"{ip}:0"))


serve_replica.add_port_to_grpc_server = _on_one_address  # in each replica's process: who reaches it runs code there


class Replica:
    """One engine, and the whole server in front of it, without a socket."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        """Load. Raises as `Fleet.load`."""
        fleet = fleet_of(args)
        mind_memory()
        self._name = serve.get_replica_context().replica_id.unique_id
        self._engine = fleet.load()
        self._service = Service(fleet.settings)
        self._service.ready(self._engine)
        self._app = create_app(self._service, Log(None if fleet.quiet else sys.stderr))
        self._running: set[asyncio.Task[None]] = set()
        settle()

    async def answer(
        self, scope: dict[str, Any], body: bytes, *, blocks: Sequence[bytes] = ()
    ) -> AsyncGenerator[list[Message], None]:
        """The messages of the answer to a request, as many together as there are; `blocks` are for the router."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        gone, inputs = asyncio.Event(), [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if inputs:
                return inputs.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        running = asyncio.create_task(self._run(scope, receive, messages))
        self._running.add(running)  # it outlives a client who leaves: it ends what that one asked for
        running.add_done_callback(self._running.discard)
        try:
            ended = False
            while not ended:
                found, size = [await messages.get()], 0
                while not messages.empty() and size < PIECE_BYTES:
                    size += len((found[-1] or {}).get("body", b""))
                    found.append(messages.get_nowait())
                ended = found[-1] is None
                yield [message for message in found if message is not None]
        finally:
            gone.set()

    async def _run(self, scope: dict[str, Any], receive: Any, messages: asyncio.Queue[Message | None]) -> None:
        async def send(message: Message) -> None:
            for piece in pieces_of(message):
                messages.put_nowait(piece)

        try:
            await self._app(scope, receive, send)
        finally:
            messages.put_nowait(None)

    def figures(self) -> tuple[str, bytes]:
        """Its name and its figures, as Prometheus reads them."""
        return self._name, self._service.metrics.text()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """For Serve's autoscaling: answers that run or wait here."""
        scheduler = self._engine.loop.scheduler
        return {ROWS: float(len(scheduler.waiting) + len(scheduler.running))}

    def check_health(self) -> None:
        """For Serve, which replaces a replica where it raises."""
        if not self._engine.loop.is_turning:
            raise RuntimeError("the engine's loop has stopped")


def pieces_of(message: Message) -> Iterator[Message]:
    """A message of an answer as some that are carried: the caller's side takes 4 MiB at a time."""
    body = message.get("body", b"")
    if len(body) <= PIECE_BYTES:
        yield message
        return
    for end in range(PIECE_BYTES, len(body) + PIECE_BYTES, PIECE_BYTES):
        more = end < len(body) or message.get("more_body", False)
        yield {**message, "body": body[end - PIECE_BYTES : end], "more_body": more}


class Ingress:
    """What the address leads to."""

    def __init__(self, replicas: Any, args: Mapping[str, Any]) -> None:
        self._replicas, self._settings = replicas, fleet_of(args).settings
        self._answer = replicas.answer.options(stream=True, _by_reference=False)  # not through the object store

    def __serve_build_asgi_app__(self) -> Relay:  # Serve's name
        mind_memory()
        settle()
        return Relay(self._ask, (RayActorError, ReplicaUnavailableError), self._figures, self._settings)

    async def _ask(
        self, scope: Mapping[str, Any], body: bytes, blocks: Sequence[bytes]
    ) -> AsyncGenerator[Sequence[Message], None]:
        answers = self._answer.remote(dict(scope), body, blocks=blocks)
        try:
            async for messages in answers:
                yield messages
        except (asyncio.CancelledError, GeneratorExit):
            answers.cancel()
            raise

    async def _figures(self) -> Mapping[str, bytes]:
        found = await self._replicas.broadcast("figures").results_async(timeout_s=10, return_exceptions=True)
        return dict(one for one in found if isinstance(one, tuple))


def by_rows(context: Any) -> tuple[float, dict[str, Any]]:
    """Serve's autoscaling policy: replicas for the rows that run and wait in all of them."""
    rows = sum((context.aggregated_metrics or {}).get(ROWS, {}).values())
    return max(1, math.ceil(rows / context.config.get_target_ongoing_requests())), {}


def replicas_of(fleet: Fleet) -> Any:
    """The replicas of a fleet, to be bound in an application."""
    many: dict[str, Any] = {"num_replicas": fleet.replicas}
    if fleet.most is not None:
        many = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=fleet.replicas,
                max_replicas=fleet.most,
                target_ongoing_requests=fleet.rows,
                upscale_delay_s=5.0,
                downscale_delay_s=fleet.downscale_sec,
                policy=AutoscalingPolicy(policy_function=by_rows),
            )
        }
    if fleet.by_prefix:
        many["request_router_config"] = RequestRouterConfig(request_router_class=PrefixRouter)
    carried = {"RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(ASKED_BYTES)}
    actor = {"num_cpus": fleet.cpus, "num_gpus": fleet.gpus, "runtime_env": {"env_vars": carried}}
    made = serve.deployment(Replica, name="Replica", ray_actor_options=actor, **_patient(fleet), **many)
    return made.bind(fleet.args)


def application(fleet: Fleet) -> Any:
    """The application of a fleet, with the relay as one of its deployments."""
    made = serve.deployment(
        serve.ingress()(Ingress),
        name="Relay",
        num_replicas=fleet.relays,
        ray_actor_options={"num_cpus": 0},
        **_patient(fleet),
    )
    return made.bind(replicas_of(fleet), fleet.args)


def _patient(fleet: Fleet) -> dict[str, Any]:
    """No limit of Serve's own, and time to end what is under way."""
    drain = fleet.settings.limits.drain_sec
    return {"max_ongoing_requests": 2**20, "graceful_shutdown_timeout_s": drain, "graceful_shutdown_wait_loop_s": 0.1}
