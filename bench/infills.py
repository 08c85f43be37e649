"""Infills of standard-library functions that no training run has seen, beside the causal mode, which sees only what is
in front of the gap.

    python bench/infills.py --count 40 --record bench/records/eval-nano-sudoku-infill.json

A gap is an expression in a function, one statement of it, or two or three in a row, in a module of the held-out split
(tasks/task.py). What
the model is shown around it is cut as in training (tasks/infill.py). An infill is scored three ways:

    exact      the text that was there, spaces at its ends aside
    parses     the whole module, gap filled, is Python
    doctest    the module's own doctests pass with the gap filled, of the gaps that they notice: those where they fail
               when nothing is done there. They run in a process of their own with limits on time and memory
"""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from command import arguments, finish
from redraft import load
from redraft.cli.common import progress
from redraft.engine.request import Options
from redraft.measure.evals import wilson
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.operations.engine import Engine
from redraft.tasks.infill import files
from redraft.tasks.task import split_of, stream_seed

KINDS = {"part": "an expression", "line": "one statement", "lines": "two or three statements"}
MODES = ("canvas", "canvas, width told", "causal, prefix only")
PREFIX, SUFFIX = 200, 160
"""Characters around a gap that are shown."""

MOST_DRAWS = 1000
MOST_TOKENS = 40

_CHARS = {"part": (3, 32), "line": (8, 60), "lines": (8, 120)}
_NOTHING = {"part": "None", "line": "pass", "lines": "pass"}
_SECONDS, _BYTES = 20, 2**30
_RUN = """
import doctest, importlib.util, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
resource.setrlimit(resource.RLIMIT_AS, ({bytes}, {bytes}))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
spec = importlib.util.spec_from_file_location("filled", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["filled"] = module
spec.loader.exec_module(module)
found = doctest.testmod(module, report=False)
sys.exit(0 if found.attempted and not found.failed else 1)
"""


@dataclass(frozen=True)
class InfillGap:
    """A gap in a module's text, from `start` to `end`. `tested`: the module's doctests fail without it."""

    path: Path
    source: str
    start: int
    end: int
    tested: bool

    @property
    def wanted(self) -> str:
        """What was there."""
        return self.source[self.start : self.end]

    @property
    def before(self) -> str:
        """What is shown in front of it, from the beginning of a line."""
        cut = self.source.rfind("\n", 0, max(0, self.start - PREFIX)) + 1
        return self.source[cut : self.start]

    @property
    def behind(self) -> str:
        """What is shown behind it."""
        return self.source[self.end : self.end + SUFFIX]

    def filled(self, text: str) -> str:
        """The module with something else in the gap."""
        return self.source[: self.start] + text + self.source[self.end :]


@dataclass(frozen=True)
class Tally:
    """One way of filling one kind of gap: shares with their intervals at 95%, and what it cost."""

    kind: str
    mode: str
    count: int
    exact: tuple[float, float, float]
    parses: tuple[float, float, float]
    tested: int
    doctest: tuple[float, float, float]
    forwards: float
    seconds: float


def gaps(kind: str, seed: int, fits: Callable[[str], bool], *, tested: bool = False) -> Iterator[InfillGap]:
    """Endless gaps of one kind whose text fits, module by module at random.

    With `tested` only those that doctests notice, each once, of the first MOST_DRAWS.
    """
    rng = Random(stream_seed(f"infill-functions {kind}", "held_out", seed))
    files = [path for path in held_out() if not tested or _has_doctests(path)]
    spans = {path: [span for span in _spans(path, kind) if fits(_read(path)[slice(*span)])] for path in files}
    files = [path for path in files if spans[path]]
    seen: set[tuple[Path, int, int]] = set()
    for _ in range(MOST_DRAWS) if tested else itertools.count():
        if not files:
            return
        path = rng.choice(files)
        start, end = rng.choice(spans[path])
        gap = InfillGap(path, _read(path), start, end, tested)
        new = (path, start, end) not in seen
        if not tested or (new and not passes(path, gap.filled(_NOTHING[kind]))):
            yield gap
        seen.add((path, start, end))


@cache
def held_out() -> tuple[Path, ...]:
    """Files of the standard library's held-out modules."""
    return tuple(path for path, module in files() if split_of(module) == "held_out")


@cache
def passes(path: Path, source: str) -> bool:
    """Whether a module's doctests pass on this text of it. No sandbox: limits on time, memory and files alone."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path.name
        file.write_text(source, encoding="utf-8")
        code = _RUN.format(seconds=_SECONDS, bytes=_BYTES)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-B", "-c", code, str(file)],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=2 * _SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def parses(source: str) -> bool:
    """Whether a text is Python."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def score_infills(
    engine: Engine,
    count: int,
    *,
    seed: int = 0,
    steps: int | None = None,
    preset: str = "reference",
    progress: Progress = silent,
) -> list[Tally]:
    """Fill `count` gaps of each kind in each mode, half of them gaps that doctests notice, if there are any."""
    most = min(MOST_TOKENS, engine.config.model.canvas_length // 2)
    found, done = [], 0
    for kind in KINDS:
        chosen = _choose(engine, kind, count, seed, most)
        for mode in MODES:
            rows = []
            for i, gap in enumerate(chosen):
                options = Options(seed=seed + i, steps=steps, preset=preset)
                text, forwards, seconds = _fill(engine, gap, mode, most, options)
                whole = gap.filled(text)
                right = text.strip() == gap.wanted.strip()
                sound = right or parses(whole)
                rows.append(
                    (right, sound, gap.tested, sound and gap.tested and passes(gap.path, whole), forwards, seconds)
                )
                done += 1
                progress("gap", done, len(KINDS) * len(MODES) * len(chosen))
            found.append(_tally(kind, mode, rows))
    return found


def recorded(found: list[Tally], *, model: str, seed: int, steps: int | None, preset: str = "reference") -> Record:
    """A benchmark record of such a run."""
    name = Path(model).name
    return new_record(
        f"eval-{name}-infill",
        workload={
            "model": name,
            "split": "held_out",
            "seed": seed,
            "steps": steps,
            "preset": preset,
            "prefix": PREFIX,
            "suffix": SUFFIX,
        },
        figures={f"{one.kind}, {one.mode}": _figures(one) for one in found},
        summary=[
            (
                f"{one.count} held-out gaps of {KINDS[one.kind]} filled by {name} ({one.mode})",
                f"exact {_share(one.exact)}, parses {_share(one.parses)}, doctests pass on {_share(one.doctest)} of"
                f" {one.tested}, {one.forwards:.1f} canvas steps, {one.seconds:.2f} s",
            )
            for one in found
        ],
    )


def _choose(engine: Engine, kind: str, count: int, seed: int, most: int) -> list[InfillGap]:
    def fits(text: str) -> bool:
        return 0 < len(engine.text.encode(text, bos=False)) <= most

    noticed = [gap for gap, _ in zip(gaps(kind, seed, fits, tested=True), range(count // 2), strict=False)]
    return noticed + [gap for gap, _ in zip(gaps(kind, seed, fits), range(count - len(noticed)), strict=False)]


def _fill(engine: Engine, gap: InfillGap, mode: str, most: int, options: Options) -> tuple[str, int, float]:
    """The text of a gap, forwards and seconds."""
    if mode == MODES[2]:
        # It gets its stop, which the canvas does not: the end of the line, or the number of tokens.
        lines, closed = gap.wanted.count("\n") + 1, not gap.behind.startswith("\n")
        most = len(engine.text.encode(gap.wanted, bos=False)) if closed else most
        done = engine.generate(gap.before, max_tokens=most, stop=["\n"] if lines == 1 else [], options=_causal(options))
        return "\n".join(done.text.split("\n")[:lines]), sum(done.steps), done.seconds
    told = mode == MODES[1]
    width = len(engine.text.encode(gap.wanted, bos=False)) if told else None
    filled = engine.infill(gap.before, gap.behind, max_tokens=None if told else most, width=width, options=options)
    return filled.gap, filled.forwards, filled.answer.seconds


def _causal(options: Options) -> Options:
    return Options(seed=options.seed, causal=True)


def _tally(kind: str, mode: str, rows: list[tuple[bool, bool, bool, bool, int, float]]) -> Tally:
    count, tested = len(rows), sum(row[2] for row in rows)
    return Tally(
        kind=kind,
        mode=mode,
        count=count,
        exact=_interval(sum(row[0] for row in rows), count),
        parses=_interval(sum(row[1] for row in rows), count),
        tested=tested,
        doctest=_interval(sum(row[3] for row in rows), tested),
        forwards=sum(row[4] for row in rows) / max(1, count),
        seconds=sum(row[5] for row in rows) / max(1, count),
    )


def _interval(right: int, count: int) -> tuple[float, float, float]:
    return (right / count, *wilson(right, count)) if count else (0.0, 0.0, 1.0)


def _share(found: tuple[float, float, float]) -> str:
    return f"{found[0]:.1%} ({found[1]:.1%} to {found[2]:.1%})"


def _figures(one: Tally) -> dict[str, object]:
    parts = {name: dict(zip(("share", "low", "high"), getattr(one, name), strict=True)) for name in _SHARES}
    return {"count": one.count, "tested": one.tested, "forwards": one.forwards, "seconds": one.seconds, **parts}


_SHARES = ("exact", "parses", "doctest")


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@cache
def _has_doctests(path: Path) -> bool:
    return ">>> " in _read(path) and passes(path, _read(path))


@cache
def _spans(path: Path, kind: str) -> tuple[tuple[int, int], ...]:
    """Where gaps of a kind stand in functions; a statement is on a line of its own, several are of one block."""
    source = _read(path)
    if not source.isascii() or "\t" in source or not parses(source):
        return ()
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef):
            continue
        if kind == "part":
            found += [_span([part], starts) for part in _expressions(node)]
            continue
        for inside in ast.walk(node):
            for block in (getattr(inside, name, None) for name in ("body", "orelse", "finalbody")):
                if isinstance(block, list):
                    found += [_span(run, starts) for run in _runs(block, kind)]
    fewest, most = _CHARS[kind]
    spans = {span for span in found if fewest <= span[1] - span[0] <= most}
    return tuple(sorted(span for span in spans if not source[slice(*span)].startswith(('"', "'", 'r"'))))


def _expressions(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Expressions on one line, but for what is assigned to. Python does not report where parts of an f-string stand."""
    nodes = list(ast.walk(function))
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    yield from (
        node
        for node in nodes
        if isinstance(node, ast.expr)
        and node.lineno == node.end_lineno
        and id(node) not in inside
        and not isinstance(getattr(node, "ctx", None), ast.Store)
    )


def _runs(block: list[ast.stmt], kind: str) -> Iterator[list[ast.stmt]]:
    if kind == "line":
        yield from ([one] for one in block if one.lineno == one.end_lineno)
        return
    for size in (2, 3):
        for at in range(len(block) - size + 1):
            run = block[at : at + size]
            if (run[-1].end_lineno or 0) - run[0].lineno + 1 >= size:
                yield run


def _span(run: Sequence[ast.stmt | ast.expr], starts: list[int]) -> tuple[int, int]:
    first, last = run[0], run[-1]
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    return starts[first.lineno - 1] + first.col_offset, starts[last.end_lineno - 1] + last.end_col_offset


def main() -> None:
    """One record."""
    asked = arguments(__doc__ or "", count=100)
    record = recorded(
        score_infills(load(asked.model), asked.count, progress=progress), model=asked.model, seed=0, steps=None
    )
    finish(record, asked.record)


if __name__ == "__main__":
    main()
