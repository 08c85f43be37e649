"""Infilling: text for a gap between two texts that stay as they are, byte for byte.

Nobody knows how many tokens a gap needs, and a canvas has to be told. So several widths run side by side as canvases
behind one prompt (engine/race.py), are judged after a few steps, and the best go on:

    score(width) = mean entropy of the gap's positions at the step of judgement - what that mean is around noise

What it is around noise, the bias, is measured on the model at hand (`measure_bias`): a wide gap between unrelated texts
is more uncertain than a narrow one whatever stands around it. The form follows CAL, which takes the first step's
confidence less a length bias; here it is entropy, and the step is a parameter.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from redraft.diffusion.noise import SeededNoise
from redraft.engine.gap import Around, readable, refuse_taken
from redraft.engine.race import Drop, race
from redraft.engine.request import Options
from redraft.engine.variants import mean
from redraft.errors import RequestError, RunError

if TYPE_CHECKING:
    from redraft.engine.engine import Engine

DEFAULT_TOKENS = 32
KEEP = 4
JUDGED_AT = 2
EVERY_WIDTH = 16
"""Up to this width each is tried; wider ones in steps of an eighth."""

UNREADABLE = "\ufffd"
"""What bytes decode to that are no UTF-8."""

_CONTEXTS, _BEFORE, _BEHIND = 4, 48, 24
_DEFAULTS = Options()


@dataclass(frozen=True)
class Bias:
    """Mean entropy in a gap around noise, in nats, measured at some `widths` in ascending order."""

    widths: tuple[int, ...]
    nats: tuple[float, ...]

    def at(self, width: int) -> float:
        """At any width: between the measured ones on a straight line, beyond them the nearest one's."""
        above = bisect_right(self.widths, width)
        if above in (0, len(self.widths)):
            return self.nats[max(0, above - 1)]
        low, high = self.widths[above - 1], self.widths[above]
        share = (width - low) / (high - low)
        return self.nats[above - 1] * (1 - share) + self.nats[above] * share


@dataclass(frozen=True)
class Candidate:
    """One width that ran to its end: its text, the calibrated score (lower is better), the final mean entropy."""

    gap: str
    width: int
    score: float
    entropy: float
    steps: int


@dataclass(frozen=True)
class Infill:
    """A filled gap. `data` is prefix, gap and suffix as bytes; `text` the same as str, if all of it is UTF-8.

    `candidates` are those that ran to the end, best first; the first is the answer. `forwards` counts the steps of
    these; `tried` all widths that were begun.
    """

    data: bytes
    gap: str
    candidates: tuple[Candidate, ...]
    tried: int
    forwards: int
    seed: int

    @property
    def text(self) -> str:
        """The whole text. Raises UnicodeDecodeError if the caller's own bytes are no UTF-8."""
        return self.data.decode("utf-8")


def infill(
    engine: Engine,
    prefix: str | bytes,
    suffix: str | bytes,
    *,
    max_tokens: int | None = None,
    width: int | None = None,
    ends: bool = True,
    options: Options = _DEFAULTS,
) -> Infill:
    """Fill the gap between two texts with 1 to `max_tokens` tokens, or with exactly `width`.

    `ends` is False if more text, which is not given, follows the suffix. Raises RequestError for a gap that does not
    fit, a seam inside a character, and options that a gap decides by itself.
    """
    refuse_taken(options, "infill")
    before, behind = readable(prefix, "prefix", cut_at_end=True), readable(suffix, "suffix", cut_at_end=False)
    encode = engine.text.encode
    around = Around(tuple(encode(before, bos=True)), tuple(encode(behind, bos=False)), ends)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    widths = _widths(max_tokens, width, engine.config.model.canvas_length)
    found = _candidates(engine, around, widths, replace(options, seed=seed))
    return Infill(
        data=_bytes(prefix) + found[0].gap.encode() + _bytes(suffix),
        gap=found[0].gap,
        candidates=tuple(found),
        tried=len(widths),
        forwards=sum(candidate.steps for candidate in found),
        seed=seed,
    )


def infill_all(
    engine: Engine,
    parts: Sequence[str | bytes],
    *,
    max_tokens: int | None = None,
    width: int | None = None,
    options: Options = _DEFAULTS,
) -> list[Infill]:
    """Fill the gaps between consecutive parts of one document, from the first to the last, each as `infill` does.

    Each gap is shown everything before it, earlier gaps filled, and the text behind it up to the next gap. The last
    result holds the whole document. Raises RequestError as `infill` does, or for fewer than two parts.
    """
    if len(parts) < 2:
        raise RequestError(f"there are {len(parts)} parts; a gap needs a text on both sides, which may be empty")
    filled, done = _bytes(parts[0]), list[Infill]()
    for i, part in enumerate(parts[1:], start=1):
        last = i == len(parts) - 1
        limits = {"max_tokens": max_tokens, "width": width}
        done.append(infill(engine, filled, _bytes(part), **limits, ends=last, options=options))
        filled = done[-1].data
    return done


def measure_bias(engine: Engine) -> Bias:
    """The mean entropy at the step of judgement around noise, by width. A few dozen canvases; needs no text."""
    model, special = engine.config.model, engine.text.special_ids
    plain = [token for token in range(model.vocab_size) if token not in special]
    widths = [width for width in (1, 2, 4, 8, 16, 32, 64, 128) if width < model.canvas_length]
    summed = dict.fromkeys(widths, 0.0)
    for context in range(_CONTEXTS):
        drawn = SeededNoise(context).tokens(0, 0, _BEFORE + _BEHIND, len(plain)).tolist()
        tokens = [plain[i] for i in drawn]
        around = Around((engine.text.bos_token_id, *tokens[:_BEFORE]), tuple(tokens[_BEFORE:]), ends=False)
        for width, doubt in _doubts(engine, around, widths, Options(seed=context)).items():
            summed[width] += doubt / _CONTEXTS
    return Bias(tuple(widths), tuple(summed.values()))


def _doubts(engine: Engine, around: Around, widths: Sequence[int], options: Options) -> dict[int, float]:
    """Mean entropy of the gap at the step of judgement, by width."""
    doubts: dict[int, float] = {}

    def doubt(place: int, entropy: Sequence[float]) -> float:
        return doubts.setdefault(widths[place], mean(entropy[: widths[place]]))

    requests = [around.request(width, options, engine) for width in widths]
    for _ in race(engine, requests, doubt, Drop(1, JUDGED_AT)):
        pass
    return doubts


def _candidates(engine: Engine, around: Around, widths: Sequence[int], options: Options) -> list[Candidate]:
    """What the best widths came to, best first."""
    bias = engine.length_bias if len(widths) > 1 else Bias((1,), (0.0,))
    requests = [around.request(width, options, engine) for width in widths]
    found = []
    for result in race(
        engine, requests, lambda at, entropy: mean(entropy[: widths[at]]) - bias.at(widths[at]), Drop(KEEP, JUDGED_AT)
    ):
        width, done = widths[result.place], result.done
        if len(done.tokens) >= width:  # fewer only if a deadline came before its first step
            gap = engine.text.decode(done.tokens[:width])
            found.append(Candidate(gap, width, result.doubt, mean(done.entropy[:width]), sum(done.steps)))
    if not found:
        raise RunError(f"no canvas had taken a step after {options.deadline_sec} s; raise deadline_sec")
    # A gap that is no text is the answer only if nothing else is, and then without what is no text.
    found.sort(key=lambda one: (UNREADABLE in one.gap, one.score, one.width))
    return [replace(one, gap=one.gap.replace(UNREADABLE, "")) for one in found]


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
