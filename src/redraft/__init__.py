"""redraft: run, measure and train block-diffusion language models of the DiffusionGemma family.

Importing this package is cheap; torch is imported when it is first needed.
"""

from __future__ import annotations

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
