"""What an answer says: its tokens apart into content, thinking and tool calls, as text that is certain.

A checkpoint that thinks or calls tools marks both with tokens of its own. One without such tokens says only content.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from redraft.engine.events import Block, Event, Finished, PromptRead
from redraft.engine.request import FinishReason, ResolvedRequest
from redraft.errors import RunError
from redraft.server.refusal import NO_TIME, Refusal
from redraft.text import Detokenizer, StopStrings, Text

Kind = Literal["content", "reasoning", "call"]
Logprobs = tuple[tuple[int, float], ...]

OPENING: Mapping[str, Kind] = {"<|channel>": "reasoning", "<|tool_call>": "call"}
CLOSING: Mapping[str, Kind] = {"<channel|>": "reasoning", "<tool_call|>": "call"}
LABEL = "thought\n"  # a channel begins with its name


@dataclass(frozen=True)
class Marks:
    """Token ids that open and close what is not content."""

    opening: Mapping[int, Kind]
    closing: Mapping[int, Kind]

    @property
    def thinking(self) -> tuple[int, int] | None:
        """Those around thinking."""
        found = [at for marks in (self.opening, self.closing) for at, kind in marks.items() if kind == "reasoning"]
        return (found[0], found[1]) if len(found) == 2 else None


def marks_of(text: Text) -> Marks:
    """Those that a tokenizer has as single tokens."""

    def known(marks: Mapping[str, Kind]) -> dict[int, Kind]:
        return {i: kind for token, kind in marks.items() if (i := text.tokenizer.token_to_id(token)) is not None}

    return Marks(known(OPENING), known(CLOSING))


@dataclass
class Said:
    """What one event added. `logprobs` are of the content's tokens, `read` is whether the prompt's have come."""

    content: str = ""
    reasoning: str = ""
    logprobs: list[Logprobs] = field(default_factory=list)
    read: bool = False


@dataclass
class Voice:
    """One answer as it comes. `finish` is None until its end; `calls` are the marked tool calls, unparsed.

    `logprobs` are of the content's tokens and, where the prompt is read, of the end; `cut` is whether a stop string has
    ended the content among its tokens.
    """

    text: Text
    request: ResolvedRequest
    marks: Marks
    began: float = field(default_factory=time.monotonic)
    content: str = ""
    reasoning: str = ""
    calls: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    cut: bool = False
    reasoning_tokens: int = 0
    steps: list[int] = field(default_factory=list)
    commits: int = 0
    first_sec: float | None = None
    seconds: float = 0.0
    finish: FinishReason | None = None

    def __post_init__(self) -> None:
        self._kind: Kind = "content"
        self._parts = {kind: Detokenizer(self.text) for kind in ("content", "reasoning")}
        self._call: list[int] = []
        self._label: str | None = ""  # what may still become the channel's name; None once that is behind us
        self._stops = StopStrings(self.request.stop)

    def take(self, event: Event) -> Said:
        """Account for one event. Raises RunError if the engine failed."""
        if isinstance(event, Block):
            self.blocks.append(event)
            self.steps.append(event.steps)
            self.commits = event.block
            self.tokens += event.tokens
            self.entropy += event.entropy
            said = Said()
            for kind, places in self._split(event.tokens):
                if kind == "content" and event.logprobs:
                    said.logprobs += [event.logprobs[at] for at in places]
                self._say(kind, [event.tokens[at] for at in places], said)
            return self._shown(said)
        if isinstance(event, PromptRead):
            self.prompt_logprobs = event.logprobs
            return Said(read=True)
        if isinstance(event, Finished):
            if event.reason == "error":
                raise RunError(f"the engine failed while this request was running: {event.error}") from event.error
            return self._end(event)
        return Said()

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been met."""
        return self.finish == "stop"

    def _end(self, event: Finished) -> Said:
        said = Said()
        self.commits = event.commits
        if self.finish is None:
            said.reasoning = self._parts["reasoning"].finish()
            said.content, met = self._stops.push(self._parts["content"].finish())
            said.content += self._stops.finish()
            self._close_call()
            self.finish, self.cut = "stop" if met else event.reason, met
            said.logprobs += [event.end] if event.end and not met else []
            self._check_read()
            self._check_language()
        self.seconds = time.monotonic() - self.began
        return self._shown(said)

    def _check_read(self) -> None:
        """A prompt that had to be read has been, or there is nothing to tell. Raises Refusal."""
        unread = self.request.read_prompt and len(self.prompt_logprobs) < len(self.request.prompt) - 1
        if unread and self.finish == "deadline":
            raise Refusal(504, "the time was up before the prompt was read; raise deadline_ms", code="deadline")

    def _check_language(self) -> None:
        """An answer that had to be in a language is, or is an error. Raises Refusal."""
        language = self.request.language
        if language is None or self.finish == "aborted":
            return
        if not language.holds(self.tokens):
            if self.finish == "deadline":
                raise Refusal(504, NO_TIME, code="deadline")
            raise RunError("the answer left its constraint, which is a bug of redraft; please report it")

    def _split(self, tokens: Sequence[int]) -> list[tuple[Kind, Sequence[int]]]:
        """Places of runs of one kind, without the marks between them."""
        if not self.marks.opening and not self.marks.closing:
            return [("content", range(len(tokens)))]
        runs: list[tuple[Kind, list[int]]] = [(self._kind, [])]
        for at, token in enumerate(tokens):
            turned: Kind | None = self.marks.opening.get(token)
            turned = "content" if token in self.marks.closing else turned
            if turned is None:
                runs[-1][1].append(at)
            else:
                self._kind = turned
                runs.append((turned, []))
        return [*runs]

    def _say(self, kind: Kind, tokens: list[int], said: Said) -> None:
        if kind == "call":
            self._call += tokens
            return
        self._close_call()
        if kind == "reasoning":
            self.reasoning_tokens += len(tokens)
            said.reasoning += self._parts["reasoning"].push(tokens)
        elif not self.stopped:
            piece, met = self._stops.push(self._parts["content"].push(tokens))
            said.content += piece
            if met:
                self.finish, self.cut, self.seconds = "stop", True, time.monotonic() - self.began

    def _close_call(self) -> None:
        if self._call:
            self.calls.append(self.text.decode(self._call, skip_special=False))
            self._call = []

    def _shown(self, said: Said) -> Said:
        said.reasoning = self._unlabelled(said.reasoning)
        if (said.content or said.reasoning) and self.first_sec is None:
            self.first_sec = time.monotonic() - self.began
        self.content += said.content
        self.reasoning += said.reasoning
        self.logprobs += said.logprobs
        return said

    def _unlabelled(self, piece: str) -> str:
        """Thinking without the name that its channel begins with, in however many pieces that comes."""
        if self._label is None or not piece:
            return piece
        seen = self._label + piece
        self._label = seen if LABEL.startswith(seen) and seen != LABEL else None
        return "" if self._label is not None else seen.removeprefix(LABEL)
