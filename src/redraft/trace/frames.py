"""Frames of a live canvas for a client: what changed since the last frame that was sent, not since the last step."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from redraft.engine.events import Block, Draft
from redraft.text import Text


class Frames:
    """Remembers what was shown of each answer. A reader who misses frames still puts the canvas together."""

    def __init__(self, text: Text, ends: Collection[int], digits: int = 3) -> None:
        self._text, self._ends, self._digits = text, frozenset(ends), digits
        self._shown: dict[int, tuple[int, list[int]]] = {}

    def forget(self, i: int) -> None:
        """Answer i has ended."""
        self._shown.pop(i, None)

    def of(self, i: int, draft: Draft) -> dict[str, Any]:
        """The frame of one draft of answer i; entropies in nats, rounded."""
        block, before = self._shown.get(i, (-1, []))
        if block != draft.block or len(before) != len(draft.tokens):
            before = [-1] * len(draft.tokens)
        self._shown[i] = draft.block, draft.tokens
        positions = [at for at, (old, new) in enumerate(zip(before, draft.tokens, strict=True)) if old != new]
        end = next((at for at, token in enumerate(draft.tokens) if token in self._ends), None)
        return {
            "index": i,
            "block": draft.block,
            "step": draft.step,
            "width": len(draft.tokens),
            "end": end,
            "positions": positions,
            "tokens": [self._text.decode([draft.tokens[at]], skip_special=False) for at in positions],
            "ids": [draft.tokens[at] for at in positions],
            "entropy": [round(nats, self._digits) for nats in draft.entropy],
            "accepted": [int(kept) for kept in draft.accepted],
            "forced": [at for at, forced in enumerate(draft.forced) if forced],
        }


def block_frame(text: Text, block: Block) -> dict[str, Any]:
    """A settled block, token by token."""
    return {
        "block": block.block,
        "tokens": block.tokens,
        "pieces": [text.decode([token], skip_special=False) for token in block.tokens],
        "entropy": [round(nats, 4) for nats in block.entropy],
        "settled_at": block.settled_at,
        "changes": block.changes,
        "steps": block.steps,
        "settled": block.settled,
    }
