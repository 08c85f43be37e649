"""One generation as frozen records.

Request (what a caller asks for) ── Engine.resolve ──► ResolvedRequest (checked; what the loop runs) ──► Generation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from redraft.constraints.checks import Check
from redraft.constraints.language import Language, Source
from redraft.diffusion.denoise import Policy
from redraft.engine.calls import ToolCall
from redraft.engine.pace import Pace
from redraft.engine.prefixes import PREFILL_CHUNK
from redraft.images.prompt import PlacedImage, Prompt, chunk_ends, shortened
from redraft.options import CANVAS_ONLY as CANVAS_ONLY
from redraft.options import MOST_LOGPROBS as MOST_LOGPROBS
from redraft.options import MOST_STEPS_IN_ALL, SeedCanvas
from redraft.options import Options as Options
from redraft.text import Message

FinishReason = Literal["stop", "length", "deadline", "aborted", "error"]

Logprobs = tuple[tuple[int, float], ...]
"""(token id, log-probability) of a token and then of the likeliest ones in its place."""

DEFAULTS = Options()


@dataclass(frozen=True)
class Request:
    """What to answer, how, and under which constraint.

    prompt      a text, which is continued as it stands behind `<bos>`, or with `chat` is one user's turn; a list of
                {"role", "content"} messages, which goes through the chat template; or token ids, used as they are.
                Parts of a user's message may be images: {"type": "image", "image": path, bytes or Pillow image}
    thinking    let the model think before it answers; a constraint holds what stands behind the thinking
    parse_special   special tokens that messages spell become tokens; otherwise they stay text

    At most one of these holds the answer to a language (docs/constraints.md); it is valid then, or an error is raised:

    schema      a JSON Schema as a dict or JSON text, a pydantic class, a dataclass, or fields: 'name, age int'
    regex       a pattern that the whole answer matches     choices     texts of which it is one
    grammar     a grammar whose rule `start` it is of       constraint  one that was prepared: `Engine.language`
    fence       with schema: the JSON may stand in a Markdown code block
    compact     with schema: the JSON has no spaces and no line breaks outside its strings
    any_case    with choices: letters may be small or capital

    check       a function of the answer's text that returns what is wrong with it; that is repaired
    """

    prompt: str | Sequence[Message] | Sequence[int] | Prompt
    options: Options = DEFAULTS
    chat: bool = False
    thinking: bool = False
    parse_special: bool = False
    schema: Any = None
    regex: str | None = None
    choices: Sequence[str] | None = None
    grammar: str | None = None
    constraint: Source | Language | None = None
    fence: bool = False
    compact: bool = False
    any_case: bool = False
    check: Check | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ResolvedRequest:
    """A checked request: every limit resolved, the prompt as token ids. Most fields are those of `Options`.

    `width` is the canvas's in tokens, 0 for a causal answer; if `fitted`, a later canvas is no wider than what is left
    needs. `vocab` is the vocabulary's size, `eos` the end tokens. With a `pace`, `policy` is the one to begin with.
    The loop reads no `check`: it is for `redraft.operations.repair`, whose attempts are not `judged` one by one.
    `images` stand in the prompt, each in place of its placeholders. `work` is what a step
    of the language costs the host, in edges. So many `answers` were asked for at once, which share MOST_STEPS_IN_ALL.
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
    check: Check | None = field(default=None, repr=False)
    judged: bool = True
    images: tuple[PlacedImage, ...] = ()
    work: int = 0
    answers: int = 1

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Where the prompt is cut into chunks, whatever follows it (`images/prompt.py`)."""
        return chunk_ends(len(self.prompt), PREFILL_CHUNK, [image.run for image in self.images])

    @property
    def shown_prompt(self) -> list[int]:
        """The prompt with one placeholder for each image, for people."""
        return shortened(self.prompt, self.images)

    def shares_prompt(self, other: ResolvedRequest) -> bool:
        """Whether both have the same tokens and pixels to encode."""
        return self.prompt == other.prompt and self.images == other.images

    @property
    def most_steps(self) -> int:
        """Steps in all behind which each further canvas has one: an equal share, or the usual ones of each canvas, as
        far as one answer alone may have them."""
        usual = Policy.max_steps * -(-self.max_tokens // max(1, self.width))
        return max(MOST_STEPS_IN_ALL // self.answers, min(MOST_STEPS_IN_ALL, usual))

    @property
    def causal(self) -> bool:
        """Whether it is answered from left to right, without a canvas."""
        return self.width == 0

    @property
    def needs_repair(self) -> bool:
        """Whether a validator has to read the answer before anything of it is shown."""
        return self.judged and (self.check is not None or (self.language is not None and self.language.checked))

    @property
    def is_validated(self) -> bool:
        """Whether a validator reads the whole answer at its end."""
        return self.judged and self.language is not None and self.language.is_validated


@dataclass(frozen=True)
class Generation:
    """A finished answer.

    `text` is the content alone; `reasoning` is what was thought and `calls` the tools called, where a checkpoint marks
    these. `tokens` are all tokens but the end token, the content's from `begins` on; a block that a stop string cuts
    counts whole. Per token:
    `entropy`, in nats, at the last step of its canvas; `settled_at`, the step since which it has not changed;
    `changes`, how often it changed after the first step; `logprobs`, if asked for, (token id, log-probability) of the
    token and then of the likeliest ones; `log_mass`, with a language, log of the probability that the model gave to all
    that the language allowed there. `prompt_logprobs`, if asked for, are those of the prompt's tokens but the first,
    `content_logprobs` those of the tokens of `text`.
    `constraint` says how a language was held: `exact` by the projection alone, `checked` by a validator, too, `guided`
    from left to right; `ignored` are the keywords of its schema that its draft does not define, as JSON pointers.
    `steps` are the denoising forwards of each canvas, `commits` the blocks that were encoded for a next one;
    `guesses` are the pointers of values that are a guess, of what was extracted and read back (`second_opinion`); None
    of anything else. `cached_tokens` of the prompt came from kept prefixes. Times are seconds from submission.
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
    logprobs: tuple[Logprobs, ...] = ()
    log_mass: tuple[float, ...] = ()
    prompt_logprobs: tuple[Logprobs, ...] = ()
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    begins: int = 0
    reasoning_tokens: int = 0
    content_logprobs: tuple[Logprobs, ...] = ()
    constraint: str | None = None
    ignored: tuple[str, ...] = ()
    guesses: tuple[str, ...] | None = None
    cached_tokens: int = field(default=0, compare=False)

    def __repr__(self) -> str:
        return f"Generation({self.text!r:.300}, {len(self.tokens)} tokens, finish={self.finish!r}, seed={self.seed})"

    @property
    def tokens_per_forward(self) -> float:
        """`tokens` per denoising forward: no padding, nothing after an end token."""
        return len(self.tokens) / max(1, sum(self.steps))

    @property
    def tokens_per_pass(self) -> float:
        """`tokens` per forward with commits counted, too."""
        return len(self.tokens) / max(1, sum(self.steps) + self.commits)
