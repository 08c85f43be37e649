"""The examples of the pages run: Python blocks in order, in one namespace; every command line is one there is."""

import re
import shlex
from pathlib import Path

import pytest

from client_checks import HEAD, PYTHON
from redraft.cli.main import build_parser

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("constraints.md", "deciding.md", "editing.md", "infilling.md", "traces.md")


@pytest.mark.parametrize("name", PAGES)
def test_the_python_blocks_of_a_page_run(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) > 1
    exec(compile("".join(blocks), name, "exec"), {})


@pytest.mark.parametrize("name", PAGES)
def test_the_command_lines_of_a_page_parse(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    lines = re.findall(r"^    redraft (.+)$|`redraft ((?:infill|edit|eval|generate) [^`]+)`", page, re.MULTILINE)
    assert lines
    for line in (indented or inline for indented, inline in lines):
        build_parser().parse_args(shlex.split(line))


def test_the_functions_that_the_pages_point_to_are_there() -> None:
    """A function that is renamed leaves a page pointing at nothing, and nobody hears of it."""
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    places = set(re.findall(r"([\w/]+\.py)::(\w+)", pages))
    assert places
    for path, name in sorted(places):
        source = (DOCS.parent / "src" / "redraft" / path).read_text(encoding="utf-8")
        assert re.search(rf"(def|class) {name}\b", source), f"{path} has no {name}"


@pytest.mark.parametrize("name", PYTHON)
def test_what_clients_are_asked_is_a_program(name: str) -> None:
    """Most clients are not installed here, so that nothing else reads these programs before a record is taken."""
    compile(HEAD + PYTHON[name], name, "exec")
