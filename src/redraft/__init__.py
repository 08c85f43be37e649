"""redraft: run, measure and train block-diffusion language models of the DiffusionGemma family.

Importing this package is cheap; torch is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from redraft.engine.loop import LoopConfig
    from redraft.engine.request import Generation, Options, Request
    from redraft.operations.engine import Engine

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

__version__ = "0.1.0"


def load(
    model: str | Path = "nano",
    *,
    device: str = "auto",
    dtype: str = "auto",
    plan: str | None = None,
    adapter: str | Path | None = None,
    report: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    loop: LoopConfig | None = None,
    experts: str = "device",
    image_attention: str = "reference",
) -> Engine:
    """Load a checkpoint: "nano" (in the package), a folder, or a repository name already in the local cache.

    `device` is cuda where a GPU can be used, else cpu; `dtype` is float32 or bfloat16, as most of the checkpoint is
    stored. `plan` quantizes matrices while loading (redraft.weights.plan.PLANS: "int8", "int4", "fp8", …); a quantized
    checkpoint needs none. `adapter` is the folder of a LoRA adapter in PEFT's layout, which is merged into the weights;
    not with a plan or a quantized checkpoint, whose matrices cannot be added to.
    `report` gets a line for what was chosen, and for what was found and left unused; `progress` gets (elements placed,
    elements in all).
    `loop` bounds what runs side by side (redraft.engine.loop.LoopConfig); what it leaves open follows from the model
    and from what `redraft bench --knee` has measured on this machine. `experts` says where the experts are
    (redraft.weights.place): "device" or "host". `image_attention` says which tokens see an image: "reference", as
    transformers' DiffusionGemma does, or "gemma4" (docs/images.md); a vision tower is loaded with the first image.
    Raises WeightsError, ConfigError or TextError if the checkpoint is not whole or not supported.
    """
    from redraft.engine.loop import DEFAULT_LOOP
    from redraft.operations.engine import Engine

    return Engine.load(
        model,
        device=device,
        dtype=dtype,
        plan=plan,
        adapter=adapter,
        report=report,
        progress=progress,
        loop=DEFAULT_LOOP if loop is None else loop,
        experts=experts,
        image_attention=image_attention,
    )


def __getattr__(name: str) -> Any:
    """The names that need torch, imported when they are first asked for."""
    if name == "Engine":
        from redraft.operations.engine import Engine

        return Engine
    if name == "LoopConfig":
        from redraft.engine.loop import LoopConfig

        return LoopConfig
    if name in ("Generation", "Options", "Request"):
        from redraft.engine import request

        return getattr(request, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
