"""The bounds of every field of a request, in one table: counts, lengths, depths and ranges.

    BOUNDS ──► the body models (`within`), before anything is tokenized, copied or multiplied
           ──► the OpenAPI document, docs/server.md, the cases of bench/hostile.py

What depends on the checkpoint (its context, vocabulary and canvas) is checked behind these, by the engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from pydantic import Field
from pydantic_core import PydanticCustomError

from redraft.engine.request import MOST_LOGPROBS
from redraft.options import MOST_STEPS
from redraft.stops import MAX_STOP_CHARS, MAX_STOPS

Kind = Literal["value", "entries", "characters", "levels", "bytes"]
BIG = 2**20
"""More tokens than any context has."""


@dataclass(frozen=True)
class Bound:
    """From `least` to `most`, both included. `kind` says what is counted: a number's value, the entries of a list or an
    object, the characters of a text, the levels of nested lists and objects, bytes."""

    kind: Kind
    least: float
    most: float
    what: str


def _value(least: float, most: float, what: str) -> Bound:
    return Bound("value", least, most, what)


def _entries(most: int, what: str, least: int = 0) -> Bound:
    return Bound("entries", least, most, what)


def _characters(most: int, what: str, least: int = 0) -> Bound:
    return Bound("characters", least, most, what)


BOUNDS: Mapping[str, Bound] = {
    "body": Bound("bytes", 0, 4 * 2**20, "a body"),
    "image_body": Bound("bytes", 0, 32 * 2**20, "a body, where the model reads images"),
    "row": Bound("bytes", 0, 16 * 2**20, "a row of a batch"),
    "depth": Bound("levels", 0, 64, "lists and objects in each other, in a body"),
    "bare": Bound("bytes", 0, 5 * 2**19, "what of a body is outside of its strings, such as numbers"),
    "powers": _entries(4096, "numbers of a body with an exponent, which take ten times as long to read"),
    "objects": _entries(15_000, "lists and objects of a body, all together"),
    "fields": _entries(100, "fields of one object"),
    "text": _characters(4 * 2**20, "any text"),
    "image": _characters(32 * 2**20, "the URL of an image, which may be its data"),
    "name": _characters(1000, "a name or an id"),
    "constraint": _characters(64 * 2**10, "a schema, expression, grammar or list of choices"),
    "tokens": _value(0, BIG, "a number of tokens"),
    "id": _value(0, 2**31 - 1, "a token id; the vocabulary is the nearer bound"),
    "ids": _entries(2**18, "token ids of one text"),
    "n": _value(1, 64, "`n`"),
    "prompts": _entries(64, "prompts"),
    "answers": _value(1, 64, "answers to one request: prompts times `n`"),
    "seed": _value(-(2**63), 2**64 - 1, "a seed"),
    "temperature": _value(0, 10, "`temperature` of an answer"),
    "share": _value(0, 1, "a probability, an effort, a strength"),
    "top_k": _value(-1, BIG, "`top_k`"),
    "top_logprobs": _value(0, MOST_LOGPROBS, "alternatives per token"),
    "penalty": _value(-2, 2, "a penalty, of which only the neutral value is taken"),
    "steps": _value(1, MOST_STEPS, "denoising steps of a canvas"),
    "nats": _value(0, 1e6, "`entropy_bound`"),
    "milliseconds": _value(0, 1e9, "a time"),
    "bias": _value(-100, 100, "a logit bias"),
    "biases": _entries(1024, "entries of `logit_bias`"),
    "bad_words": _entries(256, "`bad_words`"),
    "stops": _entries(MAX_STOPS, "stop strings"),
    "stop": _characters(MAX_STOP_CHARS, "a stop string", 1),
    "rules": _entries(16, "acceptance rules"),
    "rule": _characters(100, "an acceptance rule"),
    "messages": _entries(4096, "turns of a conversation", 1),
    "parts": _entries(4096, "parts of one turn's content"),
    "calls": _entries(128, "calls of one turn"),
    "tools": _entries(128, "tools"),
    "tool": _characters(200, "the name of a tool", 1),
    "choices": _entries(10_000, "texts of which an answer is one"),
    "position": _value(0, 2**16, "a position of a canvas, and its width"),
    "place": _characters(2**16, "the text at a place of a canvas"),
    "places": _entries(4096, "pins, or given tokens"),
    "segments": _entries(128, "segments of a document"),
    "substrings": _entries(64, "texts that a hole has, or has not"),
    "substring": _characters(1000, "one of these"),
    "files": _entries(256, "files beside the one with the gap"),
    "indent": _value(0, 1000, "`n_indent`"),
    "questions": _entries(400, "questions of a decision", 1),
    "options": _entries(255, "choices or levels of a question", 2),
    "all_options": _entries(4096, "choices and levels of all questions of a decision"),
    "option": _characters(1000, "one of these"),
    "canvases": _value(1, 64, "canvases of a decision"),
    "readings": _value(1, 512, "questions times canvases of a decision"),
}
"""Every bound by its name. Numbers are finite, too: JSON's 1e400 and Python's NaN are refused."""


def within(name: str) -> Any:
    """The constraint of a field, for `Annotated`: a number's range, or how many entries or characters there may be."""
    bound = BOUNDS[name]
    if bound.kind == "value":
        return Field(ge=bound.least, le=bound.most)
    first = True if bound.kind == "entries" else None  # of a million wrong entries the first is mistake enough
    return Field(min_length=int(bound.least) or None, max_length=int(bound.most), fail_fast=first)


def few(name: str) -> Callable[[Any], Any]:
    """A validator of the number of entries of an object, before any of them is looked at."""
    most = int(BOUNDS[name].most)

    def checked(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError(
                "too_long", "it has {count} entries; at most {most}", {"count": len(value), "most": most}
            )
        return value

    return checked


def short(value: Any) -> Any:
    """The same of the characters of a schema, or of a list of texts, written as JSON."""
    most = int(BOUNDS["constraint"].most)
    if isinstance(value, dict | list):
        size = _least_characters(value, most)
        size = len(json.dumps(value)) if size <= most else size  # of numbers that takes long, so not of many
        if size > most:
            said = "it has at least {size} characters; at most {most}"
            raise PydanticCustomError("too_long", said, {"size": size, "most": most})
    return value


def _least_characters(value: Any, most: int) -> int:
    """Characters that a value of JSON has at least, counted until there are more than `most`."""
    left, size = [value], 0
    while left and size <= most:
        one = left.pop()
        if isinstance(one, dict):
            size += 2 + sum(map(len, one)) + 4 * len(one)
            left += one.values() if len(one) <= most else ()
        elif isinstance(one, list):
            size += 1 + max(1, len(one))
            left += one if len(one) <= most else ()
        else:
            size += len(one) + 2 if isinstance(one, str) else 1
    return size


def read_json(data: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for what is no JSON, nests too deep, has a number too long, or more
    lists, objects and numbers than can be read while others wait: nothing else runs meanwhile."""
    (deep, count, bare, powers), most = _shape(data), int(BOUNDS["depth"].most)
    if deep > most:
        raise ValueError(f"it nests {deep} levels deep; at most {most}")
    if count > BOUNDS["objects"].most:
        raise ValueError(f"it has {count} lists and objects; at most {int(BOUNDS['objects'].most)}")
    if bare > BOUNDS["bare"].most:
        raise ValueError(f"it has {bare} bytes outside of strings; at most {int(BOUNDS['bare'].most)}")
    if powers > BOUNDS["powers"].most:
        raise ValueError(f"it has {powers} numbers with exponents; at most {int(BOUNDS['powers'].most)}")
    if bare > QUICKLY:
        with suppress(msgspec.MsgspecError):  # it reads numbers six times as fast, but not all that Python does
            return msgspec.json.decode(data)
    return json.loads(data)


QUICKLY = 2**16
"""Bytes outside of strings above which a body is read by the faster of two readers."""


def _shape(data: bytes) -> tuple[int, int, int, int]:
    """Levels of lists and objects, how many there are, bytes that are in no string, and numbers with exponents, counted
    without recursion and in pieces; few are not counted. What is within strings does not count. Raises ValueError for
    what is not in the encoding that its first bytes say."""
    if (encoding := json.detect_encoding(data)) not in ("utf-8", "utf-8-sig"):
        data = data.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    if data.count(b"[") + data.count(b"{") <= BOUNDS["depth"].most and data.count(b",") <= FEW:
        return 0, 0, 0, 0  # it cannot be deeper
    text = data.replace(rb"\\", b"").replace(rb"\"", b"")  # every quote left begins or ends a string
    within, level, deep, count, bare, powers = False, 0, 0, 0, 0, 0
    for at in range(0, len(text), PIECE):
        piece = np.frombuffer(text, np.uint8, min(PIECE, len(text) - at), at)
        quotes = piece == ord('"')
        outside = ~(np.logical_xor.accumulate(quotes) ^ within)
        opened = outside & ((piece == ord("[")) | (piece == ord("{")))
        closed = outside & ((piece == ord("]")) | (piece == ord("}")))
        levels = level + (opened.astype(np.int8) - closed.astype(np.int8)).cumsum(dtype=np.int32)
        deep, level = max(deep, int(levels.max())), int(levels[-1])
        count, bare = count + int(opened.sum()), bare + int(outside.sum())
        before = np.append(np.uint8(text[at - 1] if at else 0), piece[:-1])
        powers += int((outside & ((piece | 0x20) == ord("e")) & (before - ord("0") < 10)).sum())
        within ^= bool(quotes.sum() % 2)
    return deep, count, bare, powers


PIECE, FEW = 2**20, 10_000
"""Bytes that are looked at at a time; and commas, of which there is one behind each number but the last."""
