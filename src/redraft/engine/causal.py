"""A request answered from left to right: the same weights in their causal mode, one token per forward.

It is the baseline that canvases are compared with: same model, same prompts, same engine. A token is a block of one:
drawn from the next-token distribution at the request's lowest temperature, emitted, and encoded by the next forward,
which draws the token after it. Noise is addressed by (seed, token, step 1, position 0).

The causal mode also gives a text a probability: a request that reads its prompt receives that of each of its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from redraft.diffusion.denoise import Softener
from redraft.diffusion.shaping import forbid
from redraft.engine.events import Block, Event, Finished, PromptRead
from redraft.engine.request import Logprobs
from redraft.engine.sequence import Sequence, logprobs
from redraft.shapes import Float, Tensor


@dataclass(kw_only=True, eq=False)
class CausalSequence(Sequence):
    """A request that is answered from left to right. Every token is a block.

    `fresh` counts rows that the last forward encoded; `heard` has the log-probabilities of the prompt so far.
    """

    fresh: int = 0
    heard: list[Logprobs] = field(default_factory=list)

    @property
    def wants_logits(self) -> int:
        """Encoded rows whose logits are needed: the last one, to be drawn from, once the whole prompt is prefix; all of
        them where the prompt is read."""
        return self.fresh if self.request.read_prompt else int(self.read == len(self.prompt))

    def check(self) -> None:
        self.prefix.check()
        assert self.prefix.length - self.read + self.commit_rows == self.blocks, "tokens miscounted"
        assert min(1, self.request.max_tokens) <= self.left <= self.request.max_tokens, "limit miscounted"

    def encoded(self, rows: int) -> None:
        super().encoded(rows)
        self.fresh = rows

    def advance(self, model: Softener, logits: Float[Tensor, "rows vocab"]) -> list[Event]:
        """Draw the next token from the logits of the last encoded row, once the prompt has been read."""
        if not self.request.read_prompt or self.blocks:
            return self._draw(logits)
        behind = self.prompt[self.read - self.fresh + 1 : self.read + 1].tolist()
        # A list of its own: where memory runs out behind it, the step is taken back (runner.py).
        self.heard = [*self.heard, *(logprobs(logits, behind, self.request.logprobs or 0) if behind else [])]
        if self.read < len(self.prompt):
            return []
        read = PromptRead(self.heard)
        return [read, *self._draw(logits[-1:])] if self.left else [read, Finished("length", 0)]

    def _draw(self, logits: Float[Tensor, "1 vocab"]) -> list[Event]:
        if self.blocks < self.request.min_tokens:
            forbid(logits, self.request.eos)
        policy, shaping = self.request.policy, self.request.policy.shaping
        coolest = policy.schedule.temperature(policy.max_steps, policy.max_steps)
        log_p = torch.log_softmax(shaping.biased(logits) / (coolest * shaping.temperature), dim=-1)
        # A canvas of one: every token from which the answer can still be completed, and no other.
        conditioned = None if self.goal is None else self.goal(log_p)
        if conditioned is not None:
            log_p = torch.log_softmax(conditioned.shifted(), dim=-1)
        p = log_p.exp()
        token, entropy = int(self.noise.sample(self.blocks, 1, shaping.narrowed(p))), float(-(p * log_p).sum())
        count = self.request.logprobs
        likeliest = [] if count is None else logprobs(log_p, [token], count)
        if token in self.request.eos:
            return [Finished("stop", self.blocks, end=likeliest[0] if self.request.read_prompt else ())]
        mass = [] if conditioned is None else conditioned.log_mass([token])
        only = ([token], [entropy], [1], [0])
        block = Block(self.blocks, *only, 1, True, logprobs=likeliest, log_mass=mass, cached=self.cached)
        self.blocks, self.left = self.blocks + 1, self.left - 1
        self.goal = None if self.goal is None else self.goal.after([token])
        if self.left == 0 or (self.goal is not None and self.goal.is_over):
            language = self.request.language
            cut = language is None or language.is_text
            return [block, Finished("length" if cut else "stop", self.blocks - 1)]
        self.commit = torch.tensor([token])
        return [block]
