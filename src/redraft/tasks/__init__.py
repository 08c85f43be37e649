"""Synthetic tasks with endless examples: what the small model is trained on and measured by."""

from types import MappingProxyType

from redraft.errors import RecipeError, did_you_mean
from redraft.tasks.changes import Change, Mend
from redraft.tasks.edits import Edits
from redraft.tasks.extract import Extract
from redraft.tasks.fills import Fills
from redraft.tasks.forms import Copy, Form
from redraft.tasks.infill import InfillPython
from redraft.tasks.lists import MOST_LONG, EditLists, Lists
from redraft.tasks.records import Records
from redraft.tasks.repair import RepairTask
from redraft.tasks.sudoku import Sudoku
from redraft.tasks.task import Example, Score, Split, Task, stream_seed

__all__ = [
    "Change",
    "Copy",
    "EditLists",
    "Edits",
    "Example",
    "Extract",
    "Fills",
    "Form",
    "InfillPython",
    "Lists",
    "Mend",
    "Records",
    "RepairTask",
    "Score",
    "Split",
    "Sudoku",
    "Task",
    "names",
    "stream_seed",
    "task",
]

_INVENTED: tuple[Task, ...] = (Records(), Sudoku(), Sudoku(6), RepairTask(), Edits(), Lists())
_MORE: tuple[Task, ...] = (
    InfillPython(),
    Sudoku(9),
    Sudoku(9, (22, 30), least_guesses=5),
    Lists(MOST_LONG),
    EditLists(),
)
_PLAIN: tuple[Task, ...] = (
    Extract(),
    Extract(short=True),
    Extract(many=True),
    Form(),
    Form(long=True),
    Change(),
    Mend(),
    Fills(),
    Copy(),
)
_KNOWN: MappingProxyType[str, Task] = MappingProxyType({known.name: known for known in (*_INVENTED, *_MORE, *_PLAIN)})


def task(name: str) -> Task:
    """The task of that name. Raises RecipeError for an unknown one, listing the known."""
    if name not in _KNOWN:
        raise RecipeError(f"task is {name!r}; known: {', '.join(_KNOWN)}{did_you_mean(name, _KNOWN)}")
    return _KNOWN[name]


def names(model: str = "nano") -> tuple[str, ...]:
    """Names of the tasks that a model is measured by unless others are asked for, in order of reports.

    nano-sudoku has its own, of invented words and puzzles. All other models have nano's, of ordinary ones.
    """
    return tuple(known.name for known in (_INVENTED if model == "nano-sudoku" else _PLAIN))
