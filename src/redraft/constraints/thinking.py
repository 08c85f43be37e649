"""A language that may stand behind the model's thinking: a mark, anything at all, another mark, then the answer.

    ┌── opening ──► any tokens ── closing ──┐
    ├───────────────────────────────────────┴──► the language, from its start

The marks are tokens of their own, so nothing that is thought can be taken for them. Room for the mark and for the
shortest answer behind it is kept, however long the thinking would like to be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from redraft.constraints.compile.lift import TokenAutomaton
from redraft.constraints.condition.edge_layout import EdgeLayout
from redraft.constraints.language import Language
from redraft.errors import ConstraintError


@dataclass(frozen=True, eq=False)
class ThinkingLanguage(Language):
    """Answers of a language behind thinking. `closing` is the token that ends it, `opening` one that begins it."""

    closing: int
    opening: int

    def answer(self, tokens: Sequence[int]) -> Sequence[int]:
        """What stands behind the thinking."""
        return tokens[list(tokens).index(self.closing) + 1 :] if self.closing in tokens else tokens


def after_thinking(language: Language, closing: int, opening: int) -> ThinkingLanguage:
    """The language behind thinking, or without it.

    Raises ConstraintError for marks that answers may hold.
    """
    a, marks = language.automaton, [closing, opening]
    if closing == opening or any(not 0 <= mark < len(a.class_of) or a.class_of[mark] for mark in marks):
        raise ConstraintError(f"thinking is marked by tokens {marks}; they must be two that no answer holds")
    layout = EdgeLayout(_behind(a, closing, opening))
    return ThinkingLanguage(language.source, layout, language.checked, closing, opening)


def _behind(a: TokenAutomaton, closing: int, opening: int) -> TokenAutomaton:
    """State 0 is a copy of the language's start which the opening mark may leave, for state 1, where anything goes. The
    language's own states follow in their order, `end` the last of them."""
    free, shift = 1, 2
    class_of, classes = a.class_of.copy(), a.classes
    class_of[class_of == 0] = classes  # what no answer holds may be thought
    closes, opens = classes + 1, classes + 2
    class_of[closing], class_of[opening] = closes, opens
    over = np.unique(a.cls[a.dst == a.end])
    thought = np.setdiff1d(np.arange(1, classes + 3), [*over, closes])  # the opening mark once more is only a thought
    first = a.src == 0
    src: list[ArrayLike] = [a.src + shift, np.full(len(thought), free), [free], np.zeros(first.sum(), np.int32), [0]]
    cls: list[ArrayLike] = [a.cls, thought, [closes], a.cls[first], [opens]]
    dst: list[ArrayLike] = [a.dst + shift, np.full(len(thought), free), [shift], a.dst[first] + shift, [free]]
    sources, labels, targets = (np.concatenate(part).astype(np.int32) for part in (src, cls, dst))
    order = np.lexsort((sources, targets))
    accepts = np.concatenate([np.array([a.accepts[0], False]), a.accepts])
    return dataclasses.replace(
        a, class_of=class_of, src=sources[order], cls=labels[order], dst=targets[order], accepts=accepts
    )
