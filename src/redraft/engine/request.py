"""What one generation is asked to do, and what came of it. Both are frozen records."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Literal

from redraft.config import CheckpointConfig
from redraft.diffusion.accept import EntropyBound
from redraft.diffusion.denoise import Policy, reference_policy
from redraft.errors import RequestError

FinishReason = Literal["stop", "length", "deadline", "aborted", "error"]
PRESETS = ("reference",)
MOST_STEPS = 10_000
"""A canvas that has not settled by then never will, and nobody would wait for more."""


@dataclass(frozen=True)
class Options:
    """What a caller may choose. None means the checkpoint's own value (`generation_config.json`).

    max_tokens      most tokens to return; never exceeded
    seed            of all noise; None draws one, and the result names it
    steps           cap on denoising steps of a canvas; with the reference's schedule it also sets the cooling
    entropy_bound   nats that one step may spend on accepted positions, for the whole canvas
    preset          sampler rules; "reference" are transformers'
    stop            texts that end the answer; they are not part of it
    min_tokens      no end token before this many; cures the empty answers that terse prompts get
    deadline_sec    seconds from submission after which the best canvas so far is the answer
    """

    max_tokens: int | None = None
    seed: int | None = None
    steps: int | None = None
    entropy_bound: float | None = None
    preset: str = "reference"
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    deadline_sec: float | None = None


@dataclass(frozen=True)
class Request:
    """A checked request: every limit resolved, the prompt as tokens."""

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


@dataclass(frozen=True)
class Generation:
    """A finished answer.

    `tokens` are what `text` was read from. Per token: `entropy`, in nats, at the last step of its canvas;
    `settled_at`, the step since which it reads so; `changes`, how often its reading changed after the first step.
    `steps` counts the denoising forwards of each canvas, `commits` the blocks that were encoded for a next one. Times
    are seconds from submission.
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

    @property
    def tokens_per_forward(self) -> float:
        """Useful tokens per denoising forward: no padding, nothing after the end."""
        return len(self.tokens) / max(1, sum(self.steps))

    @property
    def tokens_per_pass(self) -> float:
        """The same with the commits counted."""
        return len(self.tokens) / max(1, sum(self.steps) + self.commits)


def build_request(prompt: list[int], options: Options, config: CheckpointConfig) -> Request:
    """Check options against each other and the model. Raises RequestError naming the part, the value and the remedy."""
    model, shipped = config.model, config.generation
    max_tokens = shipped.max_new_tokens if options.max_tokens is None else options.max_tokens
    if max_tokens < 1:
        raise RequestError(f"max_tokens is {max_tokens}; it must be at least 1")
    if not 0 <= options.min_tokens <= max_tokens:
        raise RequestError(f"min_tokens is {options.min_tokens}; it must be from 0 to max_tokens ({max_tokens})")
    if options.deadline_sec is not None and not options.deadline_sec > 0:
        raise RequestError(f"deadline_sec is {options.deadline_sec}; it must be above 0 (seconds)")
    if not prompt:
        raise RequestError("the prompt is empty; pass some text")
    blocks = -(-max_tokens // model.canvas_length)
    needed = len(prompt) + blocks * model.canvas_length
    if needed > model.max_positions:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens and the answer's canvases {blocks * model.canvas_length}; the "
            f"model's context is {model.max_positions}: shorten the prompt or lower max_tokens ({max_tokens})"
        )
    worst = max(prompt)
    if worst >= model.vocab_size or min(prompt) < 0:
        raise RequestError(f"the prompt holds token id {worst}; the vocabulary ends at {model.vocab_size - 1}")
    return Request(
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        seed=secrets.randbits(32) if options.seed is None else options.seed,
        policy=_policy(options, config),
        width=model.canvas_length,
        vocab=model.vocab_size,
        eos=frozenset(shipped.eos_token_ids),
        stop=options.stop,
        min_tokens=options.min_tokens,
        deadline_sec=options.deadline_sec,
    )


def _policy(options: Options, config: CheckpointConfig) -> Policy:
    if options.preset not in PRESETS:
        raise RequestError(f"preset is {options.preset!r}; known: {', '.join(PRESETS)}")
    policy = reference_policy(config.generation)
    if options.steps is not None:
        if not 1 <= options.steps <= MOST_STEPS:
            raise RequestError(f"steps is {options.steps}; it must be from 1 to {MOST_STEPS}")
        policy = replace(policy, max_steps=options.steps)
    if options.entropy_bound is not None:
        policy = replace(policy, accept=EntropyBound(options.entropy_bound))
    return policy
