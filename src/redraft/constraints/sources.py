"""What a caller may hold an answer to (schema, pattern, choices, grammar), each as a `Source`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from redraft.constraints.compile.automaton import Compiled, subtract
from redraft.constraints.compile.builder import Builder, Part, any_of
from redraft.constraints.compile.grammar import DEPTH, compile_grammar
from redraft.constraints.compile.limits import CompileLimits, OutOfReachError
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.compile.schema import compile_schema
from redraft.constraints.compile.stated import with_stated_choices
from redraft.constraints.compile.values import text_of
from redraft.constraints.compile.verbatim import as_text
from redraft.constraints.language import MARKS, TEXT, Source
from redraft.constraints.schemas import plain_schema
from redraft.errors import ConstraintError


def source_of(
    *,
    schema: Any = None,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    fence: bool = False,
    compact: bool = False,
    any_case: bool = False,
) -> Source | None:
    """The source of the one that is given, None if none is. Raises ConstraintError if several are.

    `fence` and `compact` go with a schema, `any_case` with choices (`schema_source`, `choices_source`).
    """
    for name, given_so in (("fence", fence), ("compact", compact)):
        if given_so and schema is None:
            raise ConstraintError(f"{name} was given without a schema; it says how JSON may be written: leave it out")
    if any_case and choices is None:
        raise ConstraintError(
            "any_case was given without choices; a validator compares a schema's texts exactly: list the spellings that"
            " you take, and in a regex write (?i)"
        )
    makers: list[tuple[str, Any, Callable[[Any], Source]]] = [
        ("schema", schema, partial(schema_source, spaces=not compact, fence=fence)),
        ("regex", regex, regex_source),
        ("choices", choices, partial(choices_source, any_case=any_case)),
        ("grammar", grammar, grammar_source),
    ]
    given = [(name, value, make) for name, value, make in makers if value is not None]
    if len(given) > 1:
        raise ConstraintError(f"{' and '.join(name for name, _, _ in given)} were given together; pass one of them")
    return given[0][2](given[0][1]) if given else None


def schema_source(
    schema: Any, *, depth: int = 4, spaces: bool = True, fence: bool = False, verbatim: str = ""
) -> Source:
    """The JSON texts of a schema: a dict, JSON text, a class or 'name, age int', as `plain_schema` reads them.

    Without `spaces` there are none, and no line breaks, but within strings. With `fence` the value may stand in a
    Markdown code block, as many models are used to; `unfenced` takes it off. Strings of which the schema does not say
    how they look are parts of the text `verbatim`, from word to word, and choices, dates, times and numbers are
    those that it states (docs/constraints.md); without one they may say anything.
    """
    plain = plain_schema(schema)
    text = json.dumps(plain, ensure_ascii=False)

    def compile_it(limits: CompileLimits) -> Compiled:
        compiled = partial(compile_schema, depth=depth, spaces=spaces, verbatim=verbatim, limits=limits)
        held = with_stated_choices(plain, verbatim) if verbatim else plain
        try:
            found = compiled(held)
        except ConstraintError as error:
            if held == plain or isinstance(error, OutOfReachError):
                raise
            found = compiled(plain)  # what the text says is not what other parts of the schema allow
        if not fence:
            return found
        build = Builder(limits)
        block = [build.literal(b"```json\n"), build.embed(found.dfa), build.literal(b"\n```")]
        return found._replace(dfa=build.finish(build.either([build.embed(found.dfa), build.then(*block)])))

    options: tuple[int | str, ...] = (depth, spaces, *["fence"] * fence)
    return Source("schema", text, compile_it, options, as_text(verbatim))


def copying(source: Source, text: str) -> Source:
    """The source of a schema, strings of which are parts of a text, as in `schema_source`."""
    return replaced(source, json.loads(source.text), text)


def replaced(source: Source, schema: Any, verbatim: str = "") -> Source:
    """The source of another schema in place of a schema's, with its options."""
    (depth, spaces), fence = source.options[:2], "fence" in source.options
    return schema_source(schema, depth=int(depth), spaces=bool(spaces), fence=fence, verbatim=verbatim)


def anything() -> Source:
    """Any text."""
    return Source(TEXT, "", lambda _: Compiled(text_of()))


def thought(build: Builder) -> Part:
    """Thinking, between its marks."""
    return build.then(build.literal(MARKS["<|channel>"]), build.embed(text_of()), build.literal(MARKS["<channel|>"]))


def excluding(source: Source, texts: Sequence[str]) -> Source:
    """The texts of a source but for some, which are not to stand behind thinking either."""

    def compile_it(limits: CompileLimits) -> Compiled:
        found = source.compile(limits)
        build = Builder(limits)
        out = build.finish(build.then(build.maybe(thought(build)), build.embed(any_of(texts))))
        return found._replace(dfa=subtract(found.dfa, out))

    return dataclasses.replace(source, compile=compile_it, options=(*source.options, "without", *texts))


def regex_source(pattern: str) -> Source:
    """Texts that match a regular expression from end to end, in the dialect of Rust's regex crate."""
    if not isinstance(pattern, str):
        raise ConstraintError(f"regex is {pattern!r:.80}; it must be a string")
    return Source("regex", pattern, lambda limits: Compiled(whole_match(pattern, limits=limits)))


def choices_source(choices: Sequence[str], *, any_case: bool = False) -> Source:
    """One of some texts; with `any_case` each letter may be small or capital."""
    listed = isinstance(choices, Collection) and not isinstance(choices, str)
    if not listed or not all(isinstance(choice, str) for choice in choices):
        raise ConstraintError(f"choices is {choices!r:.80}; it must be a list of strings")
    if not choices:
        raise ConstraintError("choices is empty; pass at least one text")
    kept = tuple(dict.fromkeys(choices))

    def compile_it(limits: CompileLimits) -> Compiled:
        build = Builder(limits)

        def cased(choice: str) -> Part:
            letters = (sorted({c, c.lower(), c.upper()}) for c in choice)
            return build.then(*(build.either(build.literal(c.encode()) for c in cases) for cases in letters))

        parts = (cased(choice) if any_case else build.literal(choice.encode()) for choice in kept)
        return Compiled(build.finish(build.either(parts)))

    return Source("choices", json.dumps(kept, ensure_ascii=False), compile_it, ("any case",) * any_case)


def grammar_source(grammar: str, *, depth: int = DEPTH) -> Source:
    """The texts of a grammar's rule `start` (redraft.constraints.compile.grammar), to a depth."""
    if not isinstance(grammar, str):
        raise ConstraintError(f"grammar is {grammar!r:.80}; it must be a string")
    return Source(
        "grammar", grammar, lambda limits: Compiled(compile_grammar(grammar, depth=depth, limits=limits)), (depth,)
    )
