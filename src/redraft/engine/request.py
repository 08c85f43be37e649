"""One generation as frozen records: the checked `Request` that options become, and the `Generation` that answers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redraft.constraints.language import Language
from redraft.diffusion.denoise import Policy
from redraft.engine.pace import Pace
from redraft.options import CANVAS_ONLY as CANVAS_ONLY
from redraft.options import MOST_LOGPROBS as MOST_LOGPROBS
from redraft.options import Options as Options
from redraft.options import SeedCanvas

FinishReason = Literal["stop", "length", "deadline", "aborted", "error"]


@dataclass(frozen=True)
class Request:
    """A checked request: every limit resolved, the prompt as token ids. Most fields are those of `Options`.

    `width` is the canvas's in tokens, 0 for a causal answer; if `fitted`, a later canvas is no wider than what is left
    needs. `vocab` is the vocabulary's size, `eos` the end tokens. With a `pace`, `policy` is the one to begin with.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    policy: Policy
    width: int
    vocab: int
    eos: frozenset[int]
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    deadline_sec: float | None = None
    end_aware: bool = False
    fitted: bool = False
    logprobs: int | None = None
    read_prompt: bool = False
    seed_canvas: SeedCanvas | None = None
    pace: Pace | None = None
    language: Language | None = None

    @property
    def causal(self) -> bool:
        """Whether it is answered from left to right, without a canvas."""
        return self.width == 0


@dataclass(frozen=True)
class Generation:
    """A finished answer.

    `tokens` are those of `text`, without the end token; a block that a stop string cuts counts whole. Per token:
    `entropy`, in nats, at the last step of its canvas; `settled_at`, the step since which it has not changed;
    `changes`, how often it changed after the first step; `logprobs`, if asked for, (token id, log-probability) of the
    token and then of the likeliest ones; `log_mass`, with a language, log of the probability that the model gave to all
    that the language allowed there. `prompt_logprobs`, if asked for, are those of the prompt's tokens but the first.
    `steps` are the denoising forwards of each canvas, `commits` the blocks that were encoded for a next one. Times are
    seconds from submission.
    """

    text: str
    tokens: tuple[int, ...]
    entropy: tuple[float, ...]
    settled_at: tuple[int, ...]
    changes: tuple[int, ...]
    finish: FinishReason
    seed: int
    prompt_tokens: int
    steps: tuple[int, ...]
    commits: int
    seconds: float
    first_text_sec: float
    logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    log_mass: tuple[float, ...] = ()
    prompt_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()

    @property
    def tokens_per_forward(self) -> float:
        """`tokens` per denoising forward: no padding, nothing after an end token."""
        return len(self.tokens) / max(1, sum(self.steps))

    @property
    def tokens_per_pass(self) -> float:
        """`tokens` per forward with commits counted, too."""
        return len(self.tokens) / max(1, sum(self.steps) + self.commits)
