"""One request from its submission to its last event: everything that the engine keeps of it is here.

    waiting ──► opened (it has a prefix) ──► prompt encoded ──► canvas, step by step ──► block ──► … ──► finished

The scheduler reads a sequence's counts, the runner moves it on, the loop tells what came of that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from redraft.cache import Prefix
from redraft.constraints.condition.projection import Projection
from redraft.diffusion.canvas import Canvas, narrow
from redraft.diffusion.denoise import Policy, Softener, temperature, updated
from redraft.diffusion.denoise import step as denoise_step
from redraft.diffusion.halt import first_end
from redraft.diffusion.noise import Noise, SeededNoise
from redraft.diffusion.presets import narrowest
from redraft.diffusion.seed import seeded
from redraft.diffusion.shaping import forbid
from redraft.diffusion.stats import Stats
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.pace import Timing
from redraft.engine.prefixes import Chain
from redraft.engine.request import Logprobs, ResolvedRequest
from redraft.model.gemma import DiffusionGemma
from redraft.model.rows import SoftTokens
from redraft.shapes import Float, Int, Tensor

WIDTH_STEP = 16
"""Canvases get narrower in steps of this many positions."""


@dataclass(kw_only=True, eq=False)
class Sequence(ABC):
    """State of a request, with a canvas (`CanvasSequence`) or without one (`CausalSequence`, engine/causal.py).

    From its submission:

    number      counts the loop's requests          deliver     takes its events
    drafts      whether Draft events are wanted     began       when it was submitted, by the loop's clock, in seconds
    deadline    when it has to end, by that clock   behind      the sequence with the same prompt whose encoding it
                                                                waits for
    finished    whether it has had its last event   unread      canvas rows in forwards that no token has come of
    starved     whether there was no memory for its last step; it waits until another request ends
    placed      whether its prefix may be one of those that graphs are recorded with
    caller      whose it is; by turns each caller's next one is run
    extra       rows that a step of its constraint takes as long as, about

    Once it is opened:

    left        tokens of the answer still allowed  read        prompt tokens encoded
    blocks      blocks emitted                      goal        what is left of the answer's language
    commit      tokens to encode, of a block that was emitted; None if there are none
    cached      prompt tokens that came from kept prefixes
    soft        soft tokens of the prompt's images that are not encoded yet, by their first token
    """

    request: ResolvedRequest
    number: int = -1
    drafts: bool = True
    deliver: Callable[[Event], None] = lambda _: None  # nobody listens where there is no loop
    began: float = 0.0
    deadline: float | None = None
    behind: Sequence | None = None
    finished: bool = False
    unread: int = 0
    starved: bool = False
    placed: bool = True
    caller: object = None
    extra: int = 0

    opened: bool = False
    read: int = 0
    cached: int = 0
    blocks: int = 0
    commit: Int[Tensor, "rows"] | None = None
    soft: dict[int, Float[Tensor, "tokens hidden"]] = field(default_factory=dict)
    left: int = field(init=False)
    noise: Noise = field(init=False)
    prefix: Prefix = field(init=False)
    prompt: Int[Tensor, "prompt"] = field(init=False)
    chain: Chain = field(init=False)
    goal: Projection | None = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.request.max_tokens

    @property
    def room(self) -> int:
        """Tokens that its prefix has room for: enough for all of it, so that no buffer is copied."""
        return len(self.request.prompt) + self.request.max_tokens + 2 * self.request.width

    def open(self, model: DiffusionGemma, noise: Noise | None = None, prefix: Prefix | None = None) -> None:
        """Make ready for the first forward. `prefix` is an empty one that has room for the whole request."""
        request = self.request
        self.noise = SeededNoise(request.seed) if noise is None else noise
        if prefix is None:
            prefix = Prefix(model.config.layers, room=self.room, dtype=model.dtype, device=model.device)
        self.prefix, self.prompt = prefix, torch.tensor(request.prompt)
        self.chain = Chain(request.prompt, request.images)
        language, kernels = request.language, model.kernels.condition
        self.goal = None if language is None else language.start(request.max_tokens, request.min_tokens, kernels)
        self.opened = True

    def look(self) -> None:
        """Have the images encoded that stand in the part of the prompt which is still to be read."""
        ahead = [image for image in self.request.images if image.run.start >= self.read]
        self.soft = {image.run.start: image.soft() for image in ahead}

    def close(self) -> None:
        """It has had its last event."""
        self.finished, self.behind = True, None
        self.give_back()

    def give_back(self) -> None:
        """Give its memory back; it may be opened again. Its prefix may have a place in graphs, empty from now on."""
        if self.opened:
            self.prefix.restart(0)
        self.opened, self.read, self.cached, self.soft = False, 0, 0, {}
        for name in ("prefix", "prompt", "chain", "noise", "goal", "canvas", "logits", "commit"):
            vars(self).pop(name, None)

    # What the scheduler reads.

    @property
    def prompt_left(self) -> int:
        """Prompt tokens not yet encoded."""
        return len(self.request.prompt) - self.read

    @property
    def prompt_chunk(self) -> int:
        """Tokens of the next prompt chunk, in which every image is whole."""
        cuts = self.request.cuts
        next_cut = bisect_right(cuts, self.read)
        return (cuts[next_cut] if next_cut < len(cuts) else len(self.request.prompt)) - self.read

    @property
    def commit_rows(self) -> int:
        """Rows of the block that waits to be encoded."""
        return 0 if self.commit is None else self.commit.shape[0]

    @property
    def waits(self) -> bool:
        """Whether another encodes its prompt, or there was no memory for it."""
        return self.behind is not None or self.starved

    @property
    def width(self) -> int:
        """Rows of its canvas in the next forward; 0 without one."""
        return 0

    @property
    def step(self) -> int:
        """Denoising steps of its canvas so far."""
        return 0

    # What the runner does with it.

    @property
    def wants_logits(self) -> int:
        """Encoded rows, the last ones, whose logits it needs."""
        return 0

    @abstractmethod
    def advance(self, model: Softener, logits: Float[Tensor, "rows vocab"]) -> list[Event]:
        """One step from the logits of its rows."""

    def to_encode(self, rows: int) -> Int[Tensor, "rows"]:
        """The next `rows` causal tokens: prompt, or the block that waits to be committed."""
        return self.prompt[self.read : self.read + rows] if self.commit is None else self.commit

    def images(self, rows: int) -> tuple[SoftTokens, ...]:
        """The images among the next `rows` causal tokens."""
        starts = [image.run.start for image in self.request.images]
        inside = [start for start in starts if self.read <= start < self.read + rows]
        return tuple(SoftTokens(start - self.read, self.soft[start]) for start in inside)

    def encoded(self, rows: int) -> None:
        """`rows` causal tokens have become prefix."""
        self.read += 0 if self.commit is not None else rows
        self.commit = None
        self.soft = {start: soft for start, soft in self.soft.items() if start >= self.read}

    def cut_short(self) -> list[Event]:
        """What is left to emit at a deadline."""
        return []

    @abstractmethod
    def check(self) -> None:
        """Raise AssertionError if the state contradicts itself."""


@dataclass(kw_only=True, eq=False)
class CanvasSequence(Sequence):
    """A request that is answered by canvases.

    settled_rows    canvas rows of the blocks emitted
    counted     steps of this canvas emitted with earlier blocks, on a canvas that flows
    spent       steps of all canvases
    timing  chooses the rules of a request that has a time to keep
    logits  of the last step, [canvas, vocab], kept for a request that asks for log-probabilities
    """

    canvas: Canvas = field(init=False)
    settled_rows: int = 0
    counted: int = 0
    spent: int = 0
    timing: Timing | None = None
    logits: Float[Tensor, "canvas vocab"] | None = None

    def open(self, model: DiffusionGemma, noise: Noise | None = None, prefix: Prefix | None = None) -> None:
        """Make ready for the first forward, with the first canvas."""
        super().open(model, noise, prefix)
        self.canvas = seeded(self.noise, self.request.width, self.request.vocab, self.request.seed_canvas)

    def keep_time(self, clock: Callable[[], float]) -> None:
        """Choose the rules by the clock, if the request has a time to keep."""
        if (pace := self.request.pace) is not None:
            self.timing = Timing(pace, clock, self.began, pace.first(clock() - self.began))

    @property
    def ends_held_back(self) -> int:
        """Positions at which the answer would be shorter than the request's `min_tokens`."""
        emitted = self.request.max_tokens - self.left
        return max(0, min(self.canvas.width, self.request.min_tokens - emitted))

    def as_read(self, logits: Float[Tensor, "canvas vocab"]) -> Float[Tensor, "canvas vocab"]:
        """The logits as the step reads them, without ends before `min_tokens`; kept if log-probabilities are wanted."""
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
        return self.canvas.width if self.opened else self.request.width

    @property
    def step(self) -> int:
        return self.canvas.step if self.opened else 0

    def advance(self, model: Softener, logits: Float[Tensor, "canvas vocab"]) -> list[Event]:
        """One denoising step from the logits of the canvas."""
        logits = self.as_read(logits)
        return self.stepped(denoise_step(self.canvas, logits, model, self.policy, self.noise, self.goal))

    def advance_from(self, stats: Stats) -> list[Event]:
        """One denoising step from readings that were taken with those of others (engine/reading.py)."""
        return self.stepped(updated(self.canvas, stats, self.request.vocab, self.policy, self.noise))

    def check(self) -> None:
        self.prefix.check()
        assert self.prefix.length - self.read + self.commit_rows == self.settled_rows, "blocks miscounted"
        assert 0 < self.left <= self.request.max_tokens, "limit miscounted"

    def stepped(self, canvas: Canvas) -> list[Event]:
        """The canvas after a step: what to emit, and the next canvas if this one has settled."""
        events: list[Event] = [draft_event(self.blocks, canvas)] if self.drafts else []
        self.canvas, self.spent = canvas, self.spent + 1
        if self.request.end_aware:
            self._drop_tail()
        released = self.policy.plan.released(self.canvas, self._most_steps)
        if released:
            events += self._release(released)
        if self.timing is not None:
            # The draft of a canvas before its first step is noise, and an end token in it says nothing.
            ends = self.canvas.oldest > 0 and first_end(self.canvas.draft, self.request.eos) is not None
            canvases = 1 if ends else -(-self.left // self.request.width)
            self.timing = self.timing.after(self.canvas.oldest, canvases)
        if self.deadline is None:  # a deadline may still read them; of a long vocabulary each takes 268 MB
            self.logits, self.canvas = None, replace(self.canvas, conditioned=None)
        return events

    @property
    def _most_steps(self) -> int:
        """Of this canvas."""
        return self.policy.max_steps if self.spent < self.request.most_steps else 1

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
        """The first `rows` positions are finished: emit them, and let the next canvas follow if one is needed."""
        in_time = self.canvas.settled or self.canvas.oldest < self._most_steps
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
            cached=self.cached,
        )
        return block, end < len(tokens) and kept == end

    def _logprobs(self, tokens: list[int]) -> list[Logprobs]:
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


def logprobs(logits: Float[Tensor, "rows vocab"], tokens: list[int], count: int) -> list[Logprobs]:
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
