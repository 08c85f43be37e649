"""redraft: run, measure and train block-diffusion language models of the DiffusionGemma family.

    engine = redraft.load("nano")
    done = engine.extract("Send 3 apples to Maria.", "who, qty int, item", seed=1)
    print(done.text)

`redraft.load` returns an `Engine`; `help(redraft.Engine)` has every call. Importing this package is cheap; torch is
imported when it is first needed, with `GOMP_SPINCOUNT` set to 2000 in the environment unless it says otherwise.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import redraft.forks  # noqa: F401  what it registers is all there is to it
from redraft.errors import (
    BusyError,
    CallerError,
    ConfigError,
    ConstraintError,
    DeadlineError,
    RecipeError,
    RecordError,
    RedraftError,
    RequestError,
    RunError,
    TextError,
    TraceError,
    UnsatisfiedError,
    WeightsError,
)
from redraft.version import __version__

if "OMP_WAIT_POLICY" not in os.environ:
    # Where other programs run too, a thread that spins for long at each barrier keeps the core from the one that it
    # waits for, and a step takes 5 to 50 times as long (docs/log.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

if TYPE_CHECKING:
    from redraft.engine.request import Generation, Options, Request
    from redraft.engine.settings import LoopConfig
    from redraft.operations.engine import Engine

    load = Engine.load

__all__ = [
    "BusyError",
    "CallerError",
    "ConfigError",
    "ConstraintError",
    "DeadlineError",
    "Engine",
    "Generation",
    "LoopConfig",
    "Options",
    "RecipeError",
    "RecordError",
    "RedraftError",
    "Request",
    "RequestError",
    "RunError",
    "TextError",
    "TraceError",
    "UnsatisfiedError",
    "WeightsError",
    "__version__",
    "load",
]


def __dir__() -> list[str]:
    """What the package is for, to those who look; what needs torch is named, and not yet imported."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first used."""
    if name in ("Engine", "load"):
        from redraft.operations.engine import Engine

        return Engine.load if name == "load" else Engine
    if name == "LoopConfig":
        from redraft.engine.settings import LoopConfig

        return LoopConfig
    if name in ("Generation", "Options", "Request"):
        from redraft.engine import request

        return getattr(request, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
