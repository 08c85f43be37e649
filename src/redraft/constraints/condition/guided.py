"""Schemas out of an automaton's reach: a canvas finished from left to right under llguidance's matcher.

    log p ──► from the left: the model's token while the matcher takes it, else the likeliest that it takes
              └► plan: a draft that is valid so far, and tokens behind it that would complete the answer
    fixed     the first positions, up to the first token that the model was not sure of by itself; they are pinned, and
              the canvas is redrafted behind them

A matcher says which tokens may come next and nothing of how an answer ends. So a plan is kept: however the model goes
on, what has been fixed can be completed in the tokens that are left, because there was a plan when it was fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from redraft.constraints.compile.lift import TokenAutomaton
from redraft.constraints.condition.edge_layout import EdgeLayout
from redraft.constraints.condition.forward_backward import BIAS_OF_NONE
from redraft.constraints.condition.guide import Guide, Looks, most_looks
from redraft.constraints.condition.projection import Projection
from redraft.errors import ConstraintError
from redraft.shapes import Float, Int, Tensor

if TYPE_CHECKING:
    from llguidance import LLMatcher

SURE = 0.9
"""A token of this probability is fixed without another look."""
MOST_FORCED = 32
"""Tokens of one step that are not the model's; what stands behind so many is drafted anew anyway."""


class NoLayout(EdgeLayout):
    """In the place of an automaton's edges where there is no automaton."""

    def __init__(self) -> None:
        pass

    @property
    def automaton(self) -> TokenAutomaton:
        """Raises ConstraintError: what needs an automaton cannot be had."""
        raise ConstraintError(
            "this schema is held from left to right, and only by itself: without thinking, pins, gaps and repairs"
        )


@dataclass
class TokenPlan:
    """Tokens from a canvas's beginning that complete the answer, and how many of them are fixed by now."""

    tokens: list[int] = field(default_factory=list)
    fixed: int = 0


@dataclass(frozen=True, kw_only=True)
class GuidedProjection(Projection):
    """What is left of a constraint for one canvas: behind the tokens `emitted`, `left` more may follow.

    It keeps the last plan from step to step, so it is good for the canvases of one answer. `shortest` are the tokens
    of the shortest.
    """

    guide: Guide
    shortest: int
    emitted: tuple[int, ...] = ()
    plan: TokenPlan = field(default_factory=TokenPlan)

    @cached_property
    def matcher(self) -> LLMatcher:
        """The matcher behind what has been emitted."""
        found = self.guide.at(self.emitted)
        if found is None:  # copies of one matcher share its lexer, which after very many states takes nothing, silently
            found = replace(self.guide).at(self.emitted)
        assert found is not None, "what was emitted is not of the language"
        return found

    def __call__(self, log_p: Float[Tensor, "canvas vocab"]) -> Guided:  # type: ignore[override]  # Conditioned is all that is read
        """Read a canvas from left to right."""
        self.plan.tokens = self._planned(log_p)
        found = Guided(self, log_p, tuple(self.plan.tokens))
        self.plan.fixed = found.fixed
        return found

    def after(self, tokens: Sequence[int]) -> GuidedProjection:
        emitted = (*self.emitted, *tokens)
        return replace(
            self, emitted=emitted, left=self.left - len(tokens), plan=TokenPlan(self.plan.tokens[len(tokens) :])
        )

    @property
    def is_over(self) -> bool:
        return bool(self.matcher.is_accepting()) and not self.guide.allowed(self.matcher).any()

    def check(self) -> None:
        """Raise ConstraintError if no answer of at most `left` tokens was found; keep the one that was."""
        plan = self.guide.completion(self.matcher, self.left)
        if plan is None:
            longer = self.guide.completion(self.matcher, 4 * self.left + 256)
            least = "" if longer is None else f", and the shortest that was found has {len(longer)}"
            raise ConstraintError(f"no valid answer of {self.left} tokens was found{least}; raise max_tokens")
        self.plan.tokens = plan

    def _planned(self, log_p: Float[Tensor, "canvas vocab"]) -> list[int]:
        """Tokens from the canvas's beginning to the answer's end: the model's own as far as they can be completed."""
        width, looks = min(len(log_p), self.left), Looks(most_looks(len(log_p), self.shortest))
        wished, step = self._read(log_p[:width]), 1
        if (rest := self._rest(wished, looks)) is not None:
            return wished + rest
        while len(wished) - step >= self.plan.fixed:  # ever further back, to where it can still be completed
            begun = wished[: len(wished) - step]
            if (rest := self._rest(begun, looks)) is not None:
                return begun + rest
            step *= 2
        return self.plan.tokens

    def _rest(self, begun: list[int], looks: Looks) -> list[int] | None:
        matcher = self.matcher.deep_copy()
        if matcher.try_consume_tokens(begun) != len(begun):
            return None
        return self.guide.completion(matcher, self.left - len(begun), looks)

    def _read(self, log_p: Float[Tensor, "canvas vocab"]) -> list[int]:
        """The model's tokens, or the likeliest that may stand where one of them may not, up to the answer's end."""
        guide, matcher, found, forced = self.guide, self.matcher.deep_copy(), list[int](), 0
        own = log_p.argmax(-1).tolist()
        while len(found) < len(own) and forced < MOST_FORCED:
            at = len(found)
            stop = next((i for i in range(at, len(own)) if own[i] in guide.ends or own[i] in guide.forbidden), len(own))
            taken = matcher.try_consume_tokens(own[at:stop]) if stop > at else 0
            found += own[at : at + taken]
            at += taken
            if at == len(own) or (own[at] in guide.ends and matcher.is_accepting()):
                break
            allowed = guide.allowed(matcher)
            if not allowed.any():
                break
            row = log_p[at].cpu()  # never the whole canvas, which would be 268 MB at every step
            token = int(row.masked_fill(~torch.from_numpy(allowed), -torch.inf).argmax())
            over = max(float(row[end]) for end in guide.ends)
            if (matcher.is_accepting() and over > float(row[token])) or not matcher.consume_token(token):
                break
            found.append(token)
            forced += 1
        return found


@dataclass(frozen=True, eq=False)
class Guided:
    """What came of one canvas. `plan` is a whole answer from the canvas's beginning, perhaps longer than the canvas."""

    projection: GuidedProjection
    log_p: Float[Tensor, "canvas vocab"]
    plan: tuple[int, ...]

    @cached_property
    def draft(self) -> Int[Tensor, "canvas"]:
        """The plan as far as the canvas goes; behind its end the likeliest end token and the likeliest of the tail."""
        guide, width = self.projection.guide, len(self.log_p)
        kept = torch.tensor(self.plan[:width], dtype=torch.long, device=self.log_p.device)
        if len(kept) == width:
            return kept
        behind = self.log_p[len(kept) :]
        ends, tail = (torch.tensor(sorted(kind), device=behind.device) for kind in (guide.ends, guide.tail))
        return torch.cat([kept, ends[behind[:1, ends].argmax(-1)], tail[behind[1:, tail].argmax(-1)]])

    @cached_property
    def fixed(self) -> int:
        """How many of the first positions are decided: those the model is sure of, and the first that it is not."""
        likeliest = self.log_p.max(-1)
        sure = (likeliest.indices == self.draft) & (likeliest.values > np.log(SURE))
        first = int((~sure).int().argmax()) if not bool(sure.all()) else len(sure)
        end = min(len(self.plan) + 1, len(sure))
        return len(sure) if first + 1 >= end else first + 1

    @property
    def doubt(self) -> float:
        """-log of the model's probability of the draft where it is not fixed."""
        rows = slice(self.fixed, min(len(self.plan) + 1, len(self.log_p)))
        return max(0.0, -float(self.log_p[rows].gather(1, self.draft[rows, None]).sum()))

    def shifted(self) -> Float[Tensor, "canvas vocab"]:
        """Log-probabilities: certain where it is fixed, the model's own behind that."""
        found = self.log_p.clone()
        found[: self.fixed] = BIAS_OF_NONE
        found[torch.arange(self.fixed), self.draft[: self.fixed]] = 0.0
        return found

    def finished(self) -> Int[Tensor, "canvas"] | None:
        """The draft, if it ends the answer within this canvas."""
        return self.draft if len(self.plan) <= len(self.log_p) else None

    def forced(self) -> list[bool]:
        """Per position, whether the draft is another token than the model's likeliest."""
        return list((self.draft != self.log_p.argmax(-1)).tolist())

    def log_mass(self, tokens: Sequence[int]) -> list[float]:
        """At each of the first positions, the log of the probability that the model gave to all that might follow."""
        matcher, found = self.projection.matcher.deep_copy(), []
        guide = self.projection.guide
        for row, token in zip(self.log_p[: len(tokens)], tokens, strict=True):
            allowed = guide.allowed(matcher)
            allowed[list(guide.ends)] = matcher.is_accepting()
            found.append(min(0.0, float(row.cpu()[torch.from_numpy(allowed)].logsumexp(-1))))
            matcher.consume_token(token)
        return found

    def draw(self, uniform: Float[Tensor, "canvas"]) -> Int[Tensor, "canvas"]:
        """Texts cannot be drawn in proportion where only the next token is known, so `engine/resolve.py` refuses it."""
        raise AssertionError("a request that draws came to a schema that is held from left to right")
