"""Walls: a file has at most 400 lines, a function 60, a part what the table says (docs/decisions/0005-size.md)."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src"
FILE_WALL, FUNCTION_WALL = 400, 60
WHOLE_WALLS = {SOURCE: 56_100, TESTS: 43_200}

# The core is what a newcomer reads to understand how a canvas settles: it is to stay an afternoon's reading.
CORE = {"", "model", "diffusion", "engine"}
PART_WALLS = {
    "core": 11_190,
    "images": 860,
    "model/gpu": 2_030,
    "weights": 3_775,
    "constraints": 8_880,
    "tasks": 2_770,
    "tune": 4_510,
    "measure": 3_260,
    "server": 6_945,
    "operations": 5_120,
    "trace": 650,
    "distributed": 640,
    "cli": 5_570,
}


def part_of(path: Path) -> str:
    """The line of the table that a product file counts to."""
    folders = path.relative_to(SOURCE / "redraft").parent.parts
    part = "model/gpu" if folders[:2] == ("model", "gpu") else "".join(folders[:1])
    return "core" if part in CORE else part


def function_lines(source: str) -> dict[str, int]:
    """Lines of each function, docstring included and decorators not; the key is "line name"."""
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {f"{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}


def test_no_file_and_no_part_passes_its_wall() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    over = [f"{path.relative_to(SOURCE)}: {size} lines" for path, size in sizes.items() if size > FILE_WALL]
    assert not over, f"over {FILE_WALL} lines: {over}"
    parts: Counter[str] = Counter()
    for path, size in sizes.items():
        parts[part_of(path)] += size
    assert not {part: size for part, size in parts.items() if size > PART_WALLS[part]}


def test_the_product_and_its_tests_stay_within_their_walls() -> None:
    """Every line of either is read by somebody who changes the other."""
    sizes = {
        root.name: sum(len(path.read_text(encoding="utf-8").splitlines()) for path in root.rglob("*.py"))
        for root in WHOLE_WALLS
    }
    assert not {root.name: sizes[root.name] for root, wall in WHOLE_WALLS.items() if sizes[root.name] > wall}


def test_no_function_passes_its_wall() -> None:
    over = [
        f"{path.relative_to(root)}:{name}: {size} lines"
        for root in WHOLE_WALLS
        for path in root.rglob("*.py")
        for name, size in function_lines(path.read_text(encoding="utf-8")).items()
        if size > FUNCTION_WALL
    ]
    assert not over, f"over {FUNCTION_WALL} lines: {over}"


def test_methods_and_inner_functions_are_measured() -> None:
    source = "class A:\n    async def f(self):\n        def g():\n            pass\n        return g\n"
    assert function_lines(source) == {"2 f": 4, "3 g": 2}
