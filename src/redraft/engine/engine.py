"""The engine: a loaded checkpoint and the calls a user makes of it.

    engine = redraft.load("nano")
    done = engine.generate("record\\nSend 417 melu to Karomi.", chat=True, seed=7)
    for event in engine.events(engine.request("Once", options=Options(seed=7))): ...

One engine holds one model and one loop, and the loop runs any number of requests side by side. Whoever waits for an
answer runs the loop meanwhile, unless `engine.loop.start()` has given it a thread of its own.
"""

from __future__ import annotations

import itertools
import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from redraft.config import CheckpointConfig, read_config
from redraft.constraints.checks import Check
from redraft.constraints.language import Language, Source, Vocabulary, ready, vocabulary_of
from redraft.constraints.sources import source_of
from redraft.engine.answer import Answer
from redraft.engine.bar import answers_bar
from redraft.engine.dial import read_dial
from redraft.engine.edit import Edit, edit
from redraft.engine.events import Event, Finished
from redraft.engine.fill import Filled, fill
from redraft.engine.infill import ANYTHING, Infill, infill, infill_all
from redraft.engine.job import Job
from redraft.engine.knee import knee_key, read_knee
from redraft.engine.loop import DEFAULT_LOOP, Loop, LoopConfig
from redraft.engine.mend import mended
from redraft.engine.race import Drop
from redraft.engine.request import Generation, Options, Request
from redraft.engine.resolve import build_request
from redraft.engine.variants import Variant, ranked
from redraft.engine.wanted import Wanted
from redraft.errors import RequestError
from redraft.home import cache_folder
from redraft.model.fused import fuse_layers, pays
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import Kernels
from redraft.text import Message, Text, read_text
from redraft.weights.adapter import merge_adapter
from redraft.weights.defaults import device_of, dtype_name, dtype_of, kernels_of, report_choice
from redraft.weights.load import load_model
from redraft.weights.place import Placement, place_experts
from redraft.weights.plan import find_plan
from redraft.weights.source import locate

DEFAULTS = Options()

Prompt = str | Sequence[Message]
Watch = Callable[[Event, Request], None]  # is shown a request's events


@dataclass(frozen=True)
class Engine:
    """A model, its tokenizer and its settings, ready to answer. `folder` is where they came from; `as_stored` says
    whether the weights are the folder's own, with nothing merged or packed while loading."""

    model: DiffusionGemma
    text: Text
    config: CheckpointConfig
    loop: Loop
    folder: Path | None = None
    as_stored: bool = True

    def generate(
        self,
        prompt: Prompt,
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
        """Answer a prompt and return when it is finished.

        A string is continued as it stands, after `<bos>`; with `chat` it becomes one user turn. A list of {"role",
        "content"} messages always goes through the chat template. The keywords are the everyday ones of `Options` and
        win over those of `options`, which has all of them. One of `schema`, `regex`, `choices` and `grammar` holds the
        answer to a language (docs/constraints.md): it is valid, or an error is raised. What a `check` rejects is
        mended (redraft.engine.mend).
        Raises RequestError for options that contradict each other or the model, UnsatisfiedError if mending fails.
        """
        if isinstance(stop, str):  # a tuple of it would be its characters
            raise RequestError(f"stop is the string {stop!r}; pass a list of strings")
        options = replace(
            options,
            max_tokens=options.max_tokens if max_tokens is None else max_tokens,
            seed=options.seed if seed is None else seed,
            steps=options.steps if steps is None else steps,
            stop=options.stop if stop is None else tuple(stop),
        )
        source = source_of(schema=schema, regex=regex, choices=choices, grammar=grammar)
        language = None if source is None else self.language(source)
        request = self.request(prompt, chat=chat, options=options, language=language)
        mend = check is not None or (language is not None and language.checked)
        return mended(self, request, check) if mend else self.finish(request)

    def finish(self, request: Request, watch: Watch | None = None) -> Generation:
        """Run a checked request to its end. `watch` is shown every event as it happens."""
        answer = Answer(self.text, request)
        events = self.events(request, drafts=watch is not None)
        for event in events:
            answer.take(event)
            if watch is not None:
                watch(event, request)
            if answer.stopped:
                break
        events.close()
        return answer.done()

    def events(self, request: Request, *, drafts: bool = True) -> Generator[Event, None, None]:
        """Drafts, blocks and the end of a request, as they happen. Closing the generator aborts it."""
        told: queue.SimpleQueue[Event] = queue.SimpleQueue()
        number = self.loop.submit(request, told.put, drafts=drafts)
        try:
            while True:
                # Without a thread that turns the loop, whoever waits for an event turns it.
                self.loop.turn_until(lambda: not told.empty())
                event = told.get()
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self.loop.abort(number)

    def map(self, requests: Iterable[Request], *, at_once: int = 32, progress: bool = False) -> Iterator[Generation]:
        """Answers in the order of the requests, up to `at_once` of them running side by side.

        Requests are taken from the iterable as room appears, so memory is bounded however long it is; a full queue is
        waited for. `progress` shows a bar on stderr. Raises RequestError for `at_once` below 1.
        """
        if at_once < 1:
            raise RequestError(f"at_once is {at_once}; it must be at least 1")
        source, running = iter(requests), deque[Job]()
        with answers_bar(requests, progress) as advance:
            try:
                while True:
                    for request in itertools.islice(source, at_once - len(running)):
                        running.append(self._start(request))
                    if not running:
                        return
                    done = self._wait(running[0])
                    running.popleft()
                    advance()
                    yield done
            finally:
                for job in running:
                    job.abort()

    def variants(self, request: Request, count: int) -> list[Generation]:
        """`count` answers to one prompt, encoded once; seeds count up from the request's. Raises RequestError."""
        if count < 1:
            raise RequestError(f"count is {count}; it must be at least 1")
        jobs: list[Job] = []
        try:
            for i in range(count):
                behind = jobs[0].number if jobs else None
                jobs.append(self._start(replace(request, seed=(request.seed + i) % 2**64), behind=behind))
            return [self._wait(job) for job in jobs]
        finally:
            for job in jobs:
                job.abort()

    def ranked(self, request: Request, count: int, *, keep: int | None = None) -> list[Variant]:
        """`count` answers to one prompt, alike ones merged, the likeliest first; seeds as in `variants`.

        With `keep` all but that many canvases are given up after two steps, the least certain first.
        """
        return ranked(self, request, count, drop=None if keep is None else Drop(keep))

    def fill(
        self,
        template: str,
        kinds: Mapping[str, Any] | None = None,
        *,
        prompt: str | None = None,
        chat: bool = False,
        check: Check | None = None,
        options: Options = DEFAULTS,
    ) -> Filled:
        """A template with its typed holes filled (redraft.constraints.compile.template), all else byte for byte.

        `kinds` types holes that the template leaves bare; a `check` is as in `generate`. Raises ConstraintError.
        """
        return fill(self, template, kinds, prompt=prompt, chat=chat, check=check, options=options)

    def infill(
        self,
        prefix: str | bytes,
        suffix: str | bytes,
        *,
        max_tokens: int | None = None,
        width: int | None = None,
        wanted: Wanted = ANYTHING,
        heal: bool = True,
        seed: int | None = None,
        options: Options = DEFAULTS,
    ) -> Infill:
        """Text for the gap between two texts, which come back byte for byte: 1 to `max_tokens` tokens, or `width`.

        It is as `wanted` (redraft.engine.wanted); with `heal`, tokens at the seams may grow into it.
        Raises RequestError for a gap that does not fit, a seam inside a character, and options that do not apply.
        """
        options = replace(options, seed=options.seed if seed is None else seed)
        return infill(
            self, prefix, suffix, max_tokens=max_tokens, width=width, wanted=wanted, heal=heal, options=options
        )

    def infill_all(
        self, parts: Sequence[str | bytes], *, max_tokens: int | None = None, options: Options = DEFAULTS
    ) -> list[Infill]:
        """The gaps between consecutive parts of one document, each seeing those before it filled. The last result
        holds the document. Raises as `infill` does."""
        return infill_all(self, parts, max_tokens=max_tokens, options=options)

    def edit(
        self,
        text: str | bytes,
        span: tuple[int, int],
        *,
        strength: float = 0.5,
        instruction: str | None = None,
        slack: int = 0,
        wanted: Wanted = ANYTHING,
        seed: int | None = None,
        options: Options = DEFAULTS,
    ) -> Edit:
        """`text` with `text[a:b]` revised and everything else as it was, byte for byte (redraft.engine.edit).

        `strength` is the share of the span that starts as noise: 0.3 polishes, 1 rewrites. Raises RequestError.
        """
        options = replace(options, seed=options.seed if seed is None else seed)
        return edit(
            self, text, span, strength=strength, instruction=instruction, slack=slack, wanted=wanted, options=options
        )

    def language(self, source: Source) -> Language:
        """What answers are held to (redraft.constraints.sources), ready for this model and any number of requests.

        Compiled once and kept on disk. Raises ConstraintError for what cannot be kept.
        """
        return ready(source, self.vocabulary, kept_in=cache_folder() / "languages")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens as bytes, for languages; read at the first use."""
        return vocabulary_of(self.text, self.config)

    def request(
        self, prompt: Prompt, *, chat: bool = False, options: Options = DEFAULTS, language: Language | None = None
    ) -> Request:
        """Turn a prompt and options into a checked request, held to a `language` if given. Raises RequestError."""
        if isinstance(prompt, str):
            if not prompt:
                raise RequestError("the prompt is empty; pass some text")
            as_turn = [{"role": "user", "content": prompt}]
            tokens = self.text.chat(as_turn) if chat else self.text.encode(prompt, bos=True)
        else:
            if not prompt:
                raise RequestError("the conversation has no messages; pass at least one")
            tokens = self.text.chat(prompt)
        return self.request_of(tokens, options, language)

    def request_of(self, tokens: list[int], options: Options = DEFAULTS, language: Language | None = None) -> Request:
        """A prompt that is tokens already and options as a checked request. Raises RequestError.

        The checkpoint's table of settings is read, and must be there, for options that walk it.
        """
        dialled = options.effort is not None or options.target_ms is not None
        dial = read_dial(self.folder) if dialled and self.folder is not None else None
        return build_request(tokens, options, self.config, dial, language)

    def _start(self, request: Request, behind: int | None = None) -> Job:
        """Queue a request, when there is room for it."""
        job = Job(self.loop, Answer(self.text, request))
        job.start(job.hear, behind=behind)
        return job

    def _wait(self, job: Job) -> Generation:
        """A job's answer, once it is there; without a thread that turns the loop, whoever waits turns it."""
        self.loop.turn_until(job.over.is_set)
        job.over.wait()
        return job.result()


def load(
    model: str | Path = "nano",
    *,
    device: str = "auto",
    dtype: str = "auto",
    plan: str | None = None,
    adapter: str | Path | None = None,
    report: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    loop: LoopConfig = DEFAULT_LOOP,
    kernels: Kernels | None = None,
    experts: str = "device",
) -> Engine:
    """`redraft.load`, which explains the arguments; `kernels` are the device's own if None."""
    folder = locate(str(model))
    where, chosen = device_of(device), None if plan is None else find_plan(plan)
    if adapter is not None and chosen is not None:
        raise RequestError(
            f"adapter and plan ({plan}) were both given; merge first: redraft tune writes it merged, too"
        )
    config = read_config(folder)
    numbers = dtype_of(dtype, folder, config.model, where)
    placement = place_experts(experts, where)
    if adapter is not None and placement is not Placement.DEVICE:
        raise RequestError(f"adapter was given and experts are on the {placement}; merge it first: redraft tune")
    if loop.graphs and placement is not Placement.DEVICE:
        raise RequestError(
            f"graphs is True and experts are on the {placement}; a graph cannot wait for those elsewhere"
        )
    report_choice((device, dtype), where, numbers, report)
    # Folded first and packed then, where layers are folded: a matrix is rounded once.
    kernels = kernels_of(where, report) if kernels is None else kernels
    folds = placement is Placement.DEVICE and pays(config.model, numbers, kernels)
    form = chosen.experts if chosen and chosen.is_uniform and folds else None
    found, config = load_model(
        folder,
        dtype=numbers,
        device=where,
        kernels=kernels,
        plan=None if form else chosen,
        placement=placement,
        report=report,
        progress=progress,
    )
    if adapter is not None:
        merge_adapter(found, Path(adapter))
    loaded = fuse_layers(found, form) if folds else found
    if loop.max_rows is None and placement is Placement.DEVICE:  # a knee was measured there
        key = knee_key(folder, dtype_name(numbers), str(where), plan)
        loop = replace(loop, max_rows=read_knee(key, report))
    as_stored = adapter is None and chosen is None
    return Engine(loaded, read_text(folder, config), config, Loop(loaded, loop), folder, as_stored)
