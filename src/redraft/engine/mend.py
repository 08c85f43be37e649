"""Repair instead of retry: what is wrong with an answer is written anew, and the rest of it stays.

An answer of one canvas is looked at before anything of it is committed. What its checks complain of goes back to noise;
every other token is pinned, and the canvas settles again around them. Where nothing says which part is wrong, where the
pinned parts leave no room, and for answers longer than a canvas, the answer is written anew as a whole. What has been
rejected is taken out of the language, because a model that is sure of it would write it again. After `rounds` of that
the error carries the attempt with the fewest complaints and what they were.
"""

from __future__ import annotations

import ast
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from redraft.constrain.language import ready
from redraft.constrain.problem import Problem, Span
from redraft.constrain.sources import anything, excluding
from redraft.diffusion.halt import AtLeast
from redraft.diffusion.seed import LEAST_STEPS, SeedCanvas
from redraft.engine.fields import token_spans
from redraft.engine.request import Generation, Request
from redraft.errors import ConstraintError, RequestError, RunError, UnsatisfiedError

if TYPE_CHECKING:
    from redraft.engine.engine import Engine

Check = Callable[[str], Sequence[Problem | str]]
"""What is wrong with a text: problems with their place, or reasons alone; nothing if it is right."""

ROUNDS = 3
MOST_SECONDS = 10.0
"""A check that takes longer has failed."""


def mended(engine: Engine, request: Request, check: Check | None, rounds: int = ROUNDS) -> Generation:
    """An answer that passes its language's own checks and `check`, after at most `rounds` repairs.

    Steps and commits of all rounds are counted. Raises UnsatisfiedError, and RunError for a check that fails itself.
    """
    if not 0 <= rounds <= 100:
        raise RequestError(f"rounds is {rounds}; it must be from 0 to 100")
    # The language's own check is made here, where something can be done about it.
    language = None if request.language is None else replace(request.language, checked=False)
    whole = current = replace(request, language=language)
    best: tuple[str, list[Problem]] | None = None
    steps: tuple[int, ...] = ()
    commits, seconds = 0, 0.0
    rejected: list[str] = []
    for _ in range(rounds + 1):
        done = engine.finish(current)
        steps, commits, seconds = steps + done.steps, commits + done.commits, seconds + done.seconds
        problems = _problems(whole, done.text, check)
        if not problems:
            return replace(done, steps=steps, commits=commits, seconds=seconds, seed=request.seed)
        if best is None or len(problems) < len(best[1]):
            best = done.text, problems
        rejected.append(done.text)
        if len(rejected) > rounds:
            break
        try:
            current = _again(engine, whole, done, problems, rejected)
        except ConstraintError:
            break  # everything else that may be said has been rejected
    assert best is not None
    raise UnsatisfiedError(best[0], [problem.reason for problem in best[1]])


def python_check(text: str) -> list[Problem]:
    """Whether a text is Python that parses; the line that does not is the problem."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        lines = text.splitlines(keepends=True)
        if error.lineno is None or not 1 <= error.lineno <= len(lines):
            return [Problem(f"not Python: {error.msg}")]
        begin = sum(map(len, lines[: error.lineno - 1]))
        span = (begin, begin + len(lines[error.lineno - 1].rstrip("\n")))
        return [Problem(f"not Python, line {error.lineno}: {error.msg}", span)]
    except (ValueError, RecursionError, MemoryError) as error:
        return [Problem(f"not Python: {error}")]
    return []


def command_check(command: Sequence[str], seconds: float = MOST_SECONDS) -> Check:
    """A check by a command that reads the text on stdin; any exit code but 0 is a complaint, stderr says which."""

    def run(text: str) -> list[Problem]:
        try:
            done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise RunError(f"the check {command[0]!r} took over {seconds:g} seconds; make it quicker") from None
        except OSError as error:
            raise RequestError(f"the check {command[0]!r} cannot be run: {error.strerror}") from None
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        return [Problem(said[:300] or f"{command[0]} ended with {done.returncode}")] if done.returncode else []

    return run


def _problems(request: Request, text: str, check: Check | None) -> list[Problem]:
    """What the language's validator and the caller's check have to say."""
    found = [] if request.language is None else request.language.problems(text)
    if check is None or found:
        return found
    said: list[Problem | str] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            said.extend(check(text))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="redraft-check", daemon=True)
    thread.start()
    thread.join(2 * MOST_SECONDS)
    if thread.is_alive():
        raise RunError(f"the check did not come back within {2 * MOST_SECONDS:g} seconds; make it quicker")
    if failed:
        if isinstance(failed[0], RunError | RequestError):
            raise failed[0]
        raise RunError(f"the check failed itself: {type(failed[0]).__name__}: {failed[0]}") from failed[0]
    return [problem if isinstance(problem, Problem) else Problem(str(problem)) for problem in said]


def _again(engine: Engine, request: Request, done: Generation, problems: list[Problem], rejected: list[str]) -> Request:
    """The request of the next round: other noise, none of the texts that were rejected, and pins where nothing is
    wrong. Raises ConstraintError if nothing else may be said."""
    fresh = replace(request, seed=(request.seed + len(rejected)) % 2**64)
    if not request.stop:
        source = anything() if request.language is None else request.language.source
        forbidden = frozenset(request.policy.shaping.forbidden)
        language = ready(excluding(source, rejected), engine.vocabulary).without(forbidden)
        language.start(request.max_tokens, request.min_tokens)
        fresh = replace(fresh, language=replace(language, checked=False))
    spans = [problem.span for problem in problems if problem.span is not None]
    if len(spans) < len(problems) or len(done.tokens) > request.width or request.seed_canvas is not None:
        return fresh
    places = token_spans(engine.text, done.tokens)
    pins = SeedCanvas(pins=tuple((i, done.tokens[i]) for i, place in enumerate(places) if not _touches(place, spans)))
    if not 0 < len(pins.pins) < len(done.tokens):
        return fresh
    least = max(request.min_tokens, min(request.max_tokens, pins.reach(request.eos)))
    try:
        if fresh.language is not None:
            fresh.language.start(request.max_tokens, least).check_pins(request.width, pins.pins)
    except ConstraintError:
        return fresh  # nothing else fits between the pins
    policy = replace(request.policy, halt=AtLeast(request.policy.halt, LEAST_STEPS))
    return replace(fresh, seed_canvas=pins, min_tokens=least, policy=policy)


def _touches(place: Span, spans: Sequence[Span]) -> bool:
    return any(place[0] < stop and start < place[1] for start, stop in spans)
