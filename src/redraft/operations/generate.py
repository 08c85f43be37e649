"""One answer, and many; fields out of one text, and of many. What has to be checked is repaired
(redraft.operations.repair)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from redraft.constraints.checks import Check
from redraft.constraints.schemas import check_keywords, plain_schema
from redraft.constraints.sources import schema_source
from redraft.engine.engine import Core
from redraft.engine.events import Event
from redraft.engine.handle import Handle, Inbox
from redraft.engine.request import DEFAULTS, Generation, Options, Request, ResolvedRequest
from redraft.errors import RedraftError, RequestError, as_failure
from redraft.operations.progress import answers_bar
from redraft.operations.read_back import reads_back, second_opinion
from redraft.operations.repair import Repair, repair
from redraft.operations.verbatim import held_to
from redraft.prompts import of_schema
from redraft.text import Message

Asked = str | Request | ResolvedRequest | RedraftError
"""One of many to be answered, or an error that stands in its place."""


def generate(
    engine: Core,
    prompt: str | Sequence[Message] | Request | ResolvedRequest,
    *,
    chat: bool = False,
    max_tokens: int | None = None,
    seed: int | None = None,
    steps: int | None = None,
    stop: Sequence[str] | None = None,
    schema: Any = None,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    check: Check | None = None,
    options: Options = DEFAULTS,
) -> Generation:
    """Answer a prompt, or a whole request, and return when it is finished.

    The keywords are the everyday ones of `Request` and `Options`, and win over those of `options`, which has all of
    them; a request has everything in it and goes with none of them. What a constraint's validator or a `check` rejects
    is repaired. Raises RequestError for options that contradict each other or the model, ConstraintError for a
    constraint that cannot be kept, UnsatisfiedError if repairs fail.
    """
    if isinstance(stop, str):  # a tuple of it would be its characters
        raise RequestError(f"stop is the string {stop!r}; pass a list of strings")
    stops = None if stop is None else tuple(stop)
    given = _given({"max_tokens": max_tokens, "seed": seed, "steps": steps, "stop": stops})
    held = _given({"schema": schema, "regex": regex, "choices": choices, "grammar": grammar, "check": check})
    if not isinstance(prompt, Request | ResolvedRequest):
        return repair(engine, Request(prompt, replace(options, **given), chat=chat, **held))
    named = [*given, *held, *(["chat"] if chat else []), *(["options"] if options != DEFAULTS else [])]
    if named:
        raise RequestError(f"{named[0]} was given with a request, which has its own; put it there")
    return repair(engine, prompt)


def extract(
    engine: Core,
    text: str,
    schema: Any,
    *,
    seed: int | None = None,
    read_back: bool | None = None,
    verbatim: bool | None = None,
    options: Options = DEFAULTS,
) -> Generation:
    """The fields of a schema (in any form that `generate` takes) out of a text, as valid JSON.

    The prompt names the fields (`redraft.prompts`). With `read_back` the answer is a second opinion's
    (`redraft.operations.read_back`), whose `guesses` it has. With `verbatim` a string of which the schema does not say
    how it looks is a part of the text, from word to word (`redraft.constraints.compile.verbatim`). None means as the
    shell does: both for nano, `verbatim` only where no answer becomes harder by it. Raises as `generate`; RequestError
    for what is no text, ConstraintError for one that is too long to copy from.
    """
    held = replace(options, **_given({"seed": seed}))
    check_keywords(plain := plain_schema(schema))
    request = _extraction(engine, plain, text, held, verbatim)
    return _read(engine, request, repair(engine, request), read_back)


def extract_many(
    engine: Core,
    texts: Iterable[str],
    schema: Any,
    *,
    at_once: int = 32,
    progress: bool = False,
    seed: int | None = None,
    read_back: bool | None = None,
    verbatim: bool | None = None,
    options: Options = DEFAULTS,
) -> Iterator[Generation | RedraftError]:
    """As `extract`, for each of many texts, in their order: answered side by side, and read back one by one.

    A text that failed has its error in the place of its answer, and the others go on. The seed of the first text is
    `seed`, that of each other one more. Raises RequestError for one text in place of several and for `at_once` below
    1, ConstraintError for a schema that cannot be kept.
    """
    _check_many(texts, "texts", at_once)
    check_keywords(plain := plain_schema(schema))
    engine.language(
        schema_source(plain, spaces=not engine.by_fields)
    )  # what cannot be kept would be every text's error
    held, taken = replace(options, **_given({"seed": seed})), deque[ResolvedRequest | RedraftError]()

    def asked() -> Iterator[ResolvedRequest | RedraftError]:
        for number, text in enumerate(texts):
            own = None if held.seed is None else (held.seed + number) % 2**64
            try:
                taken.append(_extraction(engine, plain, text, replace(held, seed=own), verbatim))
            except Exception as error:  # whatever it is, it is this text's
                taken.append(as_failure(error))
            yield taken[-1]

    def answers() -> Iterator[Generation | RedraftError]:
        with answers_bar(texts, progress) as advance:
            for found in attempts(engine, asked(), at_once=at_once):
                request = taken.popleft()
                advance()
                if not isinstance(found, RedraftError) and not isinstance(request, RedraftError):
                    try:
                        found = _read(engine, request, found, read_back)
                    except Exception as error:  # whatever it is, it is this text's: the others have their answers
                        found = as_failure(error)
                yield found

    return answers()  # what is wrong with the call is raised by it, not by the first answer


def _extraction(engine: Core, plain: Any, text: str, options: Options, verbatim: bool | None) -> ResolvedRequest:
    """The request for the fields of a schema. Raises RequestError, ConstraintError."""
    if not isinstance(text, str):
        raise RequestError(f"the text to extract from is {text!r:.80}; it must be a string")
    if not text.strip():
        raise RequestError("the text to extract from is empty; some text is needed")
    language = held_to(engine, schema_source(plain, spaces=not engine.by_fields), text, options, verbatim)
    return engine.resolve(Request(of_schema(plain, text), options, chat=True, constraint=language))


def _read(engine: Core, request: ResolvedRequest, done: Generation, again: bool | None) -> Generation:
    """An answer, or what a second opinion makes of it."""
    if reads_back(engine, again):
        with suppress(RedraftError):  # there is an answer all the same
            opinion = second_opinion(engine, request, done)
            return replace(opinion.done, guesses=tuple(opinion.guesses(engine.text)))
    return done


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def map_requests(
    engine: Core,
    requests: Iterable[str | Request | ResolvedRequest],
    *,
    at_once: int = 32,
    progress: bool = False,
) -> Iterator[Generation]:
    """Answers in the order of the requests, up to `at_once` of them running side by side.

    Requests are taken from the iterable as room appears, so memory is bounded however long it is; a full queue is
    waited for. The next request is asked for before the first answer is there, up to `at_once` of them, so an iterable
    that waits for an answer before it gives another needs an `at_once` of 1. `progress` shows a bar on stderr. Raises
    RequestError for `at_once` below 1 and for one text in place of several; as `generate` when the turn of the request
    comes that failed; and what the iterable raises, once those before it are answered.
    """
    _check_many(requests, "requests", at_once)
    with answers_bar(requests, progress) as advance:
        for found in attempts(engine, requests, at_once=at_once):
            if isinstance(found, RedraftError):
                raise found
            advance()
            yield found


def _check_many(many: object, name: str, at_once: int) -> None:
    if isinstance(many, str | bytes):
        raise RequestError(f"the {name} are one text; pass a list of them")
    if type(at_once) is not int or at_once < 1:
        raise RequestError(f"at_once is {at_once!r:.80}; it must be an integer of at least 1")


def attempts(
    engine: Core, requests: Iterable[Asked], *, at_once: int = 32, ready: Callable[[], bool] = lambda: True
) -> Iterator[Generation | RedraftError]:
    """As `map_requests`, with errors in the place of the answers that failed; one among the requests stays as it is.
    While some run, another is only taken if it is `ready`, which is asked at the start and behind each answer."""
    broken: list[Exception] = []
    source, running, jobs = _until_broken(requests, broken), deque[_Job](), dict[Handle, _Job]()
    inbox: Inbox[Handle] = Inbox()
    try:
        while True:
            while len(running) < at_once and (not running or ready()):
                taken = [*islice(source, 1)]
                if not taken:
                    break
                (request,) = taken
                running.append(job := _Job())
                with job.failing():
                    if isinstance(request, RedraftError):
                        raise request
                    job.repair = Repair(engine, engine.resolve(request))
                    jobs[engine.submit(job.repair.asked, inbox=inbox, wait=True)] = job
            if not running:
                if broken:
                    raise broken[0]
                return
            while running[0].found is None:
                handle, event = inbox.get(engine.loop)
                if handle in jobs:  # after a stop string there is no more to say
                    _take(engine, inbox, jobs, handle, event)
            found = running.popleft().found
            assert found is not None
            yield found
    finally:
        for handle in jobs:
            handle.abort()


def _until_broken(requests: Iterable[Asked], broken: list[Exception]) -> Iterator[Asked]:
    """The requests up to where taking one fails: those before it are answered first, and then that is raised."""
    try:
        for request in requests:  # noqa: UP028  # `yield from` would close the caller's generator
            yield request
    except Exception as error:  # the iterable is the caller's code, which can fail in any way
        broken.append(error)


@dataclass
class _Job:
    """One request of many, and what was found."""

    repair: Repair | None = None
    found: Generation | RedraftError | None = None

    @contextmanager
    def failing(self) -> Iterator[None]:
        """What goes wrong here is what is found of this job, and not of the others."""
        try:
            yield
        except RedraftError as error:
            self.found = error


def _take(engine: Core, inbox: Inbox[Handle], jobs: dict[Handle, _Job], handle: Handle, event: Event) -> None:
    """One event of a job's request: the job is done with its last, or goes on with a repair."""
    job = jobs[handle]
    assert job.repair is not None
    with job.failing():
        handle.answer.take(event)
        if handle.answer.finish is None:
            return
        handle.abort()
        job.repair.take(handle.answer.generation())
        job.found = job.repair.result
        if job.found is None:
            jobs[engine.submit(job.repair.asked, inbox=inbox, wait=True)] = job
    if job.found is not None:
        handle.abort()
    del jobs[handle]
