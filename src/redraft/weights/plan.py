"""Plans: which matrices of a network are written in which format. Data, so that another plan is another line.

Norms, scalars, routers and the self-conditioning block stay plain under every plan, as in the published checkpoints:
they are small or sensitive. The embedding table, which is also the head, is packed only by the plans whose name ends in
-e8, and only while loading: no other engine reads files with a packed table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch

from redraft.config import ModelConfig
from redraft.errors import WeightsError, did_you_mean
from redraft.model.gemma import DiffusionGemma, Layer
from redraft.model.linear import PackedLinear, PackedMatrix, PackedTable
from redraft.model.moe import PackedExperts
from redraft.model.packed import FP8, INT4, INT4_G64, INT8, NVFP4, TABLE8, Format
from redraft.shapes import Tensor
from redraft.weights.names import Slot, slots

Formats = Mapping[str, Format]
"""Our tensor's name -> its format. A tensor that is not in it keeps the model's dtype."""

EIGHT_BIT_FLOATS, INTEGER_PRODUCTS = (8, 9), (8, 0)


@dataclass(frozen=True)
class PackingPlan:
    """Formats by part: the routed experts, attention's matrices, the dense MLPs, the table. None: not packed."""

    name: str
    experts: Format | None
    attention: Format | None
    mlp: Format | None
    table: Format | None = None

    @property
    def is_uniform(self) -> bool:
        """Whether every part of a layer has the same format, and the table is not packed."""
        return self.experts == self.attention == self.mlp and self.table is None

    def format_of(self, target: str) -> Format | None:
        """The format of one of our tensors, by its name."""
        if not target.startswith("layers."):
            return self.table if target == "embed.weight" else None
        part = target.split(".")[2]
        found: Format | None = {"experts": self.experts, "mlp": self.mlp}.get(part)
        if part == "attention" and target.endswith((".qkv.weight", ".out.weight")):
            found = self.attention
        return found


PLANS = {
    plan.name: plan
    for plan in (
        PackingPlan("int8", INT8, INT8, INT8),
        PackingPlan("int4", INT4, INT8, INT8),
        PackingPlan("int4-g64", INT4_G64, INT8, INT8),
        PackingPlan("int8-e8", INT8, INT8, INT8, TABLE8),
        PackingPlan("int4-g64-e8", INT4_G64, INT8, INT8, TABLE8),
        PackingPlan("fp8", FP8, FP8, FP8),
        PackingPlan("nvfp4", NVFP4, None, NVFP4),
        PackingPlan("nvfp4-experts", NVFP4, None, None),
    )
}


def find_plan(name: str) -> PackingPlan:
    """A plan by name. Raises WeightsError for one that does not exist."""
    if name not in PLANS:
        raise WeightsError(f"plan is {name!r}; supported: {', '.join(PLANS)}{did_you_mean(name, PLANS)}")
    return PLANS[name]


def formats(config: ModelConfig, plan: PackingPlan | None) -> dict[str, Format]:
    """A plan's formats for a network of this shape. Raises WeightsError if a format's groups do not divide its rows."""
    found: dict[str, Format] = {}
    for slot in slots(config):
        form = plan.format_of(slot.target) if plan else None
        if form is not None:
            form.check(slot.stored, slot.shape[-1])
            found[slot.target] = form
    return found


def fitting_plans(config: ModelConfig) -> Iterator[tuple[str, Formats]]:
    """The plans whose groups divide the rows of a network of this shape: names and formats."""
    for name, plan in PLANS.items():
        try:
            found = formats(config, plan)
        except WeightsError:
            continue
        yield name, found


def check_device(wanted: Formats, device: torch.device) -> None:
    """Raise WeightsError if a device cannot compute with one of the formats: all need compute 8.0, 8-bit floats 8.9."""
    if device.type != "cuda":
        return
    major, minor = torch.cuda.get_device_capability(device)
    # Every plan has 8-bit integers or 8-bit floats, and Triton multiplies neither on older GPUs.
    if wanted and (major, minor) < INTEGER_PRODUCTS:
        raise WeightsError(
            f"packed weights need compute capability 8.0 or more; {device} has {major}.{minor}, so load plain ones"
        )
    eight = sorted({form.name for form in wanted.values() if form.is_float})
    if eight and (major, minor) < EIGHT_BIT_FLOATS:
        raise WeightsError(
            f"{eight[0]} needs 8-bit floats, from compute capability 8.9 on; {device} has {major}.{minor},"
            " so use plan int8 or int4"
        )


def usable_plans(config: ModelConfig, device: torch.device) -> list[str]:
    """The names of the fitting plans that a device can compute with."""
    found = []
    for name, packed in fitting_plans(config):
        with suppress(WeightsError):
            check_device(packed, device)
            found.append(name)
    return found


def num_bytes(slot: Slot, form: Format | None, dtype: torch.dtype) -> int:
    """Bytes of one stored tensor in the model."""
    if form is None:
        return slot.num_elements * dtype.itemsize
    return form.num_bytes(slot.num_elements // slot.shape[-1], slot.shape[-1])


def make_room(model: DiffusionGemma, wanted: Formats) -> DiffusionGemma:
    """Replace, in place, plain matrices by empty packed ones of the same shapes. Returns the model.

    Raises WeightsError if one of a layer's expert matrices is packed and the other is not.
    """
    if (form := wanted.get("embed.weight")) is not None:
        model.embed = PackedTable(form, tuple(model.embed.weight.shape))  # type: ignore[assignment]  # read as model.table
    for i, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        for part, name in (("attention", "qkv"), ("attention", "out"), ("mlp", "gate_up"), ("mlp", "down")):
            if (form := wanted.get(f"layers.{i}.{part}.{name}.weight")) is not None:
                owner = getattr(layer, part)
                shape = tuple(getattr(owner, name).weight.shape)
                setattr(owner, name, PackedLinear(form, shape, model.kernels.product))
        both = [wanted.get(f"layers.{i}.experts.{name}") for name in ("gate_up", "down")]
        if both[0] is not None and both[1] is not None:
            shapes = tuple(layer.experts.gate_up.shape), tuple(layer.experts.down.shape)
            layer.experts = PackedExperts(PackedMatrix(both[0], shapes[0]), PackedMatrix(both[1], shapes[1]))
        elif any(both):
            raise WeightsError(f"layer {i} has packed and plain expert matrices; pack both or neither")
    return model


def packed_matrices(model: DiffusionGemma) -> dict[str, PackedMatrix]:
    """Every packed matrix of a model by the name its plain form would have."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, PackedMatrix):
            inside = ".matrices." in name
            found[name.replace(".matrices", "") if inside else f"{name}.weight"] = module
    return found


def plain_tensors(model: DiffusionGemma) -> dict[str, Tensor]:
    """Every tensor of a model that belongs to no packed matrix, by name."""
    inside = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, PackedMatrix))
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(inside)}
