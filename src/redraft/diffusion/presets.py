"""Presets: sampler rules under one name, for callers who do not want to choose each rule.

reference   transformers' rules with the checkpoint's own settings, and canvases of the checkpoint's width
fast        no step to confirm a certain canvas, canvases no wider than the answer may be, nothing behind its end
flow        fast, on a canvas that slides: text is emitted as soon as the beginning of a canvas stands still
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

    `end_aware`: what stands behind the answer's end is neither waited for nor computed. `fitted`: a canvas is the
    narrowest of WIDTHS that holds the answer, if that is narrower than the checkpoint's.
    """

    policy: Callable[[GenerationConfig], Policy]
    end_aware: bool = False
    fitted: bool = False

    def width(self, max_tokens: int, canvas_length: int) -> int:
        """The canvas of a request for so many tokens, on a model whose own canvas is `canvas_length`."""
        return narrowest(max_tokens, canvas_length) if self.fitted else canvas_length


def narrowest(tokens: int, most: int) -> int:
    """The narrowest canvas that holds so many tokens, `most` if none that is narrower does."""
    return next((width for width in WIDTHS if tokens <= width < most), most)


@lru_cache
def fast_policy(config: GenerationConfig) -> Policy:
    """The reference without its confirming step: a canvas is done once it is certain, on average or as a whole."""
    certain = EitherOf((StableAndConfident(0, config.confidence_threshold), Sure(DOUBT * config.entropy_bound)))
    return replace(reference_policy(config), halt=certain)


def flow_policy(config: GenerationConfig) -> Policy:
    """`fast`, with a beginning that leaves the canvas once it has read the same for a step."""
    return replace(fast_policy(config), plan=Flow(nats=config.confidence_threshold))


PRESETS: Mapping[str, Preset] = {
    "reference": Preset(reference_policy),
    "fast": Preset(fast_policy, end_aware=True, fitted=True),
    "flow": Preset(flow_policy, end_aware=True, fitted=True),
}
