"""The examples of the pages run: Python blocks in order, in one namespace; commands in a text are ones there are."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.server.conftest import end, start

from client_checks import HEAD, PYTHON
from redraft.cli.main import build_parser

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("constraints.md", "deciding.md", "editing.md", "infilling.md", "python.md", "traces.md")


@pytest.mark.parametrize("name", PAGES)
def test_the_python_blocks_of_a_page_run(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) > 1
    exec(compile("".join(blocks), name, "exec"), {})


def test_the_command_lines_within_paragraphs_parse() -> None:
    """Those in blocks run (test_readme.py)."""
    pages = "".join((DOCS / name).read_text(encoding="utf-8") for name in PAGES)
    lines = re.findall(r"`redraft ((?:infill|edit|eval|generate) [^`]+)`", pages)
    assert len(lines) >= 3
    for line in lines:
        build_parser().parse_args(shlex.split(line))


@pytest.mark.slow
def test_the_javascript_blocks_run(tmp_path: Path) -> None:
    """As a reader pastes them, on the packages that they import: an import that is missing was seen by nobody."""
    blocks = re.findall(r"```js\n(.*?)```", (DOCS / "clients.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    packages = sorted(set(re.findall(r'from "([^"]+)"', "".join(blocks))))
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    install = ["npm", "install", "--no-audit", "--no-fund", "--fetch-retries=0", *packages]
    made = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    if made.returncode:
        pytest.skip(f"npm cannot install {', '.join(packages)}: {made.stderr[:200]}")
    served = start("--model", "nano")
    try:
        for i, block in enumerate(blocks):
            script = tmp_path / f"{i}.mjs"
            script.write_text(block.replace("http://127.0.0.1:8642", served.url), encoding="utf-8")
            ran = subprocess.run(["node", script], cwd=tmp_path, capture_output=True, text=True, timeout=200)
            assert ran.returncode == 0, ran.stderr
            assert list(json.loads(ran.stdout)) == ["who", "item"]
    finally:
        end(served)


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
