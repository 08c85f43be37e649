"""One generation as frozen records: `Options` as a caller gives them, the checked `Request`, the `Generation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redraft.constraints.language import Language
from redraft.diffusion.denoise import Policy
from redraft.diffusion.seed import SeedCanvas
from redraft.engine.pace import Pace

FinishReason = Literal["stop", "length", "deadline", "aborted", "error"]

MOST_LOGPROBS = 20
"""Most alternatives per position; OpenAI's clients ask for no more."""


@dataclass(frozen=True)
class Options:
    """What a caller may choose. None means the checkpoint's own value (`generation_config.json`).

    max_tokens      most tokens to return; never exceeded
    seed            of all noise; None draws one, and the result names it
    steps           cap on denoising steps of a canvas; with the reference's schedule it also sets the cooling
    entropy_bound   nats that one step may spend on accepted positions, for the whole canvas
    accept          acceptance rules in words instead of the preset's, as "confidence:0.9" (diffusion/rules.py); what
                    any of them keeps is kept
    cooling         steps over which the temperature falls whatever the cap; None: over the cap, as the reference does
    preset          sampler rules by name (diffusion/presets.py); "reference" are transformers'
    effort          from 0 to 1, instead of a preset: a setting of the checkpoint's own measured table (engine/dial.py)
    target_ms       milliseconds from submission that the answer should take: the setting is chosen anew after every
                    step, from `effort` (or 1) down to `min_effort`, which is kept even if the target is missed
    stop            texts that end the answer; they are not part of it
    min_tokens      no end token before this many; cures the empty answers that terse prompts get
    deadline_sec    seconds from submission after which the best canvas so far is the answer
    causal          answer from left to right in the causal mode of the same weights, one token per forward
    canvas          width of the canvases, in tokens; narrower ones cost less per step. None leaves it to the preset:
                    the checkpoint's for "reference", else the narrowest of 16, 32, 64, 128, 256 that holds max_tokens
    end_aware       once the draft has an end token, positions behind it neither count for halting nor, when it has
                    stood for a step, are computed. None leaves it to the preset: all but "reference" do so
    logprobs        also tell the log-probability of each token of the answer and of this many of the likeliest tokens
                    in its place, in the distribution that the last step of its canvas read; at most MOST_LOGPROBS
    read_prompt     with causal and logprobs: also tell those of the prompt's tokens; max_tokens may then be 0
    seed_canvas     what the first canvas begins with: pinned tokens, which stay, and given ones (diffusion/seed.py). No
                    answer ends in front of a pin
    draw            with a constraint: a canvas becomes one of its valid texts, drawn in proportion to the probability
                    that the last step gave it, instead of the likeliest; what a deadline cuts short stays the likeliest

    What ordinary clients send means here (docs/denoising.md, "Sampling parameters"):

    temperature     factor on the schedule; 1 is the schedule itself. At 0 the schedule stays and the likeliest token is
                    sampled everywhere
    top_k, top_p    limits on the sample alone; the answer is read off the whole distribution
    logit_bias      (token id, nats), added at every position and step before anything is read
    bad_words       token sequences that must not be said; only single tokens can be forbidden
    repetition_penalty, presence_penalty, frequency_penalty     refused unless neutral: nothing on a canvas is said
                    before anything else
    """

    max_tokens: int | None = None
    seed: int | None = None
    steps: int | None = None
    entropy_bound: float | None = None
    accept: tuple[str, ...] = ()
    cooling: int | None = None
    preset: str = "reference"
    effort: float | None = None
    min_effort: float = 0.0
    target_ms: float | None = None
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    deadline_sec: float | None = None
    causal: bool = False
    canvas: int | None = None
    end_aware: bool | None = None
    logprobs: int | None = None
    read_prompt: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed_canvas: SeedCanvas | None = None
    draw: bool = False


CANVAS_ONLY = (
    *("seed_canvas", "preset", "accept", "entropy_bound", "canvas", "end_aware"),
    *("effort", "min_effort", "target_ms", "draw"),
)
"""Options that a causal answer cannot honour."""


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
