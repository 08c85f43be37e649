"""Answers in the forms that clients read: chat, text, fill-in-the-middle; whole, and piece by piece."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from random import getrandbits
from typing import Any, ClassVar

from redraft.engine.answer import Delta, Offsets
from redraft.engine.events import PromptRead
from redraft.engine.request import FinishReason, Generation, Logprobs
from redraft.server.http.settings import Settings
from redraft.server.openai.constraint import Choice, called
from redraft.text import Text

Json = dict[str, Any]

NO_TOOLS = Choice()
FINISHED: Mapping[FinishReason | None, str] = {"stop": "stop", "length": "length", "deadline": "length"}


@dataclass(frozen=True)
class ChatForm:
    """`chat.completion`. With a forced `choice` the whole answer is a call; otherwise it may hold some. A `hint` is a
    sentence for people about what the model was not taught; `turns` is how many messages were sent."""

    prefix: ClassVar = "chatcmpl"
    whole_object: ClassVar = "chat.completion"
    chunk_object: ClassVar = "chat.completion.chunk"

    text: Text
    logprobs: bool = False
    choice: Choice = NO_TOOLS
    hint: str = ""
    turns: int = 0

    def whole(self, i: int, done: Generation) -> Json:
        """A message."""
        calls, rest = self.calls(done)
        message: Json = {"role": "assistant", "content": done.text + rest, "refusal": None}
        if calls:
            message |= {"content": None if self.choice.forced else done.text + rest or None, "tool_calls": calls}
        if done.reasoning:
            message |= {"reasoning_content": done.reasoning, "reasoning": done.reasoning}
        rows = chat_logprobs(self.text, done.content_logprobs) if self.logprobs else None
        return {"index": i, "message": message, "logprobs": rows} | _end(done, called=bool(calls), hint=self.hint)

    def first(self, i: int) -> Json | None:
        """The role."""
        return self._choice(i, {"role": "assistant", "content": None if self.choice.forced else ""})

    def piece(self, i: int, delta: Delta) -> Json:
        """A delta. Tool calls come with the last one."""
        content: Json = {"content": delta.content} if delta.content and not self.choice.forced else {}
        if delta.reasoning:
            content |= {"reasoning_content": delta.reasoning, "reasoning": delta.reasoning}
        choice = self._choice(i, content)
        if self.logprobs and delta.logprobs:
            choice["logprobs"] = chat_logprobs(self.text, delta.logprobs)
        return choice

    def last(self, i: int, done: Generation) -> Json:
        """The reason, and the calls that were made."""
        calls, rest = self.calls(done)
        delta: Json = {"tool_calls": [{"index": n, **call} for n, call in enumerate(calls)]} if calls else {}
        delta |= {"content": rest} if rest else {}
        return self._choice(i, delta) | _end(done, called=bool(calls), hint=self.hint)

    def _choice(self, i: int, delta: Json) -> Json:
        return {"index": i, "delta": delta, "logprobs": None, "finish_reason": None}

    def calls(self, done: Generation) -> tuple[list[Json], str]:
        """The calls of a finished answer, and what was marked as one and is none: no tool's, or not as its schema says.
        That is content, as it was written."""
        rest, pairs = "", list[tuple[str, Any]]()
        if self.choice.forced:
            said = json.loads(done.text)
            pairs = [(self.choice.only, said)] if self.choice.only else [(said["name"], said["arguments"])]
        for call in () if self.choice.forced else done.calls:
            if call.name is not None and called(self.choice.tools, call.name, call.arguments):
                pairs.append((call.name, call.arguments))
            else:
                rest += call.written
        calls = [
            {
                "id": f"call_{done.seed:016x}{self.turns:x}x{done.prompt_tokens:x}x{n}",  # another one in each turn
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for n, (name, arguments) in enumerate(pairs)
        ]
        return calls, rest


@dataclass(frozen=True)
class Echo:
    """A prompt in front of its answer: its text and its tokens. `spelt` is whether special ones stand in the text."""

    text: str
    tokens: Sequence[int]
    spelt: bool


@dataclass(frozen=True)
class TextForm:
    """`text_completion`. With `echo[i]` in front of answer i, and, if `read`, its log-probabilities."""

    prefix: ClassVar = "cmpl"
    whole_object: ClassVar = "text_completion"
    chunk_object: ClassVar = "text_completion"

    text: Text
    logprobs: bool = False
    echo: Sequence[Echo] = ()
    read: bool = False
    delta: bool = False

    def whole(self, i: int, done: Generation) -> Json:
        """A text."""
        front = self.echo[i].text if self.echo else ""
        choice = self._choice(i, front + done.text) | _end(done)
        if self.logprobs:
            own = text_logprobs(self.text, done.content_logprobs, len(front))
            before = self._read(i, done.prompt_logprobs) if self.read else {}
            choice["logprobs"] = {name: before.get(name, []) + rows for name, rows in own.items()}
        if self.delta:
            choice["message"] = {"role": "assistant", "content": front + done.text}
        return choice

    def first(self, i: int) -> Json | None:
        """The prompt, where it is to be echoed as it stands."""
        return self._choice(i, self.echo[i].text) if self.echo and not self.read else None

    def piece(self, i: int, delta: Delta) -> Json:
        """More text; or the prompt, once it has been read."""
        if isinstance(delta.event, PromptRead):
            return self._choice(i, self.echo[i].text) | {"logprobs": self._read(i, delta.event.logprobs)}
        choice = self._choice(i, delta.content)
        if self.logprobs and delta.logprobs:
            front = len(self.echo[i].text) if self.echo else 0
            choice["logprobs"] = text_logprobs(self.text, delta.logprobs, front + delta.offset)
        return choice

    def last(self, i: int, done: Generation) -> Json:
        """The reason."""
        return self._choice(i, "") | _end(done)

    def _read(self, i: int, rows: Sequence[Logprobs]) -> Json:
        """Log-probabilities of an echoed prompt. Nothing stands before its first token, so that one has none."""
        echo = self.echo[i]
        behind = rows[len(rows) - len(echo.tokens) + 1 :] if echo.tokens else []
        found = text_logprobs(self.text, behind, 0)
        first = [_shown(self.text, token) for token in echo.tokens[:1]]
        return {
            "tokens": first + found["tokens"],
            "token_logprobs": [None for _ in first] + found["token_logprobs"],
            "top_logprobs": [None for _ in first] + found["top_logprobs"],
            "text_offset": Offsets(self.text, special=echo.spelt).push(echo.tokens),
        }

    def _choice(self, i: int, text: str) -> Json:
        choice: Json = {"index": i, "text": text, "logprobs": None, "finish_reason": None}
        if self.delta:  # one kind of client reads the text, the other the delta
            choice["delta"] = {"content": text}
        return choice


Form = ChatForm | TextForm
"""The form of one endpoint's answers: whole, or a first, further and a last piece of a stream."""


@dataclass(frozen=True)
class ReplyHead:
    """What every chunk of an answer has in common."""

    settings: Settings
    form: Form
    id: str = field(default_factory=lambda: f"{getrandbits(96):024x}")
    created: int = field(default_factory=lambda: int(time.time()))

    def of(self, *, chunk: bool) -> Json:
        """As JSON, without choices."""
        return {
            "id": f"{self.form.prefix}-{self.id}",
            "object": self.form.chunk_object if chunk else self.form.whole_object,
            "created": self.created,
            "model": self.settings.name,
            "system_fingerprint": f"redraft-{self.settings.version}",  # what answers under one seed depend on, too
        }

    def whole(self, done: Sequence[Generation], counts: Json) -> Json:
        """Finished answers and their usage."""
        choices = [self.form.whole(i, one) for i, one in enumerate(done)]
        return self.of(chunk=False) | {"choices": choices, "usage": counts}


def whole_answer(
    text: str, *, seed: int, finish: FinishReason, tokens: Sequence[int] = (), forwards: int | None = None
) -> Generation:
    """An operation's text as an answer, without what only a sampled one has."""
    return Generation(
        text=text,
        tokens=tuple(tokens),
        entropy=(),
        settled_at=(),
        changes=(),
        finish=finish,
        seed=seed,
        prompt_tokens=0,
        steps=() if forwards is None else (forwards,),
        commits=0,
        seconds=0.0,
        first_text_sec=0.0,
    )


def canvas_report(done: Generation) -> Json:
    """What only a diffusion model has to report of an answer."""
    held = {} if done.constraint is None else {"constraint": done.constraint, "ignored": list(done.ignored)}
    read = {} if done.guesses is None else {"guesses": list(done.guesses)}
    return {
        **held,
        **read,
        "seed": done.seed,
        "finish": done.finish,
        "steps": list(done.steps),
        "commits": done.commits,
        "tokens_per_forward": round(done.tokens_per_forward, 3),
        "mean_entropy": round(sum(done.entropy) / max(1, len(done.entropy)), 6),
        "ms": round(done.seconds * 1e3, 2),
        "first_text_ms": round(done.first_text_sec * 1e3, 2) or None,
    }


@dataclass(frozen=True)
class Counts:
    """Tokens of some answers, of which some are thinking and some stand where a prediction has them; their steps and
    commits."""

    tokens: int = 0
    reasoning: int = 0
    accepted: int = 0
    steps: int = 0
    commits: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def counts_of(done: Sequence[Generation], predicted: Sequence[int] = ()) -> Counts:
    """Those of finished answers."""
    return Counts(
        tokens=sum(len(one.tokens) for one in done),
        reasoning=sum(one.reasoning_tokens for one in done),
        accepted=sum(a == b for one in done for a, b in zip(predicted, one.tokens, strict=False)),
        steps=sum(sum(one.steps) for one in done),
        commits=sum(one.commits for one in done),
    )


def usage(counts: Counts, prompt_tokens: int, predicted: int = 0, *, cached: int | None = None) -> Json:
    """Tokens, and the forwards they took. So many tokens were `predicted` in all; `cached` of the prompt came from kept
    prefixes, where that is known."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": counts.tokens,
        "total_tokens": prompt_tokens + counts.tokens,
        **({} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}),
        "completion_tokens_details": {
            "reasoning_tokens": counts.reasoning,
            "accepted_prediction_tokens": counts.accepted,
            "rejected_prediction_tokens": predicted - counts.accepted,
        },
        "steps": counts.steps,
        "forwards": counts.steps + counts.commits,
        "tokens_per_forward": round(counts.tokens / max(1, counts.steps), 3),
    }


def chat_logprobs(text: Text, rows: Sequence[Logprobs]) -> Json:
    """Rows as chat clients read them."""
    content = []
    for row in rows:
        own, *likeliest = [_entry(text, token, value) for token, value in row]
        content.append(own | {"top_logprobs": likeliest})
    return {"content": content, "refusal": None}


def text_logprobs(text: Text, rows: Sequence[Logprobs], start: int) -> Json:
    """Rows as clients of text completions read them, the first of them at character `start`.

    As OpenAI's, `top_logprobs` has the token itself, too, beside the likeliest.
    """
    tokens = [row[0][0] for row in rows]
    offsets = [start + at for at in Offsets(text).push(tokens)]
    top: list[dict[str, float]] = []
    for own, *likeliest in rows:
        top.append({})
        for token, value in (*likeliest, own):  # bytes read alike: of those the likeliest stays
            top[-1].setdefault(_shown(text, token), value)
    return {
        "tokens": [_shown(text, token) for token in tokens],
        "token_logprobs": [row[0][1] for row in rows],
        "top_logprobs": top,
        "text_offset": offsets,
    }


def _end(done: Generation, *, called: bool = False, hint: str = "") -> Json:
    reason = "tool_calls" if called else FINISHED.get(done.finish, "stop")
    return {"finish_reason": reason, "canvas": canvas_report(done) | ({"hint": hint} if hint else {})}


def _entry(text: Text, token: int, value: float) -> Json:
    shown = _shown(text, token)
    piece = text.tokenizer.id_to_token(token) or ""
    raw = [int(piece[3:5], 16)] if token in text.byte_ids else list(shown.encode())
    return {"token": shown, "logprob": value, "bytes": raw}


def _shown(text: Text, token: int) -> str:
    return text.decode([token], skip_special=False)
