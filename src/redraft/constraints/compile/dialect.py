"""Which draft a schema is of, what is in it, and where its references lead.

A schema's own `$schema` says its draft. Where it says none, or one that nobody publishes, it is read as 2020-12, and so
are the forms of older drafts: `id`, `dependencies`, a boolean exclusiveMinimum, lists as `items`, additionalItems.
Nothing is ever fetched: a reference that leads out of the document is refused, but for the public meta-schemas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from redraft.constraints.compile.keywords import (
    CARE,
    DEFINED,
    FORMATS,
    LISTS,
    MAPS,
    OLDER,
    ONE,
    VALIDATED_FORMATS,
    Care,
    near_miss,
)
from redraft.errors import ConstraintError

URIS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
_META = re.compile(r"https?://json-schema\.org/draft(?:-0([4-7])|/(2019|2020)-\d\d)/schema#?")
_IN_LIST = re.compile(r"/items/(?=\d+(?:/|$))")
_OPEN = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
_NEWER = {name for name in DEFINED[2020] - DEFINED[4] if CARE[name] is not Care.NOTED} | {"$id"}
MOST_IGNORED = 100
"""Entries of a list of ignored keywords."""
MOST_NODES = 200_000
"""Schemas within a schema."""


@dataclass(frozen=True)
class SchemaDraft:
    """A draft of the standard, and whether the schema itself says that it is of that one."""

    year: int
    stated: bool

    @property
    def only_refs(self) -> bool:
        """Whether what stands beside `$ref` is ignored."""
        return self.stated and self.year <= 7

    def defines(self, name: str) -> bool:
        """Whether a keyword of that name means something."""
        return name in DEFINED[self.year] or (not self.stated and name in OLDER)


@dataclass(frozen=True)
class Ignored:
    """A keyword that is ignored: where, as a JSON pointer, and the keyword that may have been meant."""

    pointer: str
    meant: str | None = None

    def __str__(self) -> str:
        return self.pointer + (f" ({self.meant}?)" if self.meant else "")


def draft_of(schema: Any) -> SchemaDraft:
    """The draft that a schema is read by."""
    said = schema.get("$schema") if isinstance(schema, dict) else None
    match = _META.fullmatch(said) if isinstance(said, str) else None
    if match is None:
        return SchemaDraft(2020, stated=False)
    year = int(match[1] or match[2])
    return SchemaDraft(6 if year == 5 else year, stated=True)


def validated_as(schema: Any) -> tuple[int, Any]:
    """The draft by which a validator reads a schema, and the schema as it reads it.

    One without `$schema` is of the draft whose forms it has. If it mixes those of several, as tools of several hands do
    together, it is rewritten in those of 2020-12."""
    draft = draft_of(schema)
    if draft.stated:
        return draft.year, schema
    forms = {form for node, path in nodes(schema, draft) for form in _forms(node, draft, inner=bool(path))}
    if "bounds" in forms and not forms & {"newer", "draft"}:
        return 4, schema
    if forms & {"bounds", "draft"} or forms >= {"lists", "prefixItems"}:
        return 2020, _rewritten(schema, draft)
    return 2019 if "lists" in forms else 2020, schema


def _forms(node: dict[str, Any], draft: SchemaDraft, *, inner: bool) -> Iterator[str]:
    """What a schema has that not every draft has: bounds open by a boolean, lists as items, prefixItems, words or
    values newer than draft 4, a draft of its own."""
    if any(isinstance(node.get(word), bool) for word, _ in _OPEN):
        yield "bounds"
    if isinstance(node.get("items"), list) or "additionalItems" in node:
        yield "lists"
    if "prefixItems" in node:
        yield "prefixItems"
    if inner and draft_of(node).stated:
        yield "draft"
    flags = {path[0] for one, path in inner_schemas(node, draft) if isinstance(one, bool)}
    if (
        not node.keys().isdisjoint(_NEWER)
        or node.get("required") == []
        or any(word in node and not isinstance(node[word], bool) for word, _ in _OPEN)
        or flags - {"additionalProperties", "additionalItems"}
    ):
        yield "newer"


def _rewritten(schema: Any, draft: SchemaDraft) -> Any:
    """A copy in the forms of 2020-12; it says of no schema inside it that it is of another draft."""
    found = deepcopy(schema)
    for node, path in nodes(found, draft):
        if path and draft_of(node).stated:
            del node["$schema"]
        if str(node.get("$id", "")).startswith("#"):
            node["$anchor"] = node.pop("$id")[1:]
        if "$recursiveRef" in node:
            node.setdefault("$ref", node.pop("$recursiveRef"))
        if isinstance(node.get("$ref"), str):
            node["$ref"] = _IN_LIST.sub("/prefixItems/", node["$ref"])
        _renew(node)
    return found


def _renew(node: dict[str, Any]) -> None:
    """Bring the bounds and the lists of a schema into the form of 2020-12."""
    for word, bound in _OPEN:
        if isinstance(node.get(word), bool) and node.pop(word) and bound in node:
            node[word] = node.pop(bound)
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
    node.pop("additionalItems", None)


def modern(schema: dict[str, Any], draft: SchemaDraft) -> dict[str, Any]:
    """What a schema says at its top, in the words of 2020-12, without what is ignored."""
    if draft.only_refs and "$ref" in schema:
        return {"$ref": schema["$ref"]}
    found = {name: value for name, value in schema.items() if draft.defines(name)}
    _renew(found)
    for word in ("$dynamicRef", "$recursiveRef"):
        if word in found:
            found.setdefault("$ref", found.pop(word))
    return found


def discriminator(schema: Any) -> str | None:
    """The property by which OpenAPI and pydantic tell the alternatives of a schema apart. Who reads an answer needs it,
    though the alternatives may not require it."""
    said = schema.get("discriminator") if isinstance(schema, dict) and {"anyOf", "oneOf"} & {*schema} else None
    name = said.get("propertyName") if isinstance(said, dict) else None
    return name if isinstance(name, str) else None


def inner_schemas(schema: dict[str, Any], draft: SchemaDraft) -> Iterator[tuple[Any, tuple[str | int, ...]]]:
    """The schemas directly inside a schema, each with its path. Raises ConstraintError for values of another form."""
    for name, value in schema.items():
        if not draft.defines(name):
            continue
        expected = dict if name in MAPS else list if name in LISTS else None
        if expected is not None and not isinstance(value, expected):
            raise ConstraintError(f"{name} is {value!r:.80}; it must be a JSON {expected.__name__}")
        if name in MAPS:
            yield from ((inner, (name, key)) for key, inner in value.items())
        elif name in LISTS or (name == "items" and isinstance(value, list)):
            yield from ((inner, (name, i)) for i, inner in enumerate(value))
        elif name in ONE:
            yield value, (name,)
        elif name == "dependencies" and isinstance(value, dict):
            yield from ((inner, (name, key)) for key, inner in value.items() if not isinstance(inner, list))


def nodes(schema: Any, draft: SchemaDraft) -> Iterator[tuple[dict[str, Any], tuple[str | int, ...]]]:
    """Every schema within a schema that is an object, itself among them, with its path; each object once.

    Raises ConstraintError, naming the place, for what is no schema.
    """
    stack: list[tuple[Any, tuple[str | int, ...]]] = [(schema, ())]
    seen = set[int]()
    while stack:
        node, path = stack.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise ConstraintError(f"schema at {pointer_of(path)} is {node!r:.80}; it must be an object, true or false")
        if id(node) in seen:
            continue
        seen.add(id(node))
        if len(seen) > MOST_NODES:
            raise ConstraintError(f"the schema has over {MOST_NODES} schemas inside it; write fewer")
        yield node, path
        try:
            inside = list(inner_schemas(node, draft))
        except ConstraintError as error:
            raise ConstraintError(f"schema at {pointer_of(path)}: {error}") from None
        stack += [(inner, (*path, *step)) for inner, step in reversed(inside)]


def pointer_of(path: tuple[str | int, ...]) -> str:
    """A path as a JSON pointer."""
    return "#" + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


@dataclass
class Document:
    """A schema with its draft, what in it is ignored or left to a validator, and the names that references use."""

    root: Any
    draft: SchemaDraft = field(init=False)
    checked: bool = field(default=False, init=False)
    ignored: list[Ignored] = field(default_factory=list, init=False)
    bases: dict[int, str] = field(default_factory=dict, init=False)
    named: dict[str, Any] = field(default_factory=dict, init=False)
    targets: dict[str, Any] = field(default_factory=dict, init=False)
    inside: dict[str, set[str]] = field(default_factory=dict, init=False)
    reached: dict[str, frozenset[str]] = field(default_factory=dict, init=False)
    twice: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.draft = draft_of(self.root)
        self.word = "id" if validated_as(self.root)[0] == 4 else "$id"
        self.named[""] = self.root
        self._read(self.root, "", ())

    def _read(self, schema: Any, base: str, at: tuple[str | int, ...]) -> None:
        """Take in a schema and all within it, by their paths below `at`."""
        bases: dict[tuple[str | int, ...], str] = {(): base}
        for node, path in nodes(schema, self.draft):
            above = next(bases[path[:i]] for i in range(len(path), -1, -1) if path[:i] in bases)
            own = self._name(node, above)
            if own != above:
                bases[path] = own
            if id(node) in self.bases:
                continue
            said = draft_of(node)
            if self.draft.stated and said.stated and said.year != self.draft.year:
                where = pointer_of((*at, *path))
                raise ConstraintError(f"schema at {where} is of another draft than the document; write both in one")
            self.bases[id(node)] = own
            self._survey(node, (*at, *path))

    def _name(self, node: dict[str, Any], base: str) -> str:
        """Enter the names of a schema; returns the base of references in it."""
        said = node.get(self.word)
        if isinstance(said, str) and not (self.draft.only_refs and "$ref" in node):
            if said.startswith("#"):  # an anchor, in older drafts
                self._enter(base + said, node)
            else:
                base = urldefrag(_joined(base, said))[0]
                self._enter(base, node)
        for word in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(word), str):
                self._enter(f"{base}#{node[word]}", node)
        return base

    def _enter(self, name: str, node: dict[str, Any]) -> None:
        """Note what a name stands for; and that it stands for two things, as the same `$id` in two tools does."""
        known = self.named.setdefault(name, node)
        if name in self.twice or known is node:  # compared once: a large one may have thousands of its name inside it
            return
        if json.dumps(known, sort_keys=True) != json.dumps(node, sort_keys=True):
            self.twice.add(name)

    def _survey(self, node: dict[str, Any], path: tuple[str | int, ...]) -> None:
        """Note what is ignored in one schema, and whether some of it is left to a validator."""
        for name in node:
            if name == "discriminator" and discriminator(node) is not None:
                continue
            if not self.draft.defines(name) or (
                self.draft.only_refs
                and "$ref" in node
                and name in CARE
                and name not in ("$ref", "definitions", "$id", "id")
                and CARE[name] is not Care.NOTED
            ):
                self._ignore((*path, name), near_miss(name, self.draft.year))
            else:
                self.checked |= CARE[name] is Care.CHECKED
        form = node.get("format")
        if isinstance(form, str) and form not in FORMATS and form not in VALIDATED_FORMATS:
            self._ignore((*path, "format", form), None)

    def recursive(self, name: str) -> frozenset[str]:
        """The references, by their full names, that can be met inside what a reference names; itself, if it leads
        back."""
        if name not in self.reached:
            found, stack = set[str](), [name]
            while stack:
                fresh = self._references(stack.pop()) - found
                found |= fresh
                stack += fresh
            self.reached[name] = frozenset(found)
        return self.reached[name]

    def _references(self, name: str) -> set[str]:
        """The references right inside what a reference names."""
        if name not in self.inside:
            self.inside[name] = set()
            for node, _ in nodes(self.targets[name], self.draft):
                words = modern(node, self.draft)
                if "$ref" in words:
                    self.inside[name].add(self.target(words["$ref"], node)[0])
        return self.inside[name]

    def _ignore(self, path: tuple[str | int, ...], meant: str | None) -> None:
        if len(self.ignored) < MOST_IGNORED:
            self.ignored.append(Ignored(pointer_of(path)[1:], meant))

    def target(self, name: Any, source: dict[str, Any]) -> tuple[str, Any]:
        """The full name of what a reference in `source` names, and the schema there.

        Raises ConstraintError if it is not in the document.
        """
        whole = str(name) if str(name).startswith("#") else _joined(self.bases.get(id(source), ""), str(name))
        if whole.startswith("#"):
            whole = self.bases.get(id(source), "") + whole
        if whole not in self.targets:
            self.targets[whole] = self._find(whole, name)
        return whole, self.targets[whole]

    def _find(self, whole: str, name: Any) -> Any:
        resource, fragment = urldefrag(whole)
        if twice := self.twice & {resource, whole}:
            raise ConstraintError(f"$ref {name!r} may mean two schemas: {min(twice)!r} names both; name them apart")
        if resource not in self.named:
            if _META.fullmatch(whole):
                self.checked = True
                return {"type": ["object", "boolean"]}
            raise ConstraintError(f"$ref {name!r} leads out of the document; put what it names under $defs")
        if fragment and not fragment.startswith("/"):
            if f"{resource}#{fragment}" not in self.named:
                raise ConstraintError(f"$ref {name!r} names nothing in the document; correct it")
            return self.named[f"{resource}#{fragment}"]
        found = self._pointed(self.named[resource], fragment, name)
        if isinstance(found, dict) and id(found) in self.bases:
            return found
        self._read(found, resource, tuple(fragment.split("/")[1:]))  # it may stand where no schema has to
        return found

    def _pointed(self, found: Any, pointer: str, name: Any) -> Any:
        for step in pointer.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            elif isinstance(found, dict) and step in found:
                found = found[step]
            else:
                raise ConstraintError(f"$ref {name!r} names nothing in the document; correct it")
        return found


def _joined(base: str, said: str) -> str:
    """A reference within a base. Raises ConstraintError for what is no URL."""
    try:
        return urljoin(base, said)
    except ValueError as error:
        raise ConstraintError(f"the schema names {said!r:.80}, which is no URL: {error}; correct it") from None
