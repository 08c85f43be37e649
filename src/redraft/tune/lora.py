"""LoRA: two small matrices are trained beside each large one (Hu et al., 2021; arXiv 2106.09685).

    W + (alpha / rank) · B A        A [rank, in] starts random, B [out, rank] at zero

torch's parametrizations form the sum whenever the matrix is read. So every form of the forward works with adapters, and
merging stores the sum: a merged model gives the same numbers, bit for bit. The cost is a gradient as large as the
matrix, for one matrix at a time.

Our matrices stack several stored ones; each stored matrix has its own A and B, as in PEFT's layout.
"""

from __future__ import annotations

from itertools import groupby

import torch
from torch import nn
from torch.nn.utils import parametrize

from redraft.config import ModelConfig
from redraft.model.gemma import DiffusionGemma
from redraft.shapes import Tensor
from redraft.tune.recipe import LoraRecipe
from redraft.weights.adapter import Low, part_of
from redraft.weights.names import Slot, slots


class LowRankChange(nn.Module):
    """The low-rank change of one of our matrices, part by part in the order of its rows."""

    def __init__(self, parts: list[Slot], lora: LoraRecipe, generator: torch.Generator) -> None:
        super().__init__()
        self.stored = [slot.stored for slot in parts]
        self.scale = lora.alpha / lora.rank
        self.a, self.b = nn.ParameterList(), nn.ParameterList()
        for slot in parts:
            *experts, out, inner = slot.shape
            spread = inner**-0.5
            self.a.append(spread * torch.randn(*experts, lora.rank, inner, generator=generator))
            self.b.append(torch.zeros(*experts, out, lora.rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + torch.cat([low.delta(self.scale) for low in self.lows()], -2)

    def lows(self) -> list[Low]:
        """Its matrices, in the order of `stored`."""
        return [Low(a, b) for a, b in zip(self.a, self.b, strict=True)]


def adapt(model: DiffusionGemma, lora: LoraRecipe, *, seed: int) -> None:
    """Freeze a model and put adapters beside the matrices of the recipe's parts."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for target, parts in _targets(model.config, lora):
        path, _, name = target.rpartition(".")
        module = model.get_submodule(path)
        parametrize.register_parametrization(module, name, LowRankChange(parts, lora, generator), unsafe=True)


def adapters(model: DiffusionGemma) -> dict[str, Low]:
    """The adapter matrices of an adapted model by the stored name of the matrix they stand beside."""
    return {
        stored: low
        for module in model.modules()
        if isinstance(module, LowRankChange)
        for stored, low in zip(module.stored, module.lows(), strict=True)
    }


def merge(model: DiffusionGemma) -> None:
    """Make an adapted model plain: every matrix becomes its sum."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            names = [name for name, _ in module.parametrizations.named_children()]  # type: ignore[union-attr]
            for name in names:
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    model.requires_grad_(False)


def _targets(config: ModelConfig, lora: LoraRecipe) -> list[tuple[str, list[Slot]]]:
    chosen = [slot for slot in slots(config) if part_of(slot) in lora.parts]
    return [(target, list(parts)) for target, parts in groupby(chosen, key=lambda slot: slot.target)]
