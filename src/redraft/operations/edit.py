"""Edits: a span of a text is revised, everything else stays as it is, byte for byte.

The canvas starts as the span's own tokens, each replaced by noise with probability `strength`, at the temperature that
the schedule would have reached with that much noise left: SDEdit (Meng et al., arXiv 2108.01073) for tokens. The first
step has no soft embedding, so the model reads the canvas as it is. The sampler does not remember what a canvas began
with, so everything outside the span is pinned or in the prompt, never merely given.

A span longer than a canvas is revised in pieces from left to right. Each piece has the revised pieces before it and the
unrevised ones behind it.

What is rewritten by an instruction has no width: "remove the price" is shorter, "add a city" longer. So its answer is
held to a language, any text and then what stands behind the span, and the projection weighs all widths at once. That
language is kept nowhere: the next text has another.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from redraft import prompts
from redraft.constraints.compile.automaton import Compiled
from redraft.constraints.compile.builder import Builder
from redraft.constraints.compile.limits import PREPARING, CompileLimits
from redraft.constraints.compile.values import text_of
from redraft.constraints.language import Language, Source, ready
from redraft.diffusion.noise import philox
from redraft.diffusion.schedule import LateStart
from redraft.diffusion.seed import LEAST_STEPS
from redraft.engine.engine import Core
from redraft.engine.request import DEFAULTS, FinishReason, Generation, Options, Request, ResolvedRequest
from redraft.errors import ConstraintError, DeadlineError, RequestError
from redraft.operations.edit_language import edited
from redraft.operations.edit_record import MOST_MEMBERS, Record, record_of, turns_of
from redraft.operations.formats import is_of, judge_of
from redraft.operations.gap import WIDTH_STEP, GapContext, compete_widths, readable, refuse_decided, seeded, shared_time
from redraft.operations.gap_constraint import GapConstraint, span_language, spelt
from redraft.operations.infill import ANYTHING, UNREADABLE
from redraft.operations.read_back import second_opinion
from redraft.operations.variants import mean

KEEP = 2  # widths that go on after the judgement
MOST_SLACK = 16  # tokens that a revised span may be shorter or longer
ROOM = 48
"""Tokens by which a rewritten span may grow if nothing else is said."""
MARK = "\ufeff"  # of byte order, in front of a file
NO_RECORD = (
    "the lines are no keys and values, nor one record, which is all that this model can edit by an instruction;"
    " give one line or record of it, as FILE:8, or load a larger model"
)
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
    whole lines of keys and values their members as one; other whole lines are refused, and members stay where the
    instruction does not speak of them), and the text stands in its answer; at strength 1, without slack and constraint,
    the span is then as long as it gets, up to `room` tokens longer, if it and all behind it have room in one canvas.
    Raises RequestError for a span that is empty, outside the text or cuts a character, and for options that an edit
    decides by itself; ConstraintError if no text of such a length satisfies the constraint; DeadlineError if the time
    was up before anything was drafted.
    """
    refuse_decided(options, "edit")
    if instruction is not None and not instruction.strip():
        raise RequestError("instruction is empty; say what to change, or leave it out")
    strength = (0.5 if instruction is None else 1.0) if strength is None else strength
    _check(text, span, strength, slack or 0)
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
        made = _in_lines(engine, shown, instruction, room, left) if free else None
        shown = _lines_alone(shown)
    if made is None:
        before = _before(engine, shown, instruction)
        made = _rewritten(engine, before, shown, room, left) if free else None
        made = made or _revised(engine, before, shown, strength, slack or 0, constraint, left)
    outside = [part.encode() if isinstance(part, str) else part for part in (parts[0], parts[2])]
    assert options.seed is not None
    data = outside[0] + made.text.encode() + outside[1]
    finish: FinishReason = "deadline" if made.is_cut else "stop"
    return Edit(
        data, shown[1], made.text, made.canvases, made.forwards, options.seed, finish, made.left_out, made.guesses
    )


class _Span(NamedTuple):
    """A span written anew: how, in how many canvases and steps, and whether the time cut one of them."""

    text: str
    canvases: int
    forwards: int
    is_cut: bool
    left_out: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()

    def then(self, one: _Span) -> _Span:
        """This, written anew once more."""
        counts = self.canvases + one.canvases, self.forwards + one.forwards
        left_out, guesses = self.left_out + one.left_out, self.guesses + one.guesses
        return _Span(one.text, *counts, self.is_cut or one.is_cut, left_out, guesses)


def _check(text: str | bytes, span: tuple[int, int], strength: float, slack: int) -> None:
    unit = "characters" if isinstance(text, str) else "bytes"
    if len(span) != 2 or any(type(end) is not int for end in span) or not 0 <= span[0] <= span[1] <= len(text):
        raise RequestError(f"the span is {span!r:.80}; it must be two places of the text, which has {len(text)} {unit}")
    if span[0] == span[1]:
        raise RequestError(f"the span {span[0]} to {span[1]} is empty; use infill to put something there")
    if not 0 < strength <= 1:
        raise RequestError(f"strength is {strength}; it must be above 0 (nothing would change) and at most 1")
    if not 0 <= slack <= MOST_SLACK:
        raise RequestError(f"slack is {slack}; it must be from 0 to {MOST_SLACK} tokens")


def _pieces(source: list[int], canvas_length: int) -> list[list[int]]:
    """The span cut into pieces as equal as possible, each leaving a quarter of the canvas for the text behind it."""
    room = max(1, canvas_length * 3 // 4)
    count = max(1, -(-len(source) // room))
    ends = [len(source) * i // count for i in range(count + 1)]
    return [source[low:high] for low, high in itertools.pairwise(ends)]


def _lines_alone(shown: list[str]) -> list[str]:
    """The span without what is around it, if it is whole lines of a text that is no JSON document by itself: more than
    one record is nothing that a model of single records was taught."""
    above, below = shown[0].rpartition("\n")[2], shown[2].partition("\n")[0]
    if above.strip(f"{MARK} \t") or below.strip() or is_of("JSON", "".join(shown)):
        return shown
    return ["", shown[1], ""]


def _before(engine: Core, shown: Sequence[str], instruction: str | None) -> list[int]:
    """The tokens before the span: the text there, in an answer if there is an instruction. What lies further away than
    attention reaches is left out."""
    near = shown[0][-engine.text.reach :]
    if instruction is None:
        return engine.text.encode(near, bos=True)
    prompt = prompts.edit(instruction, "".join(shown).rstrip("\n"))
    asked = engine.text.chat([{"role": "user", "content": prompt}])
    engine.resolve(Request(asked, Options(max_tokens=1)))  # an instruction out of reach is none
    return asked + engine.text.encode(near, bos=False)


def _rewritten(
    engine: Core,
    before: Sequence[int],
    shown: Sequence[str],
    room: int,
    left: Callable[[], Options],
    language: Language | None = None,
) -> _Span | None:
    """The span as an instruction makes it, read back where it is held to a `language`. None if one canvas has no room
    for it and what follows, if the context has none, if what follows cannot be held, or if the span would grow by more
    than `room` tokens. Line ends behind everything are not the model's."""
    rest, model, encode = shown[2].rstrip("\n"), engine.config.model, engine.text.encode
    if len(rest) > engine.text.reach or room < 0:
        return None
    most = len(encode(shown[1], bos=False)) + room
    needed = most + len(encode(rest, bos=False)) + 1
    width = -(-needed // WIDTH_STEP) * WIDTH_STEP
    if width > model.canvas_length or len(before) + width >= model.max_positions:
        return None
    try:
        anything = Source("edit", rest, partial(_anything_before, rest))
        held = ready(anything, engine.vocabulary) if language is None else language
    except ConstraintError:
        return None
    request = Request([*before], replace(left(), max_tokens=needed, canvas=width), constraint=held)
    done = engine.run(request)
    if not sum(done.steps):  # no text is a text, too
        raise DeadlineError("the time was up before anything had been drafted; raise deadline_sec")
    if language is not None and done.finish == "stop":
        with suppress(DeadlineError):  # what nobody had the time to read back is an answer, too
            done = second_opinion(engine, request, done).done
    after = done.text.removesuffix(rest).replace(UNREADABLE, "")
    found = _Span(after, 1, sum(done.steps), done.finish == "deadline")
    return found if len(encode(after, bos=False)) <= most else None


def _possible(engine: Core, record: str, instruction: str) -> str | Language | None:
    """What an instruction can make of a record: the one text that it can, or a language of several; None where that
    cannot be held."""
    source, found = edited(record, instruction), list[Compiled]()
    if source is None:
        return None
    make = source.compile

    def compiled(limits: CompileLimits) -> Compiled:
        found.append(make(limits))
        return found[-1]

    with suppress(ConstraintError):
        language = ready(replace(source, compile=compiled), engine.vocabulary)
        sole = found[0].dfa.trimmed().sole
        return language if sole is None else sole.decode()
    return None


def _shown_record(engine: Core, lines: str, instruction: str, room: int) -> Record | None:
    """The record that lines are, with as many of its members as a canvas has room for."""
    most = MOST_MEMBERS
    while (record := record_of(lines, instruction, most)) is not None and most > 1:
        if len(engine.text.encode(record.text, bos=False)) + room + WIDTH_STEP <= engine.config.model.canvas_length:
            break
        most //= 2
    return record


def _in_lines(
    engine: Core, shown: Sequence[str], instruction: str, room: int, left: Callable[[], Options]
) -> _Span | None:
    """Lines of keys and values as an instruction makes them; as they are where that cannot be written, or where they
    are settings of another kind; None if the span is a part of a line. Raises RequestError for other lines."""
    if shown[1].startswith(MARK):
        one = _in_lines(engine, [shown[0], shown[1][1:], shown[2]], instruction, room, left)
        return None if one is None else one._replace(text=MARK + one.text)
    shown = [shown[0].removeprefix(MARK), *shown[1:]]
    lead = shown[0].rpartition("\n")[2]
    before = shown[0][: len(shown[0]) - len(lead)]
    ends = not shown[2].partition("\n")[0].strip()
    if not ends or lead.strip(" \t"):
        return None
    if len(parts := turns_of(lead + shown[1], instruction)) > 1:
        whole = _Span(shown[1], 0, 0, False)
        for part in parts:
            one = _in_lines(engine, [shown[0], whole.text, shown[2]], part, room, left)
            whole = whole if one is None else whole.then(one)
        return whole
    as_it_was = _Span(shown[1], 0, 0, False, (f'"{instruction}"',))
    with PREPARING.turn(secrets.token_hex(), counted=False):  # among all callers, since it is Python's alone
        record = _shown_record(engine, lead + shown[1], instruction, room)
        if record is None and ("\n" not in "".join(shown).strip() or judge_of("".join(shown)) is None):
            raise RequestError(NO_RECORD)
        asked = instruction if record is None else record.asked(instruction)
        possible = None if record is None else _possible(engine, record.text, asked)
    if record is None:
        return as_it_was
    if isinstance(possible, str):
        made: _Span | None = _Span(possible, 0, 0, False)
    else:
        alone = ["", record.text, ""]
        made = _rewritten(engine, _before(engine, alone, asked), alone, room, left, possible)
    if made is None:
        return as_it_was
    with PREPARING.turn(secrets.token_hex(), counted=False):
        after = record.after(made.text, before, shown[2])
        is_written = after is not None and after.startswith(lead)
        left_out = record.left_out(asked, made.text if is_written else record.text)
    if after is None or not is_written:
        return made._replace(text=shown[1], left_out=left_out)
    guesses = record.guesses(asked, made.text)
    return made._replace(text=after.removeprefix(lead), left_out=left_out, guesses=guesses)


def _anything_before(rest: str, limits: CompileLimits) -> Compiled:
    """Any text, and then this one."""
    build = Builder(limits)
    return Compiled(build.finish(build.then(build.embed(text_of()), build.literal(rest.encode()))))


def _revised(
    engine: Core,
    before: Sequence[int],
    shown: Sequence[str],
    strength: float,
    slack: int,
    constraint: GapConstraint,
    left: Callable[[], Options],
) -> _Span:
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
    return _Span(decoded.replace(UNREADABLE, ""), len(pieces), forwards, is_cut)


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
