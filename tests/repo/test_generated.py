"""Generated pages equal what bench/generate.py writes, and it writes what its sources say."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

import generate
from redraft.errors import RecordError


def test_every_generated_page_is_current() -> None:
    """A figure in the README that no record holds, or help text that no parser prints, would be a false claim."""
    stale = [
        path.name
        for path, text in generate.pages(generate.ROOT).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert not stale, f"{stale}: run `make docs` and read the difference"


def write_record(folder: Path, file: str, name: str, *figures: tuple[str, str]) -> None:
    record = {"name": name, "taken": "2026-01-02", "commit": "abc", "machine": {}, "workload": {}, "figures": {}}
    record["summary"] = [{"figure": figure, "value": value} for figure, value in figures]
    (folder / file).write_text(json.dumps(record))


def test_numbers_have_a_row_for_each_figure_in_order_of_record(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    assert generate.numbers(folder) == "No record has been taken yet."
    write_record(folder, "1.json", "zebra", ("p|q", "3 ms"))
    write_record(folder, "2.json", "ant", ("speed", "7 tokens/s"), ("quality", "91%"))
    assert generate.numbers(folder).splitlines()[2:] == [
        "| speed | 7 tokens/s | 2026-01-02 | [ant](bench/records/2.json) |",
        "| quality | 91% | 2026-01-02 | [ant](bench/records/2.json) |",
        "| p\\|q | 3 ms | 2026-01-02 | [zebra](bench/records/1.json) |",
    ]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"name": "x"}')
    with pytest.raises(RecordError, match=r"x\.json"):
        generate.numbers(tmp_path)


def test_tree_shows_the_first_sentence_of_each_module(tmp_path: Path) -> None:
    package = tmp_path / "src" / "thing"
    (package / "deep").mkdir(parents=True)
    (package / "assets").mkdir()
    (package / "__init__.py").write_text('"""All of it."""')
    (package / "one.py").write_text('"""The first. And more.\n\nNot shown.\n"""')
    (package / "deep" / "two.py").write_text("")
    assert generate.tree(package).splitlines() == [
        "```text",
        "src/thing/  All of it.",
        "  one.py    The first.",
        "  deep/",
        "    two.py",
        "```",
    ]


def test_only_the_body_of_a_region_is_replaced() -> None:
    page = "a\n<!-- generated: tree -->\nold\n<!-- end -->\nb\n"
    filled = generate.fill(page, {"tree": lambda: "new"})
    assert filled == "a\n<!-- generated: tree -->\n\nnew\n\n<!-- end -->\nb\n"
    assert generate.fill(filled, {"tree": lambda: "new"}) == filled


@pytest.mark.parametrize(
    "page",
    [
        "no region",
        "<!-- generated: other -->\n<!-- end -->\n",
        "<!-- generated: tree -->\nnever closed\n",
        "<!-- generated: tree -->\n<!-- end -->\n" * 2,
    ],
)
def test_a_region_that_is_missing_unknown_or_open_is_refused(page: str) -> None:
    """A renamed marker would leave the old text standing, and nobody would know."""
    with pytest.raises(ValueError, match="generated regions"):
        generate.fill(page, {"tree": lambda: "new"})


def test_command_line_lists_every_command_and_option() -> None:
    parser = argparse.ArgumentParser(prog="redraft", description="All of it.")
    commands = parser.add_subparsers()
    run = commands.add_parser("run", aliases=["r"], description="Runs.", epilog="examples:\n  redraft run x")
    run.add_argument("prompt", nargs="*", help="text; more than 5%% of it")
    run.add_argument("-n", "--count", type=int, default=3, help="how many (default: %(default)s)")
    run.add_argument("--mode", choices=["a", "b"], required=True)
    run.add_argument("--fast", action="store_true", help="sooner")
    run.add_argument("--secret", help=argparse.SUPPRESS)
    page = generate.command_line(parser)
    assert page.split("## `redraft`")[1].splitlines() == [
        "",
        "",
        "All of it.",
        "",
        "### `redraft run`",
        "",
        "Runs.",
        "",
        "- `[prompt ...]`: text; more than 5% of it",
        "- `-n COUNT, --count COUNT`: how many (default: 3)",
        "- `--mode {a,b}` (required)",
        "- `--fast`: sooner",
        "",
        "```text",
        "examples:",
        "  redraft run x",
        "```",
    ]
