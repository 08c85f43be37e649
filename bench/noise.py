"""Random schemas, random tokenizers and pure noise for logits: what a guarantee has to stand.

A trial is a function of its number. A schema is made at random, a vocabulary beside all single bytes too; then canvases
of a random width are conditioned one after another on logits that mean nothing, and the text is given to a validator
that is not ours.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redraft.constraints.condition.guided import Guided
from redraft.constraints.language import Language, Vocabulary, ready
from redraft.constraints.sources import schema_source
from redraft.constraints.validation import schema_problems
from redraft.errors import ConstraintError

END, PAD = 0, 1
WORDS = ("a", "id", "name", "größe", "値", "x y", 'q"t', "back\\slash", "", "ключ", "😀", "0", "true")
_PIECES = (
    *('{"', '":', '": ', '","', '"}', "}]", "true", "null", "00", "12", "-", ".5", "\n  ", "ab", "é", "日本", " the"),
    *("[]", '"a"', "\\n", '\\"', ", ", "e", "\xf0"),
)


@dataclass(frozen=True)
class NoiseTrial:
    """What came of one trial: the text, what a validator says against it, and how many canvases it took."""

    text: str
    problems: Sequence[str]
    canvases: int


def noise_trial(number: int) -> NoiseTrial | None:
    """One trial; None if its schema has no values, or none that the automaton alone can promise."""
    source = random.Random(number)
    schema = random_schema(source)
    pieces: list[bytes | None] = [None, None, *(bytes([byte]) for byte in range(256))]
    pieces += [piece.encode() for piece in source.sample(_PIECES, source.randint(0, len(_PIECES)))]
    pieces += [source.randbytes(source.randint(1, 4)) for _ in range(source.randint(0, 20))]
    vocabulary = Vocabulary(tuple(pieces), frozenset({END}), frozenset({END, PAD}))
    try:
        language = ready(schema_source(schema, depth=2), vocabulary)
    except ConstraintError:
        return None
    if language.checked:
        return None
    width = source.randint(1, 32)
    left = language.shortest + source.randint(0, 60)
    draw = torch.Generator().manual_seed(number)

    def scores() -> Tensor:
        return torch.randn(width, len(pieces), generator=draw) * source.choice([0.0, 1.0, 30.0])

    written = noise_answer(language, width, left, scores)
    text = b"".join(pieces[token] or b"" for token in written.tokens).decode("utf-8", errors="replace")
    return NoiseTrial(text, [problem.reason for problem in schema_problems(schema, text)], written.canvases)


class Written(NamedTuple):
    """An answer, and how many canvases and steps it took."""

    tokens: list[int]
    canvases: int
    steps: int


def noise_answer(language: Language, width: int, left: int, scores: Callable[[], Tensor]) -> Written:
    """An answer of at most `left` tokens on canvases of noise: each time other `scores`, (width, vocabulary). An exact
    one is taken from its first step; a guided one is drafted anew, as the engine does, until all of a canvas is fixed.
    Raises ConstraintError for too little room."""
    goal, reported, canvases, steps = language.start(left), list[int](), 0, 0
    while not goal.is_over and goal.left:
        pinned, fixed = 0, torch.empty(0, dtype=torch.long)
        while True:
            log_p = torch.log_softmax(scores(), -1)
            log_p[:pinned] = -1e9
            log_p[torch.arange(pinned), fixed] = 0.0
            found, steps = goal(log_p), steps + 1
            if not isinstance(found, Guided) or found.doubt == 0:
                break
            pinned, fixed = found.fixed, found.draft[: found.fixed]
        tokens = found.draft.tolist()
        content = tokens[: next((i for i, token in enumerate(tokens) if token == END), width)][: goal.left]
        reported += content
        goal, canvases = goal.after(content), canvases + 1
        if len(content) < min(width, goal.left + len(content)):
            break
    return Written(reported, canvases, steps)


def random_schema(source: random.Random, depth: int = 2) -> Any:
    """A schema of a few keywords, nested up to a depth."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "pattern", "format"]
    kind = source.choice(kinds + ["object", "object", "array", "anyOf", "allOf"] * (depth > 0))
    if kind == "object":
        names = source.sample(WORDS, source.randint(0, 4))
        found: dict[str, Any] = {"type": "object", "properties": {n: random_schema(source, depth - 1) for n in names}}
        found["required"] = [name for name in names if source.random() < 0.6]
        if source.random() < 0.7:
            found["additionalProperties"] = source.random() < 0.2 and random_schema(source, 0)
        if source.random() < 0.2:
            found["maxProperties"] = source.randint(1, 3)
        return found
    if kind == "array":
        low = source.randint(0, 2)
        return {"type": "array", "items": random_schema(source, depth - 1), "minItems": low, "maxItems": low + 2}
    if kind in ("anyOf", "allOf"):
        return {kind: [random_schema(source, depth - 1) for _ in range(2)]}
    return _scalar(source, kind)


def _scalar(source: random.Random, kind: str) -> Any:
    low = source.randint(-30, 30)
    return {
        "string": {"type": "string", "minLength": source.randint(0, 3), "maxLength": source.randint(3, 9)},
        "integer": {"type": "integer", "minimum": low, "maximum": low + source.randint(0, 500)},
        "number": {"type": "number", "exclusiveMinimum": low / 4, "maximum": low / 4 + source.randint(1, 9)},
        "boolean": {"type": ["boolean", "null"]},
        "null": {"const": source.choice([None, 1.5, "é\n", [1, {"a": None}], {}])},
        "enum": {"enum": source.sample([*WORDS, 1, -2.5, True, None, [0]], 3)},
        "pattern": {"type": "string", "pattern": source.choice(["^[a-c]{2,4}$", "x.y", "^\\d+(,\\d+)*$", "^$|^no"])},
        "format": {"type": "string", "format": source.choice(["date", "time", "uuid", "ipv4", "email"])},
    }[kind]
