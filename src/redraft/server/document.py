"""A document of segments: texts that stay, holes to be filled from both sides, a span to be revised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from redraft.engine.request import Options
from redraft.errors import CallerError
from redraft.operations.engine import Engine
from redraft.operations.gap import shared_time
from redraft.operations.gap_constraint import GapConstraint
from redraft.operations.infill import infill
from redraft.server.http.body import Body, Flag, Str, Tokens
from redraft.server.http.errors import ApiError, api_error
from redraft.server.limits import within
from redraft.server.openai.fields import Pattern, Slack, Strength, Width

Substrings = Annotated[list[Annotated[str, Field(strict=True), within("substring")]], within("substrings")]


class DocumentHole(Body):
    """What may stand in a hole."""

    max_tokens: Tokens | None = Field(default=None, description="the widest to try (32)")
    width: Width | None = Field(default=None, description="exactly this many tokens")
    regex: Pattern | None = Field(default=None, description="what all of it matches")
    contains: Substrings | None = Field(default=None, description="texts that occur in it")
    lacks: Substrings | None = Field(default=None, description="texts that do not")
    heal: Flag | None = Field(default=None, description="tokens at the seams may grow into it")


class Revision(Body):
    """A span and how far it may change."""

    text: Str = Field(description="how it reads now")
    strength: Strength = None
    slack: Slack = None
    instruction: Str | None = Field(default=None, description="what to change")


class Segment(Body):
    """One of the three."""

    text: Str | None = Field(default=None, description="what stays as it is")
    hole: DocumentHole | None = Field(default=None, description="what is to be written; {} for any text")
    revise: Revision | None = Field(default=None, description="what is to be written anew; at most one")


def complete(
    engine: Engine, segments: Sequence[Segment], *, max_tokens: int | None, options: Options
) -> dict[str, Any]:
    """The document with holes filled, or its span revised. `max_tokens` bounds each hole.

    Raises ApiError, also for a hole that asks for more, and RequestError.
    """
    for i, segment in enumerate(segments):
        if len(segment.model_fields_set) != 1:
            raise ApiError(400, f"segment {i} must hold one of text, hole and revise", param=f"segments.{i}")
        own = segment.hole and (segment.hole.width or segment.hole.max_tokens)
        if own and max_tokens is not None and own > max_tokens:
            message = f"max_tokens is {max_tokens} and segments.{i}.hole asks for {own}; raise it, or leave it out"
            raise ApiError(400, message, param="max_tokens")
    revised = [i for i, segment in enumerate(segments) if segment.revise is not None]
    holes = any(segment.hole is not None for segment in segments)
    if len(revised) + holes != 1:
        raise ApiError(400, "segments must have holes, or one revision, and not both", param="segments")
    options = replace(options, max_tokens=None)
    if revised:
        if max_tokens is not None:
            message = "max_tokens was sent with a revision, whose length slack bounds; leave it out"
            raise ApiError(400, message, param="max_tokens")
        return _revised(engine, segments, revised[0], options)
    return _filled(engine, segments, max_tokens, options)


def _revised(engine: Engine, segments: Sequence[Segment], at: int, options: Options) -> dict[str, Any]:
    before, behind = _text(segments[:at]), _text(segments[at + 1 :])
    revision = segments[at].revise
    assert revision is not None
    with _named(f"segments.{at}.revise", revision):
        done = engine.edit(
            before + revision.text + behind,
            (len(before), len(before) + len(revision.text)),
            strength=revision.strength,
            slack=revision.slack,
            instruction=revision.instruction,
            options=options,
        )
    said = {"text": done.text, "revised": done.after, "finish": done.finish, "forwards": done.forwards}
    return said | {"left_out": list(done.left_out), "guesses": list(done.guesses), "seed": done.seed}


def _filled(engine: Engine, segments: Sequence[Segment], max_tokens: int | None, options: Options) -> dict[str, Any]:
    parts = [""]  # what stands in front of each hole, and behind the last
    for segment in segments:
        if segment.hole is not None:
            parts.append("")
        parts[-1] += segment.text or ""
    text, found, forwards, seed = parts[0], [], 0, options.seed
    holes = [(place, segment.hole) for place, segment in enumerate(segments) if segment.hole is not None]
    left = shared_time(options)
    for i, (place, hole) in enumerate(holes):
        contains, lacks = tuple(hole.contains or ()), tuple(hole.lacks or ())
        with _named(f"segments.{place}.hole", hole):
            done = infill(
                engine,
                text,
                parts[i + 1],
                max_tokens=max_tokens if hole.max_tokens is None and hole.width is None else hole.max_tokens,
                width=hole.width,
                ends=i == len(holes) - 1,
                constraint=GapConstraint(hole.regex, contains=contains, lacks=lacks),
                heal=bool(hole.heal),
                options=left(),
            )
        text, forwards, seed = done.text, forwards + done.forwards, done.seed
        candidates = [{"text": one.gap, "tokens": one.width, "score": round(one.score, 4)} for one in done.candidates]
        found.append({"text": done.gap, "finish": done.finish, "tried": done.tried, "candidates": candidates})
    return {"text": text, "holes": found, "forwards": forwards, "seed": seed}


@contextmanager
def _named(place: str, part: Body) -> Iterator[None]:
    """Errors about a field of this part name its place, too."""
    try:
        yield
    except CallerError as error:
        found = api_error(error, field=f"{place}.regex" if "regex" in part.model_fields_set else place)
        if found.param is None:
            found.param = place
        elif found.param in part.model_fields_set:
            found.param = f"{place}.{found.param}"
        raise found from None


def _text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text or "" for segment in segments)
