"""What README.md, the tutorials and HOW_TO show is what happens: blocks run in order, and print what stands there.

A command that nothing runs is in UNRUN, and its page says why.
"""

import ast
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.pictures import drawn, write_whole

import transcripts
from redraft.cli.main import build_parser

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIALS = [page for page in transcripts.PAGES if page != README]
ASIDE = ("constraints", "deciding", "editing", "infilling", "traces")  # whose Python test_examples.py runs in every run
HOW_TO = [ROOT / f"docs/{name}.md" for name in (*ASIDE, "26b", "clients", "devices", "images", "scale", "server")]
NEEDS_RAY = [ROOT / "docs/scale.md", ROOT / "docs/tutorials/scale-out.md"]
UNRUN = {
    "it changes an environment; tests/repo/test_packaging.py installs the package into one of its own": "README README",
    "these make the environment that the tests run in, and run the tests": "README",
    "it needs the 26B model": "26b 26b 26b 26b 26b",
    "it writes and reads a model of 30 layers": "26b",
    "it needs packages of npm; tests/repo/test_examples.py runs it where there are some": "clients clients",
    "it needs lm-eval; bench/clients.py runs it on tasks of its own": "clients",
    "it needs a server elsewhere and its key": "clients",
    "it needs a GPU": "devices devices",
    "it needs four GPUs": "scale tuning",
    "it needs several machines": "scale",
    "it needs a cluster with Ray's dashboard, and GPUs": "scale",
    "it needs a bucket and several machines": "scale",
    "a message, not a command": "images",
    "a picture": "infilling scale",
}  # why nothing runs a block, and the pages with such a block
LINES = re.compile(r"(?m)^    redraft (.+?)(?:   .*)?$")  # indented, perhaps with what it does beside it
BARE = re.compile(r"(?m)^(?:    |\$ )((?:redraft|python3?|pip|curl|make|torchrun|bash|echo|git|docker)\b(?: [\w-]+)?)")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[re.Match[str]]:
    return list(transcripts.BLOCK.finditer(read(page)))


def test_what_the_readme_shows_is_what_is_printed() -> None:
    """Drafts and answers are compared; of figures, those that other processors round alike."""
    shown = read(README)
    assert shown.count("$ redraft ") >= 5
    assert "engine.extract" in shown
    assert transcripts.rounded(shown) == transcripts.rounded(transcripts.taken(shown))


def prepare(folder: Path) -> None:
    """What a reader has: recipes (with less training), a checkpoint that reads pictures, pictures, keys and files."""
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    for name, many, few in (
        ("start.py", r"STEPS, PAGES, RATE = 1500,", "STEPS, PAGES, RATE = 2,"),
        ("nano-vision.toml", r"(?m)^(steps|decay_steps) = \d+$", r"\1 = 2"),
        ("nano-vision.toml", r"(?m)^(compile) = true$", r"\1 = false"),
    ):
        text, count = re.subn(many, few, read(path := folder / "recipes/vision" / name))
        assert count, "the recipe has other lines"
        path.write_text(text, encoding="utf-8")
    write_whole(folder / "checkpoint")
    for name in ("board", "chart", "receipt"):
        drawn(48, 48).save(folder / f"{name}.png")
    (folder / "questions").mkdir()
    lines = "".join(f"line {number} of 12\n" for number in range(1, 13))
    question = '{"prompt": "Well?", "max_tokens": 4}\n'
    files = {"keys.txt": "a-key-of-some-length\n", "notes.md": lines, "notes.py": lines, "questions/a.jsonl": question}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", [*TUTORIALS, *HOW_TO], ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_is_printed(page: Path) -> None:
    """What needs Ray is in tests/distributed; what a training makes is not compared to the letter."""
    slow = page not in NEEDS_RAY and page.stem != "fine-tune"
    taken = transcripts.taken(read(page), slow=slow, prepare=prepare if page in HOW_TO else str)
    assert transcripts.rounded(read(page)) == transcripts.rounded(taken)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_training_of_the_tutorial_teaches_the_task() -> None:
    """Training differs in its last bits between processors, so the score is compared and not the page."""
    page = transcripts.taken(read(ROOT / "docs/tutorials/fine-tune.md"), slow=True)
    before, after = (float(share) for share in re.findall(r"unseen\S*\s+│ 50\s+│ ([\d.]+)%", page))
    assert before < 50 < 90 < after


@pytest.mark.parametrize("page", [*transcripts.PAGES, *HOW_TO], ids=lambda page: page.stem)
def test_every_command_of_a_page_is_one_there_is(page: Path) -> None:
    """Also those that need Ray, a GPU or minutes."""
    lines = LINES.findall(read(page))
    for found in blocks(page):
        piped = [part for line in transcripts.commands(found) for part in re.split(r" \| | > ", line)]
        lines += [part.removeprefix("redraft ") for part in piped if part.startswith("redraft ")]
        for script, options in re.findall(r"(?m)^python (\S+\.py)((?:.*\\\n)*.*)$", found["body"]):
            options = re.findall(r"--\w[\w-]*", options)
            assert not [option for option in options if f'"{option}"' not in read(ROOT / script)]
    assert lines
    for line in lines:
        if line != "--help":
            plain = line.replace("$'", "'").replace("\\\n", " ")
            build_parser().parse_args(shlex.split(plain, comments=True))


@pytest.mark.parametrize("page", [*TUTORIALS, *HOW_TO], ids=lambda page: page.stem)
def test_every_block_of_a_page_is_run_or_says_why_not(page: Path) -> None:
    """A block of a kind that nothing runs would pass every test."""
    assert len(re.findall(r"(?m)^```", read(page))) == 2 * len(blocks(page)) >= 4
    assert page in HOW_TO or 60 <= len(read(page).splitlines()) <= 140
    for found in blocks(page):
        if found["mark"] in (*transcripts.SLOW, "not run"):
            assert found["what"], found[0]
        elif found["kind"] == "python":
            ast.parse(found["body"])
        elif found["kind"] == "json":
            json.loads(found["body"])
        else:
            is_run = found["kind"] == "sh" or found["body"].startswith("$ ")
            assert is_run or found["mark"] == "file", found[0]


def test_no_command_is_run_by_nothing_but_those_that_say_why() -> None:
    """Commands that stand in no block are those of README.md that test_packaging.py runs."""
    found, bare = dict[str, list[str]](), list[str]()
    for page in (README, *sorted((ROOT / "docs").rglob("*.md"))):
        bare += BARE.findall(transcripts.BLOCK.sub("", read(page)))
        for one in blocks(page):
            if one["mark"] == "not run":
                found.setdefault(one["what"], []).append(page.stem)
            elif page not in (*transcripts.PAGES, *HOW_TO):
                is_run = one["kind"] == "sh" or one["body"].startswith("$ ")
                assert not is_run, f"{page}: nothing runs {one[0]}"
    assert {reason: " ".join(pages) for reason, pages in found.items()} == UNRUN
    assert bare == ["redraft demo", "redraft serve", "redraft --help", "redraft inspect"]


def test_a_session_runs_blocks_in_order_and_replaces_what_they_print() -> None:
    """The blocks share a folder and a namespace; a block that is not run keeps what it shows."""
    page = (
        "<!-- file: a.txt -->\n```text\nold\n```\n```python\nimport pathlib\n\n"
        'x = pathlib.Path("a.txt").read_text()\n```\n'
        "```python\nprint(len(x))  # 9\n```\n```text\n$ cat a.txt\nnew\n```\n"
        "<!-- not run: why -->\n```text\n$ false\nkept\n```\n"
    )
    wanted = page.replace("# 9", "# 4").replace("new\n", "old\n")
    assert transcripts.taken(page) == wanted
    with pytest.raises(RuntimeError, match="exit code 1"):
        transcripts.taken("```text\n$ false\n```\n")


def test_every_linked_page_exists() -> None:
    for page in transcripts.PAGES:
        links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", read(page))
        assert links
        assert not [link for link in links if not (page.parent / link).exists()]


def test_every_message_of_troubleshooting_is_one_that_the_program_writes() -> None:
    """A quoted message that was reworded is no longer found by who searches for it."""
    texts = {text for path in (ROOT / "src").rglob("*.py") for text in written(ast.parse(read(path)))}
    rows = re.findall(r"(?m)^\| (`[^`]+`|[^|`]+) \|", read(ROOT / "docs/troubleshooting.md"))
    quoted = [row.strip("`") for row in rows if row.startswith("`")]
    assert len(quoted) >= 12
    for message in quoted:
        pattern = re.compile(".*".join(re.escape(part) for part in message.strip("…").split("…")))
        assert any(pattern.search(text) for text in texts), message


def written(tree: ast.AST) -> list[str]:
    """The texts of a module, with … for what is filled in."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    filled = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in one.values) for one in found
    ]
    return filled + [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
