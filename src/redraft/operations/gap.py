"""A gap in a text, as a canvas: the text before it is the prompt, the text behind it is pinned.

    <bos> text before │ g tokens of gap │ text behind, pinned │ end tokens, pinned
        prompt        └──────────────── canvas ────────────────┘

End tokens stand in the canvas only if the text ends there. The text around a gap is bytes or str, and the result is put
together from those, never from their tokens; so they come back byte for byte.
"""

from __future__ import annotations

import codecs
import itertools
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from redraft.constraints.language import Language
from redraft.diffusion.plan import Whole
from redraft.diffusion.seed import SeedCanvas
from redraft.engine.engine import Core
from redraft.engine.request import DEFAULTS, Options, Request, ResolvedRequest
from redraft.errors import ConstraintError, DeadlineError, RequestError
from redraft.operations.compete import Doubt, Drop, Result, compete
from redraft.operations.gap_constraint import of_width

_SURROGATE = re.compile("[\ud800-\udfff]")
WIDTH_STEP = 16
"""Canvases around a gap come in multiples of this, up to the checkpoint's own width."""

JUDGED_AT = 2
"""Step at which canvases of several widths are judged."""

DECIDED = (
    *("max_tokens", "stop", "min_tokens", "causal", "canvas", "seed_canvas", "logprobs"),
    *("effort", "min_effort", "target_ms"),
)
"""Options that follow from the gap, so that a caller cannot set them."""


@dataclass(frozen=True)
class GapContext:
    """The tokens around a gap. `ends`: nothing follows what is given as `behind`."""

    before: tuple[int, ...]
    behind: tuple[int, ...]
    ends: bool = True

    def request(self, gap: int, options: Options, engine: Core, language: Language | None = None) -> ResolvedRequest:
        """A request for a gap of that many tokens, all noise. Raises RequestError."""
        return self.seeded((None,) * gap, options, engine, language)

    def seeded(
        self, gap: tuple[int | None, ...], options: Options, engine: Core, language: Language | None = None
    ) -> ResolvedRequest:
        """A request for a gap that begins with some tokens given (and free), None for noise; with a `language` its
        text is of it. Raises RequestError, and ConstraintError if the language has no text of so many tokens."""
        model, text = engine.config.model, engine.text
        width = canvas_width(len(gap), len(self.behind), model.canvas_length)
        end = model.eos_token_ids[0]
        rest = [*self.behind[: width - len(gap)]]
        rest += [end] * (width - len(gap) - len(rest)) if self.ends else []
        pins = tuple((len(gap) + i, token) for i, token in enumerate(rest))
        given = tuple((i, token) for i, token in enumerate(gap) if token is not None)
        forbidden = (*options.bad_words, *((token,) for token in sorted(text.special_ids)))
        room = model.max_positions - 1 - width
        if room < 1:
            raise RequestError(
                f"the gap needs a canvas of {width}; the model's context is {model.max_positions}: ask for fewer tokens"
            )
        prompt, seed_canvas = [self.before[0], *self.before[1:][-room:]], SeedCanvas(pins, given)
        own = replace(options, max_tokens=width, canvas=width, seed_canvas=seed_canvas, bad_words=forbidden)
        constraint = None if language is None else of_width(language, len(gap))
        request = engine.resolve(Request(prompt, own, constraint=constraint))
        if request.policy.plan != Whole():
            raise RequestError(f"preset is {options.preset!r}; a gap needs whole canvases: use reference or fast")
        return request


def canvas_width(gap: int, behind: int, canvas_length: int) -> int:
    """Width of a gap's canvas: the gap and the text behind it, of which no more than half the model's canvas is shown.
    Raises RequestError for a gap that no canvas holds."""
    if gap > canvas_length:
        raise RequestError(f"the gap has {gap} tokens; the model's canvas holds {canvas_length}: ask for fewer")
    wanted = gap + min(behind + 1, max(WIDTH_STEP, canvas_length // 2))
    return min(-(-wanted // WIDTH_STEP) * WIDTH_STEP, canvas_length)


def compete_widths(
    engine: Core, widths: Sequence[int], asked: Callable[[int], ResolvedRequest], doubt: Doubt, keep: int
) -> list[tuple[int, Result]]:
    """Canvases of several widths for one gap, of which the `keep` least doubtful go on: the width and what came of it.

    `asked` makes a width's request, or raises ConstraintError for one that no text has; so does this if there is no
    other. `doubt` is given the width. Raises DeadlineError if it came before any canvas had taken a step; making the
    requests, of which each may be held to a language, counts.
    """
    requests: dict[int, ResolvedRequest] = {}
    refused: ConstraintError | None = None
    began = time.monotonic()
    for width in widths:
        try:
            requests[width] = asked(width)
        except ConstraintError as error:
            refused = error
        else:
            left_of(requests[width].deadline_sec, began)
    if refused is not None and not requests:
        raise refused
    tried = list(requests)
    timed = [replace(one, deadline_sec=left_of(one.deadline_sec, began)) for one in requests.values()]
    results = compete(engine, timed, lambda at, nats: doubt(tried[at], nats), Drop(keep, JUDGED_AT))
    found = [(tried[result.place], result) for result in results]
    if not any(whole := [len(result.done.tokens) >= width for width, result in found]):
        raise DeadlineError(f"no canvas had taken a step after {requests[tried[0]].deadline_sec} s; raise deadline_sec")
    return list(itertools.compress(found, whole))


def seeded(options: Options, seed: int | None) -> Options:
    """The options with a seed: the one given, else their own, else one that is drawn. Raises RequestError."""
    own = options.seed if seed is None else seed
    if own is not None and not (isinstance(own, int) and 0 <= own < 2**64):
        raise RequestError(f"seed is {own!r:.80}; it must be an integer from 0 to 2^64-1")
    return replace(options, seed=secrets.randbits(32) if own is None else own)


def left_of(seconds: float | None, began: float) -> float | None:
    """What is left of a deadline. Raises DeadlineError if nothing is."""
    left = None if seconds is None else began + seconds - time.monotonic()
    if left is not None and left <= 0:
        raise DeadlineError(f"the time was up after {seconds} s, before the last canvas had begun; raise deadline_sec")
    return left


def shared_time(options: Options) -> Callable[[], Options]:
    """The options of one call's canvases, asked for before each: their `deadline_sec` is for all of them."""
    began = time.monotonic()
    return lambda: replace(options, deadline_sec=left_of(options.deadline_sec, began))


def refuse_decided(options: Options, call: str) -> None:
    """Raise RequestError for an option that a gap decides by itself."""
    for name in DECIDED:
        if getattr(options, name) != getattr(DEFAULTS, name):
            raise RequestError(f"{name} was given; {call} sets it from the text: leave it out")


def readable(part: str | bytes, name: str, *, cut_at_end: bool) -> str:
    """What the model is shown of a text next to a gap: bytes that are no UTF-8 become U+FFFD.

    Raises RequestError if the seam cuts a character in two, or for text that is not valid Unicode.
    """
    if not isinstance(part, str | bytes):
        raise RequestError(f"the {name} is {part!r}; pass str or bytes")
    if isinstance(part, str):
        if part.isascii() or (bad := _SURROGATE.search(part)) is None:
            return part
        at = bad.start()
        raise RequestError(f"the {name} has an unpaired surrogate at character {at}; send valid Unicode, or bytes")
    if cut_at_end:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(part)
        torn = decoder.getstate()[0]
    else:
        torn = part[:1] if part and 0x80 <= part[0] < 0xC0 else b""
    if torn:
        where = "ends" if cut_at_end else "begins"
        raise RequestError(f"the {name} {where} inside a character (bytes {torn.hex(' ')}); move the seam")
    return part.decode("utf-8", "replace")
