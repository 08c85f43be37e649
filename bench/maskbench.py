"""Compiles the real schemas of MaskBench (github.com/guidance-ai/jsonschemabench), beside llguidance.

    python bench/maskbench.py --data CLONE --count 400 --record bench/records/maskbench.json

For every schema: whether it is held, how (exact, checked, guided) and after how many seconds of the processor; how many
of its valid instances, as Python writes them, are in the language; how many of its invalid ones are, and the validator
lets them through. The vocabulary has 262,144 made-up tokens. Nothing is kept on disk. `--count 0` takes every schema.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from llguidance import LLMatcher

from redraft.constraints.language import Language, Vocabulary, ready
from redraft.constraints.sources import schema_source
from redraft.constraints.validation import schema_problems
from redraft.errors import ConstraintError, RedraftError
from redraft.measure.record import Record, check_place, new_record, write_record
from redraft.measure.sample_schema import made_up_vocabulary

LARGE = 262_144
HOW = ("exact", "checked", "guided")
PERCENTILES = (50, 80, 90, 95, 99, 100)


class Row(NamedTuple):
    """What became of one schema: how it is held, or an empty text and why not; seconds of this process and of those
    that it started; whether llguidance holds it; valid and invalid instances, and how many of them passed."""

    split: str
    name: str
    held: str
    why: str
    seconds: float
    theirs: bool
    valid: int
    inside: int
    invalid: int
    through: int


def main() -> int:
    """Compile, record, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="CLONE", help="a clone of jsonschemabench")
    parser.add_argument("--count", type=int, default=0, metavar="N", help="so many at random (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which (default: 0)")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="also write a line of JSON for each schema")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the record to this file")
    arguments = parser.parse_args()
    try:
        if arguments.record is not None:
            check_place(arguments.record)
        paths = sorted((arguments.data / "maskbench" / "data").glob("*.json"))
        if not paths:
            parser.error(f"{arguments.data} has no maskbench/data/*.json; pass a clone of guidance-ai/jsonschemabench")
        random.Random(arguments.seed).shuffle(paths)
        rows = []
        for row in tried(paths[: arguments.count or None]):
            rows.append(row)
            if arguments.rows is not None:
                with arguments.rows.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(row._asdict()) + "\n")
        record = record_of(rows, arguments.seed)
        if arguments.record is not None:
            write_record(record, arguments.record)
    except RedraftError as error:
        print(f"maskbench: {error}", file=sys.stderr)
        return error.exit_code
    print(record)
    return 0


def tried(paths: list[Path]) -> Iterator[Row]:
    """Every schema in turn."""
    vocabulary = made_up_vocabulary(LARGE)
    ready(schema_source({}), vocabulary)  # what is made once for a vocabulary
    assert vocabulary.llguidance is not None
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        split = path.name.partition("---")[0] if "---" in path.name else path.name.partition("_")[0]
        yield Row(split, path.stem, *one(found["schema"], found.get("tests", []), vocabulary))


def one(schema: Any, tests: list[dict[str, Any]], vocabulary: Vocabulary) -> tuple[Any, ...]:
    """The figures of one schema."""
    grammar = LLMatcher.grammar_from_json_schema(schema) if isinstance(schema, dict | str) else ""
    theirs = bool(grammar) and not LLMatcher.validate_grammar_with_warnings(grammar, vocabulary.llguidance)[0]
    language, why, began = None, "", processor_seconds()
    try:
        language = ready(schema_source(schema), vocabulary)
    except ConstraintError as error:
        why = str(error)
    seconds = processor_seconds() - began
    counts = Counter[tuple[bool, bool]]()
    for test in tests if language is not None else []:
        passes = language is not None and lets_through(language, schema, test["data"], bool(test["valid"]))
        counts[bool(test["valid"]), passes] += 1
    valid, invalid = (counts[kind, True] + counts[kind, False] for kind in (True, False))
    held = "" if language is None else language.held
    return held, why, seconds, theirs, valid, counts[True, True], invalid, counts[False, True]


def lets_through(language: Language, schema: Any, value: Any, valid: bool) -> bool:
    """Whether a value could be an answer; one that a validator reads is not if the validator is against it."""
    text = json.dumps(value, ensure_ascii=False)
    tokens = [byte + 2 for byte in text.encode(errors="surrogatepass")]  # of which the vocabulary has one each
    return language.holds(tokens) and (valid or not language.checked or not schema_problems(schema, text))


def processor_seconds() -> float:
    """Of this process and of those that it has started and that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def record_of(rows: list[Row], seed: int) -> Record:
    """All of it."""
    splits = defaultdict[str, list[Row]](list)
    for row in rows:
        splits[row.split].append(row)
    seconds = sorted(row.seconds for row in rows)
    times = {str(p): seconds[min(len(seconds) - 1, len(seconds) * p // 100)] for p in PERCENTILES}
    held = {how: sum(row.held == how for row in rows) for how in HOW}
    by_split = {name: figures_of(some) for name, some in sorted(splits.items())}
    figures = {
        "splits": by_split,
        "all": figures_of(rows),
        "held": held,
        "seconds": times,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "refused": {row.name: row.why for row in rows if not row.held},
        "refused_but_not_theirs": [row.name for row in rows if row.theirs and not row.held],
    }
    ours = figures_of(rows)
    summary = [
        ("schemas of MaskBench that are held", f"{ours['held']} of {len(rows)}; by llguidance {ours['theirs']}"),
        ("of those, how", ", ".join(f"{count} {how}" for how, count in held.items())),
        ("their valid instances in the language", f"{ours['inside']} of {ours['valid']}"),
        ("their invalid instances let through", f"{ours['through']} of {ours['invalid']}"),
        ("seconds to compile for 262144 tokens", ", ".join(f"{t:.3f} at {p}%" for p, t in times.items())),
        ("splits where llguidance holds more", ", ".join(worse(by_split)) or "none"),
    ]
    return new_record(
        "maskbench", workload={"schemas": len(rows), "seed": seed, "vocabulary": LARGE}, figures=figures,
        summary=summary,
    )  # fmt: skip


def figures_of(rows: list[Row]) -> dict[str, int]:
    """Sums over some schemas."""
    return {
        "schemas": len(rows),
        "held": sum(bool(row.held) for row in rows),
        "exact": sum(row.held == "exact" for row in rows),
        "theirs": sum(row.theirs for row in rows),
        **{name: sum(getattr(row, name) for row in rows) for name in ("valid", "inside", "invalid", "through")},
    }


def worse(splits: dict[str, dict[str, int]]) -> list[str]:
    """Names of splits of which llguidance holds more schemas."""
    return [name for name, some in splits.items() if some["theirs"] > some["held"]]


if __name__ == "__main__":
    sys.exit(main())
