"""Synthetic tasks with endless examples: what the small model is trained on and measured by."""

from types import MappingProxyType

from redraft.errors import RecipeError
from redraft.tasks.records import Records
from redraft.tasks.sudoku import Sudoku
from redraft.tasks.task import Example, Score, Split, Task

__all__ = ["Example", "Records", "Score", "Split", "Sudoku", "Task", "names", "task"]

_KNOWN: MappingProxyType[str, Task] = MappingProxyType({known.name: known for known in (Records(), Sudoku())})


def task(name: str) -> Task:
    """The task of that name. Raises RecipeError for an unknown one, listing the known."""
    if name not in _KNOWN:
        raise RecipeError(f"task is {name!r}; known: {', '.join(_KNOWN)}")
    return _KNOWN[name]


def names() -> tuple[str, ...]:
    """Names of all tasks, in the order of reports."""
    return tuple(_KNOWN)
