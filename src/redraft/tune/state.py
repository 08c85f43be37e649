"""The state of a run at a step, saved so that it continues exactly: weights, average, optimizer, step, best so far.

The file is written under another name and renamed, so a kill at any moment leaves the last good file.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

import msgspec
import torch

from redraft.errors import RecipeError, RunError, ran_out
from redraft.files import in_place_of, write_whole
from redraft.model.gemma import DiffusionGemma
from redraft.shapes import Tensor
from redraft.tune.base import Base
from redraft.tune.compiled import compile_parts
from redraft.tune.data import Feed
from redraft.tune.parallel import World, pieces_of, spread, whole
from redraft.tune.recipe import Recipe
from redraft.tune.recompute import recompute_layers

FILE = "training-state.pt"
WORKER_ENDED = "DataLoader worker"
"""How torch's error begins, a RuntimeError that a signal raises at any moment."""
MOST_NAMED = 4
"""Keys of two recipes that differ."""
_MOMENTS = ("exp_avg", "exp_avg_sq")
_SAVED = {"weights", "average", "best", "score", "optimizer", "step", "fingerprint"}
_ROWS, _RECIPE = "rows", "recipe"
"""Behind these; states of earlier versions do not have them, may continue on any rows, and cannot say what differs."""


@dataclass
class State:
    """Everything that an exact continuation needs. `recipe` is the run's recipe.

    `average` follows the trained parameters; `best` is the average at the probe with the best `score`, if there was a
    probe. With several processes in the `world`, each has its shards of all tensors.
    """

    recipe: Recipe
    world: World
    model: DiffusionGemma
    average: dict[str, Tensor]
    optimizer: torch.optim.Optimizer
    step: int = 0
    best: dict[str, Tensor] | None = None
    score: float = -math.inf

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that training changes, by name."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}


def fixed(recipe: Recipe, step: int) -> bytes:
    """As JSON, all that the first `step` steps depend on: a recipe of which it is the same can continue their state.

    With `decay_steps` the number of steps is not part of it: such a run can be made longer. Nor are stages that no
    step has reached: they may be added, changed and removed.
    """
    free: dict[str, Any] = {"probe_every": 1, "probe_examples": 1, "save_every": 1, "workers": 0}
    free["compile"] = msgspec.UNSET  # the same sums in another order
    if recipe.train.decay_steps:
        free |= {"steps": 1, "decay_steps": 1}
    stages = tuple(stage for stage in recipe.stages if stage.from_step < step)
    train = msgspec.structs.replace(recipe.train, **free)
    return msgspec.json.encode(msgspec.structs.replace(recipe, train=train, stages=stages))


def fingerprint(recipe: Recipe, step: int) -> str:
    """A hash of that."""
    return hashlib.sha256(fixed(recipe, step)).hexdigest()


def restore(recipe: Recipe, base: Base, path: Path, world: World, feed: Feed) -> State:
    """The state at `path`, or the first state. Raises RecipeError for a file that is damaged, of another recipe or of
    other data."""
    saved = _read(path, recipe) if path.exists() else None
    if saved is not None:
        _check_data(path, saved.get(_ROWS), feed.digests(saved["step"]))
    model = base.adapted()
    if recipe.train.recompute:
        recompute_layers(model)
    spread(model, world)
    if recipe.train.compile is True:
        compile_parts(model)
    elif world.device.type == "cuda" and world.count == 1 and not recipe.train.recompute:
        _fuse(model, recipe)
    state = State(recipe, world, model.train(), {}, _optimizer(recipe, model))
    state.average = {name: value.detach().clone() for name, value in state.trained.items()}
    if saved is not None:
        try:
            _take(state, saved)
        except Exception as error:  # its parts may be of any other shape or kind
            raise _unusable(path, error) from None
    return state


def _fuse(model: DiffusionGemma, recipe: Recipe) -> None:
    """Let a model on a GPU train by fused layers, or say why it does not."""
    try:
        from redraft.tune.fused import fuse_checked

        why = fuse_checked(model, bfloat16=recipe.train.bfloat16)
    except ImportError as error:
        why = f"Triton cannot be imported ({error})"
    if why is not None:
        getLogger(__name__).warning("layers are not fused: %s; a step takes longer", why)


def _take(state: State, saved: dict[str, Any]) -> None:
    """Continue from a file, whose tensors are whole."""
    world, like = state.world, state.trained
    with torch.no_grad():
        for name, value in like.items():
            value.copy_(pieces_of(saved["weights"][name], value, world))
    moments = saved["optimizer"]["state"]
    order = [value for group in state.optimizer.param_groups for value in group["params"]]
    for i, kept in moments.items():  # parameters that no step has used yet, such as self-conditioning, have none
        moments[i] = kept | {name: pieces_of(kept[name], order[i], world) for name in _MOMENTS}
    state.optimizer.load_state_dict(saved["optimizer"])

    def pieces(part: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone().copy_(pieces_of(part[name], value, world)) for name, value in like.items()}

    state.average = pieces(saved["average"])
    state.best = None if saved["best"] is None else pieces(saved["best"])
    state.step, state.score = int(saved["step"]), float(saved["score"])


def keep(state: State, path: Path, feed: Feed) -> None:
    """Write the state; only the first process writes.

    Raises RunError, and leaves the last file, if the disk refuses.
    """
    world, optimizer, moments = state.world, state.optimizer.state_dict(), {}
    for i, kept in optimizer["state"].items():
        moments[i] = kept | whole({name: kept[name] for name in _MOMENTS}, world)
    saved = {
        "weights": whole({name: value.detach() for name, value in state.trained.items()}, world),
        "average": whole(state.average, world),
        "best": None if state.best is None else whole(state.best, world),
        "score": state.score,
        "optimizer": optimizer | {"state": moments},
        "step": state.step,
        "fingerprint": fingerprint(state.recipe, state.step),
        _ROWS: feed.digests(state.step),
        _RECIPE: fixed(state.recipe, state.step).decode(),
    }
    if not world.first:
        return
    try:
        with in_place_of(path) as beside:
            torch.save(saved, beside)
    except (OSError, RuntimeError) as error:  # torch's own writer reports a full disk as a RuntimeError
        if str(error).startswith(WORKER_ENDED):
            raise
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise RunError(f"the training state could not be written to {path}: {reason}; free some space") from None


def cut_log(path: Path, step: int) -> None:
    """Drop what stands behind the saved state's rows, whatever it is: these steps run, and are logged, again.

    Raises RecipeError, and changes nothing, for a row that is not of its step.
    """
    rows = path.read_bytes().splitlines()[:step] if path.exists() else []
    for number in range(1, step + 1):
        try:
            found = json.loads(rows[number - 1])
            whole_row = found["step"] == number and isinstance(found["seconds"], int | float)
        except (LookupError, TypeError, ValueError, RecursionError):
            whole_row = False
        if not whole_row:
            said = f"line {number} of {path} is not the row of step {number}"
            raise RecipeError(f"{said}; bring it back, or choose another --out folder")
    write_whole(path, b"".join(row + b"\n" for row in rows))


def follow(state: State, decay: float) -> None:
    """Move the average towards the weights; faster in early steps, so that it forgets the first weights."""
    share, trained = 1 - min(decay, (1 + state.step) / (10 + state.step)), state.trained
    with torch.no_grad():
        torch._foreach_lerp_([state.average[name] for name in trained], list(trained.values()), share)


def _optimizer(recipe: Recipe, model: DiffusionGemma) -> torch.optim.Optimizer:
    trained = [value for value in model.parameters() if value.requires_grad]
    groups = [
        {"params": [value for value in trained if value.ndim > 1], "weight_decay": recipe.train.weight_decay},
        {"params": [value for value in trained if value.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=recipe.train.lr, betas=recipe.train.betas, fused=True
    )


def _unusable(path: Path, error: Exception) -> Exception:
    """A file that cannot be taken up is damaged, unless memory is too small for it: then nobody should remove it."""
    if ran_out(error):
        return error
    return RecipeError(f"{path} is damaged ({type(error).__name__}); choose another --out folder")


def _check_data(path: Path, then: object, now: dict[str, str]) -> None:
    """Raise RecipeError if files were others when the state was saved; of some, an older state says nothing."""
    other = sorted(name for name, digest in now.items() if isinstance(then, dict) and then.get(name, digest) != digest)
    if other:
        changed = f"{', '.join(other)} has changed"
        raise RecipeError(f"{path} belongs to other data: {changed}; bring it back, or choose another --out folder")


def _read(path: Path, recipe: Recipe) -> dict[str, Any]:
    try:
        if not path.is_file():
            raise TypeError("no regular file")  # a pipe would be waited for
        with zipfile.ZipFile(path) as parts:  # torch reads what is in it without a look at its checksums
            if (bad := parts.testzip()) is not None:
                raise zipfile.BadZipFile(bad)
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(saved, dict) or saved.keys() - {_ROWS, _RECIPE} != _SAVED:
            raise TypeError(f"holds a {type(saved).__name__}")
        if type(saved["step"]) is not int or saved["step"] < 0:
            raise TypeError(f"is of step {saved['step']!r}")
    except Exception as error:  # a damaged file fails in any way that a zip file or a pickle can
        raise _unusable(path, error) from None
    if saved["fingerprint"] != fingerprint(recipe, saved["step"]):
        said = _other(saved.get(_RECIPE), fixed(recipe, saved["step"]))
        if "train.decay_steps was" in said:  # 0 is a cosine, and so no clock
            said += "; a run that began with --minutes goes on with it, and one without goes on without"
        remedy = (
            f"change it back, or choose another --out folder (start = {str(path.parent)!r} goes on from its weights)"
        )
        raise RecipeError(f"{path} belongs to another recipe{said}; {remedy}")
    found: dict[str, Any] = saved
    return found


def _other(then: object, now: bytes) -> str:
    """What differs in two recipes, as far as the state says."""
    if not isinstance(then, str):
        return ""
    with suppress(ValueError, RecursionError):  # a damaged one
        was, is_now = (dict(_keys("", json.loads(text))) for text in (then, now))
        names = [name for name in {**was, **is_now} if was.get(name) != is_now.get(name)]
        said = [f"{name} was {was.get(name)!r:.60}, is {is_now.get(name)!r:.60}" for name in names[:MOST_NAMED]]
        return f" ({'; '.join(said)}{'; and more' if len(names) > MOST_NAMED else ''})" if said else ""
    return ""


def _keys(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values of a nested object, by dotted names."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _keys(f"{name}.{key}" if name else key, part)
    else:
        yield name, value
