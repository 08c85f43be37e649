"""Writes answers on pure noise for the real schemas of MaskBench (github.com/guidance-ai/jsonschemabench).

    python bench/noise_real.py --data CLONE --count 1000 --vocabulary 262144 --record bench/records/noise-real.json

Every answer is given to `jsonschema`, a validator of another maker than the one that redraft uses, by the draft that
the schema is of. An answer that redraft's own validator is against counts as refused: the engine would repair it, or
say so. The smallest vocabulary has single bytes and some words of JSON, a larger one made-up words of several scripts.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import torch
from referencing import Registry
from referencing.jsonschema import EMPTY_REGISTRY
from torch import Tensor

from noise import END, PAD, noise_answer
from redraft.constraints.compile.dialect import validated_as
from redraft.constraints.compile.limits import DEFAULT_LIMITS, CompileLimits
from redraft.constraints.language import Vocabulary, ready
from redraft.constraints.sources import schema_source
from redraft.errors import ConstraintError, RedraftError
from redraft.measure.record import Record, check_place, new_record, write_record
from redraft.measure.sample_schema import made_up_vocabulary

WORDS = (
    '{"',
    '":',
    '": ',
    '","',
    '", "',
    '"}',
    "}]",
    "[]",
    "true",
    "null",
    "00",
    "12",
    "\n  ",
    " the",
    "größe",
    "日本",
)
PIECES = (None, None, *(bytes([byte]) for byte in range(256)), *(word.encode() for word in WORDS))
SMALL = Vocabulary(PIECES, frozenset({END}), frozenset({END, PAD}))
WIDTH, ROOM = 64, 40
"""Tokens of a canvas, and how many more than the shortest answer has there may be."""
MOST = 2_000
"""Tokens of a shortest answer; schemas that need more are refused here, to save time."""
DRAFTS = {
    4: jsonschema.Draft4Validator,
    6: jsonschema.Draft6Validator,
    7: jsonschema.Draft7Validator,
    2019: jsonschema.Draft201909Validator,
    2020: jsonschema.Draft202012Validator,
}
VERDICTS = ("valid", "invalid", "refused", "not judged")
NOWHERE: Registry[Any] = EMPTY_REGISTRY


class Answer(NamedTuple):
    """What came of a schema: how it was held; `valid`, `invalid`, `refused` or `not judged`; why; tokens and steps."""

    name: str
    held: str
    verdict: str
    why: str = ""
    tokens: int = 0
    steps: int = 0


def main() -> int:
    """Write, judge, record, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="CLONE", help="a clone of jsonschemabench")
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="answers (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which schemas, and the noise (default: 0)")
    parser.add_argument("--vocabulary", type=int, default=len(PIECES), metavar="N",
                        help=f"tokens (default: {len(PIECES)})")  # fmt: skip
    parser.add_argument("--limit", type=float, default=DEFAULT_LIMITS.seconds, metavar="SECONDS",
                        help="how long a schema may take to compile (default: 9)")  # fmt: skip
    parser.add_argument("--rows", type=Path, metavar="FILE", help="a line of JSON for each; a stopped run goes on")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the record to this file")
    arguments = parser.parse_args()
    try:
        if arguments.record is not None:
            check_place(arguments.record)
        paths = sorted((arguments.data / "maskbench" / "data").glob("*.json"))
        random.Random(arguments.seed).shuffle(paths)
        rows = []
        if arguments.rows is not None and arguments.rows.exists():
            rows = [Answer(**json.loads(line)) for line in arguments.rows.read_text(encoding="utf-8").splitlines()]
        vocabulary = SMALL if arguments.vocabulary == len(PIECES) else made_up_vocabulary(arguments.vocabulary)
        limits = CompileLimits(seconds=arguments.limit)
        for row in answers(paths[len(rows) : arguments.count], arguments.seed, vocabulary, limits):
            rows.append(row)
            if arguments.rows is not None:
                with arguments.rows.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(row._asdict()) + "\n")
        record = record_of(rows, arguments.seed, len(vocabulary.pieces))
        if arguments.record is not None:
            write_record(record, arguments.record)
    except RedraftError as error:
        print(f"noise_real: {error}", file=sys.stderr)
        return error.exit_code
    print(record)
    return 0


def answers(paths: list[Path], seed: int, vocabulary: Vocabulary, limits: CompileLimits) -> Iterator[Answer]:
    """An answer for each schema."""
    for path in paths:
        schema = json.loads(path.read_text(encoding="utf-8"))["schema"]
        yield answered(path.stem, schema, f"{seed} {path.stem}", vocabulary, limits)


def answered(name: str, schema: Any, seed: str, vocabulary: Vocabulary, limits: CompileLimits) -> Answer:
    """What comes of noise for one schema."""
    source = random.Random(seed)
    draw = torch.Generator().manual_seed(source.getrandbits(60))
    try:
        language = ready(schema_source(schema), vocabulary, limits=limits)
        if language.shortest > MOST:
            return Answer(name, language.held, "refused", f"the shortest answer has {language.shortest} tokens")
        scores = rotations(len(vocabulary.pieces), source.choice([1.0, 10.0]), draw)
        written = noise_answer(language, WIDTH, language.shortest + ROOM, scores.__next__)
    except ConstraintError as error:
        return Answer(name, "", "refused", str(error))
    text = b"".join(vocabulary.pieces[token] or b"" for token in written.tokens).decode("utf-8", errors="replace")
    if language.checked and (problems := language.problems(text)):
        return Answer(name, language.held, "refused", problems[0].reason, len(written.tokens), written.steps)
    return Answer(name, language.held, *judged(schema, text), len(written.tokens), written.steps)


def rotations(tokens: int, sharp: float, draw: torch.Generator) -> Iterator[Tensor]:
    """Noise without end, (WIDTH, tokens) each time: one row of it, turned by as many tokens as are drawn for each
    position, since drawing a row for each takes longer than all else where there are 262,144 tokens."""
    row = (torch.randn(tokens, generator=draw) * sharp).repeat(2)
    while True:
        turns = torch.randint(tokens, (WIDTH,), generator=draw).tolist()
        yield torch.stack([row[turn : turn + tokens] for turn in turns])


def judged(schema: Any, text: str) -> tuple[str, str]:
    """`valid`, or `invalid` and why, by `jsonschema`; `not judged` where it cannot read the schema's patterns."""
    try:
        draft, read = validated_as(schema)
        kind = DRAFTS[draft]
        found = next(
            kind(read, registry=NOWHERE, format_checker=kind.FORMAT_CHECKER).iter_errors(json.loads(text)), None
        )
    except (re.error, RecursionError) as error:
        return "not judged", f"{type(error).__name__}: {error}"
    except ValueError as error:
        return "invalid", f"{error}: {text:.200}"
    return ("valid", "") if found is None else ("invalid", f"{found.message:.200}: {text:.200}")


def record_of(rows: list[Answer], seed: int, size: int) -> Record:
    """All of it."""
    verdicts = Counter(row.verdict for row in rows)
    held = Counter(row.held for row in rows if row.verdict != "refused")
    splits = Counter(row.name.partition("---" if "---" in row.name else "_")[0] for row in rows)
    guided = [row for row in rows if row.held == "guided" and row.tokens]
    tokens, steps = sum(row.tokens for row in guided), sum(row.steps for row in guided)
    reasons = Counter(re.sub(r"\d+", "N", row.why)[:80] for row in rows if row.verdict == "refused")
    summary = [
        ("answers on noise for real schemas", f"{len(rows)} asked for, from {len(splits)} splits"),
        (
            "answers on noise, by jsonschema",
            ", ".join(f"{verdicts[kind]} {kind}" for kind in ("valid", "invalid", "refused", "not judged")),
        ),
        ("answers on noise, how held", ", ".join(f"{held[kind]} {kind}" for kind in ("exact", "checked", "guided"))),
        ("forwards of the guided way for each token", f"{steps / max(tokens, 1):.2f}, every token being forced"),
    ]
    figures = {
        "verdicts": dict(verdicts),
        "held": dict(held),
        "splits": dict(splits),
        "reasons": dict(reasons.most_common(40)),
        "invalid": [row._asdict() for row in rows if row.verdict == "invalid"],
        "guided": {"answers": len(guided), "tokens": tokens, "steps": steps},
    }
    workload = {"schemas": len(rows), "seed": seed, "vocabulary": size, "canvas": WIDTH, "room": ROOM}
    return new_record("noise-real", workload=workload, figures=figures, summary=summary)


if __name__ == "__main__":
    sys.exit(main())
