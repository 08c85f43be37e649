"""Infilling: text for a gap between two texts that stay as they are, byte for byte.

How many tokens a gap needs is not known, but a canvas has a fixed width. So several widths run side by side as canvases
behind one prompt (operations/compete.py), are judged after a few steps, and the best go on:

    score(width) = mean entropy of the gap's positions at the step of judgement, in nats

The score has no term for the width. Baselines (the entropy around noise, or on training modules), the frequency of a
width, sums, surprisal and agreement were tried on gaps of known width (docs/log.md): on held-out ones none was
clearly better than this, and most were worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from redraft.constraints.language import Language
from redraft.engine.engine import Core
from redraft.engine.handle import Handle
from redraft.engine.request import DEFAULTS, FinishReason, Generation, Options
from redraft.errors import ConstraintError, RequestError
from redraft.operations.gap import GapContext, compete_widths, readable, refuse_decided, seeded, shared_time
from redraft.operations.gap_constraint import GapConstraint, grows_left, grows_right, span_language, spelt
from redraft.operations.variants import mean

DEFAULT_TOKENS = 32  # widest gap that is tried if the caller sets no limit
KEEP = 4  # widths that go on after the judgement
SEAMS = 2
"""Gaps of up to so many tokens are not healed: what the tokens at both seams grow into may be that long."""
EVERY_WIDTH = 16
"""Up to this width each is tried; wider ones in steps of an eighth."""

UNREADABLE = "\ufffd"
"""What bytes decode to that are no UTF-8."""

ANYTHING = GapConstraint()


@dataclass(frozen=True)
class Candidate:
    """One width that ran to its end: its text, its score (lower is better), its final mean entropy, both in nats."""

    gap: str
    width: int
    score: float
    entropy: float
    steps: int


@dataclass(frozen=True)
class Infill:
    """A filled gap. `data` is prefix, gap and suffix as bytes; `text` the same as str, if all of it is UTF-8.

    `candidates` are those that ran to the end, best first; the first is the answer. `forwards` counts their steps,
    `tried` all widths that were begun. `answer` is the gap as a `Generation`.
    """

    data: bytes
    gap: str
    candidates: tuple[Candidate, ...]
    tried: int
    forwards: int
    seed: int
    answer: Generation = field(compare=False, repr=False)

    @property
    def text(self) -> str:
        """The whole text. Raises UnicodeDecodeError if the caller's own bytes are no UTF-8."""
        return self.data.decode("utf-8")

    @property
    def finish(self) -> FinishReason:
        """As that of an Edit: "deadline" where the gap is a draft. What ends by its width has not been cut short."""
        return "deadline" if self.answer.finish == "deadline" else "stop"


def infill(
    engine: Core,
    prefix: str | bytes,
    suffix: str | bytes,
    *,
    max_tokens: int | None = None,
    width: int | None = None,
    ends: bool = True,
    constraint: GapConstraint = ANYTHING,
    heal: bool = True,
    seed: int | None = None,
    options: Options = DEFAULTS,
) -> Infill:
    """Fill the gap between two texts with 1 to `max_tokens` tokens, or with exactly `width`.

    `ends` is False if more text, which is not given, follows the suffix. The gap's text satisfies the `constraint`.
    With `heal`, tokens at the seams may grow into the gap (operations/gap_constraint.py), and do not count; an exact
    `width`, or SEAMS tokens at most, heal nothing.
    Raises RequestError for a gap that does not fit, a seam inside a character, and options that a gap decides by
    itself; ConstraintError if no text that fits satisfies the constraint.
    """
    refuse_decided(options, "infill")
    before, behind = readable(prefix, "prefix", cut_at_end=True), readable(suffix, "suffix", cut_at_end=False)
    encode, reach = engine.text.encode, engine.text.reach  # what lies further away cannot be seen
    around = GapContext(tuple(encode(before[-reach:], bos=True)), tuple(encode(behind[:reach], bos=False)), ends)
    options = seeded(options, seed)
    widths = _widths(max_tokens, width, engine.config.model.canvas_length)
    heal = heal and width is None and widths[-1] > SEAMS  # or the tokens at the seams would be all that there is
    hole = _healed(engine, around, constraint, heal=heal)
    found = _candidates(engine, hole, widths, options)
    best, answer = found[0]
    return Infill(
        data=_bytes(prefix) + best.gap.encode() + _bytes(suffix),
        gap=best.gap,
        candidates=tuple(candidate for candidate, _ in found),
        tried=len(widths),
        forwards=sum(candidate.steps for candidate, _ in found),
        seed=found[0][1].seed,
        answer=answer,
    )


def infill_all(
    engine: Core,
    parts: Sequence[str | bytes],
    *,
    max_tokens: int | None = None,
    width: int | None = None,
    constraint: GapConstraint = ANYTHING,
    heal: bool = True,
    seed: int | None = None,
    options: Options = DEFAULTS,
) -> list[Infill]:
    """Fill the gaps between consecutive parts of one document, from the first to the last, each as `infill` does.

    Each gap is shown everything before it, earlier gaps filled, and the text behind it up to the next gap. The last
    result holds the whole document. Raises RequestError as `infill` does, or for fewer than two parts.
    """
    if isinstance(parts, str | bytes):  # of whose characters each would be a part
        raise RequestError("parts is one text; pass a list of the texts around the gaps")
    if len(parts) < 2:
        raise RequestError(f"there are {len(parts)} parts; a gap needs a text on both sides, which may be empty")
    left = shared_time(seeded(options, seed))
    filled, done = _bytes(parts[0]), list[Infill]()
    for i, part in enumerate(parts[1:], start=1):
        last = i == len(parts) - 1
        one = infill(
            engine,
            filled,
            _bytes(part),
            max_tokens=max_tokens,
            width=width,
            ends=last,
            constraint=constraint,
            heal=heal,
            options=left(),
        )
        done.append(one)
        filled = done[-1].data
    return done


@dataclass(frozen=True)
class _HealedGap:
    """A gap that has taken in the tokens at its seams: its language, and the bytes at either end that are theirs."""

    around: GapContext
    language: Language | None
    begins: bytes = b""
    ends: bytes = b""

    @property
    def healed(self) -> int:
        """How many tokens of the text around it are in the gap."""
        return bool(self.begins) + bool(self.ends)

    def text(self, engine: Core, tokens: Sequence[int]) -> str:
        """The gap's own text. Tokens that no language holds together may be no text: U+FFFD."""
        if self.language is None:
            return engine.text.decode(tokens)
        whole = spelt(engine.vocabulary, tokens)
        return whole[len(self.begins) : len(whole) - len(self.ends)].decode()


def _healed(engine: Core, around: GapContext, constraint: GapConstraint, *, heal: bool) -> _HealedGap:
    begins = grows_right(engine.vocabulary, around.before[-1]) if heal and len(around.before) > 1 else b""
    ends = grows_left(engine.vocabulary, around.behind[0]) if heal and around.behind else b""
    if not (begins or ends or constraint):
        return _HealedGap(around, None)
    before = around.before[:-1] if begins else around.before
    behind = around.behind[1:] if ends else around.behind
    language = span_language(constraint, engine.vocabulary, begins=begins, ends=ends)
    return _HealedGap(replace(around, before=before, behind=behind), language, begins, ends)


def _candidates(
    engine: Core, hole: _HealedGap, widths: Sequence[int], options: Options
) -> list[tuple[Candidate, Generation]]:
    """What the best widths came to, best first. Raises ConstraintError if a wanted text has none of them."""

    def doubt(width: int, entropy: Sequence[float]) -> float:
        own = max(1, width - hole.healed)  # what was taken in is nearly certain and would flatter narrow gaps
        return sum(entropy[:width]) / own

    try:
        results = compete_widths(
            engine, widths, lambda width: hole.around.request(width, options, engine, hole.language), doubt, KEEP
        )
    except ConstraintError as error:
        most = f"{widths[0]} to {widths[-1]} tokens" if len(widths) > 1 else f"{widths[0]} tokens"
        raise ConstraintError(f"no text of {most} satisfies the constraint; allow other lengths ({error})") from None
    found: list[tuple[Candidate, Generation, Handle]] = []
    for width, result in results:
        answer = _gap_of(result.done, width, hole.text(engine, result.done.tokens[:width]))
        one = Candidate(answer.text, width, result.doubt, mean(answer.entropy), sum(answer.steps))
        found.append((one, answer, result.handle))
    # A gap that is no text is the answer only if nothing else is, and then without what is no text.
    found.sort(key=lambda each: (UNREADABLE in each[0].gap, each[0].score, each[0].width))
    found[0][2].won()
    return [(replace(one, gap=one.gap.replace(UNREADABLE, "")), answer) for one, answer, _ in found]


def _gap_of(done: Generation, width: int, text: str) -> Generation:
    """Of a settled canvas the gap alone."""
    return replace(
        done,
        text=text,
        tokens=done.tokens[:width],
        entropy=done.entropy[:width],
        settled_at=done.settled_at[:width],
        changes=done.changes[:width],
        log_mass=done.log_mass[:width],
    )


def _widths(max_tokens: int | None, width: int | None, canvas_length: int) -> list[int]:
    if max_tokens is not None and width is not None:
        raise RequestError("max_tokens and width were both given; width is exact: choose one")
    for name, value in (("max_tokens", max_tokens), ("width", width)):
        if value is not None and (type(value) is not int or not 1 <= value <= canvas_length):
            raise RequestError(f"{name} is {value!r}; a gap takes from 1 to {canvas_length} tokens, the model's canvas")
    if width is not None:
        return [width]
    most = min(DEFAULT_TOKENS, canvas_length) if max_tokens is None else max_tokens
    widths = [1]
    while widths[-1] < most:
        widths.append(min(most, max(widths[-1] + 1, widths[-1] * 9 // 8 if widths[-1] >= EVERY_WIDTH else 0)))
    return widths


def _bytes(part: str | bytes) -> bytes:
    return part.encode() if isinstance(part, str) else part
