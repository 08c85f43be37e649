"""Edits: a span of a text is revised, everything else stays as it is, byte for byte.

The canvas starts as the span's own tokens, each replaced by noise with probability `strength`, at the temperature that
the schedule would have reached with that much noise left: SDEdit (Meng et al., arXiv 2108.01073) for tokens. The first
step has no soft embedding, so the model reads the canvas as it is. The sampler does not remember what a canvas began
with, so everything outside the span is pinned or in the prompt, never merely given.

A span longer than a canvas is revised in pieces from left to right. Each piece has the revised pieces before it and the
unrevised ones behind it.

What is rewritten by an instruction has no width (`edit_instruction`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from redraft.constraints.compile.verbatim import as_text
from redraft.constraints.language import Language
from redraft.diffusion.noise import philox
from redraft.diffusion.schedule import LateStart
from redraft.diffusion.seed import LEAST_STEPS
from redraft.engine.engine import Core
from redraft.engine.request import DEFAULTS, FinishReason, Generation, Options, Request, ResolvedRequest
from redraft.errors import RequestError
from redraft.operations.edit_instruction import Revision, in_lines, lines_alone, rewritten, tokens_before
from redraft.operations.gap import GapContext, compete_widths, readable, refuse_decided, seeded, shared_time
from redraft.operations.gap_constraint import GapConstraint, span_language, spelt
from redraft.operations.infill import ANYTHING, UNREADABLE
from redraft.operations.variants import mean

KEEP = 2  # widths that go on after the judgement
MOST_SLACK = 16  # tokens that a revised span may be shorter or longer
ROOM = 48
"""Tokens by which a rewritten span may grow if nothing else is said."""
_REPLACES = 1  # last word of the counter: draws that no canvas makes


@dataclass(frozen=True)
class Edit:
    """A revised text. `data` is the whole of it as bytes; `before` and `after` are the span's text then and now.
    `finish` is "deadline" where the time was up before every canvas had settled: `after` is then a draft. `left_out`
    are keys that the instruction speaks of and that stayed as they were, and in quotes the parts of it of which nothing
    was made; `guesses` are keys of a record that a model changed by an instruction that does not say so for certain."""

    data: bytes
    before: str
    after: str
    canvases: int
    forwards: int
    seed: int
    finish: FinishReason = "stop"
    left_out: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole text. Raises UnicodeDecodeError if the caller's own bytes are no UTF-8."""
        return self.data.decode("utf-8")


def edit(
    engine: Core,
    text: str | bytes,
    span: tuple[int, int],
    *,
    strength: float | None = None,
    instruction: str | None = None,
    slack: int | None = None,
    room: int = ROOM,
    constraint: GapConstraint = ANYTHING,
    seed: int | None = None,
    options: Options = DEFAULTS,
) -> Edit:
    """Revise `text[a:b]`, characters of a str or bytes of bytes.

    `strength`, above 0 and at most 1, is the share of the span's tokens that start as noise: 0.3 polishes, 1 rewrites;
    by default 0.5, and 1 with an `instruction`. The revised span has as many tokens as before, or up to `slack` fewer
    or more, and satisfies the `constraint`, to which a span longer than one canvas cannot be held. With an
    `instruction` the model is shown it and the whole text as a user's turn (nano, which knows one record at a time, of
    the span's lines of keys and values their members as one; other lines are refused, and members stay where the
    instruction does not speak of them, or outside the span), and the text stands in its answer; at strength 1, without
    slack and constraint, the span is then as long as it gets, up to `room` tokens longer, if it and all behind it have
    room in one canvas.
    Raises RequestError for a span that is empty, outside the text or cuts a character, and for options that an edit
    decides by itself; ConstraintError if no text of such a length satisfies the constraint; DeadlineError if the time
    was up before anything was drafted.
    """
    refuse_decided(options, "edit")
    if instruction is not None and not as_text(instruction, "instruction").strip():
        raise RequestError("instruction is empty; say what to change, or leave it out")
    strength = (0.5 if instruction is None else 1.0) if strength is None else strength
    _check(text, span, strength, 0 if slack is None else slack)
    if instruction is not None and engine.by_fields:  # the end of its last line is none of a record's
        inside = text[span[0] : span[1]]
        kept = len(inside.rstrip("\r\n") if isinstance(inside, str) else inside.rstrip(b"\r\n"))
        span = span[0], span[0] + kept if kept else span[1]
    parts = text[: span[0]], text[span[0] : span[1]], text[span[1] :]
    shown = [
        readable(parts[0], "text before the span", cut_at_end=True),
        readable(parts[1], "span", cut_at_end=True),
        readable(parts[2], "text behind the span", cut_at_end=False),
    ]
    options = seeded(options, seed)
    free = instruction is not None and strength == 1 and slack is None and not constraint
    left, made = shared_time(options), None
    if instruction is not None and engine.by_fields:
        _check_options(engine, options, free=free)
        made = in_lines(engine, shown, instruction, room, left) if free else None
        shown = lines_alone(shown)
    if made is None:
        before = tokens_before(engine, shown, instruction)
        made = rewritten(engine, before, shown, room, left) if free else None
        made = made or _revised(engine, before, shown, strength, slack or 0, constraint, left)
    outside = [part.encode() if isinstance(part, str) else part for part in (parts[0], parts[2])]
    assert options.seed is not None
    data = outside[0] + made.text.encode() + outside[1]
    finish: FinishReason = "deadline" if made.is_cut else "stop"
    return Edit(
        data, shown[1], made.text, made.canvases, made.forwards, options.seed, finish, made.left_out, made.guesses
    )


def _check(text: str | bytes, span: tuple[int, int], strength: float, slack: int) -> None:
    unit = "characters" if isinstance(text, str) else "bytes"
    if len(span) != 2 or any(type(end) is not int for end in span) or not 0 <= span[0] <= span[1] <= len(text):
        raise RequestError(f"the span is {span!r:.80}; it must be two places of the text, which has {len(text)} {unit}")
    if span[0] == span[1]:
        raise RequestError(f"the span {span[0]} to {span[1]} is empty; use infill to put something there")
    if not 0 < strength <= 1:
        raise RequestError(f"strength is {strength}; it must be above 0 (nothing would change) and at most 1")
    if type(slack) is not int or not 0 <= slack <= MOST_SLACK:
        raise RequestError(f"slack is {slack!r:.80}; it must be an integer from 0 to {MOST_SLACK} tokens")


def _check_options(engine: Core, options: Options, *, free: bool) -> None:
    """Refuse, whatever an instruction says, options that are wrong, or that no clause is carried out by."""
    biased = any(nats for _, nats in options.logit_bias)
    for name, asks in (("bad_words", options.bad_words), ("logit_bias", biased), ("draw", options.draw)):
        if free and asks:
            raise RequestError(f"{name} was given with an instruction, whose words this model writes; leave it out")
    # The constraint is not here: whether there is one to draw of is seen later.
    engine.resolve(Request([0], replace(options, max_tokens=1, min_tokens=0, draw=False)))


def _pieces(source: list[int], canvas_length: int) -> list[list[int]]:
    """The span cut into pieces as equal as possible, each leaving a quarter of the canvas for the text behind it."""
    room = max(1, canvas_length * 3 // 4)
    count = max(1, -(-len(source) // room))
    ends = [len(source) * i // count for i in range(count + 1)]
    return [source[low:high] for low, high in itertools.pairwise(ends)]


def _revised(
    engine: Core,
    before: Sequence[int],
    shown: Sequence[str],
    strength: float,
    slack: int,
    constraint: GapConstraint,
    left: Callable[[], Options],
) -> Revision:
    """The span revised in pieces."""
    source, behind = (engine.text.encode(part, bos=False) for part in (shown[1], shown[2][: engine.text.reach]))
    pieces = _pieces(source, engine.config.model.canvas_length - slack)
    if constraint and len(pieces) > 1:
        raise RequestError(
            f"the span takes {len(pieces)} canvases; only one canvas can be held to something: shorten it"
        )
    language = span_language(constraint, engine.vocabulary) if constraint else None
    revised, forwards, is_cut = list[int](), 0, False
    for i, piece in enumerate(pieces):
        ahead = [token for other in pieces[i + 1 :] for token in other]
        around = GapContext((*before, *revised), (*ahead, *behind))
        most = slack if i == len(pieces) - 1 else 0
        width, done = _revise(engine, around, piece, i, strength, most, language, left())
        revised += done.tokens[:width]
        forwards, is_cut = forwards + sum(done.steps), is_cut or done.finish == "deadline"
    decoded = engine.text.decode(revised) if language is None else spelt(engine.vocabulary, revised).decode()
    return Revision(decoded.replace(UNREADABLE, ""), len(pieces), forwards, is_cut)


def _revise(
    engine: Core,
    around: GapContext,
    piece: list[int],
    block: int,
    strength: float,
    slack: int,
    language: Language | None,
    options: Options,
) -> tuple[int, Generation]:
    """One piece revised: its width and its answer. Widths up to `slack` off its own compete."""
    assert options.seed is not None
    widths = [width for width in range(len(piece) - slack, len(piece) + slack + 1) if width > 0]
    widths.sort(key=lambda width: abs(width - len(piece)))  # among equals the source's own length wins
    seed = options.seed

    def asked(width: int) -> ResolvedRequest:
        shown = renoised(fitted(piece, width), seed, block, strength)
        return _late(around.seeded(shown, options, engine, language), strength)

    found = compete_widths(engine, widths, asked, lambda width, entropy: mean(entropy[:width]), KEEP)
    width, best = min(found, key=lambda each: (each[1].doubt, each[1].place))
    best.handle.won()
    return width, best.done


def fitted(piece: Sequence[int], width: int) -> list[int | None]:
    """The source in another width: its first half from the left, its second half from the right, noise between."""
    left = min(len(piece), width) // 2
    right = min(len(piece), width) - left
    middle: list[int | None] = [None] * (width - left - right)
    return [*piece[:left], *middle, *piece[len(piece) - right :]]


def renoised(tokens: list[int | None], seed: int, block: int, strength: float) -> tuple[int | None, ...]:
    """Each token replaced by noise with probability `strength`, drawn from (seed, piece, position)."""
    counters = np.zeros((len(tokens), 4), dtype=np.uint64)
    counters[:, 0], counters[:, 2], counters[:, 3] = np.arange(len(tokens)), block, _REPLACES
    uniform = philox(seed, counters)[0] / 2**32
    return tuple(None if drawn < strength else token for token, drawn in zip(tokens, uniform, strict=True))


def _late(request: ResolvedRequest, strength: float) -> ResolvedRequest:
    """The request begun late in its schedule, by the steps that the noise left out would have taken."""
    total = request.policy.max_steps
    skipped = min(round((1 - strength) * total), max(0, total - LEAST_STEPS))
    policy = replace(request.policy, schedule=LateStart(request.policy.schedule, skipped), max_steps=total - skipped)
    return replace(request, policy=policy)
