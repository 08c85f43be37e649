"""The dial from quality to speed: settings measured on one checkpoint, in order of cost.

    redraft bench --dial ──► dial.json beside the checkpoint, or in the user's cache ──► Options.effort

Effort 0 is the cheapest setting worth having, 1 the best one found. Single knobs are not monotone, so the dial walks
the Pareto front: settings of which none cost more than another without being better. A table belongs to the weights and
settings it was measured on, and to no others.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import msgspec

from redraft.config import GenerationConfig
from redraft.diffusion.accept import EntropyBound
from redraft.diffusion.denoise import Policy, reference_policy
from redraft.diffusion.halt import StableAndConfident
from redraft.errors import RequestError, RunError
from redraft.files import read_small, write_whole
from redraft.home import cache_folder
from redraft.weights.fingerprint import known_fingerprint

FILE = "dial.json"


@dataclass(frozen=True)
class Rules:
    """The sampler rules that a notch sets; all others are the checkpoint's own."""

    max_steps: int
    entropy_bound: float
    stability: int
    confidence: float

    def policy(self, config: GenerationConfig) -> Policy:
        """As a policy. Raises RequestError for values that a policy refuses."""
        return replace(
            reference_policy(config),
            accept=EntropyBound(self.entropy_bound),
            halt=StableAndConfident(self.stability, self.confidence),
            max_steps=self.max_steps,
        )


@dataclass(frozen=True)
class Notch:
    """One setting and what was measured of it: the share of right answers with its interval, and what they took.

    `forwards` are those of an answer on average, commits included; `canvases[n]` counts canvases that took n steps.
    """

    rules: Rules
    quality: float
    low: float
    high: float
    forwards: float
    canvases: tuple[int, ...]

    def steps_left(self, taken: int) -> float:
        """Average steps that a canvas takes beyond its first `taken`; 1 if none was seen to take more."""
        later = [(steps - taken, count) for steps, count in enumerate(self.canvases) if steps > taken and count]
        total = sum(count for _, count in later)
        return sum(steps * count for steps, count in later) / total if total else 1.0


@dataclass(frozen=True)
class Dial:
    """A table, cheapest notch first. `step_ms` is what a step took when it was measured, one request at a time."""

    checkpoint: str
    taken: str
    tasks: tuple[str, ...]
    examples: int
    step_ms: float
    notches: tuple[Notch, ...]

    def efforts(self) -> tuple[float, ...]:
        """The effort of each notch."""
        last = len(self.notches) - 1
        return tuple(1.0 if i == last else i / last for i in range(len(self.notches)))

    def place(self, effort: float) -> int:
        """Index of the notch for an effort: the cheapest that is no lower."""
        return bisect_left(self.efforts(), effort - 1e-9)

    def check(self) -> None:
        """Raise ValueError for a table that no measurement gives."""
        if not self.notches or not self.step_ms > 0:
            raise ValueError("it has no notches or no time")
        costs = [notch.forwards for notch in self.notches]
        if any(not before < after for before, after in pairwise(costs)):
            raise ValueError("its notches are not in order of cost")


def dial_files(folder: Path) -> tuple[Path, Path]:
    """Where a checkpoint's table may be: beside it, or in the user's cache if that cannot be written."""
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return folder / FILE, cache_folder() / "dials" / f"{name}.json"


def read_dial(folder: Path) -> Dial:
    """The table of a checkpoint. Raises RequestError if there is none, it is damaged, or another checkpoint's.

    A server's clients read these errors: they name no folder of this machine.
    """
    remedy = f"measure one with `redraft bench --dial` on the checkpoint {folder.name}"
    found = [path for path in dial_files(folder) if path.exists()]
    if not found:
        raise RequestError(f"effort needs a table of settings and this model has none; {remedy}")
    for path in found:
        dial = _read(path, path.stat().st_mtime_ns, remedy)
        if dial.checkpoint == known_fingerprint(folder):
            return dial
    raise RequestError(f"{path.name} was measured on another checkpoint; {remedy}")


def write_dial(dial: Dial, folder: Path) -> Path:
    """Keep a table beside its checkpoint, or in the user's cache; returns the file. Raises RunError if neither can."""
    failure: OSError | None = None
    for path in dial_files(folder):
        try:
            if path.parent != folder:
                path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, msgspec.json.format(msgspec.json.encode(dial), indent=1) + b"\n")
        except OSError as error:
            failure = error
            continue
        return path
    assert failure is not None
    raise RunError(f"the dial can be kept neither in {folder} nor in {path.parent}: {failure.strerror}")


@lru_cache(maxsize=8)
def _read(path: Path, _stamp: int, remedy: str) -> Dial:
    try:
        dial = msgspec.json.decode(read_small(path), type=Dial)
        dial.check()
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        said = error.strerror if isinstance(error, OSError) else error  # without the path
        raise RequestError(f"{path.name} is no table of settings ({said}); {remedy}") from None
    return dial
