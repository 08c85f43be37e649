"""A checkpoint's chat template: a program of a stranger, in a sandbox, with a clock and bounds on what it makes.

A clock ticks in every loop and macro, so that no template is endless. What it prints is counted, and so is every text
and list that it makes on the way. A step that would make much of little (a product, a power, a format, a replacement)
is refused before it is taken, and the filters and methods that do little else are not there.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from itertools import chain
from typing import TYPE_CHECKING, Any

from redraft.errors import RequestError, TextError

if TYPE_CHECKING:
    from jinja2 import nodes

MOST_SOURCE = 2**17
"""Characters of a template: nothing can interrupt its compiling, which takes seconds for so many."""

MOST_RENDERED, MOST_RENDER_SEC = 2**24, 5.0
"""Characters that a template may print, or make in one step, and seconds that it may take."""

MOST_MADE = 2**26
"""Characters of all texts that it makes on the way, an entry of a list counting as eight."""

MOST_PARTS = 2**20
"""Of messages: texts, numbers, lists and objects."""

MOST_BITS = 2**16
"""Of a number."""

MOST_ITERATED = 2**18
"""Entries of a list, or characters of a text, that are sorted or put into groups, which has no clock."""
MOST_UNIQUE = 2**12
"""Entries of a list of which each is looked up among the others: all may have one hash."""
MOST_STRIPPED, MOST_SEARCHED = 2**8, 2**26
"""Characters of a set that is stripped, and of a text times of what is looked for from its end, which have no clock."""
STRIPPING = ("strip", "lstrip", "rstrip", "trim")
SEARCHING = ("rfind", "rindex", "rsplit", "rpartition")
ITERATING = ("dictsort", "groupby", "max", "min", "sort", "sum", "unique")
NO_FILTERS = ("batch", "center", "format", "pprint", "slice", "urlize", "wordwrap", "xmlattr")
NO_METHODS = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "encode", "format_map", "translate", "to_bytes"}
)
TICK, JOIN, COUNT = "0tick", "0join", "0count"
"""Names of functions in a template that it cannot spell itself."""


def strings_of(value: Any) -> Iterator[str]:
    """Every text in a value, the names of its fields, too, in no order that means anything.

    Raises RequestError for one of very many parts, as one that holds itself has them.
    """
    stack, left = [value], MOST_PARTS
    while stack:
        one = stack.pop()
        if isinstance(one, str):
            yield one
            continue
        left -= len(one) if isinstance(one, Mapping | list | tuple) else 0
        if left < 0:
            raise RequestError(f"the messages have over {MOST_PARTS} parts, or hold themselves; send fewer")
        if isinstance(one, Mapping):
            stack += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            stack += one


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
        if len(source) > MOST_SOURCE:
            raise TextError(f"{name} has {len(source)} characters; at most {MOST_SOURCE}: shorten it")
        environment = _sandbox()
        try:
            self.variables = meta.find_undeclared_variables(environment.parse(source))
            self._run: Callable[[Mapping[str, Any]], Iterator[str]] = environment.from_string(source).generate
        except TemplateSyntaxError as error:
            raise TextError(f"{name}, line {error.lineno}: {error.message}; correct the template") from None
        except RecursionError:
            raise TextError(f"{name} nests too deep; correct the template") from None
        except (SyntaxError, ValueError, MemoryError) as error:  # Python's, of what the template becomes
            raise TextError(f"{name}: {str(error) or 'too much for Python'}; correct the template") from None

    def render(self, values: Mapping[str, Any]) -> str:
        _RENDERING.until, _RENDERING.left = time.monotonic() + MOST_RENDER_SEC, MOST_MADE
        _RENDERING.weights = {}
        try:
            return "".join(self._bounded(values))
        except _RefusedError as refusal:
            raise RequestError(f"{self.name} does not take this conversation: {refusal}") from None
        except Exception as error:  # a template can fail in any way that Python can
            line = _template_line(error)
            where = self.name if line is None else f"{self.name}, line {line}"
            raise TextError(f"{where}: {type(error).__name__}: {error}; correct the template or the messages") from None
        finally:
            _RENDERING.until = _RENDERING.left = float("inf")
            _RENDERING.weights = {}

    def _bounded(self, values: Mapping[str, Any]) -> Iterator[str]:
        left = MOST_RENDERED
        for piece in self._run(values):
            _tick()
            left -= len(piece)
            if left < 0:
                raise _RefusedError(f"it prints more than {MOST_RENDERED} characters")
            yield piece


class _Rendering(threading.local):
    """When the template of this thread has to have ended, what it may still make, and by their ids the lists that were
    weighed, which stay as they are: a template cannot change one."""

    until = left = float("inf")
    weights: dict[int, tuple[object, int]]

    def __init__(self) -> None:
        self.weights = {}


_RENDERING = _Rendering()


def _tick(*, is_running: bool = False) -> None:
    """In every round of a loop and every call of a macro. What has to be running is not done while jinja2 compiles:
    there it would be without clock and account."""
    if is_running and _RENDERING.until == float("inf"):
        raise _RefusedError("it is being compiled")
    if time.monotonic() > _RENDERING.until:
        raise _RefusedError(f"it takes more than {MOST_RENDER_SEC:g} seconds")


def _counted(value: Any) -> Any:
    """Something that was made, on the account. Refused if it would print as more than a template may print: to compare
    or hash it would take as long, and has no clock."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise _RefusedError("a number in it is too large")
    if isinstance(value, str | list | tuple | dict):
        _RENDERING.left -= len(value) * (1 if isinstance(value, str) else 8)
        if _RENDERING.left < 0:
            raise _RefusedError(f"it makes texts of more than {MOST_MADE} characters on the way")
        _refuse(_weight(value), "text" if isinstance(value, str) else "list")
    return value


def _refuse(size: float, step: str) -> None:
    """Of a step: refused if it would make more than a template may print."""
    _tick()
    if size > MOST_RENDERED:
        raise _RefusedError(f"a {step} in it is too large")


def _weight(value: Any) -> int:
    """About the characters of a value's text: a short list may hold a long text, or another list, many times."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, Mapping | list | tuple):
        return 1
    known = _RENDERING.weights.get(id(value))
    if known is None:
        _tick()
        parts = chain.from_iterable(value.items()) if isinstance(value, Mapping) else value
        known = _RENDERING.weights[id(value)] = value, 2 + sum(2 + _weight(part) for part in parts)
    return known[1]


def _joined(*parts: Any) -> str:
    """What `~` makes."""
    _refuse(sum(map(_weight, parts)), "text")
    return str(_counted("".join(map(str, parts))))


def _checked(step: str, value: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """The value that a filter or a method of texts begins with. Raises _RefusedError if it would make much of it."""
    numbers = [one for one in (*given, *named.values()) if isinstance(one, int)]
    if any(abs(one) > MOST_BITS for one in numbers):
        raise _RefusedError(f"a number for {step} in it is too large")
    if step in ITERATING and hasattr(value, "__len__"):
        _refuse(len(value) * (MOST_RENDERED // (MOST_UNIQUE if step == "unique" else MOST_ITERATED)), "list")
    texts = [_weight(one) for one in (*given, *named.values())]
    if step in STRIPPING and max(texts, default=0) > MOST_STRIPPED:
        raise _RefusedError(f"a set of characters for {step} in it is too large")
    if step in SEARCHING and len(value) * max(texts, default=0) > MOST_SEARCHED:
        raise _RefusedError(f"a text for {step} in it is too large")
    if step == "replace":
        _refuse(len(str(value)) + str(value).count(str(given[0]) if given else "") * max(texts, default=0), step)
    elif step == "join":
        value = list(value)
        _refuse(_weight(value) + len(value) * max(texts, default=0), step)
    elif step == "format":
        if re.search(r"\d{5}|\{[^{}]*\{", value):
            raise _RefusedError("a format in it is too wide")
        _refuse(len(value) + value.count("{") * (10**4 + max(texts, default=0)), step)
    elif step == "indent":
        _refuse((str(value).count("\n") + 1) * max([4, *numbers, *texts]) + len(str(value)), step)
    elif step in ("string", "tojson"):
        _refuse(_weight(value) * (1 + max([0, *numbers, *texts])), step)
    elif step == "sum" and not isinstance(named.get("start", given[1] if len(given) > 1 else 0), int | float):
        raise _RefusedError("a sum of something else than numbers is not available")
    return value


def _as_filter(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of jinja2's, bounded."""
    ahead = 1 if hasattr(run, "jinja_pass_arg") else 0

    @wraps(run)
    def bounded(*given: Any, **named: Any) -> Any:
        _tick(is_running=True)
        value = _checked(name, given[ahead], given[ahead + 1 :], named)
        return _counted(run(*given[:ahead], value, *given[ahead + 1 :], **named))

    return bounded


def _as_test(run: Callable[..., bool]) -> Callable[..., bool]:
    """A test of jinja2's, with the clock: a filter may make it of each of many."""

    @wraps(run)
    def bounded(*given: Any, **named: Any) -> bool:
        _tick(is_running=True)
        return run(*given, **named)

    return bounded


def _template_line(error: Exception) -> int | None:
    """The innermost template line of a traceback; jinja2 gives its frames the file name "<template>"."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _call(name: str, given: list[Any]) -> nodes.Call:
    """A node of a template that calls one of ours."""
    from jinja2 import nodes

    return nodes.Call(nodes.Name(name, "load"), given, [], None, None)


def _checked_call(called: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call. Raises _RefusedError for a method of a text or number that makes much of little."""
    own = getattr(called, "__wrapped__", called)  # jinja2 wraps a text's format
    text, method = getattr(own, "__self__", None), getattr(own, "__name__", "")
    if isinstance(text, str | int) and method in NO_METHODS:
        raise _RefusedError(f"the method {method} is not available")
    if not isinstance(text, str):
        return given
    if method == "join":
        return (_checked("join", given[0], (text,), {}), *given[1:])
    _checked(method, text, given, named)
    return given


def _environment() -> Any:  # a jinja2 environment, whose type is not imported at the top
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.visitor import NodeTransformer

    class Generation(Extension):
        """`{% generation %}` marks the answer for trainers; here it prints its content."""

        tags = {"generation"}  # noqa: RUF012, jinja2 declares it so

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    class Counting(NodeTransformer):
        """What makes texts and lists without a call."""

        def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802, jinja2's name
            self.generic_visit(node)
            return _call(JOIN, node.nodes)

        def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802, likewise
            self.generic_visit(node)
            return _call(COUNT, [node]) if isinstance(node.arg, nodes.Slice) else node

        def _made(self, node: nodes.Literal) -> nodes.Node:
            self.generic_visit(node)
            loaded = getattr(node, "ctx", "load") == "load"  # a tuple may be what a loop assigns to
            return _call(COUNT, [node]) if loaded and node.find(nodes.Name) else node

        visit_List = visit_Tuple = visit_Dict = _made  # noqa: N815, jinja2's names

    class Bounded(ImmutableSandboxedEnvironment):
        """With a clock in every loop and macro, and an account of everything that is made."""

        intercepted_binops = frozenset({"*", "**", "%", "+", "//"})

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            tree = Counting().visit(super()._parse(source, name, filename))
            for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
                node.body.insert(0, nodes.ExprStmt(_call(TICK, [])))
            bounded: nodes.Template = tree
            return bounded

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_binop(operator, left, right)
            return _counted(super().call_binop(context, operator, left, right))

        def call(__self, __context: Any, __obj: Any, *given: Any, **named: Any) -> Any:  # noqa: N805, jinja2's own form
            given = _checked_call(__obj, given, named)
            return _counted(super().call(__context, __obj, *given, **named))

    return Bounded(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation], finalize=_counted
    )


def _sandbox() -> Any:
    """An environment with the functions that transformers provides."""
    environment = _environment()
    environment.globals |= {TICK: _tick, JOIN: _joined, COUNT: _counted}
    del environment.globals["lipsum"]
    environment.filters["tojson"] = _to_json
    kept = {name: run for name, run in environment.filters.items() if name not in NO_FILTERS}
    environment.filters = {name: _as_filter(name, run) for name, run in kept.items()}
    environment.tests = {name: _as_test(run) for name, run in environment.tests.items()}
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _check_binop(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation that makes much of little."""
    _tick()
    sizes = [_size(part) for part in (left, right)]
    bits = sum(part.bit_length() for part in (left, right) if isinstance(part, int))
    if operator == "**" and (bits > 64 + 17 or sizes[0] > 2**16 or sizes[1] > 64):
        raise _RefusedError("a power in it is too large")
    if operator == "*" and (
        bits > MOST_BITS or (sizes[0] * sizes[1] > MOST_RENDERED and type(left) is not type(right))
    ):
        raise _RefusedError("a product in it is too large")
    if operator == "+" and any(hasattr(part, "__len__") for part in (left, right)):
        _refuse(sum(sizes), "text")
    if operator == "%" and isinstance(left, str):
        if re.search(r"%[-+ #0.\d]*(?:\d{5}|\*)|\)[-+ #0.\d]*\d{5}[.\d]*[hlLa-zA-Z]", left.replace("%%", "")):
            raise _RefusedError("a format in it is too wide")
        _refuse(len(left) + left.count("%") * (10**4 + _weight(right)), "format")


def _size(value: Any) -> float:
    """Of one side of an operation."""
    return len(value) if hasattr(value, "__len__") else abs(value) if isinstance(value, int | float) else 1


def _now(form: str) -> str:
    """What transformers calls `strftime_now`; each field may have a width."""
    if len(form) > MOST_STRIPPED or re.search(r"\d{3}", form):
        raise _RefusedError("a form of a date in it is too long or too wide")
    return datetime.now().strftime(form)


def _raise(message: str) -> str:
    raise _RefusedError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
