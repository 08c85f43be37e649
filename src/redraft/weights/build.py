"""Models without a checkpoint: empty ones for the loader, and random ones for training and tests."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor, nn

from redraft.config import ModelConfig
from redraft.errors import RequestError, RunError, WeightsError
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import FAST, Kernels
from redraft.model.rows import IMAGE_ATTENTION
from redraft.weights.place import Placement
from redraft.weights.plan import Formats, make_room

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Number formats of a model, by the names that callers use."""


def empty_model(
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    kernels: Kernels = FAST,
    packed: Formats = MappingProxyType({}),
    placement: Placement = Placement.DEVICE,
    image_attention: str = IMAGE_ATTENTION[0],
) -> DiffusionGemma:
    """A model with allocated memory and undefined numbers, built without a second copy.

    `packed` are the formats of packed matrices by name (`weights/plan.py`), `placement` is where experts are.

    Raises WeightsError for a dtype other than float32 or bfloat16, RunError if the device has too little memory.
    """
    if dtype not in DTYPES.values():
        raise WeightsError(f"dtype is {dtype}; supported: {', '.join(DTYPES)}")
    with torch.device("meta"):
        model = DiffusionGemma(config, kernels, image_attention)
        model = make_room(model.to(dtype), packed)
    if torch.device(device).type == "meta":
        return model
    num_bytes = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    try:
        return _take_memory(model, torch.device(device), placement)
    except RuntimeError as error:  # torch.OutOfMemoryError on a GPU, a plain RuntimeError on a CPU
        reason = str(error).partition("\n")[0]
        raise RunError(
            f"the model needs {num_bytes} bytes on {device} as {dtype}, which could not be allocated ({reason});"
            " use bfloat16, another device or a smaller model"
        ) from None


def _take_memory(model: DiffusionGemma, device: torch.device, placement: Placement) -> DiffusionGemma:
    if placement is Placement.DEVICE:
        _allocate(model, device)
        return model
    experts = [layer.experts for layer in model.layers]
    for layer in model.layers:
        layer.experts = nn.Module()
    _allocate(model, device)
    for layer, own in zip(model.layers, experts, strict=True):
        assert isinstance(own, nn.Module)
        _allocate(own, torch.device("cpu"), pinned=device.type == "cuda")  # which a GPU can copy from meanwhile
        layer.experts = own
    return model


def _allocate(module: nn.Module, device: torch.device, *, pinned: bool = False) -> None:
    """As `to_empty` does, which for meta tensors imports sympy: a seventh of the time of a first answer."""

    def empty(old: Tensor) -> Tensor:
        return torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=device, pin_memory=pinned)

    module._apply(empty)


def usable_device(name: str) -> torch.device:
    """A device by name. Raises RequestError if this machine does not have it."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # "meta" has tensors without numbers
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise RequestError(f"device {name!r} cannot be used ({reason}); try --device cpu") from None
    return device


@torch.no_grad()
def random_model(
    config: ModelConfig,
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    kernels: Kernels = FAST,
) -> DiffusionGemma:
    """An untrained model on the CPU, parameters with gradients on. The same seed gives the same model.

    Matrices are normal with variance 1 / fan-in, so every layer keeps the scale of its input. So is the embedding,
    because it is also the head: the first logits have a standard deviation near 1. Norms and scalars are 1.
    """
    model = empty_model(config, dtype=dtype, device="cpu", kernels=kernels)
    draw = torch.Generator().manual_seed(seed)
    for _, tensor in sorted(model.state_dict().items()):
        if tensor.ndim == 1:
            tensor.fill_(1.0)
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=draw) * tensor.shape[-1] ** -0.5)
    return model
