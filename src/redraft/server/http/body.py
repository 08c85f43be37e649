"""The base of every request body: each field is honoured, named as without effect, or refused by name.

    a field of the model   honoured
    inert                  bookkeeping that cannot change an answer: accepted, and named in `x-ignored-fields`
    neutral                known to others and not done here: accepted only at values that ask for nothing
    instead                what to send in place of one of these
    anything else          refused, since a misspelt option would otherwise be dropped in silence

`null` is the same as leaving a field out: several clients send every field that they know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from redraft.server.http.errors import body_error
from redraft.server.limits import few, short, within

Int = Annotated[int, Field(strict=True)]
"""With `within` a bound behind it, always."""
Seed = Annotated[Int, within("seed")]
Tokens = Annotated[Int, within("tokens")]
TokenIds = Annotated[list[Annotated[Int, within("id")]], within("ids")]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Share = Annotated[Real, within("share")]
Milliseconds = Annotated[Real, within("milliseconds")]
Str = Annotated[str, Field(strict=True), within("text")]
Name = Annotated[str, Field(strict=True), within("name")]
Schema = Annotated[dict[str, Any], BeforeValidator(short)]
Biases = Annotated[dict[str, Annotated[Real, within("bias")]], BeforeValidator(few("biases"))]
Stops = Annotated[list[Annotated[str, Field(strict=True), within("stop")]], within("stops")]

BOOKKEEPING = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)


_few_fields = few("fields")


class Body(BaseModel):
    """A JSON object from outside."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    inert: ClassVar[frozenset[str]] = frozenset()
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    instead: ClassVar[Mapping[str, str]] = {}
    aside: ClassVar[frozenset[str]] = frozenset()  # both
    _ignored: Sequence[str] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.aside = cls.inert.union(cls.neutral)

    @model_validator(mode="wrap")
    @classmethod
    def _sort(cls, data: Any, handler: Callable[[Any], Body]) -> Body:
        """Take out the fields without effect, and keep their names; refuse what would need one."""
        if isinstance(data, dict):
            _few_fields(data)
        if not isinstance(data, dict) or (cls.aside.isdisjoint(data) and None not in data.values()):
            return handler(data)
        given = {key: value for key, value in data.items() if value is not None}
        inert = [key for key in given if key in cls.inert]
        neutral = [key for key in given if key in cls.neutral]
        for key in neutral:
            if not any(given[key] == one and type(given[key]) is type(one) for one in cls.neutral[key]):
                said = {"field": key, "remedy": cls.instead.get(key, "leave it out")}
                raise PydanticCustomError("unsupported", "{field} is not supported here; {remedy}", said)
        for key in (*inert, *neutral):
            del given[key]
        body = handler(given)
        body._ignored = inert
        return body

    @classmethod
    def read(cls, sent: object) -> Self:
        """The body that was sent. Raises ApiError, for a misspelt field with the one that was probably meant."""
        try:
            return cls.model_validate(sent)
        except ValidationError as error:
            raise body_error(error.errors(), cls.fields_at) from None

    @classmethod
    def fields_at(cls, path: Sequence[str | int]) -> list[str]:
        """Names of the fields beside the last part of a path into a body, as far as they can be known."""
        if len(path) < 2:
            return sorted({*cls.model_fields, *cls.inert, *cls.neutral})
        field = cls.model_fields.get(str(path[0]))
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        kinds += [inner for kind in kinds for inner in get_args(kind)]
        bodies = list({kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Body)})
        behind = 2 if len(path) > 2 and isinstance(path[1], int) else 1
        return bodies[0].fields_at(path[behind:]) if len(bodies) == 1 else []

    @cached_property
    def ignored(self) -> list[str]:
        """Fields that were sent and have no effect, as paths."""
        return sorted(_unused(self))


def _unused(body: Body) -> set[str]:
    """The same of one body, looked up where pydantic keeps it, since a body may have thousands of parts."""
    found: set[str] = {*(body.__pydantic_private__ or {}).get("_ignored", ())}
    for name, value in body.__dict__.items():
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, Body) and (inner := _unused(part)):
                found.update([f"{name}.{path}" for path in inner])
    return found
