"""A language for a canvas in the middle of an answer, whose text on both sides is written and stays.

    │ before, as it is │  so many tokens, of the canvas  │ behind, as it is │
    0 ───────────────► state                        goals ───────────────► accepted

The canvas may hold whatever leads from the state behind `before` to one from which all of `behind` is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from redraft.constraints.compile.automaton import NOWHERE
from redraft.constraints.compile.lift import TokenAutomaton
from redraft.constraints.condition.projection import OnceProjection
from redraft.constraints.language import Language
from redraft.errors import ConstraintError
from redraft.model.gpu.automata import ConditionKernels


@dataclass(frozen=True, eq=False)
class InfixLanguage(Language):
    """Canvases of `width` tokens that lead from a state to one of `goals`."""

    state: int
    width: int
    goals: NDArray[np.bool_]

    @property
    def is_validated(self) -> bool:
        """What stands between two texts is no answer by itself."""
        return False

    def start(self, max_tokens: int, min_tokens: int = 0, kernels: ConditionKernels | None = None) -> InfixProjection:
        """The constraint on the canvas."""
        return InfixProjection(self.layout, self.state, self.width, kernels=kernels, goals=self.goals)

    def holds(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens fit between the two texts."""
        state = self.automaton.after(self.state, tokens)
        return len(tokens) == self.width and state != NOWHERE and bool(self.goals[state])


@dataclass(frozen=True, kw_only=True)
class InfixProjection(OnceProjection):
    """What conditions the one canvas; it has `left` positions."""

    goals: NDArray[np.bool_]

    @cached_property
    def leading(self) -> NDArray[np.bool_]:
        """[boundary, states]: whether a goal can be reached with the tokens that are left there."""
        a = self.layout.automaton
        found = np.zeros((self.left + 1, a.states), dtype=np.bool_)
        found[self.left] = self.goals
        for emitted in range(self.left, 0, -1):
            found[emitted - 1, a.src[found[emitted, a.dst]]] = True
        return found

    def allowed(self, emitted: int) -> NDArray[np.bool_]:
        """States that may be reached after `emitted` tokens of the canvas."""
        return np.asarray(self.leading[emitted])

    def ends(self, width: int) -> NDArray[np.bool_]:
        """The goals: nothing of this request follows the canvas."""
        return self.goals


def between(language: Language, before: Sequence[int], width: int, behind: Sequence[int]) -> InfixLanguage:
    """The language of `width` tokens between others. Raises ConstraintError if it does not hold those before."""
    state = language.automaton.after(0, before)
    if state == NOWHERE:
        raise ConstraintError(f"the {len(before)} tokens before the canvas begin no valid answer")
    goals = leads_on(language.automaton, behind)
    return InfixLanguage(language.source, language.layout, language.checked, state, width, goals)


def leads_on(automaton: TokenAutomaton, tokens: Sequence[int]) -> NDArray[np.bool_]:
    """States from which these tokens end a whole answer."""
    found = automaton.accepts.copy()
    found[automaton.end] = False
    for token in reversed(tokens):
        spelt = (automaton.cls == automaton.class_of[token]) & found[automaton.dst]
        found = np.zeros_like(found)
        found[automaton.src[spelt]] = True
    return found
