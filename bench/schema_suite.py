"""Counts what becomes of the official JSON Schema Test Suite (draft 2020-12): compiled, refused, written and read.

    python bench/schema_suite.py --record bench/records/schema-suite.json [--texts 20]

Every schema of tests/data/json_schema_suite is compiled. For those that are guaranteed, texts are drawn from the
automaton and judged by jsonschema-rs; the suite's own instances are looked for in it. `tests/unit/test_schema.py` holds
the same, on every sixteenth schema by default.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from redraft.constraints.compile.automaton import NOWHERE, Dfa
from redraft.constraints.compile.schema import compile_schema
from redraft.errors import ConstraintError, RedraftError
from redraft.measure.record import check_place, new_record, write_record

SUITE = Path(__file__).resolve().parent.parent / "tests" / "data" / "json_schema_suite"


def main() -> int:
    """Count, record, print."""
    parser = argparse.ArgumentParser(description="Count what becomes of the JSON Schema Test Suite.")
    parser.add_argument("--texts", type=int, default=20, metavar="N", help="texts written per schema (default: 20)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="write the record to this file")
    arguments = parser.parse_args()
    try:
        check_place(arguments.record)
        counts, refusals = count(arguments.texts)
        summary = [
            ("schemas of the JSON Schema Test Suite", _schemas(counts)),
            ("texts written for its guaranteed schemas that are valid", f"{counts['valid']} of {counts['written']}"),
            ("its invalid instances that a guarantee lets through", _of(counts, "let through", "invalid instances")),
            ("its valid instances that a language holds", _of(counts, "reached", "valid instances")),
        ]
        files = len(list(SUITE.glob("*.json")))
        workload = {"suite": "draft2020-12, of jsonschema 4.26.0", "files": files, "texts": arguments.texts}
        figures = {"counts": dict(counts), "refused_by_name": dict(refusals)}
        record = new_record("schema-suite", workload=workload, figures=figures, summary=summary)
        write_record(record, arguments.record)
    except RedraftError as error:
        print(f"schema_suite: {error}", file=sys.stderr)
        return error.exit_code
    print(record)
    return 0


def _of(counts: Counter[str], some: str, every: str) -> str:
    return f"{counts[some]} of {counts[every]}"


def _schemas(counts: Counter[str]) -> str:
    return (
        f"{counts['schemas']}: {counts['guaranteed']} guaranteed, {counts['checked']} with parts that are checked, "
        f"{counts['refused']} refused by name, {counts['empty']} that no value satisfies"
    )


def count(texts: int) -> tuple[Counter[str], Counter[str]]:
    """Counts by what became of schemas, texts and instances, and of refusals by the word that they name."""
    from jsonschema_rs import validator_for

    found, refusals = Counter[str](), Counter[str]()
    for number, (schema, instances) in enumerate(groups()):
        found["schemas"] += 1
        try:
            compiled = compile_schema(schema, depth=2, spaces=False)
        except ConstraintError as error:
            empty = "no JSON value satisfies" in str(error)
            found["empty" if empty else "refused"] += 1
            refusals[_named(str(error))] += not empty
            continue
        found["checked" if compiled.checked else "guaranteed"] += 1
        held = [(one["valid"], compiled.dfa.matches(compact(one["data"]))) for one in instances]
        found["valid instances"] += sum(valid for valid, _ in held)
        found["reached"] += sum(valid and inside for valid, inside in held)
        if compiled.checked:
            continue
        found["invalid instances"] += sum(not valid for valid, _ in held)
        found["let through"] += sum(inside and not valid for valid, inside in held)
        validator = validator_for(schema)
        for text in written(compiled.dfa, texts, number):
            found["written"] += 1
            found["valid"] += validator.is_valid(json.loads(text))
    return found, +refusals


def groups() -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Every schema of the suite with its instances."""
    for path in sorted(SUITE.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield group["schema"], group["tests"]


def written(dfa: Dfa, count: int, seed: int, step: int = 12) -> Iterator[str]:
    """Random walks through an automaton, each taken home once it is `step` bytes longer than the last."""
    source, to_end = random.Random(seed), dfa.to_end()
    members = [np.flatnonzero(dfa.class_of == label).tolist() for label in range(dfa.table.shape[1])]
    for number in range(count):
        state, out = 0, bytearray()
        while not (dfa.accepts[state] and (len(out) > step * (number + 1) or source.random() < 0.3)):
            moves = np.flatnonzero(dfa.table[state] != NOWHERE).tolist()
            if not moves:
                break
            if len(out) > step * (number + 1):
                moves = [min(moves, key=lambda label: to_end[dfa.table[state, label]])]
            label = source.choice(moves)
            out.append(source.choice(members[label]))
            state = int(dfa.table[state, label])
        yield out.decode()


def _named(message: str) -> str:
    known = {
        "leads out": "another document",
        "names nothing": "a reference to nothing",
        "is no JSON Schema": "no schema",
    }
    return next((name for part, name in known.items() if part in message), "out of reach")


def compact(value: Any) -> bytes:
    """A value as JSON, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


if __name__ == "__main__":
    sys.exit(main())
