"""The engine: a loaded checkpoint and the calls a user makes of it.

    engine = redraft.load("nano")
    done = engine.generate("record\\nSend 417 melu to Karomi.", chat=True, seed=7)
    for event in engine.events(engine.request("Once", options=Options(seed=7))): ...

One engine holds one model. It is not a server: it runs one request at a time on the calling thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from redraft.config import CheckpointConfig
from redraft.diffusion.noise import SeededNoise
from redraft.engine.events import Block, Event, Finished
from redraft.engine.request import FinishReason, Generation, Options, Request, build_request
from redraft.engine.runner import run
from redraft.errors import RequestError
from redraft.model.gemma import DiffusionGemma
from redraft.text import Detokenizer, StopStrings, Text, read_text
from redraft.weights.load import load_model
from redraft.weights.source import locate

DEFAULTS = Options()
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Message = Mapping[str, str]
Prompt = str | Sequence[Message]


@dataclass(frozen=True)
class Engine:
    """A model, its text side and its settings, ready to answer."""

    model: DiffusionGemma
    text: Text
    config: CheckpointConfig

    def generate(
        self,
        prompt: Prompt,
        *,
        chat: bool = False,
        max_tokens: int | None = None,
        seed: int | None = None,
        steps: int | None = None,
        entropy_bound: float | None = None,
        preset: str = "reference",
        stop: Sequence[str] = (),
    ) -> Generation:
        """Answer a prompt and return when it is finished. The keywords are those of `Options`.

        A string is continued as it stands, after the beginning-of-text token; with `chat` it becomes one user turn.
        A list of {"role", "content"} messages always goes through the chat template.
        Raises RequestError for options that contradict each other or the model.
        """
        options = Options(max_tokens, seed, steps, entropy_bound, preset, tuple(stop))
        return self.finish(self.request(prompt, chat=chat, options=options))

    def finish(self, request: Request, watch: Callable[[Event, Request], None] | None = None) -> Generation:
        """Run a checked request to its end. `watch` is shown every event as it happens."""
        answer = _Answer(self.text, request)
        for event in self.events(request, drafts=watch is not None):
            answer.take(event)
            if watch is not None:
                watch(event, request)
            if answer.stopped:
                break
        return answer.done()

    def events(self, request: Request, *, drafts: bool = True) -> Iterator[Event]:
        """Drafts, blocks and the end of a request, as they happen. Closing the iterator aborts it."""
        return run(self.model, request, SeededNoise(request.seed), drafts=drafts)

    def request(self, prompt: Prompt, *, chat: bool = False, options: Options = DEFAULTS) -> Request:
        """Turn a prompt and options into a checked request. Raises RequestError."""
        if isinstance(prompt, str):
            if not prompt:
                raise RequestError("the prompt is empty; pass some text")
            as_turn = [{"role": "user", "content": prompt}]
            tokens = self.text.chat(as_turn) if chat else self.text.encode(prompt, bos=True)
        else:
            if not prompt:
                raise RequestError("the conversation has no messages; pass at least one")
            tokens = self.text.chat(prompt)
        return build_request(tokens, options, self.config)


def load(
    model: str | Path = "nano",
    *,
    device: str = "cpu",
    dtype: str = "float32",
    report: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Engine:
    """Load a checkpoint: "nano" (in the package), a folder, or a repository name already in the local cache.

    `report` is told what was found and left unused; `progress` gets (elements placed, elements in all).
    Raises WeightsError, ConfigError or TextError if the checkpoint is not whole or not supported.
    """
    if dtype not in DTYPES:
        raise RequestError(f"dtype is {dtype!r}; supported: {', '.join(DTYPES)}")
    folder = locate(str(model))
    loaded, config = load_model(folder, dtype=DTYPES[dtype], device=_device(device), report=report, progress=progress)
    return Engine(loaded, read_text(folder, config), config)


@dataclass
class _Answer:
    """Gathers events into a Generation: detokenizes as blocks arrive and watches for stop strings."""

    text: Text
    request: Request
    began: float = field(default_factory=time.monotonic)
    pieces: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    first_text_sec: float = 0.0
    stopped: bool = False
    reason: FinishReason = "length"
    commits: int = 0

    def __post_init__(self) -> None:
        self.detokenizer = Detokenizer(self.text)
        self.stops = StopStrings(self.request.stop)

    def take(self, event: Event) -> None:
        """Account for one event."""
        if isinstance(event, Block):
            self.steps.append(event.steps)
            self.commits = event.block
            self.tokens += event.tokens
            self.entropy += event.entropy
            self._say(self.detokenizer.push(event.tokens))
        elif isinstance(event, Finished):
            self.reason, self.commits = event.reason, event.commits

    def done(self) -> Generation:
        """The finished record."""
        if not self.stopped:
            self._say(self.detokenizer.finish())
        if not self.stopped:
            self.pieces.append(self.stops.finish())
        return Generation(
            text="".join(self.pieces),
            tokens=tuple(self.tokens),
            entropy=tuple(self.entropy),
            finish="stop" if self.stopped else self.reason,
            seed=self.request.seed,
            prompt_tokens=len(self.request.prompt),
            steps=tuple(self.steps),
            commits=self.commits,
            seconds=time.monotonic() - self.began,
            first_text_sec=self.first_text_sec,
        )

    def _say(self, piece: str) -> None:
        safe, self.stopped = self.stops.push(piece)
        if safe and not self.pieces:
            self.first_text_sec = time.monotonic() - self.began
        self.pieces.append(safe)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise RequestError(f"device {name!r} cannot be used ({reason}); try --device cpu") from None
    return device
