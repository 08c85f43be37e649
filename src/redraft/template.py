"""A checkpoint's chat template: a program of a stranger, in a sandbox, with a clock and a bound on its output.

A clock ticks in every loop and macro, so that no template is endless, and what it prints is counted. What makes much
of little in one step (a product, a power, a wide format) is refused.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from redraft.errors import RequestError, TextError

MOST_RENDERED, MOST_RENDER_SEC = 2**24, 5.0
"""Characters that a template may print, and seconds that it may take."""


def strings_of(value: Any) -> Iterator[str]:
    """Every text in a value, the names of its fields, too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for pair in value.items() for part in pair for text in strings_of(part))
    elif isinstance(value, list | tuple):
        yield from (text for part in value for text in strings_of(part))


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """A value with each of these changed."""
    if isinstance(value, Mapping):
        return {changed(key, change): changed(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [changed(part, change) for part in value]
    return change(value) if isinstance(value, str) else value


class _RefusedError(Exception):
    """A template called raise_exception: it refuses this conversation."""


class ChatTemplate:
    """One compiled chat template, in a sandbox with the functions that transformers provides."""

    def __init__(self, source: str, name: str) -> None:
        from jinja2 import TemplateSyntaxError, meta  # imported here: 40 ms, and only conversations need it

        self.name = name
        environment = _sandbox()
        try:
            self.variables = meta.find_undeclared_variables(environment.parse(source))
            self._run: Callable[[Mapping[str, Any]], Iterator[str]] = environment.from_string(source).generate
        except TemplateSyntaxError as error:
            raise TextError(f"{name}, line {error.lineno}: {error.message}; correct the template") from None

    def render(self, values: Mapping[str, Any]) -> str:
        _RENDERING.until = time.monotonic() + MOST_RENDER_SEC
        try:
            return "".join(self._bounded(values))
        except _RefusedError as refusal:
            raise RequestError(f"{self.name} does not take this conversation: {refusal}") from None
        except Exception as error:  # a template can fail in any way that Python can
            line = _template_line(error)
            where = self.name if line is None else f"{self.name}, line {line}"
            raise TextError(f"{where}: {type(error).__name__}: {error}; correct the template or the messages") from None

    def _bounded(self, values: Mapping[str, Any]) -> Iterator[str]:
        left = MOST_RENDERED
        for piece in self._run(values):
            _tick()
            left -= len(piece)
            if left < 0:
                raise _RefusedError(f"it prints more than {MOST_RENDERED} characters")
            yield piece


class _Rendering(threading.local):
    """When the template of this thread has to have ended."""

    until = float("inf")


_RENDERING = _Rendering()


def _tick() -> None:
    """In every round of a loop and every call of a macro."""
    if time.monotonic() > _RENDERING.until:
        raise _RefusedError(f"it takes more than {MOST_RENDER_SEC:g} seconds")


def _template_line(error: Exception) -> int | None:
    """The innermost template line of a traceback; jinja2 gives its frames the file name "<template>"."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _sandbox() -> Any:  # a jinja2 environment, whose type is not imported at the top
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the answer for trainers; here it prints its content."""

        tags = {"generation"}  # noqa: RUF012, jinja2 declares it so

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    class Bounded(ImmutableSandboxedEnvironment):
        """With a clock in every loop and macro, and no operator that makes much of little."""

        intercepted_binops = frozenset({"*", "**", "%"})

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            tree = super()._parse(source, name, filename)
            for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
                assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
                node.body.insert(0, nodes.ExprStmt(nodes.Call(nodes.Name("_tick", "load"), [], [], None, None)))
            return tree

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sizes = [len(part) if hasattr(part, "__len__") else abs(part) for part in (left, right)]
            if operator == "**" and (sizes[0] > 2**16 or sizes[1] > 64):
                raise _RefusedError("a power in it is too large")
            if operator == "*" and sizes[0] * sizes[1] > MOST_RENDERED and type(left) is not type(right):
                raise _RefusedError("a product in it is too large")
            if operator == "%" and isinstance(left, str) and re.search(r"%[^a-z%]*(\d{5}|\*)", left):
                raise _RefusedError("a format in it is too wide")
            return super().call_binop(context, operator, left, right)

    environment = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    environment.globals["_tick"] = _tick
    del environment.globals["lipsum"]
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise(message: str) -> str:
    raise _RefusedError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
