"""What others may rely on is a list, and the list is here."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import redraft

SOURCE = Path(__file__).resolve().parents[2] / "src"

PUBLIC = [
    "BusyError",
    "CallerError",
    "ConfigError",
    "ConstraintError",
    "DeadlineError",
    "Engine",
    "Generation",
    "LoopConfig",
    "Options",
    "RecipeError",
    "RecordError",
    "RedraftError",
    "Request",
    "RequestError",
    "RunError",
    "TextError",
    "TraceError",
    "UnsatisfiedError",
    "WeightsError",
    "__version__",
    "load",
]


def modules_with_all() -> list[str]:
    """Every module that assigns `__all__`, by name."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        assigned = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
        if any(getattr(target, "id", "") == "__all__" for node in assigned for target in node.targets):
            names = path.relative_to(SOURCE).with_suffix("").parts
            found.append(".".join(name for name in names if name != "__init__"))
    return found


def test_the_public_names_are_these() -> None:
    """A name that appears or goes by accident is noticed here, and belongs in the changelog."""
    assert redraft.__all__ == PUBLIC


def test_every_error_is_public() -> None:
    """A caller can catch by name whatever we raise."""
    errors = importlib.import_module("redraft.errors")
    raised = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)]
    assert set(raised) <= set(redraft.__all__)


def test_the_version_is_that_of_the_project_file() -> None:
    project = (SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{redraft.__version__}"\n' in project
    assert f"\n## [{redraft.__version__}]" in (SOURCE.parent / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", modules_with_all())
def test_an_export_list_is_sorted_and_true(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__all__ == sorted(set(module.__all__))
    assert [export for export in module.__all__ if not hasattr(module, export)] == []


def swallowing(source: str) -> list[str]:
    """Functions that take keywords which they neither name nor hand on to a function that does."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, functions))
    return [f"line {each.lineno}" for each in nodes if each.args.kwarg and not _handed_on(each, each.args.kwarg.arg)]


def _handed_on(function: ast.AST, name: str) -> bool:
    """Whether a call inside passes the keywords on, as `**name`."""
    calls = (keyword for node in ast.walk(function) if isinstance(node, ast.Call) for keyword in node.keywords)
    return any(each.arg is None and isinstance(each.value, ast.Name) and each.value.id == name for each in calls)


def test_no_function_swallows_a_keyword() -> None:
    """One that is misspelt, or that another version renamed, is an error and not an option that does nothing."""
    assert swallowing(
        "def f(a, *, b): ...\nasync def g(a, **rest): ...\nlambda **rest: 0\ndef h(**rest): k(**rest)"
    ) == ["line 2", "line 3"]
    found = {str(path): swallowing(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    assert not {path: lines for path, lines in found.items() if lines}
