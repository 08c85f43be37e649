"""A live canvas as clients see it: what changed since the last frame that was sent, not since the last step."""

from __future__ import annotations

from redraft.engine.engine import Engine
from redraft.engine.events import Draft
from redraft.server.replies import Json


class Frames:
    """Remembers what each answer's client was shown. A reader who misses frames still puts the canvas together."""

    def __init__(self, engine: Engine) -> None:
        self._text, self._ends = engine.text, frozenset(engine.config.generation.eos_token_ids)
        self._shown: dict[int, tuple[int, list[int]]] = {}

    def of(self, i: int, draft: Draft) -> Json:
        """The frame of one draft of answer i."""
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
            "entropy": [round(nats, 3) for nats in draft.entropy],
            "accepted": [int(kept) for kept in draft.accepted],
        }
