"""Where the references of a schema lead, what in it is ignored, and what is left to a validator.

Nothing is ever fetched: a reference that leads out of the document is refused, but for the public meta-schemas.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import reduce
from typing import Any
from urllib.parse import urldefrag, urljoin

from redraft.constraints.compile.dialect import (
    META,
    SchemaDraft,
    discriminator,
    draft_of,
    modern,
    nodes,
    pointer_of,
    validated_as,
)
from redraft.constraints.compile.keywords import CARE, FORMATS, VALIDATED_FORMATS, Care, near_miss
from redraft.errors import ConstraintError
from redraft.pointers import at_step

MOST_IGNORED = 100
"""Entries of a list of ignored keywords."""


@dataclass
class Document:
    """A schema with its draft, what in it is ignored or left to a validator, and the names that references use. What is
    ignored is a JSON pointer, behind some the keyword that may have been meant."""

    root: Any
    draft: SchemaDraft = field(init=False)
    is_newest: bool = field(init=False)
    checked: bool = field(default=False, init=False)
    ignored: list[str] = field(default_factory=list, init=False)
    bases: dict[int, str] = field(default_factory=dict, init=False)
    named: dict[str, Any] = field(default_factory=dict, init=False)
    targets: dict[str, Any] = field(default_factory=dict, init=False)
    inside: dict[str, set[str]] = field(default_factory=dict, init=False)
    reached: dict[str, frozenset[str]] = field(default_factory=dict, init=False)
    twice: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.draft = draft_of(self.root)
        year, read = validated_as(self.root)
        self.word, self.is_newest = "id" if year == 4 else "$id", year == 2020 and read is self.root
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
                raise ConstraintError(f"schema at #{where} is of another draft than the document; write both in one")
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
        is_only_ref = self.draft.only_refs and "$ref" in node
        for name in node:
            if name == "discriminator" and discriminator(node) is not None:
                continue
            unread = is_only_ref and name not in ("$ref", "definitions") and CARE.get(name) is not Care.NOTED
            if unread or not self.draft.defines(name):
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
            self.ignored.append(pointer_of(path) + (f" ({meant}?)" if meant else ""))

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
            if META.fullmatch(whole):
                self.checked = True
                return {"type": ["object", "boolean"]}
            raise ConstraintError(f"$ref {name!r} leads out of the document; put what it names under $defs")
        steps = fragment.split("/")[1:]
        is_anchor = fragment and not fragment.startswith("/")
        found = self.named.get(f"{resource}#{fragment}") if is_anchor else reduce(at_step, steps, self.named[resource])
        if found is None:
            raise ConstraintError(f"$ref {name!r} names nothing in the document; correct it")
        if not isinstance(found, dict) or id(found) not in self.bases:
            self._read(found, resource, tuple(steps))  # it may stand where no schema has to
        return found


def _joined(base: str, said: str) -> str:
    """A reference within a base. Raises ConstraintError for what is no URL."""
    try:
        return urljoin(base, said)
    except ValueError as error:
        raise ConstraintError(f"the schema names {said!r:.80}, which is no URL: {error}; correct it") from None
