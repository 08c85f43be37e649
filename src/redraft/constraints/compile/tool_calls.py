"""What an answer may be where the model itself decides whether to call a tool: text, thinking and calls.

    Let me see. <|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>

Marks are tokens of their own; to an automaton they are bytes that no text has. Arguments are of the tool's schema, in
the notation that the released model has learned: keys bare, strings between marks as they are, and no white space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redraft.constraints.compile.automaton import Compiled
from redraft.constraints.compile.builder import Builder, Part
from redraft.constraints.compile.limits import CompileLimits, compiling
from redraft.constraints.compile.schema import compile_schema
from redraft.constraints.compile.values import text_of
from redraft.constraints.language import MARKS, TEXT, Language, Source
from redraft.constraints.sources import thought
from redraft.constraints.validation import Problem, contradictions, schema_problems
from redraft.errors import ConstraintError

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
THINK, THOUGHT = "<|channel>", "<channel|>"
NAME = re.compile(r"[\w.:-]+")


@dataclass(frozen=True, eq=False)
class ContentLanguage(Language):
    """Content of a schema, or calls. `call` is the token that begins one, `closing` the one that ends thinking."""

    schema: Any
    call: int | None
    closing: int | None

    def answer(self, tokens: Sequence[int]) -> Sequence[int]:
        """The content, without the thinking in front of it; nothing where tools are called."""
        thought = max((i + 1 for i, token in enumerate(tokens) if token == self.closing), default=0)
        return () if self.call in tokens else tokens[thought:]

    @property
    def is_validated(self) -> bool:
        """There is a validator for the content."""
        return True

    def problems(self, text: str) -> list[Problem]:
        """What the validator has to say against the content."""
        return (schema_problems if self.checked else contradictions)(self.schema, text) if text else []


def calls_source(tools: Mapping[str, Any], *, several: bool = True, content: Source | None = None) -> Source:
    """Answers that may call tools, given by name with the schema of their arguments; at most once unless `several`.

    With `content` an answer that calls none of them is of that language; else calls stand anywhere in a text. Thinking
    may stand in front of either. What only a validator knows of arguments is left to the caller; of a content,
    to a ContentLanguage. Raises ConstraintError for a name or a key that cannot be written.
    """
    for name in tools:
        if not NAME.fullmatch(name):
            raise ConstraintError(f"the tool {name!r:.80} cannot be written in a call; use letters, digits and _.:-")

    def compile_it(limits: CompileLimits) -> Compiled:
        build = Builder(limits)

        def call() -> Part:
            return build.either([_call(build, name, schema) for name, schema in tools.items()])

        def said() -> Part:
            return build.repeat(lambda: build.either([build.embed(text_of()), thought(build)]), 0, None)

        if content is not None:
            calls = build.repeat(call, 1, None if several else 1)
            inside = content.compile(limits)
            answer = build.either([build.embed(inside.dfa), calls])
            return inside._replace(dfa=build.finish(build.then(build.maybe(thought(build)), answer)))
        if not several:
            return Compiled(build.finish(build.then(said(), build.maybe(build.then(call(), said())))))
        return Compiled(build.finish(build.repeat(lambda: build.either([said(), call()]), 0, None)))

    parts = [tools, several, None if content is None else [content.kind, content.text, content.options]]
    return Source(TEXT if content is None else "content or calls", json.dumps(parts, ensure_ascii=False), compile_it)


def _call(build: Builder, name: str, schema: Any) -> Part:
    with compiling(f"tool {name}"):
        arguments = compile_schema(schema, spaces=False, quote=MARKS[QUOTE], limits=build.limits)
    begin = build.literal(MARKS[OPEN] + f"call:{name}".encode())
    return build.then(begin, build.embed(arguments.dfa), build.literal(MARKS[CLOSE]))
