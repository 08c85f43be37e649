"""Imports go down. The table below is the architecture; the rest of the file reads imports and holds them to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "redraft"

# From the bottom up. Parts on one line never import each other; inside one part, modules may.
LINES: tuple[tuple[str, ...], ...] = (
    ("errors", "forks", "interrupts", "numerals", "pointers", "version"),
    ("files",),
    ("shapes", "reader", "home", "options", "prompts", "stops", "template"),
    ("config", "tasks"),
    ("images",),
    ("cache", "text"),
    ("model",),
    ("weights", "diffusion", "constraints"),
    ("engine",),
    ("operations",),
    ("trace",),
    ("server", "tune", "measure"),
    ("distributed",),
    ("top",),
)
TOP = {"__init__", "__main__", "cli"}  # one part: the command line and what starts it
RANK = {part: rank for rank, parts in enumerate(LINES) for part in parts}

# A lower line, yet never: a sampler must run with a lookup table for a model, training without a scheduler, and answers
# without the word lists that training data are made of.
FORBIDDEN = {("diffusion", "model"), ("tune", "engine"), ("tune", "operations"), ("constraints", "tasks")}

# Needed on a GPU alone, where importing Triton takes a second that a CPU has no use for.
# And Ray, which is not there by default, behind what `serve deploy` imports by name.
LATE = {
    ("redraft.weights.defaults", "redraft.model.gpu.kernels"),
    ("redraft.engine.kernel_check", "redraft.model.gpu.choices"),
    ("redraft.tune.state", "redraft.tune.fused"),
    ("redraft.distributed.cluster", "redraft.distributed.serving"),
    ("redraft.distributed", "redraft.distributed.fleet"),
    ("redraft.distributed", "redraft.distributed.serving"),
}

# Heavy or optional third parties, which a function may import when it needs them.
LAZY = {
    "fastapi",
    "gguf",
    "huggingface_hub",
    "jinja2",
    "jsonschema_rs",
    "llguidance",
    "msgspec",
    "numpy",
    "outlines_core",
    "peft",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "ray",
    "rich",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
    "uvicorn",
    "yaml",
}


def part_of(module: str) -> str:
    """The part that "redraft.engine.runner" belongs to ("engine"); "redraft" itself is the top."""
    first = [*module.split("."), "__init__"][1]
    return "top" if first in TOP else first


def imports(tree: ast.AST, package: str, *, lazy: bool = False) -> Iterator[tuple[str, int, bool]]:
    """(module, line, whether inside a function) of each import. `package` is what a relative import starts from."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            # `from redraft import errors` names a module, `from redraft import load` something of the top.
            names = [
                alias.name for alias in node.names if source == "redraft" and alias.name in RANK | dict.fromkeys(TOP)
            ]
            yield from ((f"redraft.{name}", node.lineno, lazy) for name in names)
            if len(names) < len(node.names):
                yield source, node.lineno, lazy
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, package, lazy=lazy or function)


def dynamic_imports(tree: ast.AST) -> Iterator[int]:
    """Lines that import by a computed name, which no reader of the source can follow."""
    for node in ast.walk(tree):
        name = node.func if isinstance(node, ast.Call) else None
        if getattr(name, "attr", getattr(name, "id", "")) in ("import_module", "__import__"):
            yield node.lineno


def complaints(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What is wrong with the imports of one module, a sentence each."""
    tree, part = ast.parse(source), part_of(module)
    package = module if is_package else module.rpartition(".")[0]
    found = [f"{module}:{line} imports by a computed name; write an import" for line in dynamic_imports(tree)]
    if part != "top" and part not in RANK:
        return [*found, f"{module}: {part!r} is in no line of the table; add it where it belongs"]
    for target, line, lazy in imports(tree, package):
        where = f"{module}:{line}"
        if target.partition(".")[0] != "redraft":
            if lazy and target.partition(".")[0] not in LAZY:
                found.append(f"{where} imports {target} inside a function; import it at the top")
            continue
        other = part_of(target)
        if lazy and part != "top" and (module, target) not in LATE:
            found.append(f"{where} imports {target} inside a function; only the command line may")
        if other != part and (RANK.get(other, len(LINES)) >= RANK[part] or (part, other) in FORBIDDEN):
            found.append(f"{where}: {part} must not import {other} ({target})")
    return found


def test_every_import_goes_down() -> None:
    """A layer that reaches up cannot be tested, or understood, without what is above it."""
    found: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        names = ["redraft", *path.relative_to(SOURCE).with_suffix("").parts]
        is_package = names[-1] == "__init__"
        module = ".".join(names[:-1] if is_package else names)
        found += complaints(path.read_text(encoding="utf-8"), module, is_package=is_package)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("redraft.model.gemma", "import redraft.engine.runner", "model must not import engine"),
        ("redraft.model.gemma", "from redraft.engine import runner", "model must not import engine"),
        ("redraft.model.gemma", "from redraft import engine", "model must not import engine"),
        ("redraft.model.gemma", "from redraft import load", "model must not import top"),
        ("redraft.model.gemma", "from ..engine.runner import run", "model must not import engine"),
        ("redraft.model.gemma", "from .. import errors, engine", "model must not import engine"),
        ("redraft.model.gemma", "if TYPE_CHECKING:\n    from redraft.engine import runner", ":2: model must not"),
        ("redraft.weights.load", "from redraft.diffusion import canvas", "weights must not import diffusion"),
        ("redraft.diffusion.denoise", "from redraft.model.gemma import Gemma", "diffusion must not import model"),
        ("redraft.tune.train", "from redraft.engine import runner", "tune must not import engine"),
        ("redraft.tasks.task", "import redraft.config", "tasks must not import config"),
        ("redraft.errors", "from redraft.shapes import Tensor", "errors must not import shapes"),
        ("redraft.text", "from redraft.unheard import of", "text must not import unheard"),
        ("redraft.unheard", "", "in no line of the table"),
        ("redraft.engine.runner", "def f():\n    from redraft.model import gemma", ":2 imports redraft.model inside"),
        ("redraft.engine.runner", "class A:\n    def f(self):\n        import json", ":3 imports json inside"),
        ("redraft.cli.main", "import importlib\nimportlib.import_module(name)", ":2 imports by a computed name"),
    ],
)
def test_the_checker_sees_a_bad_import(module: str, source: str, complaint: str) -> None:
    found = complaints(source, module)
    assert len(found) == 1
    assert complaint in found[0]
