"""llguidance in the place of our automaton: what other engines constrain a left-to-right model with.

Only the causal mode can be held by it, because it says which token may come next and nothing of those behind. It is no
dependency; a measurement without it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from redraft.constraints.condition.forward_backward import BIAS_OF_NONE
from redraft.constraints.condition.projection import Projection
from redraft.constraints.language import Language
from redraft.model.gpu.automata import ConditionKernels
from redraft.operations.engine import Engine
from redraft.shapes import Bool, Float, Int, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def installed() -> bool:
    """Whether llguidance is there."""
    return find_spec("llguidance") is not None


@dataclass(frozen=True, eq=False)
class GuidedLanguage(Language):
    """A schema's language as llguidance knows it; `tokenizer` is its own, `stops` are the end tokens."""

    tokenizer: Any
    stops: frozenset[int]

    def start(self, max_tokens: int, min_tokens: int = 0, kernels: ConditionKernels | None = None) -> GuidedProjection:
        """What may come first."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self.tokenizer, LLMatcher.grammar_from_json_schema(self.source.text))
        return GuidedProjection(self.layout, 0, max_tokens, matcher=matcher, stops=self.stops)

    def holds(self, tokens: Sequence[int]) -> bool:
        """Not checked: it does not keep room for the end, so at the limit an answer may be cut off."""
        return True


@dataclass(frozen=True, kw_only=True)
class GuidedProjection(Projection):
    """The tokens that may come next. It moves on with the answer, so one is good for one request."""

    matcher: Any
    stops: frozenset[int]

    def __call__(self, log_p: Float[Tensor, "canvas vocab"]) -> Masked:  # type: ignore[override]  # a Conditioned is all that is read
        """Leave what may come next."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        bits = allocate_token_bitmask(1, log_p.shape[-1])
        fill_next_token_bitmask(self.matcher, bits, 0)
        allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: log_p.shape[-1]].astype(np.bool_)
        allowed[sorted(self.stops)] = self.matcher.is_accepting()
        return Masked(log_p, torch.from_numpy(allowed))

    def after(self, tokens: Sequence[int]) -> GuidedProjection:
        """The same, moved on."""
        for token in tokens:
            assert self.matcher.consume_token(token), "a token was drawn that the mask did not let through"
        return self

    @property
    def is_over(self) -> bool:
        """Whether nothing could follow."""
        return bool(self.matcher.is_stopped())


@dataclass(frozen=True)
class Masked:
    """One token's distribution and what of it may come."""

    log_p: Float[Tensor, "canvas vocab"]
    allowed: Bool[Tensor, "vocab"]

    @property
    def draft(self) -> Int[Tensor, "canvas"]:
        """The likeliest token."""
        return self.shifted().argmax(-1)

    def shifted(self) -> Float[Tensor, "canvas vocab"]:
        """Log-probabilities of what may come."""
        return self.log_p.masked_fill(~self.allowed, BIAS_OF_NONE)

    def log_mass(self, tokens: Sequence[int]) -> list[float]:
        """Log of the probability of what may come."""
        return [float(row[self.allowed].logsumexp(-1)) for row in self.log_p[: len(tokens)]]


def guided(engine: Engine, language: Language) -> GuidedLanguage:
    """A schema's language held by llguidance, on an engine's own tokenizer."""
    from llguidance import LLTokenizer

    ends = engine.config.generation.eos_token_ids
    tokenizer = LLTokenizer(
        engine.text.tokenizer.to_str(), n_vocab=engine.config.model.vocab_size,
        eos_token=ends[0],
    )  # fmt: skip
    return GuidedLanguage(language.source, language.layout, False, tokenizer=tokenizer, stops=frozenset(ends))
