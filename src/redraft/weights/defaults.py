"""The meaning of `auto`: the device, the number format and the kernels of a load that names none.

    device   cuda if a GPU can be used, else cpu
    dtype    float32 where config.json says so; else as the checkpoint's plain tensors are stored: float32, or bfloat16
             for smaller formats
    kernels  Triton's on a GPU, plain torch elsewhere

Packed matrices stay packed. Every choice that costs speed is reported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from redraft.config import ModelConfig
from redraft.errors import RequestError, did_you_mean
from redraft.model.kernels import FAST, Kernels
from redraft.weights.build import DTYPES, usable_device
from redraft.weights.gguf import open_source
from redraft.weights.layouts import FLOATS
from redraft.weights.names import slots

AUTO = "auto"
DRIVER = Path("/proc/driver/nvidia/version")
Report = Callable[[str], None]


def device_of(name: str) -> torch.device:
    """A device by name. Raises RequestError if this machine does not have it."""
    if name != AUTO:
        return usable_device(name)
    try:
        return usable_device("cuda" if torch.cuda.is_available() else "cpu")
    except RequestError:  # a driver is present and does not work
        return torch.device("cpu")


def unusable_driver() -> str:
    """Why no GPU is used on a machine with an NVIDIA driver; empty where there is none."""
    if not DRIVER.exists() or torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return "this machine has an NVIDIA driver and torch is a CPU build; install a CUDA build to use the GPU"
    try:
        torch.empty(1, device="cuda")
        reason = "torch finds no GPU"
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
    return (
        f"this machine has an NVIDIA driver that torch {torch.__version__} cannot use ({reason}); update the driver or"
        " install a torch built for an older CUDA"
    )


def dtype_of(name: str, folder: Path, config: ModelConfig, device: torch.device) -> torch.dtype:
    """A number format by name; `auto` reads config and headers of the checkpoint in `folder`.

    Raises RequestError for an unknown name, WeightsError for a folder without weights.
    """
    if name in DTYPES:
        return DTYPES[name]
    if name != AUTO:
        raise RequestError(f"dtype is {name!r}; supported: auto, {', '.join(DTYPES)}{did_you_mean(name, DTYPES)}")
    # A GPU without bfloat16 emulates it, more slowly than it computes float32.
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float32
    # As transformers does: numbers may be stored in half the space of the format in which they are computed.
    wanted = config.root.get("dtype", config.root.get("torch_dtype"))
    return torch.float32 if wanted == "float32" else stored_dtype(folder, config)


def dtype_name(dtype: torch.dtype) -> str:
    """A number format's name, as callers write it."""
    return str(dtype).removeprefix("torch.")


def stored_dtype(folder: Path, config: ModelConfig) -> torch.dtype:
    """The format of most numbers in a checkpoint's plain tensors; bfloat16 in place of float16."""
    source = open_source(folder)
    counts: Counter[str] = Counter()
    for slot in slots(config):
        form = source.format_of(slot.stored)
        if form in FLOATS:
            counts[form] += math.prod(slot.shape)
    most = counts.most_common(1)
    return torch.float32 if most and most[0][0] == "F32" else torch.bfloat16


def kernels_of(device: torch.device, report: Report | None = None) -> Kernels:
    """The kernels of a device. A GPU without Triton is reported."""
    if device.type != "cuda":
        return FAST
    try:
        from redraft.model.gpu.kernels import GPU
    except ImportError as error:
        if report is not None:
            report(f"Triton cannot be imported ({error}), so {device} runs plain torch, slowly: pip install triton")
        return FAST
    return GPU


def report_choice(asked: tuple[str, str], device: torch.device, dtype: torch.dtype, report: Report | None) -> None:
    """Report the choice of `auto`, unless it is float32 on a CPU; and a driver that this torch cannot use."""
    if report is not None and device.type == "cpu" and asked[0] == AUTO and (why := unusable_driver()):
        report(why)
    if report is None or AUTO not in asked or (device.type, dtype) == ("cpu", torch.float32):
        return
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    report(f"running on {device}{name} in {dtype_name(dtype)}; --device and --dtype choose others")
