"""What a user gets without a clone: the wheel, the container and the documentation's site."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = Path(sysconfig.get_path("scripts"))


def ran(*command: str | Path, folder: Path, **settings: str) -> str:
    """What a command printed; the test fails with its output if it failed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
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


@pytest.mark.slow
def test_the_wheel_works_outside_a_clone(installed: Path, tmp_path: Path) -> None:
    """The model, the page and the sizes of the released model are inside it."""
    program = "import redraft, pathlib; print(pathlib.Path(redraft.__file__).parent)"
    package = Path(ran(installed / "python", "-c", program, folder=tmp_path).strip())
    assert package.is_relative_to(installed.parent)
    assert (package / "server/page/index.html").is_file()
    command = (installed / "redraft", "json", "--schema", "name, age int", "Alice is 31 years old.")
    assert ran(*command, folder=tmp_path).startswith('{"name":')


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Every page is in the site's contents, and every link and anchor of every page leads somewhere."""
    ran(TOOLS / "mkdocs", "build", "--strict", "--site-dir", tmp_path, folder=REPOSITORY, NO_MKDOCS_2_WARNING="1")
    assert "redraft" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert (tmp_path / "bench/records/plain-nano.json").is_file()


def test_the_containers_recipe_is_sound() -> None:
    """hadolint knows what goes wrong in Dockerfiles. Whether an image builds needs a builder, which CI has not."""
    ran(TOOLS / "hadolint", "Dockerfile", folder=REPOSITORY)
