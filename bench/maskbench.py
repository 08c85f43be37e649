"""Compiles the real schemas of MaskBench (github.com/guidance-ai/jsonschemabench), beside llguidance.

    python bench/maskbench.py --data CLONE --count 400 --record bench/records/maskbench.json

For every schema: whether it is held, how (exact, checked, guided), after how many seconds of the processor and of the
clock, and with how much more memory; how many of its valid instances are in the language, as Python writes them with
their keys in some order; how many of the others have a key that the schema does not declare; how many of its invalid
ones are, and the validator lets them through. The vocabulary has 262,144 made-up tokens. Nothing is kept on disk.
`--count 0` takes every schema, `--largest` the largest ones; a run that was stopped goes on from its `--rows`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema_rs import Draft202012Validator, ReferencingError
from llguidance import LLMatcher

from key_orders import has_text
from redraft.constraints.compile.dialect import URIS, draft_of, modern, nodes
from redraft.constraints.compile.limits import DEFAULT_LIMITS, CompileLimits
from redraft.constraints.language import GuidedLanguage, Language, Vocabulary, ready
from redraft.constraints.sources import schema_source
from redraft.constraints.validation import schema_problems
from redraft.errors import ConstraintError, RedraftError
from redraft.measure.process_memory import resident_mib
from redraft.measure.record import Record, check_place, new_record, write_record
from redraft.measure.sample_schema import made_up_vocabulary
from redraft.server.http.process import trim

LARGE = 262_144
HOW = ("exact", "checked", "guided")
COUNTED = ("valid", "inside", "undeclared", "invalid", "through")
LONG_SEC = 1.0
PERCENTILES = (50, 80, 90, 95, 99, 100)


class Row(NamedTuple):
    """What became of one schema: how it is held, or an empty text and why not; seconds of this process and of those
    that it started; whether llguidance holds it; valid and invalid instances, and how many of them passed; how many
    valid ones did not and have undeclared keys; the most memory that the process has had for it, in MB, and how much
    more that is than before; seconds by the clock, and how many processes wanted the processor."""

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
    undeclared: int
    mb: float
    grown_mb: float
    clock: float
    load: float


def main() -> int:
    """Compile, record, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="CLONE", help="a clone of jsonschemabench")
    parser.add_argument("--count", type=int, default=0, metavar="N", help="so many at random (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which (default: 0)")
    parser.add_argument("--largest", action="store_true", help="those of the largest files, which take most memory")
    parser.add_argument(
        "--limit",
        type=float,
        default=DEFAULT_LIMITS.seconds,
        metavar="SECONDS",
        help="how long a schema may take by the clock (default: 9; more where others use the machine)",
    )
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
        if arguments.largest:
            paths.sort(key=lambda path: -path.stat().st_size)
        rows = []
        if arguments.rows is not None and arguments.rows.exists():
            rows = [Row(**json.loads(line)) for line in arguments.rows.read_text(encoding="utf-8").splitlines()]
        done = {row.name for row in rows}
        base = base_mb()
        left = [path for path in paths[: arguments.count or None] if path.stem not in done]
        for row in tried(left, CompileLimits(seconds=arguments.limit)):
            rows.append(row)
            if arguments.rows is not None:
                with arguments.rows.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(row._asdict()) + "\n")
        name = "maskbench" if arguments.record is None else arguments.record.stem
        record = record_of(rows, name, "by size" if arguments.largest else arguments.seed, base)
        if arguments.record is not None:
            write_record(record, arguments.record)
    except RedraftError as error:
        print(f"maskbench: {error}", file=sys.stderr)
        return error.exit_code
    print(record)
    return 0


@cache
def vocabulary_of_all() -> Vocabulary:
    """The vocabulary, with what is made once for it."""
    vocabulary = made_up_vocabulary(LARGE)
    ready(schema_source({}), vocabulary)
    assert vocabulary.llguidance is not None
    return vocabulary


def base_mb() -> float:
    """Megabytes of memory before the first schema: Python, its libraries and the vocabulary."""
    vocabulary_of_all()
    return peak_mb()


def peak_mb() -> float:
    """The most memory that this process has had since `memory_begun`."""
    return resident_mib("VmHWM") or 0.0


def memory_begun() -> float:
    """Megabytes of memory now, of which the most is counted anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return resident_mib() or 0.0


def tried(paths: list[Path], limits: CompileLimits) -> Iterator[Row]:
    """Every schema in turn."""
    vocabulary = vocabulary_of_all()
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        split = path.name.partition("---")[0] if "---" in path.name else path.name.partition("_")[0]
        yield Row(split, path.stem, *one(found["schema"], found.get("tests", []), vocabulary, limits))


def one(schema: Any, tests: list[dict[str, Any]], vocabulary: Vocabulary, limits: CompileLimits) -> tuple[Any, ...]:
    """The figures of one schema."""
    grammar = LLMatcher.grammar_from_json_schema(schema) if isinstance(schema, dict | str) else ""
    theirs = bool(grammar) and not LLMatcher.validate_grammar_with_warnings(grammar, vocabulary.llguidance)[0]
    language, why = None, ""
    before, began, clock = memory_begun(), processor_seconds(), time.monotonic()
    try:
        language = ready(schema_source(schema), vocabulary, limits=limits)
    except ConstraintError as error:
        why = str(error)
    seconds, clock, peak = processor_seconds() - began, time.monotonic() - clock, peak_mb()
    cost = peak, peak - before, clock, os.getloadavg()[0]
    if clock > LONG_SEC:
        trim()  # as a server does now and then; before each schema it costs up to 10 ms of new pages
    if language is None:
        return "", why, seconds, theirs, 0, 0, 0, 0, 0, *cost
    valid, invalid = ([test["data"] for test in tests if bool(test["valid"]) is kind] for kind in (True, False))
    missing = [value for value in valid if not inside(language, value)]
    through = sum(inside(language, value) and not (language.checked and problems(schema, value)) for value in invalid)
    return (language.held, why, seconds, theirs, len(valid), len(valid) - len(missing), len(invalid), through,
            undeclared(schema, missing), *cost)  # fmt: skip


def problems(schema: Any, value: Any) -> bool:
    """Whether the validator is against a value."""
    return bool(schema_problems(schema, json.dumps(value, ensure_ascii=False)))


def inside(language: Language, value: Any) -> bool:
    """Whether the language has a text of the value, as Python writes it, with its keys in some order."""
    if language.holds(spelt(json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass"))):
        return True
    if isinstance(language, GuidedLanguage):
        return guided_inside(language, value)
    automaton = language.automaton
    return has_text(
        lambda state, text: automaton.after(state, spelt(text)), value, lambda s: bool(automaton.accepts[s])
    )


def guided_inside(language: GuidedLanguage, value: Any) -> bool:
    """The same for a schema that is held from left to right: its states are matchers, counted as they are met."""
    matchers = [language.guide.begin]

    def step(state: int, text: bytes) -> int:
        matcher, tokens = matchers[state].deep_copy(), spelt(text)
        if matcher.try_consume_tokens(tokens) != len(tokens):
            return -1
        matchers.append(matcher)
        return len(matchers) - 1

    return has_text(step, value, lambda state: bool(matchers[state].is_accepting()))


def spelt(text: bytes) -> list[int]:
    """A text in single bytes, of which the vocabulary has one token each."""
    return [byte + 2 for byte in text]


def undeclared(schema: Any, values: list[Any]) -> int:
    """How many of some valid values have a key that no schema of their object declares: jsonschema-rs is against them
    once every object that declares keys has no others. What it cannot read so counts for nothing."""
    if not values:
        return 0
    whole = json.loads(json.dumps(schema))
    try:
        draft = draft_of(whole)
        for node, path in list(nodes(whole, draft)):
            words = modern(node, draft)
            if is_value(path) and declares(words):
                words = {"unevaluatedProperties": False, **words}
            node.clear()
            node.update(words)
        validator = Draft202012Validator({**whole, "$schema": URIS[2020]}, offline=True)
        return sum(not validator.is_valid(value) for value in values)
    except (RedraftError, ValueError, ReferencingError):
        return 0


def is_value(path: tuple[str | int, ...]) -> bool:
    """Whether the schema at a path is of a whole value: the top, a property, an item."""
    above = path[-2] if len(path) > 1 else ""
    named = above in ("properties", "patternProperties", "prefixItems")
    numbered = above == "items" and isinstance(path[-1], int)
    return not path or named or numbered or path[-1] in ("items", "additionalProperties")


def declares(words: dict[str, Any]) -> bool:
    """Whether a schema declares keys, or refers to one that may."""
    return bool({"properties", "patternProperties", "required", "$ref", "allOf", "anyOf", "oneOf"} & {*words})


def processor_seconds() -> float:
    """Of this process and of those that it has started and that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def record_of(rows: list[Row], name: str, seed: int | str, base: float) -> Record:
    """All of it."""
    splits = defaultdict[str, list[Row]](list)
    for row in rows:
        splits[row.split].append(row)
    times, clock, grown = (
        percentiles([getattr(row, name) for row in rows]) for name in ("seconds", "clock", "grown_mb")
    )
    held = {how: sum(row.held == how for row in rows) for how in HOW}
    by_split = {name: figures_of(some) for name, some in sorted(splits.items())}
    figures = {
        "splits": by_split,
        "all": figures_of(rows),
        "held": held,
        "seconds": times,
        "clock": clock,
        "load": sum(row.load for row in rows) / len(rows),
        "base_mb": base,
        "peak_mb": max(row.mb for row in rows),
        "grown_mb": grown,
        "refused": {row.name: row.why for row in rows if not row.held},
        "refused_but_not_theirs": [row.name for row in rows if row.theirs and not row.held],
    }
    ours = figures_of(rows)
    plain = ours["valid"] - ours["undeclared"]
    summary = [
        ("schemas of MaskBench that are held", f"{ours['held']} of {len(rows)}; by llguidance {ours['theirs']}"),
        ("of those, how", ", ".join(f"{count} {how}" for how, count in held.items())),
        ("their valid instances in the language", f"{ours['inside']} of {ours['valid']}"),
        ("of those without undeclared keys", f"{ours['inside']} of {plain} ({ours['inside'] / max(1, plain):.1%})"),
        ("their invalid instances let through", f"{ours['through']} of {ours['invalid']}"),
        (
            "those schemas as MaskBench counts them",
            ", ".join(f"{count} {what}" for what, count in counted(rows).items()),
        ),
        ("seconds of the processor to compile for 262144 tokens", listed(times, ".3f")),
        (f"the same by the clock, {figures['load']:.1f} processes wanting its core on average", listed(clock, ".3f")),
        ("memory", f"{figures['peak_mb']:.0f} MB at most, {base:.0f} MB of it before the first schema"),
        ("of that for one schema, in MB", listed(grown, ".0f")),
        ("splits where llguidance holds more", ", ".join(worse(by_split)) or "none"),
    ]
    return new_record(
        name, workload={"schemas": len(rows), "seed": seed, "vocabulary": LARGE}, figures=figures,
        summary=summary,
    )  # fmt: skip


def counted(rows: list[Row]) -> dict[str, int]:
    """What MaskBench reports of an engine: schemas that pass, and those that fail, each by its worst failure."""
    wrong = {row.name for row in rows if row.through}
    lacking = {row.name for row in rows if row.held and row.inside < row.valid} - wrong
    refused = sum(not row.held for row in rows)
    return {
        "passing": len(rows) - refused - len(wrong) - len(lacking),
        "refused": refused,
        "with a valid instance missing": len(lacking),
        "with an invalid one let through": len(wrong),
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """What so many percent of the values do not exceed."""
    values = sorted(values)
    return {str(p): values[min(len(values) - 1, len(values) * p // 100)] for p in PERCENTILES}


def listed(values: dict[str, float], form: str) -> str:
    """Percentiles in a line."""
    return ", ".join(f"{value:{form}} at {p}%" for p, value in values.items())


def figures_of(rows: list[Row]) -> dict[str, int]:
    """Sums over some schemas."""
    return {
        "schemas": len(rows),
        "held": sum(bool(row.held) for row in rows),
        "exact": sum(row.held == "exact" for row in rows),
        "theirs": sum(row.theirs for row in rows),
        **{
            name: sum(getattr(row, name) for row in rows)
            for name in ("valid", "inside", "undeclared", "invalid", "through")
        },
    }


def worse(splits: dict[str, dict[str, int]]) -> list[str]:
    """Names of splits of which llguidance holds more schemas."""
    return [name for name, some in splits.items() if some["theirs"] > some["held"]]


if __name__ == "__main__":
    sys.exit(main())
