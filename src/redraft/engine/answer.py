"""From events to an answer: text as blocks arrive, stop strings, counts and times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from redraft.engine.events import Block, Event, Finished, PromptRead
from redraft.engine.request import FinishReason, Generation, Request
from redraft.errors import DeadlineError, RedraftError, RunError, UnsatisfiedError
from redraft.text import Detokenizer, StopStrings, Text


@dataclass
class Answer:
    """Gathers the events of one request. `stopped` turns true when a stop string is met; what follows is ignored."""

    text: Text
    request: Request
    began: float = field(default_factory=time.monotonic)
    blocks: list[Block] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    prompt_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    first_text_sec: float = 0.0
    stopped: bool = False
    reason: FinishReason = "length"
    commits: int = 0

    def __post_init__(self) -> None:
        self.detokenizer = Detokenizer(self.text)
        self.stops = StopStrings(self.request.stop)

    def take(self, event: Event) -> None:
        """Account for one event. Raises RunError, from what caused it, for a request that ended with an error."""
        if self.stopped:
            return  # an abort that follows a stop string may come too late to keep another block from being told
        if isinstance(event, Block):
            self.blocks.append(event)
            self.commits = event.block
            self._say(self.detokenizer.push(event.tokens))
        elif isinstance(event, PromptRead):
            self.prompt_logprobs = event.logprobs
        elif isinstance(event, Finished):
            if event.reason == "error":
                raise RunError(f"the engine failed while this request was running: {_cause(event)}") from event.error
            self.reason, self.commits = event.reason, event.commits

    @property
    def tokens(self) -> list[int]:
        """All that were told."""
        return [token for block in self.blocks for token in block.tokens]

    def done(self) -> Generation:
        """The finished record."""
        self._check_language()
        if not self.stopped:
            self._say(self.detokenizer.finish())
        if not self.stopped:
            self._show(self.stops.finish())
        return Generation(
            text="".join(self.pieces),
            tokens=tuple(self.tokens),
            entropy=tuple(nats for block in self.blocks for nats in block.entropy),
            settled_at=tuple(step for block in self.blocks for step in block.settled_at),
            changes=tuple(count for block in self.blocks for count in block.changes),
            finish="stop" if self.stopped else self.reason,
            seed=self.request.seed,
            prompt_tokens=len(self.request.prompt),
            steps=tuple(block.steps for block in self.blocks),
            commits=self.commits,
            seconds=time.monotonic() - self.began,
            first_text_sec=self.first_text_sec,
            logprobs=tuple(row for block in self.blocks for row in block.logprobs),
            log_mass=tuple(mass for block in self.blocks for mass in block.log_mass),
            prompt_logprobs=tuple(self.prompt_logprobs),
        )

    def _check_language(self) -> None:
        """A constrained answer is valid, or an error: the tokens told are walked once more, from the beginning."""
        language = self.request.language
        if language is None or self.reason == "aborted":
            return
        if language.holds(tokens := self.tokens):
            attempt = self.text.decode(language.answer(tokens))
            if language.checked and (problems := language.problems(attempt)):
                raise UnsatisfiedError(attempt, [problem.reason for problem in problems])
            return
        if self.reason == "deadline":
            raise DeadlineError(
                f"deadline_sec is {self.request.deadline_sec} and no valid answer had been found; raise it"
            )
        raise RunError("the answer left its constraint, which is a bug of redraft; please report it")

    def _say(self, piece: str) -> None:
        safe, self.stopped = self.stops.push(piece)
        self._show(safe)

    def _show(self, piece: str) -> None:
        if piece and not self.pieces:
            self.first_text_sec = time.monotonic() - self.began
        self.pieces += [piece] if piece else []


def _cause(event: Finished) -> str:
    """One line about an error: ours say all there is to say, others also need their kind."""
    error = event.error
    return str(error) if isinstance(error, RedraftError) else f"{type(error).__name__}: {error}".rstrip(": ")
