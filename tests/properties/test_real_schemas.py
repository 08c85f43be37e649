"""Schemas as people write them: texts that are right and wrong are told apart, and what comes of noise is valid by the
validator of another maker, for pydantic's models by pydantic."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
import pytest
import torch
from pydantic import BaseModel, ConfigDict, EmailStr, Field, RootModel

from noise import noise_answer
from noise_real import PIECES, SMALL, judged, rotations
from redraft.constraints.language import Language, ready
from redraft.constraints.sources import schema_source

REAL: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "real_schemas.json").read_text(encoding="utf-8")
)


PRICE = r"^\d{1,4}(\.\d{1,2})?$"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 10


class Line(BaseModel):
    item: str
    count: Annotated[int, Field(gt=0, le=50)] = 1


class Order(BaseModel):
    """Nesting, lists of models, defaults."""

    model_config = ConfigDict(extra="forbid", title="An order")
    who: str
    lines: Annotated[list[Line], Field(min_length=1, max_length=3)]
    note: str | None = None


class Card(BaseModel):
    kind: Literal["card"]
    number: Annotated[str, Field(pattern=r"^\d{4}( \d{4}){3}$")]


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"
    coins: int | float | None


class Paid(BaseModel):
    """`kind` is not required of cash, but pydantic tells the two apart by it and needs it."""

    by: Annotated[Card | Cash, Field(discriminator="kind")]
    state: Literal["open", "done", 3, None]
    either: bool | list[int] | Line


class Times(BaseModel):
    when: datetime
    day: date
    at: time
    took: timedelta
    by: UUID


class Amounts(BaseModel):
    """A decimal's schema allows any text, so what it says is said beside it (docs/constraints.md)."""

    cost: Annotated[
        Decimal, Field(ge=0, max_digits=6, decimal_places=2, json_schema_extra={"type": "string", "pattern": PRICE})
    ]
    rate: Annotated[float, Field(gt=0, lt=1)]
    mail: EmailStr


class Sets(BaseModel):
    """Lists with bounds, a set (whose items must differ), a tuple, a dictionary, enums."""

    some: Annotated[list[Annotated[str, Field(max_length=5)]], Field(max_length=3)]
    flags: Annotated[set[Colour], Field(max_length=2)]
    pair: tuple[int, str]
    counts: dict[str, int]
    levels: dict[Literal["a", "b"], Level]


class Tree(BaseModel):
    value: int
    left: "Tree | None" = None
    right: "Tree | None" = None


@dataclass
class Row:
    key: Annotated[str, Field(alias="Key")]
    value: list[list[int]] | None = None


class Rows(RootModel[list[Row]]):
    pass


MODELS: dict[type[BaseModel], tuple[str, str]] = {
    Order: ("exact", '{"who": "Ada", "lines": [{"item": "pear", "count": 50}, {"item": "fig"}], "note": null}'),
    Paid: ("exact", '{"by": {"kind": "cash", "coins": 2.5}, "state": 3, "either": {"item": "x", "count": 1}}'),
    Times: (
        "exact",
        '{"when": "2026-02-28T23:59:59Z", "day": "2024-02-29", "at": "08:30:00Z", "took": "P1DT2H",'
        ' "by": "12345678-1234-4234-8234-123456789abc"}',
    ),
    Amounts: ("exact", '{"cost": "1234.5", "rate": 0.25, "mail": "ada@example.org"}'),
    Sets: (
        "exact",
        '{"some": ["a", "bcdef"], "flags": ["red"], "pair": [1, "x"], "counts": {"n": -3}, "levels": {"a": 10}}',
    ),
    Tree: ("exact", '{"value": 1, "left": {"value": 2, "right": {"value": 3}}, "right": null}'),
    Rows: ("exact", '[{"Key": "a"}, {"Key": "", "value": [[1, 2], []]}]'),
}


def has(language: Language, text: str) -> bool:
    """Whether an answer may be this text."""
    return language.holds([byte + 2 for byte in text.encode()]) and not (language.checked and language.problems(text))


def noise(language: Language, seed: int) -> str:
    """What comes of noise; of what a validator must check, the first that it takes, as the engine would repair it."""
    source = random.Random(seed)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(40):
        scores = rotations(len(PIECES), source.choice([1.0, 10.0]), draw)
        written = noise_answer(language, 64, language.shortest + 40, scores.__next__)
        text = b"".join(PIECES[token] or b"" for token in written.tokens).decode()
        if not (language.checked and language.problems(text)):
            return text
    raise AssertionError("forty answers in a row that the validator rejects")


@pytest.mark.parametrize("name", REAL)
def test_real_schemas_have_the_right_texts_and_no_others(name: str) -> None:
    real = REAL[name]
    language = ready(schema_source(real["schema"]), SMALL)
    assert language.held == real["held"]
    for good in real["good"]:
        assert judged(real["schema"], json.dumps(good))[0] == "valid"
        assert has(language, json.dumps(good, ensure_ascii=False)), good
        assert has(language, json.dumps(good, ensure_ascii=False, indent=2)), good
    for bad in real["bad"]:
        assert not has(language, json.dumps(bad, ensure_ascii=False)), bad
    for seed in range(2):
        text = noise(language, seed)
        assert judged(real["schema"], text) == ("valid", ""), text


@pytest.mark.parametrize("model", MODELS)
def test_models_of_pydantic_take_what_comes_of_noise(model: type[BaseModel]) -> None:
    held, good = MODELS[model]
    schema = model.model_json_schema()
    language = ready(schema_source(schema), SMALL)
    assert language.held == held
    model.model_validate_json(good)
    assert has(language, good)
    for seed in range(2):
        text = noise(language, seed)
        jsonschema.validate(json.loads(text), schema)
        model.model_validate_json(text)
