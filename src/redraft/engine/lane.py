"""One running request: its prefix, its canvas, and what is left to do. The runner owns lanes and nobody else does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from redraft.cache import Prefix
from redraft.constraints.condition.projection import Projection
from redraft.diffusion.canvas import Canvas, narrow
from redraft.diffusion.denoise import Policy, Softener, step, temperature, updated
from redraft.diffusion.halt import first_end
from redraft.diffusion.noise import Noise
from redraft.diffusion.presets import narrowest
from redraft.diffusion.seed import seeded
from redraft.diffusion.shaping import forbid
from redraft.diffusion.stats import Stats
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.pace import Timing
from redraft.engine.request import Request
from redraft.model.gemma import DiffusionGemma
from redraft.shapes import Float, Int, Tensor

WIDTH_STEP = 16
"""Canvases get narrower in steps of this many positions."""


@dataclass(kw_only=True)
class AnyLane:
    """What a lane has with a canvas (`Lane`) and without one (`CausalLane`, engine/causal.py).

    left    tokens of the answer still allowed      read    prompt tokens encoded
    commit  tokens to encode, of a block that has been told; None if there are none
    blocks  blocks told                             goal    what is left of the answer's language
    """

    request: Request
    noise: Noise
    prefix: Prefix
    prompt: Int[Tensor, "prompt"]
    left: int
    goal: Projection | None
    read: int = 0
    commit: Int[Tensor, "rows"] | None = None
    blocks: int = 0

    @property
    def waiting(self) -> int:
        """Rows of the block that waits to be committed."""
        return 0 if self.commit is None else self.commit.shape[0]

    def to_encode(self, rows: int) -> Int[Tensor, "rows"]:
        """The next `rows` causal tokens: prompt, or the block that waits to be committed."""
        return self.prompt[self.read : self.read + rows] if self.commit is None else self.commit

    def encoded(self, rows: int) -> None:
        """`rows` causal tokens have become prefix."""
        self.read += 0 if self.commit is not None else rows
        self.commit = None


@dataclass(kw_only=True)
class Lane(AnyLane):
    """State of one request between two forwards.

    settled_rows    canvas rows of the blocks told          drafts  whether Draft events are wanted
    counted     steps of this canvas told with earlier blocks, on a canvas that flows
    timing  chooses the rules of a request that has a time to keep
    logits  of the last step, [canvas, vocab], kept for a request that asks for log-probabilities
    """

    canvas: Canvas
    drafts: bool
    settled_rows: int = 0
    counted: int = 0
    timing: Timing | None = None
    logits: Float[Tensor, "canvas vocab"] | None = None

    @property
    def wants_logits(self) -> int:
        """Encoded rows whose logits are needed: none."""
        return 0

    @property
    def ends_held_back(self) -> int:
        """Positions at which the answer would be shorter than the request's `min_tokens`."""
        told = self.request.max_tokens - self.left
        return max(0, min(self.canvas.width, self.request.min_tokens - told))

    def hold_back_end(self, logits: Float[Tensor, "canvas vocab"]) -> Float[Tensor, "canvas vocab"]:
        """Forbid end tokens where the answer would be shorter than the request's `min_tokens`."""
        early = self.ends_held_back
        if early > 0:
            forbid(logits[:early], self.request.eos)
        self.logits = logits if self.request.logprobs is not None else None
        return logits

    @property
    def policy(self) -> Policy:
        """The rules of the next step."""
        return self.request.policy if self.timing is None else self.timing.policy

    @property
    def width(self) -> int:
        """Rows of the canvas in the next forward."""
        return self.canvas.width

    def advance(self, model: Softener, logits: Float[Tensor, "canvas vocab"]) -> list[Event]:
        """One denoising step from the logits of the canvas."""
        return self.stepped(step(self.canvas, self.hold_back_end(logits), model, self.policy, self.noise, self.goal))

    def advance_from(self, stats: Stats) -> list[Event]:
        """One denoising step from readings that were taken with those of others (engine/stream.py)."""
        return self.stepped(updated(self.canvas, stats, self.request.vocab, self.policy, self.noise))

    def check(self) -> None:
        """Raise AssertionError if the lane contradicts itself."""
        self.prefix.check()
        assert self.prefix.length - self.read + self.waiting == self.settled_rows, "blocks miscounted"
        assert 0 < self.left <= self.request.max_tokens, "limit miscounted"

    def stepped(self, canvas: Canvas) -> list[Event]:
        """The canvas after a step: what to tell, and the next canvas if this one has settled."""
        events: list[Event] = [draft_event(self.blocks, canvas)] if self.drafts else []
        self.canvas = canvas
        if self.request.end_aware:
            self._drop_tail()
        released = self.policy.plan.released(self.canvas, self.policy.max_steps)
        if released:
            events += self._release(released)
        if self.timing is not None:
            # The draft of a canvas before its first step is noise, and an end token in it says nothing.
            ends = self.canvas.oldest > 0 and first_end(self.canvas.draft, self.request.eos) is not None
            canvases = 1 if ends else -(-self.left // self.request.width)
            self.timing = self.timing.after(self.canvas.oldest, canvases)
        return events

    def _drop_tail(self) -> None:
        """Stop computing what stands behind an end token that has stood for a step; one position behind it stays."""
        end = first_end(self.canvas.draft, self.request.eos)
        if end is not None and not self.canvas.changed[end]:
            self.canvas = narrow(self.canvas, -(-(end + 2) // WIDTH_STEP) * WIDTH_STEP)

    def cut_short(self) -> list[Event]:
        """The current draft as the last block, for a deadline."""
        if self.canvas.step == 0:
            return []
        if self.goal is not None:
            # A valid answer or none: the draft if it ends, or else the likeliest of those that end here.
            conditioned = self.canvas.conditioned
            ends = first_end(self.canvas.draft, self.request.eos) is not None
            whole = None if conditioned is None else self.canvas.draft if ends else conditioned.finished()
            if whole is None:
                return []
            self.canvas = replace(self.canvas, draft=whole.cpu())
        # What has just come to a canvas that flows is still noise.
        rows = self.canvas.width if self.canvas.age is None else int((self.canvas.age > 0).sum())
        return [self._block(rows, settled=False)[0]] if rows else []

    def _release(self, rows: int) -> list[Event]:
        """The first `rows` positions are finished: tell them, and let the next canvas follow if one is needed."""
        in_time = self.canvas.settled or self.canvas.oldest < self.policy.max_steps
        block, ended = self._block(rows, settled=in_time)
        self.left -= len(block.tokens)
        if self.goal is not None and (language := self.request.language) is not None:
            self.goal = self.goal.after(block.tokens)
            # Where there is no room, a text ends because it has to.
            ended = self.left > 0 and ended if language.is_text else ended or self.left == 0 or self.goal.is_over
        if ended or self.left == 0:
            return [block, Finished("stop" if ended else "length", commits=self.blocks)]
        self.commit = self.canvas.draft[:rows]
        self.settled_rows += rows
        self.blocks += 1
        width, vocab = self._width_behind(rows), self.request.vocab
        self.canvas = self.policy.plan.following(self.canvas, rows, width, self.noise, vocab)
        self.logits = None if self.logits is None else self.logits[rows:]
        self.counted = self.canvas.step
        return [block]

    def _width_behind(self, rows: int) -> int:
        """Width of the canvas when its first `rows` positions have left: nothing is begun behind a drafted end, nor
        beyond the last whole canvas that the limit allows."""
        kept = self.canvas.draft[rows:]
        if first_end(kept, self.request.eos) is not None:
            return max(1, kept.shape[0])
        whole = -(-self.request.max_tokens // self.request.width) * self.request.width
        room = min(self.request.width, whole - self.settled_rows)
        return narrowest(self.left, room) if self.request.fitted else room

    def _block(self, rows: int, *, settled: bool) -> tuple[Block, bool]:
        """The first `rows` of the draft, cut at the end token and the limit, and whether it is the end that cut it."""
        assert self.canvas.entropy is not None
        tokens = self.canvas.draft[:rows].tolist()
        end = next((i for i, token in enumerate(tokens) if token in self.request.eos), len(tokens))
        kept = min(end, self.left)
        age = self.canvas.age
        block = Block(
            block=self.blocks,
            tokens=tokens[:kept],
            entropy=self.canvas.entropy[:kept].tolist(),
            settled_at=self.canvas.settled_at[:kept].tolist(),
            changes=self.canvas.changes[:kept].tolist(),
            steps=self.canvas.step - self.counted,
            settled=settled,
            logprobs=self._logprobs(tokens[:kept]),
            rows=kept * self.canvas.step if age is None else int(age[:kept].sum()),
            log_mass=[] if self.canvas.conditioned is None else self.canvas.conditioned.log_mass(tokens[:kept]),
        )
        return block, end < len(tokens) and kept == end

    def _logprobs(self, tokens: list[int]) -> list[tuple[tuple[int, float], ...]]:
        """Log-probabilities of the first positions, in the distribution that the last step read."""
        if self.logits is None or self.request.logprobs is None:
            return []
        policy, canvas = self.policy, self.canvas
        if canvas.conditioned is not None:
            return logprobs(canvas.conditioned.shifted(), tokens, self.request.logprobs)
        cooled = temperature(policy, canvas.step if canvas.age is None else canvas.age)
        read = policy.shaping.biased(self.logits)[: canvas.width]
        # What has come to a canvas that has slid has no logits yet.
        cooled = cooled if isinstance(cooled, float) else cooled[: len(read)].to(read.device)
        return logprobs(read / cooled, tokens, self.request.logprobs)


def room_of(request: Request) -> int:
    """Tokens that the prefix of a request has room for: enough for all of it, so that no buffer is copied."""
    return len(request.prompt) + request.max_tokens + 2 * request.width


def open_lane(
    model: DiffusionGemma, request: Request, noise: Noise, *, drafts: bool, prefix: Prefix | None = None
) -> Lane:
    """A lane before its first forward. `prefix` is an empty one that has room for the whole request."""
    if prefix is None:
        prefix = Prefix(model.config.layers, room=room_of(request), dtype=model.dtype, device=model.device)
    return Lane(
        request=request,
        noise=noise,
        prefix=prefix,
        prompt=torch.tensor(request.prompt),
        canvas=seeded(noise, request.width, request.vocab, request.seed_canvas),
        left=request.max_tokens,
        drafts=drafts,
        goal=goal_of(model, request),
    )


def goal_of(model: DiffusionGemma, request: Request) -> Projection | None:
    """The whole of the language that an answer is held to, if it is."""
    language, holding = request.language, model.kernels.holding
    return None if language is None else language.start(request.max_tokens, request.min_tokens, holding)


def logprobs(logits: Float[Tensor, "rows vocab"], tokens: list[int], count: int) -> list[tuple[tuple[int, float], ...]]:
    """(token, log-probability) of each token and then of the `count` likeliest, of the first `len(tokens)` rows."""
    log_p = torch.log_softmax(logits[: len(tokens)].float(), dim=-1)
    own = log_p[torch.arange(len(tokens)), tokens].tolist()
    values, ids = log_p.topk(min(count, log_p.shape[-1]))
    likeliest = [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
    return [((token, value), *rest) for token, value, rest in zip(tokens, own, likeliest, strict=True)]


def draft_event(block: int, canvas: Canvas) -> Draft:
    """A canvas after a step as an event."""
    assert canvas.accepted is not None
    assert canvas.entropy is not None
    accepted, entropy = canvas.accepted.tolist(), canvas.entropy.tolist()
    forced = [] if canvas.conditioned is None else canvas.conditioned.forced()
    return Draft(block, canvas.step, canvas.draft.tolist(), canvas.changed.tolist(), accepted, entropy, forced)
