"""Walls: a product file has at most 400 lines, a function 60, and all of it fewer than 10,000."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
FILE_WALL, FUNCTION_WALL, TOTAL_WALL = 400, 60, 10_000


def function_lines(source: str) -> dict[str, int]:
    """Lines of each function, docstring included and decorators not; the key is "line name"."""
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {f"{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}


def test_no_file_passes_its_wall() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    over = [f"{path.relative_to(SOURCE)}: {size} lines" for path, size in sizes.items() if size > FILE_WALL]
    assert not over, f"over {FILE_WALL} lines: {over}"
    assert sum(sizes.values()) < TOTAL_WALL


def test_no_function_passes_its_wall() -> None:
    over = [
        f"{path.relative_to(SOURCE)}:{name}: {size} lines"
        for path in SOURCE.rglob("*.py")
        for name, size in function_lines(path.read_text(encoding="utf-8")).items()
        if size > FUNCTION_WALL
    ]
    assert not over, f"over {FUNCTION_WALL} lines: {over}"


def test_methods_and_inner_functions_are_measured() -> None:
    source = "class A:\n    async def f(self):\n        def g():\n            pass\n        return g\n"
    assert function_lines(source) == {"2 f": 4, "3 g": 2}
