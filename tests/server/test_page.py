"""The page's files: what is served, under which policy, and that nothing in them reaches outside."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.server.conftest import ROOT, Inside, Process

from redraft.server.openai import models

FOLDER = ROOT / "src" / "redraft" / "server" / "page"
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
TYPES["jsonl"] = "application/jsonl"
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.suffix[1:] in TYPES)
IMPORT = re.compile(r"""^import .* from "(.+)";$""", re.M)
WALL = 300


class Tags(HTMLParser):
    """Start tags with their attributes, and the text inside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.inline += data.strip() if self._inside else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


def fetch(server: Process | Inside, path: str) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(server.url + path)
    try:
        with urllib.request.urlopen(request, timeout=100) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {}, error.read()


def resolve(name: str, target: str) -> str:
    """A relative import of file `name` as a path below the page."""
    return (FOLDER / name).parent.joinpath(target).resolve().relative_to(FOLDER).as_posix()


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_served_as_what_it_is(server: Process, name: str) -> None:
    status, headers, body = fetch(server, f"/page/{name}")
    assert status == 200
    assert headers["content-type"].partition(";")[0] == TYPES[name.rpartition(".")[2]]
    assert headers["x-content-type-options"] == "nosniff"
    assert body == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("asked", ["items=0-4", "bytes=4-1", "bytes=99999999-", "bytes=0-0,2-2"])
def test_a_part_of_a_file_is_not_to_be_had(server: Process, asked: str) -> None:
    """So no error of a library's own form."""
    request = urllib.request.Request(f"{server.url}/page/main.js", headers={"range": asked})
    with urllib.request.urlopen(request, timeout=100) as answer:
        assert (answer.status, answer.read()) == (200, (FOLDER / "main.js").read_bytes())


def test_the_policy_allows_this_server_and_no_string_as_code(server: Process) -> None:
    for path in ("/", "/page/main.js"):
        _, headers, _ = fetch(server, path)
        policy = {
            words[0]: words[1:] for part in headers["content-security-policy"].split(";") if (words := part.split())
        }
        assert policy["default-src"] == ["'none'"]
        assert policy["require-trusted-types-for"] == ["'script'"]
        assert policy["trusted-types"] == policy["base-uri"] == policy["form-action"] == ["'none'"]
        assert policy["frame-ancestors"] == ["'none'"]
        given = {source for name, sources in policy.items() if name.endswith("-src") for source in sources}
        assert given == {"'none'", "'self'"}, "a source other than this server"


def test_the_document_has_no_code_of_its_own() -> None:
    """The policy would block it, and the page would be silently broken."""
    tags = Tags()
    tags.feed((FOLDER / "index.html").read_text(encoding="utf-8"))
    assert tags.inline == ""
    assert not [name for _, attributes in tags.tags for name in attributes if name.startswith("on") or name == "style"]
    named = [attributes.get(key) for _, attributes in tags.tags for key in ("src", "href") if attributes.get(key)]
    files = {name.removeprefix("page/") for name in map(str, named) if not name.startswith("#")}
    assert files == {"main.js", "style.css", "mark.svg"}


def test_every_file_is_used_and_every_used_file_is_there() -> None:
    found, waiting = {"index.html", "style.css", "mark.svg", "sample.jsonl"}, ["main.js"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        source = (FOLDER / name).read_text(encoding="utf-8")
        assert source.count("import ") == len(IMPORT.findall(source)), f"{name}: an import this test cannot read"
        waiting += [resolve(name, target) for target in IMPORT.findall(source)]
    assert found == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_nothing_reaches_outside_or_turns_text_into_markup(name: str) -> None:
    source = (FOLDER / name).read_text(encoding="utf-8")
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", source)) - {"http://www.w3.org/2000/svg"}
    assert not addresses
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "@import"):
        assert word not in source
    assert len(source.splitlines()) < WALL


def test_the_page_is_in_the_wheel() -> None:
    """The builder takes all of src/redraft but what version control ignores."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/redraft"]
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout, so nothing is ignored")
    paths = [str((FOLDER / name).relative_to(ROOT)) for name in FILES]
    ignored = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.stdout == ""


def test_models_tell_the_dial_that_was_measured(server: Process, tmp_path: Path) -> None:
    """The page draws it, and any client may. A checkpoint without one has none."""
    measured = json.loads(
        (ROOT / "src" / "redraft" / "assets" / "nano-sudoku" / "dial.json").read_text(encoding="utf-8")
    )
    reported = json.loads(fetch(server, "/v1/models")[2])["data"][0]["dial"]
    for name in ("quality", "low", "high", "forwards"):
        assert [notch[name] for notch in reported["notches"]] == [notch[name] for notch in measured["notches"]]
    efforts = [notch["effort"] for notch in reported["notches"]]
    assert efforts[0] == 0
    assert efforts[-1] == 1
    assert efforts == sorted(efforts)
    assert reported["tasks"] == measured["tasks"]
    assert models._dial(None) is None
    assert models._dial(tmp_path) is None


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(("text", "wanted"), [("*a* ", "em"), ("**a** ", "strong"), ("`a` ", "code"), ("***", "")])
def test_an_answer_of_very_many_marks_is_shown(text: str, wanted: str) -> None:
    """Each mark was read within the one before it, which ended at some thousands."""
    script = """
      const made = (tag) => ({ tag, parts: [], setAttribute() {}, append(...parts) { this.parts.push(...parts); } });
      globalThis.document = { createElement: made };
      const { markdown } = await import(process.argv[1]);
      const [{ parts }] = markdown(process.argv[2].repeat(20000));
      console.log(parts.filter((part) => part.tag === process.argv[3]).length);
    """
    run = ["node", "--input-type=module", "-e", script, (FOLDER / "markdown.js").as_uri(), text, wanted]
    found = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (found.stderr, int(found.stdout)) == ("", 20_000 if wanted else 0)
