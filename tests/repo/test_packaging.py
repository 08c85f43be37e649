"""What a user gets without a clone: the wheel, the container and the documentation's site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from pathlib import Path

import pytest

import redraft
import transcripts

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = Path(sysconfig.get_path("scripts"))


def clean() -> dict[str, str]:
    """The environment without our clone."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def ran(*command: str | Path, folder: Path, **settings: str) -> str:
    """What a command printed; the test fails with its output if it failed."""
    done = subprocess.run(command, cwd=folder, env=clean() | settings, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that holds our wheel; what we depend on is borrowed from this one."""
    folder = tmp_path_factory.mktemp("installed")
    ran(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, REPOSITORY, folder=folder)
    (wheel,) = folder.glob("redraft-*.whl")
    assert wheel.stat().st_size < 25e6
    venv.create(folder / "env", with_pip=True)
    python = folder / "env/bin/python"
    own = ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip()
    # A .pth file adds a folder behind the environment's own packages; the clone's editable install is not in it.
    Path(own, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    ran(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, folder=folder)
    return folder / "env/bin"


def package_of(installed: Path, folder: Path) -> Path:
    program = "import redraft, pathlib; print(pathlib.Path(redraft.__file__).parent)"
    return Path(ran(installed / "python", "-c", program, folder=folder).strip())


def test_who_looks_into_the_package_sees_what_it_is_for() -> None:
    """Completion had `os` and no `load`, a type checker no types, and an engine's repr 8,682 characters."""
    assert {"load", "Engine", "Request", "Options"} <= {*dir(redraft)}
    assert (Path(redraft.__file__).parent / "py.typed").is_file()
    assert len(repr(redraft.load("nano"))) < 200


@pytest.mark.slow
def test_the_wheel_holds_the_models_the_page_and_the_recipes(installed: Path, tmp_path: Path) -> None:
    package = package_of(installed, tmp_path)
    assert package.is_relative_to(installed.parent)
    for file in ("assets/nano/model.safetensors", "assets/nano-sudoku/model.safetensors", "server/page/index.html"):
        assert (package / file).is_file()
    clone, shipped = REPOSITORY / "recipes", package / "assets/recipes"
    kinds = (".toml", ".py", ".json")  # an installer adds .pyc
    wanted = {path.relative_to(clone) for path in clone.rglob("*") if path.suffix in kinds}
    assert wanted == {path.relative_to(shipped) for path in shipped.rglob("*") if path.suffix in kinds}


@pytest.mark.slow
def test_the_readmes_commands_run_outside_a_clone(installed: Path, tmp_path: Path) -> None:
    """The transcripts' commands, and those that are shown without output; `serve` until it answers."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    path = {"PATH": f"{installed}:{os.environ['PATH']}"}
    blocks = [found for found in transcripts.BLOCK.finditer(readme) if found["mark"] != "not run"]
    shown = [line for found in blocks for line in transcripts.commands(found)]
    lines = [*shown, *(f"redraft {line}" for line in re.findall(r"(?m)^    redraft (.+?)(?:   .*)?$", readme))]
    assert {"redraft demo", "redraft inspect recipes/shapes/26b --memory 24"} < set(lines)
    for line in lines:
        if line != "redraft serve":
            assert ran("bash", "-c", line, folder=tmp_path, **path)
    command = (installed / "redraft", "serve", "--port", "0")
    with subprocess.Popen(command, cwd=tmp_path, env=clean(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        with urllib.request.urlopen(server.stdout.readline().strip() + "/live") as answer:
            assert answer.status == 200
        server.terminate()


@pytest.mark.slow
def test_a_recipe_is_found_by_its_name_outside_a_clone(installed: Path, tmp_path: Path) -> None:
    """By reading it: a run would take minutes. The generator of a recipe is found, too."""
    listed = ran(installed / "redraft", "tune", "--help", folder=tmp_path)
    assert "nano-sudoku-first" in listed
    program = (
        "from pathlib import Path; from redraft.tune.recipe import read_recipe; from redraft.tune.sources import _load;"
        "recipe = read_recipe(Path('nano-sudoku-turns'));"
        "print(recipe.name, *(_load(one).__name__ for one in recipe.data.generators))"
    )
    assert ran(installed / "python", "-c", program, folder=tmp_path) == "nano-sudoku-turns conversations\n"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Every page is in the site's contents, and every link and anchor of every page leads somewhere."""
    ran(TOOLS / "mkdocs", "build", "--strict", "--site-dir", tmp_path, folder=REPOSITORY, NO_MKDOCS_2_WARNING="1")
    assert "redraft" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert (tmp_path / "bench/records/plain-nano.json").is_file()


def test_the_containers_recipe_is_sound() -> None:
    """hadolint knows what goes wrong in Dockerfiles. Whether an image builds needs a builder, which CI has not."""
    ran(TOOLS / "hadolint", "Dockerfile", folder=REPOSITORY)
