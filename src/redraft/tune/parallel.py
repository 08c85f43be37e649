"""Training by several processes of one machine, which torchrun starts, by torch's FSDP2.

Every process makes the samples and noise of the whole step, and keeps every N-th line of each batch. Weights, average
and optimizer state are sharded, one shard a process; a layer's weights are gathered when it runs.

    lines of a batch    0 2 4 …   process 0      its losses over the counts of the whole step  ┐  gradients and losses
                        1 3 5 …   process 1      its losses over the counts of the whole step  ┘  are summed

So a step equals the step of one process, except for the order of additions. The first process writes whole files: a
state can be continued by any number of processes.

All processes have to run the same forwards, or they would wait for each other for ever. A process that has no line of a
batch, or whose canvases take fewer steps of the sampler than another's, also runs a ghost: a canvas with every position
pinned, whose weight is zero.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
from torch import distributed

from redraft.errors import RecipeError
from redraft.model.gemma import DiffusionGemma
from redraft.shapes import Int, Tensor
from redraft.tune.objective import Batch, Corruption
from redraft.tune.recipe import Recipe

_PATIENCE = timedelta(hours=6)  # while the first process probes, the others wait


@dataclass(frozen=True)
class World:
    """The processes of a run, which of them this is, and the device it trains on."""

    device: torch.device
    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, on the CPU."""
        if self.count == 1:
            return values
        found = values.to(self.device)
        distributed.all_reduce(found)
        return found.cpu()


def place() -> tuple[int, int]:
    """Which process this is, and of how many that torchrun started; the only one without it."""
    if not distributed.is_torchelastic_launched():
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextmanager
def world_of(recipe: Recipe) -> Iterator[World]:
    """The processes that torchrun started, or this one alone.

    Raises RecipeError for a device that is not there, or a recipe that so many processes cannot share.
    """
    device, (rank, count) = torch.device(recipe.train.device), place()
    if count == 1:
        _check_device(recipe, (device.index or 0) + 1)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # where our kernels are launched
            yield World(device)
        return
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    if local != count:
        raise RecipeError(f"torchrun has {count} processes, {local} of them on this machine; training uses one machine")
    if ":" in recipe.train.device:
        raise RecipeError(
            f'[train] device is {recipe.train.device!r} for {count} processes; use "cuda": each takes its own'
        )
    if recipe.train.batch_size < count:
        raise RecipeError(
            f"[train] batch_size is {recipe.train.batch_size}, fewer than the {count} processes; start fewer"
        )
    _check_device(recipe, count)
    if device.type == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
    yield World(device, rank, count)
    # Not after an error: the other processes may wait for this one, and torchrun ends them once it has exited. And only
    # when the program exits: a second group under the same torchrun would get the addresses of the first.
    distributed.barrier()
    atexit.unregister(_leave)
    atexit.register(_leave)


def spread(model: DiffusionGemma, world: World) -> None:
    """Move a model to its device; with several processes, each keeps a shard of every parameter."""
    if world.count == 1:
        model.to(world.device)
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(world.device.type, (world.count,))
    for module in (*model.layers, model):
        part: FSDPModule = fully_shard(module, mesh=mesh)
        part.set_gradient_divide_factor(1.0)  # losses are parts of a sum, not means of their own
        part.set_force_sum_reduction_for_comms(True)  # the only reduction of gloo


def share(batch: Batch, drawn: Corruption, world: World) -> tuple[Batch, Corruption]:
    """This process's lines of a batch, with their canvases and noise, and ghosts where it has too few forwards."""
    if world.count == 1:
        return batch, drawn
    if batch.images:
        raise RecipeError(f"a row has an image, and {world.count} processes train; start one: a tower is not shared")
    lines = torch.arange(len(batch.clean))[world.rank :: world.count]
    scored = batch.scored[lines]
    canvases = torch.isin(batch.owner, lines).nonzero().flatten()
    kept, ghosts = canvases, torch.zeros(len(canvases), dtype=torch.bool)
    turns = _turns(drawn)
    if not len(lines):
        lines, scored = torch.zeros(1, dtype=torch.long), torch.zeros_like(batch.scored[:1])
    if len(turns) and (not len(canvases) or turns[canvases].max() < turns.max()):
        place = torch.isin(batch.owner, lines).nonzero().flatten()[:1]
        canvases, kept = torch.cat([canvases, place]), torch.cat([kept, turns.argmax()[None]])
        ghosts = torch.cat([ghosts, torch.ones(1, dtype=torch.bool)])
    chosen = batch.canvases(canvases)
    mine = replace(
        chosen,
        clean=batch.clean[lines],
        scored=scored,
        first=batch.first[lines],
        owner=chosen.owner // world.count,
        pinned=chosen.pinned | ghosts[:, None],
    )
    return mine, drawn.some(kept)


def whole(values: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """Tensors gathered from the shards of all processes; empty in all processes but the first."""
    if world.count == 1:
        return dict(values)
    from torch.distributed.tensor import DTensor

    found = {}
    for name, value in values.items():
        gathered = value.full_tensor() if isinstance(value, DTensor) else value
        if world.first:
            found[name] = gathered.cpu()
    return found


def pieces_of(value: Tensor, like: Tensor, world: World) -> Tensor:
    """A whole tensor as the model stores `like`: on its device, and only this process's shard."""
    if world.count == 1:
        return value.to(like.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor), "spread left a parameter whole"
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _turns(drawn: Corruption) -> Int[Tensor, "canvases"]:
    """Forwards without a gradient that each canvas needs."""
    once = drawn.conditioned.long()
    return once if drawn.roll is None else torch.maximum(once, drawn.roll.steps)


def _check_device(recipe: Recipe, count: int) -> None:
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if recipe.train.device != "cpu" and found < count:
        raise RecipeError(
            f"[train] device is {recipe.train.device!r}, which this machine does not have"
            f"{f' for {count} processes' if place()[1] > 1 else ''}; use cpu{' or start fewer' if found else ''}"
        )
