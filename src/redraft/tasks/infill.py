"""Infilling of Python: the text around a gap in, the gap out.

    prompt  def area(radius):          answer  math.pi * radius      suffix   ** 2
                return                                                       print(area(2))

The text is the standard library of the Python that runs this, less its tests: whatever that machine has. Docstrings,
comment lines and runs of blank lines are taken out, so that what is learnt is code. The split is by top-level module:
no line of a held-out module is ever seen in training.

A gap is the rest of a line, a stretch inside it, or all of it; it starts and ends between words or signs and has 1 to
32 characters. Unlike the other tasks this one has many right answers and one that counts.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from redraft.errors import RecipeError
from redraft.tasks.task import Example, Score, split_of, stream_seed

_TESTS = frozenset(("test", "tests", "idle_test", "turtledemo", "lib2to3"))
_NO_CODE = frozenset(("encodings", "pydoc_data", "idlelib", "ensurepip", "__pycache__"))  # tables, and much of a kind
_NOT_OURS = frozenset(("site-packages", "dist-packages"))
_MOST_CHARS, _PREFIX, _SUFFIX = 32, 200, 160  # characters of a gap, before it, behind it
_LONGEST_LINE = 100
_PIECE = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class InfillPython:
    """Gaps in the standard library."""

    name = "infill-python"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless gaps in modules of one split. Raises RecipeError for an unknown split, or if no source is found."""
        rng = Random(stream_seed(self.name, split, seed))
        sources = [source for source in corpus() if split_of(source.module) == split]
        if not sources:
            raise RecipeError("infill-python: no Python source of the standard library is on this machine")
        return self._stream(sources, rng)

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the text that was there, spaces at its ends aside.

        Parts: `parses`, 1.0 if the lines of the gap, dedented, are Python or the beginning of it.
        """
        line = (example.prompt.rpartition("\n")[2] + answer + (example.suffix or "").partition("\n")[0]).strip()
        return Score(exact=answer.strip() == example.answer.strip(), parts={"parses": float(_parses(line))})

    def _stream(self, sources: list[CodeFile], rng: Random) -> Iterator[Example]:
        sizes = [len(source.text) for source in sources]
        while True:
            text = rng.choices(sources, sizes)[0].text
            start = text.rfind("\n", 0, rng.randrange(len(text))) + 1
            end = text.find("\n", start)
            end = len(text) if end < 0 else end
            gap = _gap(text[start:end], rng)
            if gap is None:
                continue
            at, stop = start + gap[0], start + gap[1]
            first = text.find("\n", max(0, at - rng.randint(20, _PREFIX))) + 1
            last = stop + _SUFFIX
            if rng.random() < 0.15:  # sometimes the text ends behind the gap's line or the next
                cut = text.find("\n", stop + rng.randint(0, 30))
                last = min(last, len(text) if cut < 0 else cut)
            yield Example(text[min(first, at) : at], text[at:stop], suffix=text[stop:last])


def _gap(line: str, rng: Random) -> tuple[int, int] | None:
    """Where a gap in a line starts and ends; None for a line that has no good one."""
    cuts = [match.start() for match in _PIECE.finditer(line)]
    ends = [match.end() for match in _PIECE.finditer(line)]
    if len(cuts) < 3 or len(line) > _LONGEST_LINE:
        return None
    kind = rng.random()
    if kind < 0.2:
        at, stop = cuts[0], ends[-1]
    elif kind < 0.6:
        at, stop = rng.choice(cuts[1:]), ends[-1]
    else:
        i = rng.randrange(1, len(cuts))
        at, stop = cuts[i], ends[rng.randrange(i, min(len(ends), i + 5))]
    return (at, stop) if 0 < stop - at <= _MOST_CHARS else None


def _parses(line: str) -> bool:
    for text in (line, line + "\n    pass", f"try:\n    pass\n{line}\n    pass", f"if x:\n    pass\n{line}\n    pass"):
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return True
    return False


@dataclass(frozen=True)
class CodeFile:
    """One file's code and the top-level module it belongs to."""

    module: str
    text: str


@cache
def corpus() -> tuple[CodeFile, ...]:
    """The code of the standard library on this machine, file by file in the order of their paths."""
    return tuple(CodeFile(module, text) for path, module in files() if len(text := _code(path)) > 400)


def files() -> Iterator[tuple[Path, str]]:
    """The standard library's files that are code and no tests, in the order of their paths, with their modules."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if not (_TESTS | _NO_CODE | _NOT_OURS) & set(inside.parts) and not inside.name.startswith("test_"):
            yield path, inside.parts[0].removesuffix(".py")


def _code(path: Path) -> str:
    """A file without docstrings, comment lines and doubled blank lines; empty for what is not plain Python."""
    try:
        text = path.read_text(encoding="ascii")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ""
    dropped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            dropped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept: list[str] = []
    for number, line in enumerate(text.expandtabs(4).split("\n"), 1):
        bare = line.strip()
        if number in dropped or bare.startswith("#") or not (bare or (kept and kept[-1])):
            continue
        kept.append(line.rstrip())
    return "\n".join(kept)
