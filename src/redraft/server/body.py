"""The base of every request body: each field is honoured, named as without effect, or refused by name.

    a field of the model   honoured
    inert                  bookkeeping that cannot change an answer: accepted, and named in `x-ignored-fields`
    neutral                known to others and not done here: accepted only at values that ask for nothing
    anything else          refused, since a misspelt option would otherwise be dropped in silence

`null` is the same as leaving a field out: several clients send every field that they know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

Int = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**64)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Str = Annotated[str, Field(strict=True)]

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


class Body(BaseModel):
    """A JSON object from outside. `ignored` names the fields of this one that have no effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    inert: ClassVar[frozenset[str]] = frozenset()
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @property
    def ignored(self) -> tuple[str, ...]:
        """For the header."""
        return self._ignored

    @model_validator(mode="wrap")
    @classmethod
    def _sort(cls, data: Any, handler: Callable[[Any], Body]) -> Body:
        """Take out what has no effect, and remember it; refuse what would need one."""
        if not isinstance(data, dict):
            return handler(data)
        given = {key: value for key, value in data.items() if value is not None}
        for key, allowed in cls.neutral.items():
            if key in given and not any(given[key] == one and type(given[key]) is type(one) for one in allowed):
                raise PydanticCustomError(
                    "unsupported",
                    "{field} is not supported here; leave it out",
                    {"field": key},
                )
        found = handler({key: value for key, value in given.items() if key not in cls.inert | cls.neutral.keys()})
        found._ignored = tuple(sorted(given.keys() & cls.inert))
        return found
