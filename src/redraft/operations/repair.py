"""Repair instead of retry: what is wrong with an answer is denoised again, and the rest of it stays.

The tokens that an answer's checks complain of go back to noise; every other token is pinned, and the canvas settles
again around them. In an answer of several canvases, new canvases are laid where something is wrong, each of as many
tokens as it replaces: the text before one is its prompt, the text behind it is what its own must lead to, and neither
changes.

    answer      ....................x........................xx.........
    canvases                        └──── canvas ────┘       └─ canvas ─┘

Where no check says which part is wrong, or the parts that stay leave no room, the whole answer is generated again.
Rejected texts are taken out of the language, because a model that is sure of one would write it again. After `rounds`
repairs the error carries the attempt with the fewest complaints, and what they were.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from redraft.constraints.checks import MOST_SECONDS, Check
from redraft.constraints.compile.limits import is_gone
from redraft.constraints.condition.infix import between
from redraft.constraints.language import GuidedLanguage, Language, ready
from redraft.constraints.sources import anything, excluding
from redraft.constraints.thinking import ThinkingLanguage, after_thinking
from redraft.constraints.validation import Problem, judged
from redraft.diffusion.halt import AtLeast
from redraft.diffusion.plan import Whole
from redraft.diffusion.seed import LEAST_STEPS, SeedCanvas
from redraft.engine.engine import Core
from redraft.engine.fields import token_spans
from redraft.engine.handle import Handle
from redraft.engine.request import Generation, Request, ResolvedRequest
from redraft.errors import ConstraintError, RequestError, RunError, UnsatisfiedError

ROUNDS = 3

Attempts = Generator[ResolvedRequest, Generation, Generation]
"""Yields what to run next, is sent what came of it, and returns the answer."""


class Repair:
    """The repair of one answer, apart from what runs it: `asked` is to be run next, until there is a `result`.

    It is advanced by whatever waits for generations: a caller's thread (`repair`), an event loop, or a map over many.
    Every call may run a check, for up to `MOST_SECONDS`. A request that needs no repair is run once.
    """

    def __init__(self, engine: Core, request: ResolvedRequest, rounds: int = ROUNDS) -> None:
        if not 0 <= rounds <= 100:
            raise RequestError(f"rounds is {rounds}; it must be from 0 to 100")
        self._attempts = _attempts(engine, request, rounds) if request.needs_repair else _once(request)
        self.result: Generation | None = None
        self.asked = next(self._attempts)

    def take(self, done: Generation) -> None:
        """What came of `asked`. Raises UnsatisfiedError after the last round, RunError for a check that fails."""
        try:
            self.asked = self._attempts.send(done)
        except StopIteration as over:
            self.result = over.value


def repair(engine: Core, request: str | Request | ResolvedRequest, *, rounds: int = ROUNDS) -> Generation:
    """An answer that passes its constraint's own checks and its `check`, after at most `rounds` repairs.

    Steps and commits of all rounds are counted, and `deadline_sec` is for all of them. Raises UnsatisfiedError, and
    RunError for a check that fails itself.
    """
    repairing = Repair(engine, engine.resolve(request), rounds)
    while repairing.result is None:
        repairing.take(engine.run(repairing.asked))
    return repairing.result


async def repair_async(engine: Core, repairing: Repair, handle: Handle) -> Generation:
    """The same for coroutines, of whose requests the first has been submitted; checks run on threads."""
    await judged(repairing.take, await handle.aresult())
    while repairing.result is None:
        await judged(repairing.take, await engine.submit(repairing.asked).aresult())
    return repairing.result


def _once(request: ResolvedRequest) -> Attempts:
    return (yield request)


def _attempts(engine: Core, request: ResolvedRequest, rounds: int) -> Attempts:
    whole = replace(request, judged=False)  # but here, where something can be done about it
    began, done = time.monotonic(), (yield whole)
    best: tuple[str, list[Problem]] | None = None
    rejected: list[str] = []
    while problems := _problems(whole, _said(engine, whole, done), request.check):
        rejected.append(_said(engine, whole, done))
        if best is None or len(problems) < len(best[1]):
            best = rejected[-1], problems
        try:
            if len(rejected) > rounds:
                raise ConstraintError("no round is left")
            done = beside(done, (yield from _again(engine, _hurried(whole, began), done, problems, rejected)))
        except ConstraintError:  # or everything else that may be said has been rejected
            raise UnsatisfiedError(best[0], [problem.reason for problem in best[1]]) from None
    return replace(done, seed=request.seed)


def _said(engine: Core, request: ResolvedRequest, done: Generation) -> str:
    """What is checked of an attempt: its text, without the thinking in front of it."""
    return done.text if request.language is None else engine.text.decode(request.language.answer(done.tokens))


def _problems(request: ResolvedRequest, text: str, check: Check | None) -> list[Problem]:
    """What the language's validator and the caller's check have to say."""
    found = [] if request.language is None else request.language.problems(text)
    if check is None or found:
        return found
    said: list[Problem | str] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found = check(text)
            said.extend([found] if isinstance(found, str) else found)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="redraft-check", daemon=True)
    thread.start()
    until = time.monotonic() + 2 * MOST_SECONDS
    while thread.is_alive() and time.monotonic() < until and not is_gone():
        thread.join(0.1)
    if thread.is_alive():
        raise RunError(f"the check did not come back within {2 * MOST_SECONDS:g} seconds; make it quicker")
    if failed:
        if isinstance(failed[0], RunError | RequestError):
            raise failed[0]
        raise RunError(f"the check failed itself: {type(failed[0]).__name__}: {failed[0]}") from failed[0]
    return [problem if isinstance(problem, Problem) else Problem(str(problem)) for problem in said]


def _hurried(request: ResolvedRequest, began: float) -> ResolvedRequest:
    """The request with what is left of its time. Raises ConstraintError if nothing is."""
    if request.deadline_sec is None:
        return request
    left = began + request.deadline_sec - time.monotonic()
    if left <= 0:
        raise ConstraintError("no time is left")
    return replace(request, deadline_sec=left)


def beside(before: Generation, done: Generation) -> Generation:
    """An attempt with the costs of those before it added."""
    return replace(
        done,
        steps=before.steps + done.steps,
        commits=before.commits + done.commits,
        seconds=before.seconds + done.seconds,
        cached_tokens=before.cached_tokens,
    )


def _again(
    engine: Core, request: ResolvedRequest, done: Generation, problems: list[Problem], rejected: list[str]
) -> Attempts:
    """The next attempt: other noise, none of the texts that were rejected, and pins where nothing is wrong.

    Raises ConstraintError if nothing else may be said.
    """
    fresh = replace(request, seed=(request.seed + len(rejected)) % 2**64)
    if not request.stop:
        language = _without(engine, request, rejected)
        language.start(request.max_tokens, request.min_tokens)
        fresh = replace(fresh, language=language)
    spans = [problem.span for problem in problems if problem.span is not None]
    pinned = request.seed_canvas is not None or isinstance(request.language, GuidedLanguage)
    if len(spans) < len(problems) or request.causal or pinned:
        return (yield fresh)
    answer = done.tokens[done.begins :] if request.language is None else request.language.answer(done.tokens)
    places = enumerate(token_spans(engine.text, answer), len(done.tokens) - len(answer))
    wrong = [i for i, (first, last) in places if any(first < stop and start < last for start, stop in spans)]
    try:
        if len(done.tokens) <= request.width:
            return (yield _around(fresh, done, wrong))
        return (yield from _patched(engine, fresh, done, wrong, rejected))
    except ConstraintError:
        return (yield fresh)  # nothing else fits between the pins


def _without(engine: Core, request: ResolvedRequest, rejected: Sequence[str]) -> Language:
    """The answer's language without the rejected texts."""
    if isinstance(request.language, GuidedLanguage):
        return request.language  # texts cannot be taken out of it; other noise has to do
    source = anything() if request.language is None else request.language.source
    language = ready(excluding(source, rejected), engine.vocabulary, counted=False)
    if isinstance(request.language, ThinkingLanguage):
        language = after_thinking(language, request.language.closing, request.language.opening)
    elif request.language is not None:
        language = replace(request.language, source=language.source, layout=language.layout)
    return language.without(frozenset(request.policy.shaping.forbidden))


def _around(fresh: ResolvedRequest, done: Generation, wrong: list[int]) -> ResolvedRequest:
    """The request for an answer of one canvas around its tokens that are not wrong. Raises ConstraintError."""
    pins = SeedCanvas(pins=tuple((i, token) for i, token in enumerate(done.tokens) if i not in wrong))
    if not 0 < len(pins.pins) < len(done.tokens):
        return fresh
    least = max(fresh.min_tokens, min(fresh.max_tokens, pins.reach(fresh.eos)))
    if fresh.language is not None:
        fresh.language.start(fresh.max_tokens, least).check_pins(fresh.width, pins.pins)
    policy = replace(fresh.policy, halt=AtLeast(fresh.policy.halt, LEAST_STEPS))
    return replace(fresh, seed_canvas=pins, min_tokens=least, policy=policy)


def _patched(
    engine: Core, fresh: ResolvedRequest, done: Generation, wrong: list[int], rejected: Sequence[str]
) -> Attempts:
    """An answer of several canvases with those of its tokens replaced that are wrong. Raises ConstraintError."""
    if fresh.language is None or not wrong:
        return (yield fresh)
    steps, seconds, left = tuple[int, ...](), 0.0, wrong
    while left:
        begin, stop = left[0], min(left[0] + fresh.width, len(done.tokens))
        inside, left = [i for i in left if i < stop], [i for i in left if i >= stop]
        # Also not the text as it is now: else a canvas could write again what is wrong in it.
        said = _said(engine, fresh, done)
        language = fresh.language if said in rejected else _without(engine, fresh, [*rejected, said])
        part = yield _patch(fresh, language, done.tokens, begin, stop, inside)
        if len(part.tokens) < stop - begin:
            raise ConstraintError("a deadline came before the canvas had taken a step")
        steps, seconds = steps + part.steps, seconds + part.seconds
        done = _spliced(engine, done, part, begin, inside)
    return replace(done, steps=steps, commits=0, seconds=seconds)


def _patch(
    fresh: ResolvedRequest, language: Language, tokens: tuple[int, ...], begin: int, stop: int, wrong: Sequence[int]
) -> ResolvedRequest:
    """The request for one canvas of an answer, from one token to another. Raises ConstraintError if nothing fits."""
    width = stop - begin
    middle = between(language, tokens[:begin], width, tokens[stop:])
    pins = tuple((i - begin, tokens[i]) for i in range(begin, stop) if i not in wrong)
    middle.start(width).check_pins(width, pins)
    return replace(
        fresh,
        prompt=(*fresh.prompt, *tokens[:begin]),
        max_tokens=width,
        min_tokens=0,
        width=width,
        policy=replace(fresh.policy, plan=Whole(), halt=AtLeast(fresh.policy.halt, LEAST_STEPS)),
        fitted=False,
        end_aware=False,
        seed_canvas=SeedCanvas(pins),
        pace=None,
        language=middle,
    )


def _spliced(engine: Core, done: Generation, part: Generation, begin: int, inside: Sequence[int]) -> Generation:
    """An answer with some tokens, and what is known of each, taken from a canvas that begins at `begin`."""

    def taken(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
        at = {i: new[i - begin] for i in inside} if old and new else {}
        return tuple(at.get(i, value) for i, value in enumerate(old))

    tokens = taken(done.tokens, part.tokens)
    return replace(
        done,
        text=engine.text.decode(tokens[done.begins :]),
        tokens=tokens,
        entropy=taken(done.entropy, part.entropy),
        settled_at=taken(done.settled_at, part.settled_at),
        changes=taken(done.changes, part.changes),
        logprobs=taken(done.logprobs, part.logprobs),
        log_mass=taken(done.log_mass, part.log_mass),
    )
