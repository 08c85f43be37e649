"""What a fleet is: the engine that each replica loads, what a replica takes of its node, and how many there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from redraft.engine.settings import LoopConfig
from redraft.engine.warm import warm_up
from redraft.errors import RequestError
from redraft.operations.engine import Engine
from redraft.server.http.fetch import is_public
from redraft.server.http.process import begin
from redraft.server.http.settings import Settings
from redraft.version import __version__


@dataclass(frozen=True)
class Fleet:
    """Plain values alone, so that it can stand in a Serve config.

    cpus, gpus       of its node for one replica; the engine has as many threads as CPUs
    replicas         of them; with `most`, as few as there may be
    most             replicas at the highest load, None for a fixed number
    rows             answers that run or wait in a replica from which one replica more is wanted
    downscale_sec    of lower load until a replica ends
    by_prefix        whether a request goes where the beginning of its prompt was read
    relays           processes that pass requests on to replicas
    version          of redraft that a replica must have
    """

    model: str = "nano"
    device: str = "auto"
    dtype: str = "auto"
    plan: str | None = None
    adapter: str | None = None
    experts: str = "device"
    graphs: bool | None = None
    max_running: int = 64
    cpus: float = 1
    gpus: float = 0
    replicas: int = 1
    most: int | None = None
    rows: int = 32
    downscale_sec: float = 300.0
    by_prefix: bool = True
    relays: int = 1
    quiet: bool = True
    settings: Settings = field(default_factory=Settings)
    version: str = __version__

    def __post_init__(self) -> None:
        for name in ("replicas", "rows", "relays"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.most is not None and self.most < self.replicas:
            raise RequestError(f"most is {self.most}; it must be at least replicas ({self.replicas})")
        if not (self.cpus >= 0 and self.gpus >= 0 and self.cpus + self.gpus > 0):
            raise RequestError(f"cpus is {self.cpus} and gpus {self.gpus}; a replica must have some of either")

    @property
    def args(self) -> dict[str, Any]:
        """As JSON has it; `fleet_of` reads it back."""
        found: dict[str, Any] = msgspec.to_builtins(self, enc_hook=lambda _: None)
        del found["settings"]["fetcher"]["allows"]  # a function, which nothing sets
        return found

    def load(self, report: Callable[[str], None] | None = None) -> Engine:
        """The engine of one replica, its loop turning. Raises RequestError for another version, and as `load` does."""
        import torch

        if self.version != __version__:
            raise RequestError(
                f"this node has redraft {__version__} and the fleet wants {self.version}; install the same on all nodes"
            )
        torch.set_num_threads(max(1, int(self.cpus)))
        engine = Engine.load(
            self.model,
            device=self.device,
            dtype=self.dtype,
            plan=self.plan,
            adapter=self.adapter,
            report=report,
            loop=LoopConfig(max_running=self.max_running, graphs=self.graphs),
            experts=self.experts,
        )
        warm_up(engine, lambda _: None)
        begin(engine)
        return engine


def fleet_of(args: Mapping[str, Any]) -> Fleet:
    """The fleet of a Serve config's `args`. Raises RequestError for a field or value that it does not have."""
    unknown = sorted(set(args) - set(Fleet.__dataclass_fields__))
    if unknown:
        known = ", ".join(Fleet.__dataclass_fields__)
        raise RequestError(f"args has {unknown[0]!r}, which no fleet has; its fields are {known}")
    try:
        found = msgspec.convert(dict(args), Fleet)
    except msgspec.ValidationError as error:
        raise RequestError(f"args of the fleet: {error}") from None
    fetcher = replace(found.settings.fetcher, allows=is_public)  # a function, which is not in the config
    return replace(found, settings=replace(found.settings, fetcher=fetcher))
