"""A language that begins behind the model's thinking: anything at all, then a mark, then the answer.

    ┌─ any token ─┐
    └──► FREE ────┴─ closing ─► the language, from its start        begun at once, or by an opening mark if there is one

The marks are tokens of their own, so nothing that is thought can be taken for them. Room for the mark and for the
shortest answer behind it is kept, however long the thinking would like to be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from redraft.constraints.compile.lift import TokenAutomaton
from redraft.constraints.condition.edge_layout import EdgeLayout
from redraft.constraints.language import Language
from redraft.errors import ConstraintError


@dataclass(frozen=True, eq=False)
class ThinkingLanguage(Language):
    """Answers of a language behind thinking. `closing` is the token that ends it, `opening` one that begins it."""

    closing: int
    opening: int | None

    def answer(self, tokens: Sequence[int]) -> Sequence[int]:
        """What stands behind the thinking."""
        return tokens[list(tokens).index(self.closing) + 1 :] if self.closing in tokens else tokens


def after_thinking(language: Language, closing: int, opening: int | None = None) -> ThinkingLanguage:
    """The language behind thinking that `closing` ends. With `opening` it is optional and begins with that token;
    without, the answer begins inside it, as where the prompt has opened it.

    Raises ConstraintError for marks that answers may hold.
    """
    marks = [closing] if opening is None else [closing, opening]
    a = language.automaton
    if len(set(marks)) < len(marks) or any(not 0 <= mark < len(a.class_of) or a.class_of[mark] for mark in marks):
        raise ConstraintError(f"thinking is marked by tokens {marks}; they must be two that no answer holds")
    layout = EdgeLayout(_behind(a, closing, opening))
    return ThinkingLanguage(language.source, layout, language.checked, closing, opening)


def _behind(a: TokenAutomaton, closing: int, opening: int | None) -> TokenAutomaton:
    """State 0 is where the answer begins: free itself, or a copy of the start that the opening mark leaves."""
    class_of, classes = a.class_of.copy(), a.classes
    class_of[class_of == 0] = classes  # what no answer holds may be thought
    class_of[closing] = classes + 1
    if opening is not None:
        class_of[opening] = classes + 2
    over = np.unique(a.cls[a.dst == a.end])
    thought = np.setdiff1d(np.arange(1, classes + 3 if opening is not None else classes + 1), [*over, classes + 1])
    # The opening mark once more is only a thought. Old states keep their order, `end` the last of them.
    shift, free = (1, 0) if opening is None else (2, 1)
    sources, labels, targets = [a.src + shift], [a.cls], [a.dst + shift]

    def edges(source: int, cls: np.ndarray, target: np.ndarray | int) -> None:
        sources.append(np.full(len(cls), source))
        labels.append(cls)
        targets.append(np.broadcast_to(target, len(cls)))

    edges(free, thought, free)
    edges(free, np.array([classes + 1]), shift)
    if opening is not None:
        first = a.src == 0
        edges(0, a.cls[first], a.dst[first] + shift)
        edges(0, np.array([classes + 2]), free)
    src, cls, dst = (np.concatenate(part).astype(np.int32) for part in (sources, labels, targets))
    order = np.lexsort((src, dst))
    begins = [False] if opening is None else [bool(a.accepts[0]), False]
    accepts = np.concatenate([np.array(begins, np.bool_), a.accepts])
    return dataclasses.replace(a, class_of=class_of, src=src[order], cls=cls[order], dst=dst[order], accepts=accepts)
