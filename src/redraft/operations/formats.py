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

MOST_CHARACTERS, MOST_LEAVES = 2**16, 10_000
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


def _toml(text: str) -> Any:
    return tomllib.loads(text.replace("\r\n", "\n"), parse_float=Decimal)


def _ini(text: str) -> Any:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys as they are written
    parser.read_string(text)
    parts = ((name, part.items()) for name, part in parser.items() if part)
    return {name: {key: _QUOTES.sub(r"\2", value) for key, value in part} for name, part in parts}


def _yaml(text: str) -> Any:
    import yaml  # type: ignore[import-untyped]  # it has none; here, since only an edit is to pay for it

    if "<<" in text:  # merged keys multiply while they are read
        raise ValueError("it merges keys")
    loader: Any = type("Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
    loader.add_multi_constructor("!", _tagged)
    nodes, seen = [*yaml.compose_all(text, loader)], set[int]()
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        keys = [key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)]
        if len({*keys}) < len(keys):
            raise ValueError("a key stands there twice")  # of which the library takes the last
        nodes += [value for _, value in pairs] or node.value
    found = [*yaml.load_all(text, loader)]
    return found if len(found) > 1 and any(isinstance(one, dict | list) for one in found) else (found or [None])[0]


def _tagged(loader: Any, tag: str, node: Any) -> Any:
    """What has a tag of a program's own, as `!Ref bucket`."""
    if isinstance(node.value, str):
        return f"!{tag} {node.value}"
    pairs = isinstance(node.value, list) and node.id == "mapping"
    return {"!" + tag: (loader.construct_mapping if pairs else loader.construct_sequence)(node, deep=True)}


PARSERS: Mapping[str, Callable[[str], Any]] = {"JSON": loads, "TOML": _toml, "INI": _ini, "YAML": _yaml}


def is_of(name: str, text: str) -> bool:
    """Whether a text is of a format; of JSON it may be any one value."""
    try:
        (json.loads if name == "JSON" else PARSERS[name])(text)
    except (ArithmeticError, ValueError, RecursionError):
        return False
    return True


def format_of(text: str) -> str | None:
    """The first of these formats in which a text has keys and values."""
    return next((name for name in PARSERS if read(name, text) is not None), None)


def read(name: str, text: str) -> Leaves | None:
    """The values of a text by their paths; None for a text that is not of the format, or has no keys."""
    if len(text) > MOST_CHARACTERS:
        return None
    try:
        value = PARSERS[name](text.removeprefix("\ufeff"))
        return dict(_leaves(value, (), [MOST_LEAVES])) if isinstance(value, dict | list) else None
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError, configparser.Error):
        return None
    except Exception as error:  # YAML's errors have a base of their own, and it is not imported here
        if type(error).__module__.partition(".")[0] == "yaml":
            return None
        raise


def _leaves(value: Any, path: tuple[str | int, ...], left: list[int]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The plain values within one. Raises ValueError for too many, as aliases of YAML can make them."""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError("there are too many values")
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, dict | list) or not value:
        yield path, value
    for step, inner in pairs:
        yield from _leaves(inner, (*path, step), left)


def is_as_meant(name: str, before: str, after: str, wanted: Mapping[str, Any], gone: set[str]) -> bool:
    """Whether a text of a format has, in place of the values of one before, those that are `wanted` of some keys, and
    lacks the keys that are to be `gone`, and nothing else differs."""
    old, new = read(name, before), read(name, after)
    if old is None or new is None:
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
        with suppress(ArithmeticError):  # of exponents without end
            return str(value) == wanted or (number and Decimal(str(value)) == Decimal(wanted))
        return False
    if number or isinstance(value, bool) or not isinstance(value, str):
        return value is not None and type(value) is type(old)
    return bool(value == wanted)
