"""Presets: sampler rules under one name.

reference   transformers' rules with the checkpoint's own settings, and canvases of the checkpoint's width
fast        no step to confirm a certain canvas, canvases no wider than the answer may be, nothing after its end
flow        fast, on a canvas that slides: text is emitted as soon as the beginning of a canvas no longer changes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from redraft.config import GenerationConfig
from redraft.diffusion.denoise import Policy, reference_policy
from redraft.diffusion.halt import EitherOf, StableAndConfident, Sure
from redraft.diffusion.plan import Flow

WIDTHS = (16, 32, 64, 128, 256)
"""Widths of canvas that a preset chooses from."""

DOUBT = 2.0
"""Entropy that may be left in a finished canvas of `fast`, as a multiple of the entropy bound."""


@dataclass(frozen=True)
class Preset:
    """Rules made from a checkpoint's settings.

    With `end_aware` a canvas neither waits for nor computes positions after the answer's end. With `fitted` a canvas
    has the least of WIDTHS that is enough for the answer, if that is narrower than the checkpoint's.
    """

    policy: Callable[[GenerationConfig], Policy]
    end_aware: bool = False
    fitted: bool = False

    def width(self, max_tokens: int, canvas_length: int) -> int:
        """Width of the canvas for an answer of `max_tokens`, on a model whose own canvas is `canvas_length`."""
        return narrowest(max_tokens, canvas_length) if self.fitted else canvas_length


def narrowest(tokens: int, most: int) -> int:
    """The least width that is enough for so many tokens, at most `most`."""
    return next((width for width in WIDTHS if tokens <= width < most), most)


@lru_cache
def fast_policy(config: GenerationConfig) -> Policy:
    """The reference without its confirming step: a canvas ends once it is certain, on average or as a whole."""
    certain = EitherOf((StableAndConfident(0, config.confidence_threshold), Sure(DOUBT * config.entropy_bound)))
    return replace(reference_policy(config), halt=certain)


def flow_policy(config: GenerationConfig) -> Policy:
    """`fast`, with a beginning that leaves the canvas once it is unchanged for a step."""
    return replace(fast_policy(config), plan=Flow(nats=config.confidence_threshold))


PRESETS: Mapping[str, Preset] = {
    "reference": Preset(reference_policy),
    "fast": Preset(fast_policy, end_aware=True, fitted=True),
    "flow": Preset(flow_policy, end_aware=True, fitted=True),
}
