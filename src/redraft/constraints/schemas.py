"""The forms that a caller may write a JSON Schema in, as the one that is compiled.

    a dict    JSON text    a pydantic class    a dataclass    list[Line]    'name, age int?, size S|M|L, tags str[]'

The last is the short form: fields with commas between them, each a name and a type (text if it has none). `a|b` is one
of these texts, `[]` a list, `?` behind a name or a type a field that may be null; a colon may stand behind the name.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, get_origin

import msgspec

from redraft.constraints.compile.keywords import CARE
from redraft.errors import ConstraintError, did_you_mean
from redraft.prompts import CLOCK

TYPES: dict[str, dict[str, str]] = {
    **{name: {"type": "string"} for name in ("str", "string", "text")},
    **{name: {"type": "integer"} for name in ("int", "integer")},
    **{name: {"type": "number"} for name in ("float", "number", "decimal")},
    **{name: {"type": "boolean"} for name in ("bool", "boolean")},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "pattern": CLOCK},
    "datetime": {"type": "string", "format": "date-time"},
    "email": {"type": "string", "format": "email"},
    "uuid": {"type": "string", "format": "uuid"},
}
"""Types of the short form."""

_NO_CHOICES = {"int", "integer", "float", "number", "decimal", "str", "string", "bool", "boolean", "null", "None"}
"""Names of types that are no texts to choose from."""
EXAMPLE = "'name, age int?, size S|M|L, tags str[]'"
FIELD = re.compile(
    r"(?P<name>[^\s?*\[\]{}()|:]+)(?P<maybe>\?)?"
    r"(?:\s*:\s*(?P<typed>\S.*?)|\s+(?:enum\s+)?(?P<kind>\S.*?))?(?P<many>\*|\[\])?(?P<too>\?)?"
)
WRAPPED = re.compile(r"(enum|choice|literal)?[(\[{].*[)\]}]", re.IGNORECASE)
"""Choices as other languages write them."""
JSON_TEXT = re.compile(r'\s*(?:[{\["].*|(?:true|false|null)\s*)', re.DOTALL)


def plain_schema(schema: Any) -> Any:
    """A schema in any of the forms as JSON has it. Raises ConstraintError."""
    try:
        if isinstance(schema, str) and not JSON_TEXT.fullmatch(schema):
            return schema_of_fields(schema)
        read = json.loads(schema) if isinstance(schema, bytes | str) else schema
        if isinstance(read, type):
            return _schema_of_class(read)  # whose defaults, which nothing reads, may be infinite
        if get_origin(read) is not None:
            return _schema_of_alias(read)
        return json.loads(json.dumps(read, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConstraintError(
            f"the schema is not JSON ({error}); pass a dict, valid JSON text, a class, or fields as {EXAMPLE}"
        ) from None
    except RecursionError:
        raise ConstraintError("the schema nests too deeply to read; flatten it") from None


def check_keywords(schema: Any) -> None:
    """Raise ConstraintError for an object with names of types in place of keywords, which is no schema, although the
    standard would allow anything for it."""
    if isinstance(schema, dict) and schema and not schema.keys() & CARE.keys():
        said = f"{next(iter(schema))!r} and what stands beside it are no keywords of JSON Schema"
        raise ConstraintError(f"{said}; write a schema, or fields as {EXAMPLE}")


def schema_of_fields(text: str) -> dict[str, Any]:
    """The schema of an object whose fields are written in the short form. Raises ConstraintError naming the field."""
    fields = dict[str, Any]()
    for part in text.strip().removesuffix(",").split(","):
        field = FIELD.fullmatch(part.strip())
        if field is None:
            raise ConstraintError(
                f"schema {text!r:.200}: {part.strip()!r} is no field; write fields as {EXAMPLE} with types"
                f" {', '.join(TYPES)}{_bracketed(part)}"
            )
        name, kind = field["name"], _kind(text, field)
        if name in fields:
            raise ConstraintError(f"schema {text!r:.200} names {name!r} twice; leave one out")
        kind = {"type": "array", "items": kind} if field["many"] else kind
        fields[name] = {"anyOf": [kind, {"type": "null"}]} if field["maybe"] or field["too"] else kind
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


def _kind(text: str, field: re.Match[str]) -> dict[str, Any]:
    """The schema of a type's name, or of texts of which one is written."""
    kind = field["typed"] or field["kind"] or "str"
    if "|" in kind and not WRAPPED.fullmatch(kind):
        texts = [_unquoted(one.strip()) for one in kind.split("|")]
        if {one.strip() for one in kind.split("|")} <= _NO_CHOICES:
            said = f"schema {text!r:.200}: {kind!r} are types; a field has one (float is any number)"
            raise ConstraintError(f"{said}, and a ? where it may be null; quote them if they are texts")
        if all(texts) and len(set(texts)) == len(texts):
            return {"enum": texts}
        raise ConstraintError(f"schema {text!r:.200}: {kind!r} has an empty or a repeated text; write them as S|M|L")
    if kind not in TYPES:
        remedy = _bracketed(kind) or did_you_mean(kind, TYPES)
        if kind.partition("[")[0].lower() in ("list", "array"):
            remedy = "; a list of texts is str[]"
        elif not _bracketed(kind) and " " in kind:
            remedy = "; put commas between fields"
        elif not remedy:
            remedy = f"; write a name of two words as {field['name']}_{kind}"
        raise ConstraintError(
            f"schema {text!r:.200}: {field['name']!r} has type {kind!r}; types: {', '.join(TYPES)}{remedy}"
        )
    return dict(TYPES[kind])


def _bracketed(part: str) -> str:
    """The end of a message about brackets, which the short form has no use for but in str[]."""
    if "|" in part or re.search(r"\b(enum|choice|literal)[(\[]", part, re.IGNORECASE):
        return "; one of some texts is a|b"
    return "; an object inside another takes a JSON Schema" if re.search(r"[{}()\[\]]", part) else ""


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'" else text


def _schema_of_alias(alias: Any) -> Any:
    """The schema of a type that is made of others, such as list[Line] or Line | None."""
    from pydantic import TypeAdapter  # a tenth of a second, which few calls have a use for
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(alias).json_schema()
    except PydanticUserError as error:
        said = str(error).partition("\n")[0]
        raise ConstraintError(f"{alias!r:.200} has no JSON Schema ({said}); pass one, or a class") from None


def _schema_of_class(kind: type) -> Any:
    if hasattr(kind, "model_json_schema"):
        try:
            return kind.model_json_schema()
        except Exception as error:  # a caller's class may fail in any way
            raise ConstraintError(f"{kind.__name__} makes no schema ({type(error).__name__}: {error})") from error
    if not dataclasses.is_dataclass(kind):
        raise ConstraintError(f"{kind.__name__} is no dataclass and has no model_json_schema; pass one that has")
    try:
        return msgspec.json.schema(kind)
    except TypeError as error:
        raise ConstraintError(f"{kind.__name__} has a field without a JSON form: {error}") from None
