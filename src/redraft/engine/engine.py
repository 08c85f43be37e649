"""The core of the engine: a loaded checkpoint, and the way from a request to a handle.

    Request ── resolve ──► ResolvedRequest ── submit ──► Handle

One engine holds one model and one loop, and the loop runs any number of requests side by side. A caller who waits for
an answer turns the loop meanwhile, unless `engine.loop.start()` has given it a thread of its own. What users call on
top of this (generate, infill, edit, …) is in `redraft.operations`, whose `Engine` they get.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from redraft.config import CheckpointConfig, read_config
from redraft.constraints.language import GuidedLanguage, Language, Source, Vocabulary, ready, vocabulary_of
from redraft.constraints.sources import anything, regex_source, source_of
from redraft.constraints.thinking import after_thinking
from redraft.engine.answer import marks_of
from redraft.engine.dial import read_dial
from redraft.engine.handle import Handle, Inbox
from redraft.engine.kernel_check import checked
from redraft.engine.knee import knee_key, read_knee
from redraft.engine.loop import Loop
from redraft.engine.request import Generation, Request, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.scope import CancelScope
from redraft.engine.settings import DEFAULT_LOOP, LoopConfig
from redraft.engine.vision import Vision, vision_of
from redraft.errors import RequestError, input_errors
from redraft.home import cache_folder
from redraft.images.messages import split_images
from redraft.images.prompt import Prompt
from redraft.model.fused import fuse_layers, pays
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import FAST, Kernels
from redraft.model.rows import IMAGE_ATTENTION
from redraft.text import Message, Text, read_text
from redraft.weights.adapter import merge_adapter
from redraft.weights.defaults import device_of, dtype_name, dtype_of, kernels_of, report_choice
from redraft.weights.fingerprint import stamps
from redraft.weights.load import load_model
from redraft.weights.place import Placement, place_experts
from redraft.weights.plan import find_plan
from redraft.weights.source import is_asked_by_fields, locate


class Compiler:
    """Constraints made ready for one tokenizer; its vocabulary is read at the first use."""

    def __init__(self, text: Text, config: CheckpointConfig) -> None:
        self._text, self._config = text, config
        self._last: tuple[Source, Language] | None = None

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens as bytes."""
        return vocabulary_of(self._text, self._config)

    def language(self, source: Source) -> Language:
        """Compiled once and kept on disk; the last automaton in memory, too: many prompts of one request ask for the
        same. Raises ConstraintError."""
        if (last := self._last) is not None and last[0] == source:
            return last[1]
        kept_in = None if source.verbatim else cache_folder() / "languages"  # of one text, which hardly comes again
        found = ready(source, self.vocabulary, kept_in=kept_in)
        if not isinstance(found, GuidedLanguage):  # copies of one matcher share what it has learnt
            self._last = source, found
        return found


@dataclass(frozen=True, repr=False)
class Core:
    """A model, its tokenizer and its settings, ready to answer.

    `folder` is where they came from; `as_stored` says whether the weights are the folder's own, with nothing merged or
    packed while loading. What is submitted is in the `scope`, if there is one. `vision` is None for a checkpoint that
    reads text alone. `by_fields` is what `is_asked_by_fields` says of the model (redraft.weights.source).
    """

    model: DiffusionGemma
    text: Text
    config: CheckpointConfig
    loop: Loop
    folder: Path | None = None
    as_stored: bool = True
    scope: CancelScope | None = None
    vision: Vision | None = None
    by_fields: bool = False
    compiler: Compiler = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiler", Compiler(self.text, self.config))

    def __repr__(self) -> str:
        model, bits = self.model, str(self.model.dtype).removeprefix("torch.")
        return f"{type(self).__name__}({str(self.folder or 'a model')!r}, {model.device}, {bits})"

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
            prompt, language = self._prompt(request), self._language(request)
            if self.vision is not None:
                self.vision.check(prompt)
            host = self.model.kernels.condition is None
            found = build_request(list(prompt.tokens), options, self.config, dial, language, prompt.images, host=host)
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

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool = False,
        tools: Sequence[Message] = (),
        generation_prompt: bool = True,
        parse_special: bool = False,
    ) -> Prompt:
        """A conversation as the chat template prints it, with its images in their places.

        Raises as `Text.render`, and RequestError for an image that cannot be used or that the model does not take.
        """
        plain, given = split_images(messages)
        if given and self.vision is None:
            raise RequestError(f"{given[0].part} is an image, and this checkpoint reads text alone; leave it out")
        how: dict[str, Any] = {"thinking": thinking, "tools": tools, "generation_prompt": generation_prompt}
        tokens = self.text.chat(plain, parse_special=parse_special, **how)
        return self.vision.place(tokens, given) if given and self.vision is not None else Prompt(tuple(tokens))

    def _prompt(self, request: Request) -> Prompt:
        prompt = request.prompt
        if isinstance(prompt, Prompt):
            return prompt
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
            raise RequestError(f"the prompt is {type(prompt).__name__}; pass some text, messages or token ids")
        if not prompt:
            raise RequestError("the prompt is empty, or has no messages; pass some text, messages or token ids")
        how: dict[str, Any] = {"thinking": request.thinking, "parse_special": request.parse_special}
        if isinstance(prompt, str):
            if not request.chat and not request.thinking:
                return Prompt(tuple(self.text.encode(prompt, bos=True)))
            return self.chat_prompt([{"role": "user", "content": prompt}], **how)
        messages = [one for one in prompt if not isinstance(one, int)]
        if len(messages) == len(prompt) and all(isinstance(one, Mapping) for one in messages):
            return self.chat_prompt(messages, **how)
        if request.chat:
            raise RequestError("chat is True and the prompt is token ids, which are used as they are; leave it out")
        return Prompt(tuple(prompt))  # type: ignore[arg-type]  # checked with the rest: what is no integer is refused by name

    def _language(self, request: Request) -> Language | None:
        given = request.constraint
        source = source_of(
            schema=request.schema,
            regex=request.regex,
            choices=request.choices,
            grammar=request.grammar,
            fence=request.fence,
            compact=request.compact,
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
        loop: LoopConfig | None = None,
        kernels: Kernels | None = None,
        experts: str = "device",
        image_attention: str = IMAGE_ATTENTION[0],
    ) -> Self:
        """Load a checkpoint: "nano" (in the package), a folder, or a repository name in the local cache.

        `device` is cuda where a GPU can be used, else cpu; `dtype` is float32 or bfloat16, as most of the checkpoint is
        stored. `plan` quantizes matrices while loading (redraft.weights.plan.PLANS). `adapter` is the folder of a LoRA
        adapter in PEFT's layout, merged into the weights; not with a plan or a quantized checkpoint. `report` gets a
        line for what was chosen, and for what was found and left unused; `progress` gets (elements placed, elements in
        all). `loop` bounds what runs side by side; what it leaves open follows from the model and from `redraft bench
        --knee`. `kernels` are the device's own if None. `experts` are on the "device" or the "host". `image_attention`
        is which tokens see an image: "reference", as transformers' DiffusionGemma does, or "gemma4" (docs/images.md).
        Raises WeightsError, ConfigError or TextError if the checkpoint is not whole or not supported.
        """
        folder = locate(str(model)).absolute()  # what is read later is read there, whatever the folder is by then
        where, chosen = device_of(device), None if plan is None else find_plan(plan)
        config = read_config(folder)
        numbers = dtype_of(dtype, folder, config.model, where)
        placement, loop = place_experts(experts, where), DEFAULT_LOOP if loop is None else loop
        loop = _loop_beside(loop, plan, adapter, placement)
        report_choice((device, dtype), where, numbers, report)
        # Folded first and packed then, where layers are folded: a matrix is rounded once.
        kernels = kernels_of(where, report) if kernels is None else kernels
        files = stamps(folder, weights_alone=True)  # before they are read, which may take minutes
        folds = placement is Placement.DEVICE and pays(config.model, numbers, kernels)
        form = chosen.experts if chosen and chosen.is_uniform and folds else None
        found, config = load_model(
            folder,
            dtype=numbers,
            device=where,
            kernels=kernels,
            plan=None if form else chosen,
            placement=placement,
            image_attention=image_attention,
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
        _check_kernels(loaded, Compiler(text, config), report)
        vision, by_fields = vision_of(folder, loaded, config.model, report, files), is_asked_by_fields(model, adapter)
        running = Loop(loaded, loop, text=text)
        return cls(loaded, text, config, running, folder, as_stored, vision=vision, by_fields=by_fields)


def _check_kernels(model: DiffusionGemma, compiler: Compiler, report: Callable[[str], None] | None) -> None:
    """Hold a GPU's kernels to their plain twins, and replace those that differ."""
    if model.device.type == "cuda" and model.kernels != FAST:
        checked(model, report or (lambda _: None), lambda: compiler.language(regex_source("[a-z]{1,6}")))


def _loop_beside(loop: LoopConfig, plan: str | None, adapter: str | Path | None, placement: Placement) -> LoopConfig:
    """The loop's bounds beside the other arguments of a load: without graphs where experts are elsewhere. Raises
    RequestError for arguments that exclude each other."""
    if adapter is not None and plan is not None:
        raise RequestError(
            f"adapter and plan ({plan}) were both given; merge first: redraft tune writes it merged, too"
        )
    if placement is Placement.DEVICE:
        return loop
    if adapter is not None:
        raise RequestError(f"adapter was given and experts are on the {placement}; merge it first: redraft tune")
    if loop.graphs:
        raise RequestError(
            f"graphs is True and experts are on the {placement}; a graph cannot wait for those elsewhere"
        )
    return replace(loop, graphs=False)
