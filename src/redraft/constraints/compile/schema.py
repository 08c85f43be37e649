"""JSON Schema to an automaton over bytes: the texts that a model may write for a value of the schema.

Objects list their properties in the schema's order, optional ones or not at all. White space is what people and models
write: nothing, a space, or a line break and an indent, wherever JSON allows it but ahead of a colon. What the rest of
JSON would allow beyond that (other orders, \\u escapes, exponents) is not written; everything written is valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from itertools import combinations
from typing import Any, NamedTuple

from redraft.constraints.compile.automaton import EMPTY, Builder, Dfa, Part, any_of, intersect, subtract
from redraft.constraints.compile.keywords import FORMATS, check_keywords
from redraft.constraints.compile.limits import DEFAULT_LIMITS, Limits, check_time, compiling, time_limit
from redraft.constraints.compile.merge import Resolver, Schema, exact, item_at, says, tightest, together
from redraft.constraints.compile.regex import ecma_search, whole_match
from redraft.constraints.compile.values import multiple, number, quoted, space, text_of
from redraft.constraints.validation import validator_of
from redraft.errors import ConstraintError

MOST_COUNTED = 1000
MOST_PATTERNS = 4
MOST_DIVISOR = 9999
BARE = r"[^\s:,{}\[\]<>\"]+"
"""Keys that need no quotes around them."""
FREE_DEPTH = 2
"""How deep a value may nest that the schema says nothing about."""


class Compiled(NamedTuple):
    """The automaton of a schema, and whether an answer has to be checked with a validator all the same."""

    dfa: Dfa
    checked: bool


def compile_schema(
    schema: Any, *, depth: int = 4, spaces: bool = True, quote: bytes = b"", limits: Limits = DEFAULT_LIMITS
) -> Compiled:
    """The language of a schema, a value of JSON as `json.loads` gives it.

    `depth` is how often a reference may be open inside itself; without `spaces` the text is compact. With a `quote`
    that no text holds, strings stand between two of it as they are, and keys without any.
    Raises ConstraintError for unsupported keywords, for a schema that nothing satisfies, and over the limits.
    """
    checked = check_keywords(schema)
    _check_form(schema)
    compiler = _Compiler(Resolver(schema, depth), Builder(limits), spaces, quote)
    try:
        with time_limit(limits):
            dfa = compiler.builder.finish(compiler.value(schema, ()))
    except RecursionError:
        raise ConstraintError("the schema nests too deeply to compile; flatten it") from None
    if dfa.is_empty:
        raise ConstraintError("no JSON value satisfies the schema; look for keywords that contradict each other")
    validator_of(schema)  # also what the language has no need of must be readable by the validator
    return Compiled(dfa, checked or compiler.resolver.inexact)


def _check_form(schema: Any) -> None:
    """Raise ConstraintError for keywords whose values are of the wrong form, by the draft's own meta-schema."""
    from jsonschema_rs import ValidationError, meta

    plain = {key: value for key, value in schema.items() if key != "$schema"} if isinstance(schema, dict) else schema
    try:
        meta.validate(plain)
    except ValidationError as error:
        where = "/".join(map(str, error.instance_path))
        raise ConstraintError(f"schema at #{where and '/'}{where} is no JSON Schema: {error.message[:200]}") from None


@dataclass
class _Compiler:
    resolver: Resolver
    builder: Builder
    spaces: bool
    quote: bytes
    texts: dict[str, Dfa] = field(default_factory=dict)

    def value(self, schema: Any, trail: tuple[str, ...], free: int = FREE_DEPTH) -> Part:
        """The texts of one value. `trail` are the references that are open, `free` the levels left that are not
        declared."""
        parts = []
        for plain, deeper in self.resolver.plain(schema, trail):
            if "enum" in plain:
                parts += [self.literal(value) for value in plain["enum"] if self.fits(plain, value)]
            else:
                parts += [self.of_type(kind, plain, deeper, free) for kind in plain["type"]]
        return self.builder.either(parts)

    def of_type(self, kind: str, plain: Schema, trail: tuple[str, ...], free: int) -> Part:
        """The texts of values of one type."""
        if kind == "string":
            return self.string(self.text(plain))
        if kind in ("integer", "number"):
            return self.builder.embed(self.number(plain, whole=kind == "integer"))
        if kind == "object":
            return self.object(plain, trail, free)
        if kind == "array":
            return self.array(plain, trail, free)
        words = ("true", "false") if kind == "boolean" else ("null",)
        return self.builder.either([self.builder.literal(word.encode()) for word in words])

    def literal(self, value: Any) -> Part:
        """One given value."""
        build = self.builder
        if isinstance(value, dict):
            pairs = [
                build.then(build.literal(self.key(key) + b":"), self.space(lines=False), self.literal(inner))
                for key, inner in value.items()
            ]
            return self.bracket("{}", self.listed(pairs))
        if isinstance(value, list):
            return self.bracket("[]", self.listed([self.literal(inner) for inner in value]))
        if self.quote and isinstance(value, str):
            return build.literal(self.quote + value.encode() + self.quote)
        return build.literal(_dumps(value))

    def string(self, said: Dfa) -> Part:
        """A string that says a text of a language."""
        build = self.builder
        if not self.quote:
            return build.embed(quoted(said))
        return build.then(build.literal(self.quote), build.embed(said), build.literal(self.quote))

    def key(self, name: str) -> bytes:
        """A key as it is written. Raises ConstraintError for one that needs marks where there are none."""
        if self.quote and not re.fullmatch(BARE, name):
            raise ConstraintError(f"the key {name!r:.80} cannot stand without quotes; rename it")
        return name.encode() if self.quote else _dumps(name)

    def any_key(self, names: Dfa) -> Dfa:
        """Keys of a language as they are written."""
        return intersect(names, whole_match(BARE)) if self.quote else quoted(names)

    def fits(self, plain: Schema, value: Any) -> bool:
        """Whether a listed value satisfies the keywords beside the list, as a validator of its own reads them."""
        check_time()
        words = {key: inner for key, inner in plain.items() if not isinstance(inner, dict | list) or key == "type"}
        words["allOf"] = [{}, *({"pattern": one} for one in plain.get("patterns", []))]
        words["allOf"] += [{"multipleOf": one} for one in plain.get("multiples", [])]
        words["allOf"] += [{"format": one} for one in plain.get("formats", [])]
        if isinstance(value, dict | list):
            self.resolver.inexact = True
        return validator_of(words).is_valid(value)

    def text(self, plain: Schema) -> Dfa:
        """What a string may say."""
        key = json.dumps([plain.get(word) for word in ("minLength", "maxLength", "patterns", "formats")])
        if key not in self.texts:
            low, high = plain.get("minLength", 0), plain.get("maxLength")
            if low > MOST_COUNTED:
                raise ConstraintError(f"minLength is {low}; lengths are counted up to {MOST_COUNTED}: lower it")
            if high is not None and high > MOST_COUNTED:
                self.resolver.inexact, high = True, None
            if high is not None and high < low:
                self.texts[key] = EMPTY
            else:
                parts = [text_of(low, high), *(ecma_search(pattern) for pattern in plain.get("patterns", []))]
                for name in plain.get("formats", []):
                    self.resolver.inexact |= name not in FORMATS
                    parts += [whole_match(FORMATS[name])] if name in FORMATS else []
                self.texts[key] = reduce(intersect, sorted(parts, key=len))
        return self.texts[key]

    def number(self, plain: Schema, *, whole: bool) -> Dfa:
        """What a number may be."""
        low, open_low, high, open_high = tightest(plain)
        found = number(low, high, open_low=open_low, open_high=open_high, whole=whole)
        for of in map(exact, plain.get("multiples", [])):
            if of <= 0:
                raise ConstraintError(f"multipleOf is {of}; it must be above 0")
            if len(of.normalize().as_tuple().digits) > 4 or of > MOST_DIVISOR or of < Decimal("1e-6"):
                self.resolver.inexact = True
            else:
                found = intersect(found, multiple(of))
        return found

    def array(self, plain: Schema, trail: tuple[str, ...], free: int) -> Part:
        """A list: one state per element counted, a loop where they are no longer."""
        build, first = self.builder, plain.get("prefixItems", [])
        low, high = plain.get("minItems", 0), plain.get("maxItems")
        declared = bool(first) or "items" in plain
        if not declared and free == 0:
            high = 0
        count = max(low, len(first), 1) if high is None else high
        states = [build.state() for _ in range(count + 1)]
        end = build.state()
        for i in range(count + 1 if high is None else count):
            inner = self.value(item_at(plain, i), trail, free if declared else free - 1)
            part = build.then(self.comma(), inner) if i else inner
            if part is not None:
                build.link(states[i], part[0])
                build.link(part[1], states[min(i + 1, count)])
        for i in range(min(low, count + 1), count + 1):
            build.link(states[i], end)
        return self.bracket("[]", (states[0], end)) if low <= count else None

    def object(self, plain: Schema, trail: tuple[str, ...], free: int) -> Part:
        """A record: a state for each (property, how many have been written)."""
        build, required = self.builder, set(plain.get("required", []))
        entries = list(self.entries(plain, trail, free))
        low, high = max(plain.get("minProperties", 0), 0), plain.get("maxProperties")
        top = max(low, 1) if high is None else high
        self.resolver.inexact |= low > len(entries)
        grid = [[build.state() for _ in range(top + 1)] for _ in range(len(entries) + 1)]
        for i, (name, pair) in enumerate(entries):
            for count in range(top + 1):
                if name not in required:
                    build.link(grid[i][count], grid[i + 1][count])
                self.write(pair, grid[i][count], count, top, high, grid[i + 1])
        for extra in self.extras(plain, trail, free):
            for count in range(top + 1):
                self.write(extra, grid[-1][count], count, top, high, grid[-1])
        end = build.state()
        for count in range(low, top + 1):
            build.link(grid[-1][count], end)
        return self.bracket("{}", (grid[0][0], end)) if low <= top else None

    def write(
        self, pair: Callable[[], Part], source: int, count: int, top: int, high: int | None, row: list[int]
    ) -> None:
        """A pair between two states, unless there are as many as there may be."""
        if count == top and high is not None:
            return
        part = self.builder.then(self.comma(), pair()) if count else pair()
        if part is not None:
            self.builder.link(source, part[0])
            self.builder.link(part[1], row[min(count + 1, top)])

    def entries(self, plain: Schema, trail: tuple[str, ...], free: int) -> Iterator[tuple[str, Callable[[], Part]]]:
        """Declared properties, and required ones that are not, in order: key and how to write the pair."""
        declared = list(plain.get("properties", {}))
        for key in dict.fromkeys([*declared, *plain.get("required", [])]):
            inner, names = together(says(plain, key)), plain.get("names", [])
            if names and not self.keys(plain).matches(key.encode()):
                inner = False
            yield key, self.pair(self.builder, self.key(key), inner, trail, free if key in declared else free - 1)

    def pair(
        self, build: Builder, key: bytes | Dfa, inner: Any, trail: tuple[str, ...], free: int
    ) -> Callable[[], Part]:
        """How to write a key and its value; each call makes a new one."""

        def make() -> Part:
            if free < 0:
                return None
            spelt = build.embed(key) if isinstance(key, Dfa) else build.literal(key)
            with compiling(
                "a key beside the declared ones" if isinstance(key, Dfa) else f"property {key.decode():.80}"
            ):
                return build.then(spelt, build.literal(b":"), self.space(lines=False), self.value(inner, trail, free))

        return make

    def extras(self, plain: Schema, trail: tuple[str, ...], free: int) -> Iterator[Callable[[], Part]]:
        """Pairs of keys that are not declared: by which patterns they match, and those that match none."""
        patterns = plain.get("patternProperties", {})
        if len(patterns) > MOST_PATTERNS:
            raise ConstraintError(f"patternProperties has {len(patterns)} patterns; at most {MOST_PATTERNS}")
        keys = self.keys(plain)
        keys = subtract(keys, any_of([*plain.get("properties", {}), *plain.get("required", [])]))
        for size in range(1, len(patterns) + 1):
            for chosen in combinations(patterns, size):
                inside = reduce(intersect, [keys, *(ecma_search(one) for one in chosen)])
                inside = reduce(subtract, [inside, *(ecma_search(one) for one in patterns if one not in chosen)])
                inner = together([patterns[one] for one in chosen])
                yield self.pair(self.builder, self.any_key(inside), inner, trail, free)
        stated = "additionalProperties" in plain
        if stated or not ("properties" in plain or patterns):
            rest = reduce(subtract, [keys, *(ecma_search(one) for one in patterns)])
            inner = plain.get("additionalProperties", True)
            yield self.pair(self.builder, self.any_key(rest), inner, trail, free - (inner is True))

    def keys(self, plain: Schema) -> Dfa:
        """What a key may say."""
        found = text_of()
        for names in plain.get("names", []):
            one = EMPTY
            for alternative, _ in self.resolver.plain(names):
                if "string" in alternative["type"]:
                    listed = [value for value in alternative.get("enum", []) if isinstance(value, str)]
                    one = _unite(one, any_of(listed) if "enum" in alternative else self.text(alternative))
            found = intersect(found, one)
        return found

    def bracket(self, marks: str, inside: Part) -> Part:
        """What stands between brackets, with white space inside them."""
        build = self.builder
        return build.then(
            build.literal(marks[:1].encode()), self.space(), inside, self.space(), build.literal(marks[1:].encode())
        )

    def listed(self, parts: list[Part]) -> Part:
        """All of them, with commas between."""
        spaced = [part if i == 0 else self.builder.then(self.comma(), part) for i, part in enumerate(parts)]
        return self.builder.then(*spaced)

    def comma(self) -> Part:
        """A comma and white space."""
        return self.builder.then(self.builder.literal(b","), self.space())

    def space(self, *, lines: bool = True) -> Part:
        """White space that may stand here."""
        return self.builder.embed(space(lines=lines)) if self.spaces else self.builder.literal(b"")


def _unite(a: Dfa, b: Dfa) -> Dfa:
    build = Builder()
    return build.finish(build.either([build.embed(a), build.embed(b)]))


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
