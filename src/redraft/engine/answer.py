"""From events to an answer: the one accumulator, for Python, the shell, HTTP and batches.

    event ──► Answer.take ──► Delta(content, reasoning, calls, logprobs) … ──► Generation

A checkpoint that thinks or calls tools marks both with tokens of its own, and they separate the parts of an answer. One
without such tokens has only content. Text comes out when it is certain: whole characters, and nothing that may yet
become a stop string.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from redraft.constraints.compile.limits import is_gone
from redraft.engine.calls import ToolCall, read_call
from redraft.engine.events import Block, Event, Finished, PromptRead
from redraft.engine.request import FinishReason, Generation, Logprobs, ResolvedRequest
from redraft.errors import ConstraintError, DeadlineError, RedraftError, RunError, UnsatisfiedError
from redraft.forks import ForkLock
from redraft.stops import StopStrings
from redraft.text import Detokenizer, Text

Kind = Literal["content", "reasoning", "call"]

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


@lru_cache(maxsize=8)
def marks_of(text: Text) -> Marks:
    """Those that a tokenizer has as single tokens."""

    def known(marks: Mapping[str, Kind]) -> dict[int, Kind]:
        return {i: kind for token, kind in marks.items() if (i := text.tokenizer.token_to_id(token)) is not None}

    return Marks(known(OPENING), known(CLOSING))


@dataclass(frozen=True)
class Delta:
    """What one event added to an answer. `logprobs` are of the content's tokens, come with their text, and begin
    `offset` characters behind its beginning; `calls` have become whole with it."""

    event: Event
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    offset: int = 0

    def __bool__(self) -> bool:
        """Whether there is anything new to show."""
        return bool(self.content or self.reasoning or self.calls or self.logprobs)


@dataclass
class Answer:
    """One answer as it comes. `finish` is None until its end, or until a stop string is met; what follows is ignored.

    `tokens` and `entropy` are of all tokens, `logprobs` of the content's and, where the prompt is read, of the end.
    `stopped` is whether a stop string has ended the content among its tokens: nothing that is still to come can matter.
    Times are seconds from submission; `first_text_sec` is None before there is text.
    """

    text: Text
    request: ResolvedRequest
    began: float = field(default_factory=time.monotonic)
    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    reasoning_tokens: int = 0
    commits: int = 0
    stopped: bool = False
    first_text_sec: float | None = None
    seconds: float = 0.0
    finish: FinishReason | None = None
    guesses: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self._marks = marks_of(self.text)
        self._kind: Kind = "content"
        self._contents, self._thoughts = Detokenizer(self.text), Detokenizer(self.text)
        self._call: list[int] = []
        self._label: str | None = ""  # what may still become the channel's name; None once that is behind us
        self._stops = StopStrings(self.request.stop)
        self._begins: int | None = None
        self._offsets, self._places = list[int](), Offsets(self.text)  # where the tokens of `logprobs` begin
        self._shown = 0  # rows of `logprobs` that deltas have had
        self._failed: Exception | None = None
        self._ending = ForkLock()  # several may read the end, and on threads: one of them checks

    @property
    def begins(self) -> int:
        """Where the content's tokens begin: behind thinking and its marks."""
        return len(self.tokens) if self._begins is None else self._begins

    @property
    def stop_string(self) -> str | None:
        """The stop string that has ended the content."""
        return self._stops.found

    @property
    def steps(self) -> list[int]:
        """Denoising steps of each block."""
        return [block.steps for block in self.blocks]

    def take(self, event: Event) -> Delta:
        """Account for one event; returns what it adds.

        The last one checks the whole. Raises RunError for a request that ended with an error, from what caused it;
        DeadlineError if the time was up before there was anything valid; UnsatisfiedError if a validator of the
        constraint complains.
        """
        if isinstance(event, Finished):
            with self._ending:
                return self._take_end(event)
        self._raise_failure()
        if self.finish is not None:
            return Delta(event)  # an abort that follows a stop string may come too late to keep another block away
        if isinstance(event, Block):
            return self._take_block(event)
        if isinstance(event, PromptRead):
            self.prompt_logprobs = event.logprobs
        return Delta(event)

    def _raise_failure(self) -> None:
        if self._failed is not None:
            raise self._failed.with_traceback(None)

    def _take_end(self, event: Finished) -> Delta:
        self._raise_failure()
        if self.finish is not None:
            return Delta(event)
        if event.reason == "error":
            raise RunError(f"the engine failed while this request was running: {_cause(event)}") from event.error
        finish: FinishReason = "stop" if self.stopped else event.reason
        try:
            self._check_read(finish)
            self._check_language(finish)
        except BaseException as error:  # what was not checked to its end is no answer later, either
            cut = RunError("the check of this answer was interrupted; ask again")
            if not is_gone():  # who is still there has a check of their own
                self._failed = error if isinstance(error, Exception) else cut
            raise
        return self._end(event)

    def generation(self) -> Generation:
        """The finished record."""
        blocks, language = self.blocks, self.request.language
        return Generation(
            text=self.content,
            tokens=tuple(self.tokens),
            entropy=tuple(self.entropy),
            settled_at=tuple(step for block in blocks for step in block.settled_at),
            changes=tuple(count for block in blocks for count in block.changes),
            finish="aborted" if self.finish is None else self.finish,
            seed=self.request.seed,
            prompt_tokens=len(self.request.prompt),
            steps=tuple(self.steps),
            commits=self.commits,
            seconds=self.seconds,
            first_text_sec=self.first_text_sec or 0.0,
            logprobs=tuple(row for block in blocks for row in block.logprobs),
            log_mass=tuple(mass for block in blocks for mass in block.log_mass),
            prompt_logprobs=tuple(self.prompt_logprobs),
            reasoning=self.reasoning,
            calls=tuple(self.calls),
            begins=self.begins,
            reasoning_tokens=self.reasoning_tokens,
            content_logprobs=tuple(self.shown_logprobs()),
            constraint=None if language is None else language.held,
            ignored=() if language is None else language.ignored,
            guesses=self.guesses,
            cached_tokens=blocks[0].cached if blocks else 0,
        )

    def shown_logprobs(self) -> list[Logprobs]:
        """The rows of the content, of which a stop string may have cut the last, or may yet."""
        if not self.logprobs or (self.finish is not None and not self.stopped):
            return self.logprobs
        return self.logprobs[: bisect_left(self._offsets, len(self.content))]

    def _take_block(self, block: Block) -> Delta:
        content, thought, calls, rows = "", "", list[ToolCall](), list[Logprobs]()
        before = len(self.tokens)
        self.blocks.append(block)
        self.commits = block.block
        self.tokens += block.tokens
        self.entropy += block.entropy
        for kind, places in self._split(block.tokens):
            tokens = [block.tokens[at] for at in places]
            if kind == "call":
                self._call += tokens
                continue
            calls += self._close_call()
            if kind == "reasoning":
                self.reasoning_tokens += len(tokens)
                thought += self._thoughts.push(tokens)
                continue
            if tokens and self._begins is None:
                self._begins = before + places[0]
            rows += [block.logprobs[at] for at in places] if block.logprobs else []
            if not self.stopped:
                piece, self.stopped = self._stops.push(self._contents.push(tokens))
                content += piece
                if self.stopped:
                    self.finish = "stop"
                    break
        return self._added(block, content, thought, calls, rows)

    def _end(self, event: Finished) -> Delta:
        thought = self._thoughts.finish()
        content, self.stopped = self._stops.push(self._contents.finish())
        content += self._stops.finish()
        calls = self._close_call()
        rows = [event.end] if event.end and not self.stopped else []
        self.commits, self.finish = event.commits, "stop" if self.stopped else event.reason
        return self._added(event, content, thought, calls, rows)

    def _check_read(self, finish: FinishReason) -> None:
        """A prompt that had to be read has been, or there is nothing to report."""
        unread = self.request.read_prompt and len(self.prompt_logprobs) < len(self.request.prompt) - 1
        if unread and finish == "deadline":
            raise DeadlineError(
                f"deadline_sec is {self.request.deadline_sec} and the prompt had not been read; raise it"
            )

    def _check_language(self, finish: FinishReason) -> None:
        """A constrained answer is valid, or an error: its tokens are walked once more, from the beginning."""
        language = self.request.language
        if language is None or finish == "aborted":
            return
        if language.holds(tokens := self.tokens):
            attempt = self.text.decode(language.answer(tokens))
            if self.request.is_validated and (problems := language.problems(attempt)):
                raise UnsatisfiedError(attempt, [problem.reason for problem in problems])
            return
        if finish == "deadline":
            raise DeadlineError(
                f"deadline_sec is {self.request.deadline_sec} and no valid answer had been found; raise it"
            )
        if language.held == "guided":  # llguidance's matcher has bounds of its own, after which it takes nothing
            raise ConstraintError("the schema's patterns are too ambiguous to hold an answer to; narrow their counts")
        raise RunError("the answer left its constraint, which is a bug of redraft; please report it")

    def _split(self, tokens: Sequence[int]) -> list[tuple[Kind, Sequence[int]]]:
        """Places of runs of one kind, without the marks between them."""
        marks = self._marks
        if not marks.opening and not marks.closing:
            return [("content", range(len(tokens)))]
        runs: list[tuple[Kind, list[int]]] = [(self._kind, [])]
        for at, token in enumerate(tokens):
            turned: Kind | None = "content" if token in marks.closing else marks.opening.get(token)
            if turned is None:
                runs[-1][1].append(at)
            else:
                self._kind = turned
                runs.append((turned, []))
        return [*runs]

    def _close_call(self) -> list[ToolCall]:
        if not self._call:
            return []
        written, self._call = self.text.decode(self._call, skip_special=False), []
        return [read_call(written)]

    def _added(
        self, event: Event, content: str, thought: str, calls: Sequence[ToolCall], rows: Sequence[Logprobs]
    ) -> Delta:
        thought = self._unlabelled(thought)
        self.seconds = time.monotonic() - self.began
        if (content or thought) and self.first_text_sec is None:
            self.first_text_sec = self.seconds
        self.content += content
        self.reasoning += thought
        self.calls += calls
        self.logprobs += rows
        self._offsets += self._places.push([row[0][0] for row in rows])
        shown = self.shown_logprobs()
        new, self._shown = shown[self._shown :], max(self._shown, len(shown))
        offset = self._offsets[self._shown - len(new)] if new else 0
        return Delta(event, content, thought, tuple(calls), tuple(new), offset)

    def _unlabelled(self, piece: str) -> str:
        """Thinking without the name that its channel begins with, in however many pieces that comes."""
        if self._label is None or not piece:
            return piece
        seen = self._label + piece
        self._label = seen if LABEL.startswith(seen) and seen != LABEL else None
        return "" if self._label is not None else seen.removeprefix(LABEL)


class Offsets:
    """Where in their text tokens begin, in characters; all tokens of a run of bytes where it begins. `special` is
    whether special tokens stand in the text."""

    def __init__(self, text: Text, *, special: bool = False) -> None:
        self._text, self._special, self._at = text, special, 0
        self._pieces = Detokenizer(text, skip_special=not special)

    def push(self, tokens: Sequence[int]) -> list[int]:
        """Those of the next tokens."""
        found = list[int]()
        for token in tokens:
            self._at += len(self._pieces.push([token]))
            held = token in self._text.byte_ids
            length = 0 if held else len(self._text.decode([token], skip_special=not self._special))
            found.append(self._at - length)
        return found


def _cause(event: Finished) -> str:
    """One line about an error: ours say all there is to say, others also need their kind."""
    error = event.error
    return str(error) if isinstance(error, RedraftError) else f"{type(error).__name__}: {error}".rstrip(": ")
