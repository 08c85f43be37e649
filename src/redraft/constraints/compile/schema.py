"""JSON Schema to an automaton over bytes: the texts that a model may write for a value of the schema.

Objects list their properties in the schema's order, optional ones or not at all. White space is what people and models
write: nothing, a space, or a line break and an indent, wherever JSON allows it but ahead of a colon. What the rest of
JSON would allow beyond that (other orders, \\u escapes, exponents) is not written; everything written is valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import combinations
from typing import Any

import numpy as np

from redraft.constraints.compile.automaton import EMPTY, Compiled, Dfa, intersect, subtract
from redraft.constraints.compile.builder import Builder, Part, any_of
from redraft.constraints.compile.document import Document
from redraft.constraints.compile.ecma import ecma_search, widest_search
from redraft.constraints.compile.limits import (
    DEFAULT_LIMITS,
    CompileLimits,
    OutOfReachError,
    TimeLimitError,
    compiling,
    part_compiled,
    seconds_left,
    time_limit,
)
from redraft.constraints.compile.listed import few, satisfying
from redraft.constraints.compile.merge import Resolver, Schema, Trail, item_at, says
from redraft.constraints.compile.record import ObjectPairs
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.compile.scalars import number_language, text_language
from redraft.constraints.compile.values import quoted, space, text_of
from redraft.constraints.compile.verbatim import formatted_in, integers_in, is_silent, numbers_in, parts_of
from redraft.constraints.validation import check_depth, check_form, check_readable
from redraft.errors import ConstraintError

MOST_PATTERNS = 4
MOST_MOVES = 30_000_000
"""Of all parts of a schema, which are kept until it is whole: 4 bytes each. Of the 152 largest of MaskBench's schemas
none that came to an end had over 25 million."""
BARE = r"[^\s:,{}\[\]<>\"]+"
"""Keys that need no quotes around them."""
SHALLOW, GROWTH = 2, 6
"""The depth that is tried first, and how many times as large a greater one may make an automaton."""
FREE_DEPTH = 4
"""How deep a value may nest that the schema says nothing about."""


def compile_schema(
    schema: Any,
    *,
    depth: int = 4,
    spaces: bool = True,
    quote: bytes = b"",
    verbatim: str = "",
    limits: CompileLimits = DEFAULT_LIMITS,
) -> Compiled:
    """The language of a schema, a value of JSON as `json.loads` gives it.

    `depth` is how often a reference may be open inside itself; without `spaces` the text is compact. With a `quote`
    that no text holds, strings stand between two of it as they are, and keys without any. Strings of which the schema
    has neither values, patterns nor formats are parts of the text `verbatim`, if it has parts that are long enough;
    those whose lengths it bounds only if the text is short.
    Raises ConstraintError for what is no schema, for one that nothing satisfies, and over the limits.
    """
    check_depth(schema)
    try:
        document = Document(schema)
        check_form(schema)
        with time_limit(limits):
            compiler = partial(_Compiler, limits=limits, spaces=spaces, quote=quote, verbatim=verbatim)
            try:
                resolver, dfa = _deepest(document, depth, compiler)
            except OutOfReachError as error:
                words = ('"uniqueItems"', '"number"', '"integer"')
                if isinstance(error, TimeLimitError) or not (verbatim or any(map(json.dumps(schema).count, words))):
                    raise
                try:  # in half of the time that is left: a guide needs some, too
                    with time_limit(replace(limits, seconds=seconds_left(limits.seconds) / 2)):
                        resolver, dfa = _deepest(document, depth, partial(compiler, large=False))
                except TimeLimitError:  # at another time it may be in reach
                    raise TimeLimitError(str(error)) from None
    except RecursionError:
        raise OutOfReachError("the schema nests too deeply to compile; flatten it") from None
    whole = dfa.reached(np.ones(len(dfa), np.bool_))
    if whole.is_empty:
        rare = ', or a "format" whose rarer forms are not written' * ('"format"' in json.dumps(schema))
        raise ConstraintError(f"no JSON value satisfies the schema; look for keywords that contradict each other{rare}")
    check_readable(schema)  # also what the language has no need of must be readable by the validator
    return Compiled(whole, document.checked or resolver.inexact, tuple(document.ignored))


def _deepest(document: Document, depth: int, compiler: Callable[[Resolver], _Compiler]) -> tuple[Resolver, Dfa]:
    """The language of a document with references open inside themselves up to `depth` times, or fewer if that would
    take too many states; and what made it plain."""
    found: tuple[Resolver, Dfa] | None = None
    for often in sorted({min(SHALLOW, depth), depth}):
        resolver = Resolver(document, often)
        try:
            made = compiler(resolver)
            dfa = made.value(document.root, ())
        except OutOfReachError:
            if found is None:
                raise
            return found
        if not resolver.cut or len(dfa) * GROWTH > made.limits.states:
            return resolver, dfa
        found = None if dfa.is_empty else (resolver, dfa)
    return resolver, dfa


@dataclass
class _Compiler:
    """Every schema is compiled once for a trail (`Resolver`), and its automaton put where it is needed. With `large`
    it has more states than it must: values that must differ are written out in every order, and addresses of the text,
    and numbers have all their digits."""

    resolver: Resolver
    limits: CompileLimits
    spaces: bool
    quote: bytes
    verbatim: str
    large: bool = True
    texts: dict[str, Dfa] = field(default_factory=dict)
    values: dict[tuple[Any, Trail, int], Dfa] = field(default_factory=dict)
    counted: set[Dfa] = field(default_factory=set)
    moves: int = 0

    def value(self, schema: Any, trail: Trail, free: int = FREE_DEPTH) -> Dfa:
        """The texts of one value. `trail` are the recursive references that are open, `free` the levels left that are
        not declared."""
        key = (schema if isinstance(schema, bool) else id(schema), trail, free)
        if key not in self.values:
            found, ways = [], [*self.resolver.plain(schema, trail)]
            may_be_null = self.large and any("null" in plain.get("type", ()) for plain, _ in ways)
            for plain, deeper in ways:
                kinds = [] if "enum" in plain else plain["type"]
                kinds = ["null"] * ("null" in kinds) if may_be_null and is_silent(self.verbatim, plain) else kinds
                found += [self.of_type(kind, plain, deeper, free) for kind in kinds]
                found += [self.listed(plain)] if "enum" in plain else []
            found = [dfa for dfa in found if not dfa.is_empty]
            Builder(self.limits).check(sum(map(len, found)) // 2)
            made = self.values[key] = found[0] if len(found) == 1 else self.either(found)
            self.moves += 0 if made in self.counted else made.table.size
            self.counted.add(made)
            if self.moves > MOST_MOVES:
                many = f"{part_compiled()} brings the parts of the schema over {MOST_MOVES} moves"
                raise OutOfReachError(f"{many}; narrow its lengths, counts or depth")
        return self.values[key]

    def either(self, automata: Iterable[Dfa]) -> Dfa:
        build = Builder(self.limits)
        return build.finish(build.either([build.embed(dfa) for dfa in automata]))

    def of_type(self, kind: str, plain: Schema, trail: Trail, free: int) -> Dfa:
        if kind == "string":
            return self.string(self.copied(plain))
        if kind in ("integer", "number"):
            return self.number(plain, whole=kind == "integer")
        if kind == "object":
            return self.object(plain, trail, free)
        if kind == "array":
            return self.array(plain, trail, free)
        return any_of(("true", "false") if kind == "boolean" else ("null",))

    def listed(self, plain: Schema) -> Dfa:
        """The listed values that satisfy the keywords beside the list."""
        build = Builder(self.limits)
        return build.finish(build.either([self.literal(build, value) for value in satisfying(self.resolver, plain)]))

    def literal(self, build: Builder, value: Any) -> Part:
        if isinstance(value, dict | list):
            parts = [build.literal(b"{" if isinstance(value, dict) else b"["), self.space(build)]
            for i, item in enumerate(value.items() if isinstance(value, dict) else value):
                parts += [self.comma(build)] if i else []
                if isinstance(value, dict):
                    parts += [build.literal(self.key(item[0]) + b":"), self.space(build, lines=False)]
                parts.append(self.literal(build, item[1] if isinstance(value, dict) else item))
            return build.then(*parts, self.space(build), build.literal(b"}" if isinstance(value, dict) else b"]"))
        is_bare = self.quote and isinstance(value, str)
        return build.literal(self.quote + value.encode() + self.quote if is_bare else _dumps(value))

    def string(self, said: Dfa) -> Dfa:
        """A string that says a text of a language."""
        if not self.quote:
            return quoted(said)
        build = Builder(self.limits)
        return build.finish(build.then(build.literal(self.quote), build.embed(said), build.literal(self.quote)))

    def key(self, name: str) -> bytes:
        """A key as it is written. Raises ConstraintError for one that needs marks where there are none."""
        if self.quote and not re.fullmatch(BARE, name):
            raise ConstraintError(f"the key {name!r:.80} cannot stand without quotes; rename it")
        return name.encode() if self.quote else _dumps(name)

    def any_key(self, names: Dfa) -> Dfa:
        """Keys of a language as they are written."""
        return intersect(names, whole_match(BARE)) if self.quote else quoted(names)

    def text(self, plain: Schema) -> Dfa:
        key = json.dumps([plain.get(word) for word in ("minLength", "maxLength", "patterns", "formats")])
        if key not in self.texts:
            self.texts[key], inexact = text_language(plain, self.limits)
            self.resolver.inexact |= inexact
        return self.texts[key]

    def copied(self, plain: Schema) -> Dfa:
        """A part of the text to copy from; if the schema says how it looks, one of the addresses or times there."""
        looks = [*plain.get("formats", []), *plain.get("patterns", [])]
        if not self.verbatim or (looks and not self.large):
            return self.text(plain)
        low, high = plain.get("minLength", 0), plain.get("maxLength")
        key = f"part {low} {high} {looks}"
        if key not in self.texts:
            inside = formatted_in(self.verbatim, looks[0]) if looks else parts_of(self.verbatim, low, high)
            inside = intersect(inside, self.text(plain)) if looks else inside
            # A string says no control characters, so perhaps there is none.
            self.texts[key] = self.text(plain) if self.string(inside).is_empty else inside
        return self.texts[key]

    def number(self, plain: Schema, *, whole: bool) -> Dfa:
        found, inexact = number_language(plain, self.limits, whole=whole, large=self.large)
        self.resolver.inexact |= inexact
        stated = intersect(found, (integers_in if whole else numbers_in)(self.verbatim))
        return found if stated.is_empty else stated

    def array(self, plain: Schema, trail: Trail, free: int) -> Dfa:
        """A list: a state behind each element that counts, a loop where they are no longer counted."""
        build, first = Builder(self.limits), plain.get("prefixItems", [])
        low, high = plain.get("minItems", 0), plain.get("maxItems")
        declared = bool(first) or "items" in plain
        if not declared and free == 0:
            high = 0
        count = max(low, len(first), 1) if high is None else high
        if low > count:
            return EMPTY
        if plain.get("uniqueItems") and high not in (0, 1):
            if self.large and not first and (values := few(self.resolver, plain.get("items", True), trail, high)):
                return self.distinct(values, low, len(values) if high is None else min(high, len(values)))
            self.resolver.inexact = True
        states, end = [build.state() for _ in range(count + 1)], build.state()
        last: tuple[Any, Part] = (None, None)
        for i in range(count + 1 if high is None else count):
            inner, target = item_at(plain, i), states[min(i + 1, count)]
            # The last that is counted and those behind it lead to one state, and may be one.
            if i < count or last[0] is not inner or last[1] is None:
                last = inner, build.embed(self.value(inner, trail, free if declared else free - 1))
                if last[1] is not None:
                    build.link(last[1][1], target)
            comma = self.comma(build) if i else None
            if last[1] is None:
                continue
            build.link(states[i] if comma is None else comma[1], last[1][0])
            if comma is not None:
                build.link(states[i], comma[0])
        for i in range(low, count + 1):
            build.link(states[i], end)
        return build.finish(self.bracket(build, "[]", (states[0], end)))

    def distinct(self, values: Sequence[Any], low: int, high: int) -> Dfa:
        """A list of some of these values in any order, none of them twice: a state behind each set of them."""
        if low > high:
            return EMPTY
        build, every = Builder(self.limits), frozenset(range(len(values)))
        behind = {frozenset(some): build.state() for n in range(high + 1) for some in combinations(every, n)}
        first, end = behind[frozenset()], build.state()
        for some, state in behind.items():
            if len(some) >= low:
                build.link(state, end)
            comma = self.comma(build) if some else (state, state)
            build.empties += [(state, comma[0])] if some else []
            for i in every - some if len(some) < high else ():
                if (part := self.literal(build, values[i])) is not None:
                    build.empties += [(comma[1], part[0]), (part[1], behind[some | {i}])]
        return build.finish(self.bracket(build, "[]", (first, end)))

    def object(self, plain: Schema, trail: Trail, free: int) -> Dfa:
        """An object: its pairs in the order that `ObjectPairs` lays out."""
        required = set(plain.get("required", []))
        entries = list(self.entries(plain, trail, free))
        low, high = plain.get("minProperties", 0), plain.get("maxProperties")
        extras = [extra for extra in self.extras(plain, trail, free) if extra is not None]
        self.resolver.inexact |= bool(extras) and low > len(required) + 1  # these may repeat a key, which counts once
        if high is not None and not extras and high >= len(entries):
            high = None
        build, top = Builder(self.limits), max(low, 1) if high is None else high
        if low > top:
            return EMPTY
        record = ObjectPairs(build, [name in required for name, _ in entries], top, bounded=high is not None)
        for level in range(1, top + 1):
            for i, (_, pair) in enumerate(entries):
                record.add(i, level, self.pair(build, pair))
            for extra in extras:
                record.add(len(entries), level, self.pair(build, extra))
        return build.finish(self.bracket(build, "{}", record.finish(low, lambda: self.comma(build))))

    def pair(self, build: Builder, pair: tuple[bytes | Dfa, Dfa] | None) -> Part:
        if pair is None:
            return None
        key, value = pair
        spelt = build.embed(key) if isinstance(key, Dfa) else build.literal(key)
        return build.then(spelt, build.literal(b":"), self.space(build, lines=False), build.embed(value))

    def entries(self, plain: Schema, trail: Trail, free: int) -> Iterator[tuple[str, tuple[bytes | Dfa, Dfa] | None]]:
        """Declared properties, and required ones that are not, in order: the key, and key and value as written."""
        declared = list(plain.get("properties", {}))
        allowed = self.keys(plain) if plain.get("names") else None
        for key in dict.fromkeys([*declared, *plain.get("required", [])]):
            inner = self.resolver.together(says(plain, key))
            if allowed is not None and not allowed.matches(key.encode()):
                inner = False
            yield key, self.entry(self.key(key), inner, trail, free if key in declared else free - 1)

    def entry(self, key: bytes | Dfa, inner: Any, trail: Trail, free: int) -> tuple[bytes | Dfa, Dfa] | None:
        """A key and its value as they are written; None if there is no such value."""
        if free < 0:
            return None
        with compiling("a key beside the declared ones" if isinstance(key, Dfa) else f"property {key.decode():.80}"):
            value = self.value(inner, trail, free)
        return None if value.is_empty else (key, value)

    def extras(self, plain: Schema, trail: Trail, free: int) -> Iterator[tuple[bytes | Dfa, Dfa] | None]:
        """Pairs of keys that are not declared: by which patterns they match, and those that match none."""
        patterns = plain.get("patternProperties", {})
        stated = "additionalProperties" in plain
        rest = stated or not (plain.get("properties") or patterns)
        if len(patterns) > MOST_PATTERNS:
            raise OutOfReachError(f"patternProperties has {len(patterns)} patterns; at most {MOST_PATTERNS}")
        if not patterns and (not rest or plain.get("additionalProperties") is False):
            return
        keys = self.keys(plain)
        keys = subtract(keys, any_of([*plain.get("properties", {}), *plain.get("required", [])]))
        for size in range(1, len(patterns) + 1):
            for chosen in combinations(patterns, size):
                inside = reduce(intersect, [keys, *(ecma_search(one) for one in chosen)])
                inside = reduce(subtract, [inside, *(widest_search(one) for one in patterns if one not in chosen)])
                inner = self.resolver.together([patterns[one] for one in chosen])
                if not inside.is_empty:
                    yield self.entry(self.any_key(inside), inner, trail, free)
        if rest:
            inside = reduce(subtract, [keys, *(widest_search(one) for one in patterns)])
            inner = plain.get("additionalProperties", True)
            if not inside.is_empty:
                yield self.entry(self.any_key(inside), inner, trail, free - (inner is True))

    def keys(self, plain: Schema) -> Dfa:
        """What a key may say."""
        found = text_of()
        for names in plain.get("names", []):
            one = []
            for alternative, _ in self.resolver.plain(names):
                if "string" in alternative["type"]:
                    texts = alternative | {"type": ["string"]}
                    one.append(any_of(satisfying(self.resolver, texts)) if "enum" in texts else self.text(texts))
            found = intersect(found, self.either(one))
        return found

    def bracket(self, build: Builder, marks: str, inside: Part) -> Part:
        """What stands between brackets, with white space inside them."""
        first, last = (build.literal(mark.encode()) for mark in marks)
        return build.then(first, self.space(build), inside, self.space(build), last)

    def comma(self, build: Builder) -> tuple[int, int]:
        found = build.then(build.literal(b","), self.space(build))
        assert found is not None
        return found

    def space(self, build: Builder, *, lines: bool = True) -> Part:
        """White space that may stand here."""
        return build.embed(space(lines=lines)) if self.spaces else build.literal(b"")


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
