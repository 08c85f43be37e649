"""Which draft a schema is of, what is in it, and the words of 2020-12 for it.

A schema's own `$schema` says its draft. Where it says none, or one that nobody publishes, it is read as 2020-12, and so
are the forms of older drafts: `id`, `dependencies`, a boolean exclusiveMinimum, lists as `items`, additionalItems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from typing import Any

from redraft.constraints.compile.keywords import (
    CARE,
    DEFINED,
    LISTS,
    MAPS,
    OLDER,
    ONE,
    Care,
)
from redraft.constraints.compile.limits import check_time
from redraft.errors import ConstraintError
from redraft.pointers import at_step

URIS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
META = re.compile(r"https?://json-schema\.org/draft(?:-0([4-7])|/(2019|2020)-\d\d)/schema#?")
_OPEN = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
_NEWER = {name for name in DEFINED[2020] - DEFINED[4] if CARE[name] is not Care.NOTED} | {"$id"}
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


_BESIDE = {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "not", "dependencies"}
_BESIDE |= {"dependentSchemas"}
_OF_KEYS = {"properties", "patternProperties", "additionalProperties", "required", "propertyNames", "minProperties"}
_OPENING = {"patternProperties", "additionalProperties", "unevaluatedProperties", "minProperties", "dependentRequired"}
_OPENING |= {"enum", "const"}


def draft_of(schema: Any) -> SchemaDraft:
    """The draft that a schema is read by."""
    said = schema.get("$schema") if isinstance(schema, dict) else None
    match = META.fullmatch(said) if isinstance(said, str) else None
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
    forms = {form for node, path in reached(schema, draft) for form in _forms(node, draft, inner=bool(path))}
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
    inside = list(reached(found, draft))
    lists = {id(node) for node, _ in inside if isinstance(node.get("items"), list)}
    moved = {id(node): _moved(node["$ref"], found, lists) for node, _ in inside if isinstance(node.get("$ref"), str)}
    for node, path in inside:
        if path and draft_of(node).stated:
            del node["$schema"]
        if str(node.get("$id", "")).startswith("#"):
            node["$anchor"] = node.pop("$id")[1:]
        if "$recursiveRef" in node:
            node.setdefault("$ref", node.pop("$recursiveRef"))
        if id(node) in moved:
            node["$ref"] = moved[id(node)]
        unread = {} if id(node) in lists else {"additionalItems": node.get("additionalItems")}
        _renew(node)
        node |= {name: value for name, value in unread.items() if value is not None}  # a reference may lead there
    return found


def closed(schema: Any) -> Any:
    """A copy whose objects have no keys beside those that they declare, unless they say otherwise; the schema as it is
    where several schemas speak of one object, since none of them knows all of its keys."""
    found = deepcopy(schema)
    inside = [node for node, _ in reached(found, draft_of(found))]
    for node in inside:
        beside = _BESIDE & node.keys()
        if len(node.get("allOf", ())) > 1 or len(beside) > 1 or (beside and _OF_KEYS & node.keys()):
            return schema
    for node in inside:
        declared = node.get("properties", {})
        if declared and not {*node.get("required", ())} - declared.keys() and not _OPENING & node.keys():
            node["additionalProperties"] = False
    return found


def _moved(name: str, root: Any, lists: set[int]) -> str:
    """A reference by a pointer when the items of some `lists` have become prefixItems."""
    if not name.startswith("#/"):
        return name
    steps, at = list[str](), root
    for step in name[2:].split("/"):
        is_list = id(at) in lists
        steps.append({"items": "prefixItems", "additionalItems": "items"}.get(step, step) if is_list else step)
        at = at_step(at, step)
    return "#/" + "/".join(steps)


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


def nodes(
    schema: Any, draft: SchemaDraft, seen: set[int] | None = None
) -> Iterator[tuple[dict[str, Any], tuple[str | int, ...]]]:
    """Every schema within a schema that is an object, itself among them, with its path; each object once, and none
    that was `seen` before.

    Raises ConstraintError, naming the place, for what is no schema.
    """
    stack: list[tuple[Any, tuple[str | int, ...]]] = [(schema, ())]
    seen = set() if seen is None else seen
    while stack:
        node, path = stack.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise ConstraintError(f"schema at #{pointer_of(path)} is {node!r:.80}; it must be an object, true or false")
        if id(node) in seen:
            continue
        seen.add(id(node))
        if len(seen) > MOST_NODES:
            raise ConstraintError(f"the schema has over {MOST_NODES} schemas inside it; write fewer")
        try:
            within = list(inner_schemas(node, draft))
        except ConstraintError as error:
            raise ConstraintError(f"schema at #{pointer_of(path)}: {error}") from None
        yield node, path
        stack += [(inner, (*path, *step)) for inner, step in reversed(within)]


def reached(schema: Any, draft: SchemaDraft) -> Iterator[tuple[dict[str, Any], tuple[str | int, ...]]]:
    """These, and the schemas where only a reference leads, as in OpenAPI's components. What is none there is left out:
    perhaps nobody needs it."""
    roots: list[tuple[Any, tuple[str | int, ...]]] = [(schema, ())]
    seen = set[int]()
    while roots:
        check_time()
        root, at = roots.pop()
        with suppress(ConstraintError) if at else nullcontext():
            for node, path in nodes(root, draft, seen):
                yield node, (*at, *path)
                if str(node.get("$ref", "")).startswith("#/"):
                    steps = str(node["$ref"])[2:].split("/")
                    target = reduce(at_step, steps, schema)
                    roots += [(target, tuple(steps))] if isinstance(target, dict) else []


def pointer_of(path: Sequence[str | int]) -> str:
    """A path as a JSON pointer."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
