"""Files of settings, read by the parsers of their formats: to see that an edit did what was meant and nothing else."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any

MOST_CHARACTERS, MOST_LEAVES, MOST_DEPTH = 2**16, 10_000, 100
MOST_DOTS = 200
_SPACES = re.compile(r"\s{100}")
"""Of a line: with more dots in a key, or such a space, the libraries' work is the square of it, within one call that
nothing ends."""
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_COMMENTS = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|//[^\n]*|/\*(?:(?s:.)*?\*/|(?s:.)*)')
_TRAILING = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|,(?=\s*[}\]])')
_QUOTES = re.compile(r"""\A(["'])(.*)\1\Z""", re.DOTALL)
Leaves = dict[tuple[str | int, ...], Any]


class Number(str):
    """A number as it is written: 1.10 is not 1.1 in a file of versions."""

    __slots__ = ()


def loads(text: str | bytes) -> Any:
    """JSON, its numbers as they are written. Raises ValueError, for a key that an object has twice, too, and
    RecursionError."""
    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=int, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _commented(text: str) -> Any:
    """JSON with comments, as editors have it."""
    return loads(_COMMENTS.sub(lambda found: found[0] if found[0].startswith('"') else " ", text))


def _trailing(text: str) -> Any:
    """The same with commas behind last members."""
    bare = _COMMENTS.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
    return loads(_TRAILING.sub(lambda found: found[0].removeprefix(","), bare))


def _toml(text: str) -> Any:
    if any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        raise ValueError("it has very many dots in a line")
    return tomllib.loads(text.replace("\r\n", "\n"), parse_float=Decimal)


def _ini(text: str) -> Any:
    if any(_SPACES.search(line.strip()) for line in text.split("\n")):
        raise ValueError("it has very many spaces in a line")
    # The default section is one that all others would repeat.
    parser = configparser.ConfigParser(interpolation=None, default_section="\n", allow_no_value=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys as they are written
    parser.read_string(text)
    parts = ((name, part.items()) for name, part in parser.items() if part)
    found: dict[str, dict[str, Any]] = {name: dict(part) for name, part in parts}
    if any(value is None and re.search(r"\s", key) for part in found.values() for key, value in part.items()):
        raise ValueError("it has a line of words")
    return {
        name: {key: value if value is None else _QUOTES.sub(r"\2", value) for key, value in part.items()}
        for name, part in found.items()
    }


def _yaml(text: str) -> Any:
    import yaml  # type: ignore[import-untyped]  # it has none; here, since only an edit is to pay for it

    kind: Any = type("Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
    kind.add_multi_constructor("!", _tagged)
    depth, ends = 0, (yaml.SequenceEndEvent, yaml.MappingEndEvent)
    for event in yaml.parse(text, kind):  # without recursion; what makes nodes of it would end the process
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, ends)
        if depth > MOST_DEPTH:
            raise ValueError("it is too deep")
    loader, found = kind(text), []
    while loader.check_node():
        node = loader.get_node()
        _look_through(node)
        found.append(loader.construct_document(node))
    return found if len(found) > 1 and any(isinstance(one, dict | list) for one in found) else (found or [None])[0]


def _look_through(root: Any) -> None:
    """Raise ValueError for a key that stands there twice, of which the library takes the last. Keys that merge others
    stay keys: merged, they multiply."""
    nodes, seen = [root], set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or node.id == "scalar":
            continue
        seen.add(id(node))
        if node.id == "sequence":
            nodes += node.value
            continue
        names = set[str]()
        for key, value in node.value:
            nodes += (key, value)
            if key.id == "scalar":
                if key.value in names:
                    raise ValueError("a key stands there twice")
                names.add(key.value)
                key.tag = "tag:yaml.org,2002:str" if key.tag == "tag:yaml.org,2002:merge" else key.tag


def _tagged(loader: Any, tag: str, node: Any) -> Any:
    """What has a tag of a program's own, as `!Ref bucket`."""
    if isinstance(node.value, str):
        return f"!{tag} {node.value}"
    pairs = isinstance(node.value, list) and node.id == "mapping"
    return {"!" + tag: (loader.construct_mapping if pairs else loader.construct_sequence)(node, deep=True)}


PARSERS: Mapping[str, Callable[[str], Any]] = {
    "JSON": loads,
    "JSON with comments": _commented,
    "JSON with trailing commas": _trailing,
    "TOML": _toml,
    "INI": _ini,
    "YAML": _yaml,
}
_NOTHING = object()
JSONS = frozenset(name for name in PARSERS if name.startswith("JSON"))


def is_of(name: str, text: str) -> bool:
    """Whether a text is of a format; of JSON it may be any one value."""
    return _parsed(json.loads if name == "JSON" else PARSERS[name], text) is not _NOTHING


def judge_of(text: str) -> tuple[str, Leaves] | None:
    """The first of these formats in which a text has keys and values, and these."""
    found = ((name, read(name, text)) for name in PARSERS)
    return next(((name, leaves) for name, leaves in found if leaves is not None), None)


def read(name: str, text: str) -> Leaves | None:
    """The values of a text by their paths; None for a text that is not of the format, or has no keys."""
    if len(text) > MOST_CHARACTERS:
        return None
    value = _parsed(PARSERS[name], text.removeprefix("\ufeff"))
    found = _parsed(lambda one: dict(_leaves(one, (), [MOST_LEAVES])), value)
    return found if isinstance(value, dict | list) and found is not _NOTHING else None


def _parsed(parse: Callable[[Any], Any], text: Any) -> Any:
    """What a parser makes of a text, or nothing."""
    try:
        return parse(text)
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError, configparser.Error):
        return _NOTHING
    except Exception as error:  # YAML's errors have a base of their own, and it is not imported here
        if type(error).__module__.partition(".")[0] == "yaml":
            return _NOTHING
        raise


def _leaves(value: Any, path: tuple[str | int, ...], left: list[int]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The plain values within one. Raises ValueError for too many, as aliases of YAML can make them."""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError("there are too many values")
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, tuple | set):  # of YAML's pairs, which are compared without end where they hold each other
        raise ValueError("it has pairs or sets")
    assigned = isinstance(value, str) and path and isinstance(path[-1], int) and _ASSIGNED.fullmatch(value)
    if assigned:  # an element of a list, as Compose has variables
        yield (*path, assigned[1]), assigned[2]
    elif not isinstance(value, dict | list) or not value:
        yield path, value
    for step, inner in pairs:
        yield from _leaves(inner, (*path, step), left)


def is_as_meant(name: str, old: Leaves, after: str, wanted: Mapping[str, Any], gone: set[str]) -> bool:
    """Whether a text of a format has, in place of the old values, those that are `wanted` of some keys, and lacks the
    keys that are to be `gone`, and nothing else differs."""
    new = read(name, after)
    if new is None:
        return False
    lost, found = old.keys() - new.keys(), {path for path in new if path not in old or not _same(old[path], new[path])}
    lost, found = lost - _emptied(lost, found, old), found - _emptied(found, lost, new)
    if not all(_named(path, gone) for path in lost):
        return False
    there = {path: at for path in new if (at := _named(path, wanted)) and _means(new[path], wanted[at], old.get(path))}
    return found <= there.keys() and {*there.values()} == wanted.keys()


def _emptied(
    paths: set[tuple[str | int, ...]], others: set[tuple[str | int, ...]], values: Leaves
) -> set[tuple[str | int, ...]]:
    """Of some paths those without a value, which have values among the others."""
    bare = (path for path in paths if values[path] in ({}, [], None))
    return {path for path in bare if any(other[: len(path)] == path for other in others)}


def _named(path: tuple[str | int, ...], names: Collection[str]) -> str | None:
    """The name that a path ends in, perhaps a dotted one: what lies in a list is the list's."""
    steps = [str(step) for step in path if not isinstance(step, int)]
    ends = (".".join(steps[at:]) for at in range(len(steps)))
    return next((end for end in ends if end in names), None)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or one != one)  # NaN is what it was


def _means(value: Any, wanted: Any, old: Any) -> bool:
    """Whether a value that a parser read is what an answer of JSON says. INI has texts alone; where JSON has no word
    for what was there, such as a date or `yes`, a value of its kind is meant."""
    if wanted is None:
        return value is None or value in ("", "null")
    if isinstance(wanted, bool):
        return value is wanted or value in (json.dumps(wanted), str(wanted))
    number = isinstance(value, int | float | Decimal | Number) and not isinstance(value, bool)
    if isinstance(wanted, Number):
        with suppress(ArithmeticError, ValueError):  # of exponents without end, and of very many digits
            is_kept = number or not isinstance(old, int | float | Decimal)  # 1e3 is a text of YAML
            return (str(value) == wanted and is_kept) or (number and Decimal(str(value)) == Decimal(wanted))
        return False
    if number or isinstance(value, bool) or not isinstance(value, str):
        return value is not None and type(value) is type(old)
    return bool(value == wanted)
