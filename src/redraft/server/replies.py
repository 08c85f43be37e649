"""Answers in the forms that clients read: chat, text, fill-in-the-middle; whole, and piece by piece."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import getrandbits
from typing import Any, ClassVar

from redraft.engine.calls import read_call
from redraft.engine.request import FinishReason
from redraft.server.languages import Choice, called
from redraft.server.settings import Settings
from redraft.server.voice import Logprobs, Said, Voice
from redraft.text import Detokenizer, Text

Json = dict[str, Any]

NO_TOOLS = Choice()
FINISHED: Mapping[FinishReason | None, str] = {"stop": "stop", "length": "length", "deadline": "length"}


@dataclass(frozen=True)
class ChatForm:
    """`chat.completion`. With a forced `choice` the whole answer is a call; otherwise it may hold some."""

    prefix: ClassVar = "chatcmpl"
    whole_object: ClassVar = "chat.completion"
    chunk_object: ClassVar = "chat.completion.chunk"

    text: Text
    logprobs: bool = False
    choice: Choice = NO_TOOLS

    def whole(self, i: int, voice: Voice) -> Json:
        """A message."""
        calls, rest = self._calls(voice)
        message: Json = {"role": "assistant", "content": voice.content + rest, "refusal": None}
        if calls:
            message |= {"content": None if self.choice.forced else voice.content + rest or None, "tool_calls": calls}
        if voice.reasoning:
            message |= {"reasoning_content": voice.reasoning, "reasoning": voice.reasoning}
        return {
            "index": i,
            "message": message,
            "logprobs": chat_logprobs(self.text, kept(self.text, voice)) if self.logprobs else None,
            "finish_reason": self._reason(voice, bool(calls)),
            "canvas": told(voice),
        }

    def first(self, i: int) -> Json | None:
        """The role."""
        return self._choice(i, {"role": "assistant", "content": None if self.choice.forced else ""})

    def piece(self, i: int, voice: Voice, said: Said) -> Json:
        """A delta. A tool call is told when it is whole."""
        delta: Json = {}
        if said.content and not self.choice.forced:
            delta["content"] = said.content
        if said.reasoning:
            delta |= {"reasoning_content": said.reasoning, "reasoning": said.reasoning}
        choice = self._choice(i, delta)
        if self.logprobs and said.logprobs:
            choice["logprobs"] = chat_logprobs(self.text, said.logprobs)
        return choice

    def last(self, i: int, voice: Voice) -> Json:
        """The reason, and the calls that were made."""
        calls, rest = self._calls(voice)
        delta: Json = {"tool_calls": [{"index": n, **call} for n, call in enumerate(calls)]} if calls else {}
        delta |= {"content": rest} if rest else {}
        return self._choice(i, delta) | {"finish_reason": self._reason(voice, bool(calls)), "canvas": told(voice)}

    def _choice(self, i: int, delta: Json) -> Json:
        return {"index": i, "delta": delta, "logprobs": None, "finish_reason": None}

    def _reason(self, voice: Voice, called: bool) -> str:
        return "tool_calls" if called else FINISHED.get(voice.finish, "stop")

    def _calls(self, voice: Voice) -> tuple[list[Json], str]:
        """The calls of a finished answer, and what was marked as one and is none: no tool's, or not as its schema says.
        That is content, as it was written."""
        rest, pairs = "", list[tuple[str, Any]]()
        if self.choice.forced:
            said = json.loads(voice.content)
            pairs = [(self.choice.only, said)] if self.choice.only else [(said["name"], said["arguments"])]
        else:
            for written in voice.calls:
                call = read_call(written)
                if call.name is not None and called(self.choice.tools, call.name, call.arguments):
                    pairs.append((call.name, call.arguments))
                else:
                    rest += written
        calls = [
            {
                "id": f"call_{voice.request.seed:016x}{n}",
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

    def whole(self, i: int, voice: Voice) -> Json:
        """A text."""
        front = self.echo[i].text if self.echo else ""
        choice = self._choice(i, front + voice.content) | {
            "finish_reason": FINISHED.get(voice.finish, "stop"),
            "canvas": told(voice),
        }
        if self.logprobs:
            own = text_logprobs(self.text, kept(self.text, voice), len(front))
            before = self._read(i, voice) if self.read else {}
            choice["logprobs"] = {name: before.get(name, []) + rows for name, rows in own.items()}
        if self.delta:
            choice["message"] = {"role": "assistant", "content": front + voice.content}
        return choice

    def first(self, i: int) -> Json | None:
        """The prompt, where it is to be echoed as it stands."""
        return self._choice(i, self.echo[i].text) if self.echo and not self.read else None

    def piece(self, i: int, voice: Voice, said: Said) -> Json:
        """More text; or the prompt, once it has been read."""
        if said.read:
            return self._choice(i, self.echo[i].text) | {"logprobs": self._read(i, voice)}
        choice = self._choice(i, said.content)
        if self.logprobs and said.logprobs:
            front = len(self.echo[i].text) if self.echo else 0
            start = front + len(voice.content) - len(said.content)
            choice["logprobs"] = text_logprobs(self.text, said.logprobs, start)
        return choice

    def last(self, i: int, voice: Voice) -> Json:
        """The reason."""
        return self._choice(i, "") | {"finish_reason": FINISHED.get(voice.finish, "stop"), "canvas": told(voice)}

    def _read(self, i: int, voice: Voice) -> Json:
        """Log-probabilities of an echoed prompt. Nothing stands before its first token, so that one has none."""
        echo, rows = self.echo[i], voice.prompt_logprobs
        behind = rows[len(rows) - len(echo.tokens) + 1 :] if echo.tokens else []
        told = text_logprobs(self.text, behind, 0)
        first = [_shown(self.text, token) for token in echo.tokens[:1]]
        return {
            "tokens": first + told["tokens"],
            "token_logprobs": [None for _ in first] + told["token_logprobs"],
            "top_logprobs": [None for _ in first] + told["top_logprobs"],
            "text_offset": offsets_of(self.text, echo.tokens, spelt=echo.spelt),
        }

    def _choice(self, i: int, text: str) -> Json:
        choice: Json = {"index": i, "text": text, "logprobs": None, "finish_reason": None}
        if self.delta:  # one kind of client reads the text, the other the delta
            choice["delta"] = {"content": text}
        return choice


Form = ChatForm | TextForm
"""How one endpoint tells its answers: whole, and in pieces that a stream begins with, goes on with and ends with."""


@dataclass(frozen=True)
class Head:
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

    def whole(self, voices: Sequence[Voice], told: Json) -> Json:
        """Finished answers and their usage."""
        choices = [self.form.whole(i, voice) for i, voice in enumerate(voices)]
        return self.of(chunk=False) | {"choices": choices, "usage": told}


def told(voice: Voice) -> Json:
    """What only a diffusion model has to tell of an answer."""
    return {
        "seed": voice.request.seed,
        "finish": voice.finish,
        "steps": voice.steps,
        "commits": voice.commits,
        "tokens_per_forward": round(len(voice.tokens) / max(1, sum(voice.steps)), 3),
        "mean_entropy": round(sum(voice.entropy) / max(1, len(voice.entropy)), 6),
        "ms": round(voice.seconds * 1e3, 2),
        "first_text_ms": None if voice.first_sec is None else round(voice.first_sec * 1e3, 2),
    }


def usage(voices: Sequence[Voice], prompt_tokens: int, predicted: Sequence[int] = ()) -> Json:
    """Tokens, and the forwards they took. Of `predicted` ones those are accepted that stand in their places."""
    tokens, steps = sum(len(voice.tokens) for voice in voices), sum(sum(voice.steps) for voice in voices)
    accepted = sum(a == b for voice in voices for a, b in zip(predicted, voice.tokens, strict=False))
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
        "completion_tokens_details": {
            "reasoning_tokens": sum(voice.reasoning_tokens for voice in voices),
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": len(predicted) * len(voices) - accepted,
        },
        "steps": steps,
        "forwards": steps + sum(voice.commits for voice in voices),
        "tokens_per_forward": round(tokens / max(1, steps), 3),
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
    offsets = [start + at for at in offsets_of(text, tokens, spelt=False)]
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


def offsets_of(text: Text, tokens: Sequence[int], *, spelt: bool) -> list[int]:
    """Where in their text tokens begin, in characters; all tokens of a run of bytes where it begins."""
    pieces, at, found = Detokenizer(text, skip_special=not spelt), 0, list[int]()
    for token in tokens:
        at += len(pieces.push([token]))
        held = token in text.byte_ids
        found.append(at if held else at - len(text.decode([token], skip_special=not spelt)))
    return found


def kept(text: Text, voice: Voice) -> list[Logprobs]:
    """The rows of an answer's content, of which a stop string may have cut the last."""
    rows = voice.logprobs
    if not voice.cut:
        return rows
    offsets = offsets_of(text, [row[0][0] for row in rows], spelt=False)
    return [row for row, at in zip(rows, offsets, strict=True) if at < len(voice.content)]


def _entry(text: Text, token: int, value: float) -> Json:
    shown = _shown(text, token)
    piece = text.tokenizer.id_to_token(token) or ""
    raw = [int(piece[3:5], 16)] if token in text.byte_ids else list(shown.encode())
    return {"token": shown, "logprob": value, "bytes": raw}


def _shown(text: Text, token: int) -> str:
    return text.decode([token], skip_special=False)
