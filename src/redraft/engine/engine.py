"""The core of the engine: a loaded checkpoint, and the way from a request to a handle.

    Request ── resolve ──► ResolvedRequest ── submit ──► Handle

One engine holds one model and one loop, and the loop runs any number of requests side by side. A caller who waits for
an answer turns the loop meanwhile, unless `engine.loop.start()` has given it a thread of its own. What users call on
top of this (generate, infill, edit, …) is in `redraft.operations`, whose `Engine` they get.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from redraft.config import CheckpointConfig, read_config
from redraft.constraints.language import Language, Source, Vocabulary, ready, vocabulary_of
from redraft.constraints.sources import anything, source_of
from redraft.constraints.thinking import after_thinking
from redraft.engine.answer import marks_of
from redraft.engine.dial import read_dial
from redraft.engine.handle import Handle, Inbox
from redraft.engine.knee import knee_key, read_knee
from redraft.engine.loop import DEFAULT_LOOP, Loop, LoopConfig
from redraft.engine.request import Generation, Request, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.scope import CancelScope
from redraft.errors import RequestError, input_errors
from redraft.home import cache_folder
from redraft.model.fused import fuse_layers, pays
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import Kernels
from redraft.text import Text, read_text
from redraft.weights.adapter import merge_adapter
from redraft.weights.defaults import device_of, dtype_name, dtype_of, kernels_of, report_choice
from redraft.weights.load import load_model
from redraft.weights.place import Placement, place_experts
from redraft.weights.plan import find_plan
from redraft.weights.source import locate


class Compiler:
    """Constraints made ready for one tokenizer; its vocabulary is read at the first use."""

    def __init__(self, text: Text, config: CheckpointConfig) -> None:
        self._text, self._config = text, config

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens as bytes."""
        return vocabulary_of(self._text, self._config)

    def language(self, source: Source) -> Language:
        """Compiled once and kept on disk. Raises ConstraintError."""
        return ready(source, self.vocabulary, kept_in=cache_folder() / "languages")


@dataclass(frozen=True)
class Core:
    """A model, its tokenizer and its settings, ready to answer.

    `folder` is where they came from; `as_stored` says whether the weights are the folder's own, with nothing merged or
    packed while loading. What is submitted is in the `scope`, if there is one.
    """

    model: DiffusionGemma
    text: Text
    config: CheckpointConfig
    loop: Loop
    folder: Path | None = None
    as_stored: bool = True
    scope: CancelScope | None = None
    compiler: Compiler = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiler", Compiler(self.text, self.config))

    def within(self, scope: CancelScope) -> Self:
        """The same engine; what it submits is in a scope: ended with it, and seen by its observers."""
        found = replace(self, scope=scope)
        object.__setattr__(found, "compiler", self.compiler)
        return found

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens as bytes, for constraints."""
        return self.compiler.vocabulary

    def language(self, source: Source) -> Language:
        """What answers are held to (redraft.constraints.sources), ready for this model and any number of requests.

        Compiled once and kept on disk. Raises ConstraintError for what cannot be kept.
        """
        return self.compiler.language(source)

    def resolve(self, request: str | Request | ResolvedRequest) -> ResolvedRequest:
        """A request with everything checked and every default filled in.

        Raises RequestError naming the part, the value and the remedy; ConstraintError for a constraint that cannot be
        kept; TextError where the chat template refuses. For options that walk it, the checkpoint's table of settings is
        read and must be there.
        """
        if isinstance(request, ResolvedRequest):
            return request
        if not isinstance(request, Request):
            request = Request(request)
        options = request.options
        dialled = options.effort is not None or options.target_ms is not None
        dial = read_dial(self.folder) if dialled and self.folder is not None else None
        with input_errors():
            tokens = self._tokens(request)
            found = build_request(tokens, options, self.config, dial, self._language(request))
        return found if request.check is None else replace(found, check=request.check)

    def submit(
        self,
        request: str | Request | ResolvedRequest,
        scope: CancelScope | None = None,
        *,
        drafts: bool = False,
        behind: Handle | None = None,
        inbox: Inbox[Any] | None = None,
        key: Hashable = None,
        wait: bool = False,
    ) -> Handle:
        """Resolve a request and queue it, in the engine's scope if no other is given. Arguments and errors are those of
        `resolve` and of `Loop.submit`. What has a check is not repaired: see `Engine.generate`."""
        return self.loop.submit(
            self.resolve(request),
            self.scope if scope is None else scope,
            drafts=drafts,
            behind=behind,
            inbox=inbox,
            key=key,
            wait=wait,
        )

    def run(self, request: str | Request | ResolvedRequest) -> Generation:
        """The answer to a request, without any repair: raises UnsatisfiedError where the validator of its constraint
        complains, and as `submit` and `Handle.result`."""
        return self.submit(request).result()

    def _tokens(self, request: Request) -> list[int]:
        prompt = request.prompt
        if not prompt:
            raise RequestError("the prompt is empty, or has no messages; pass some text, messages or token ids")
        how: dict[str, Any] = {"thinking": request.thinking, "parse_special": request.parse_special}
        if isinstance(prompt, str):
            if not request.chat and not request.thinking:
                return self.text.encode(prompt, bos=True)
            return self.text.chat([{"role": "user", "content": prompt}], **how)
        messages = [one for one in prompt if not isinstance(one, int)]
        if len(messages) == len(prompt) and all(isinstance(one, Mapping) for one in messages):
            return self.text.chat(messages, **how)
        return list(prompt)  # type: ignore[arg-type]  # checked with the rest: what is no integer is refused by name

    def _language(self, request: Request) -> Language | None:
        given = request.constraint
        source = source_of(
            schema=request.schema,
            regex=request.regex,
            choices=request.choices,
            grammar=request.grammar,
            fence=request.fence,
            any_case=request.any_case,
        )
        if source is not None and given is not None:
            raise RequestError(f"constraint was given with a {source.kind}; pass one of them")
        if isinstance(given, Language):
            found: Language | None = given
        else:
            source = given if source is None else source
            found = None if source is None else self.language(source)
        return self._behind_thinking(found, request) if request.thinking else found

    def _behind_thinking(self, language: Language | None, request: Request) -> Language | None:
        marks = marks_of(self.text).thinking
        if marks is None:
            raise RequestError("thinking is True, and this checkpoint has no tokens that mark thinking; leave it out")
        if language is None and request.check is None:
            return None
        return after_thinking(self.language(anything()) if language is None else language, marks[1], marks[0])

    @classmethod
    def load(
        cls,
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
    ) -> Self:
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
        as_stored, text = adapter is None and chosen is None, read_text(folder, config)
        return cls(loaded, text, config, Loop(loaded, loop, text=text), folder, as_stored)
