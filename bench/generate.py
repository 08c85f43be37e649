"""Writes the generated pages: README's tables, the model card's `scores`, the map of modules, whole pages of docs/.

    python bench/generate.py            write them
    python bench/generate.py --check    write nothing; exit 1 and name the pages that are out of date

A region of a page stands between `<!-- generated: NAME -->` and `<!-- end -->`. Nothing here depends on the clock, the
terminal or the machine, so a page changes only when its source does: bench/records/*.json, the modules' docstrings, the
command line's parsers.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from pages import claims, constraints, devices, fields, fleet, python, readme, sampling
from redraft.cli.flags import TOPICS
from redraft.cli.help import topic
from redraft.cli.main import build_parser
from redraft.errors import RedraftError
from redraft.measure.record import read_record
from redraft.options import GROUPS, Option, option_table

ROOT = Path(__file__).resolve().parent.parent
CARD_RECORDS = {"nano": ("plain-nano",), "nano-sudoku": ("train-nano-sudoku", "eval-nano-sudoku")}
OPTIONS_PAGE = """# Options of an answer

<!-- Written by bench/generate.py from src/redraft/options.py; change that, then run `make docs`. -->

Each option has one meaning in Python (`redraft.Options`), the shell (`redraft help sampling`) and HTTP
([server.md](server.md)); a field with a dot is inside an object. Without a default the checkpoint decides.
"""
MAP_PAGE = """# Map

<!-- Written by bench/generate.py from the first line of each module's docstring; change that, then run `make docs`. -->

Every module of the package, and what it is for. [architecture.md](architecture.md) follows a request through them.
Beside the package, `bench/` has the experiments of this repository, `bench/records/` what they measured, and
`bench/pages/` the makers of generated pages. None of these is in the wheel, and the package imports none of them.

"""
NUMBERS_PAGE = """# Numbers

<!-- Written by bench/generate.py from bench/records/*.json; take a record, then run `make docs`. -->

Every figure of every record. A record names the workload, the machine and the commit, and holds the runs behind each
median. `python bench/take.py --list` names the command that takes it again. All records were taken on two cores without
a GPU, but for `steps-26b` and `tiles`.

"""
REGION = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


SHARED = {"sampling": "sampling", "model": "model", "another server": "backend"}
"""Groups of a verb's help, and the topic that has all flags of each."""

REGIONS: Mapping[str, Mapping[str, Callable[[Path], str]]] = {
    "README.md": {"headline": readme.headline, "nano": readme.nano, "speed": readme.speed, "accuracy": readme.accuracy},
    "src/redraft/assets/nano/README.md": {"scores": lambda root: scores(root / "bench" / "records", "nano")},
    "src/redraft/assets/nano-sudoku/README.md": {
        "scores": lambda root: scores(root / "bench" / "records", "nano-sudoku")
    },
    "docs/denoising.md": {"halts": sampling.halts, "presets": sampling.presets, "dial": sampling.dial},
    "docs/tuning.md": {"sudoku": sampling.sudoku},
    "docs/constraints.md": {
        "keywords": lambda _: constraints.keywords(),
        "maskbench": constraints.maskbench,
        "maskbench-quiet": constraints.quiet,
        "noise-real": constraints.noise_real,
        "ways": constraints.ways,
    },
    "docs/deciding.md": {"belief": claims.belief},
    "docs/infilling.md": {"infills": lambda root: claims.all_of(root, "eval-nano-sudoku-infill")},
    "docs/images.md": {"nano-vision": lambda root: claims.all_of(root, "nano-vision")},
    "docs/python.md": {
        "calls": lambda _: python.calls(),
        "handles": lambda _: python.handles(),
        "requests": lambda _: python.requests(),
        "results": lambda _: python.results(),
        "errors": lambda _: python.errors(),
    },
    "docs/server.md": {"fields": lambda _: fields.tables(), "bounds": lambda _: fields.bounds()},
    "docs/scale.md": {
        "ray": lambda root: claims.all_of(root, "ray-path"),
        "bulk": lambda root: claims.all_of(root, "ray-bulk"),
        "plan": fleet.plan,
        "crossover": fleet.crossover,
        "simulated": fleet.simulated,
    },
}
"""What each page has of generated regions."""


def pages(root: Path) -> dict[Path, str]:
    """Every generated page of the repository at `root`, with the text that it should have."""
    filled = {}
    for page, made in REGIONS.items():
        regions = {name: partial(make, root) for name, make in made.items()}
        filled[root / page] = fill((root / page).read_text(encoding="utf-8"), regions)
    return {
        **filled,
        root / "docs" / "cli.md": command_line(build_parser()) + shared_flags(),
        root / "docs" / "options.md": options_page(),
        root / "docs" / "devices.md": devices.page(root),
        root / "docs" / "map.md": MAP_PAGE + tree(root / "src" / "redraft") + "\n",
        root / "docs" / "numbers.md": NUMBERS_PAGE + numbers(root / "bench" / "records", above="../") + "\n",
    }


def fill(page: str, regions: Mapping[str, Callable[[], str]]) -> str:
    """`page` with each region's body replaced. Raises ValueError for a region that is missing, doubled or unknown."""
    names = re.findall(r"<!-- generated: (.*?) -->", page)
    found = [match["name"] for match in REGION.finditer(page)]
    if sorted(names) != sorted(regions) or found != names:
        raise ValueError(f"generated regions are {names}, closed are {found}; each must be there once: {[*regions]}")
    return REGION.sub(lambda match: f"{match[1]}\n{regions[match['name']]()}\n\n{match[3]}", page)


def numbers(folder: Path, above: str = "") -> str:
    """One table row for each quotable figure of each record, records in order of name."""
    records = sorted(((read_record(path), path) for path in folder.glob("*.json")), key=lambda pair: pair[0].name)
    rows = [
        (claim.figure, claim.value, record.taken, f"[{record.name}]({above}bench/records/{path.name})")
        for record, path in records
        for claim in record.summary
    ]
    return claims.table(("figure", "value", "taken", "record"), rows) if rows else "No record has been taken yet."


def scores(folder: Path, model: str) -> str:
    """What a model card quotes: every claim of the records of the model's training and accuracy."""
    records = [read_record(folder / f"{name}.json") for name in CARD_RECORDS[model]]
    rows = [(claim.figure, claim.value, record.taken) for record in records for claim in record.summary]
    return claims.table(("figure", "value", "taken"), rows)


def tree(package: Path) -> str:
    """The package's modules, each with the first line of its docstring."""
    lines = [(f"{package.parent.name}/{package.name}/", _summary(package / "__init__.py")), *_branch(package, 1)]
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(["```text", *(f"{name:<{width}}{summary}".rstrip() for name, summary in lines), "```"])


def _branch(folder: Path, depth: int) -> Iterator[tuple[str, str]]:
    # Modules before packages, as the page is read from the outside in; __init__ speaks for its folder.
    entries = sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name))
    for path in entries:
        if path.suffix == ".py" and path.name != "__init__.py":
            yield "  " * depth + path.name, _summary(path)
        elif path.is_dir() and any(path.rglob("*.py")):
            yield "  " * depth + path.name + "/", _summary(path / "__init__.py")
            yield from _branch(path, depth + 1)


def _summary(module: Path) -> str:
    """First line of the docstring, or what of it is one sentence."""
    source = module.read_text(encoding="utf-8") if module.exists() else ""
    first = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return re.split(r"(?<=\.) ", first)[0]


def options_page() -> str:
    """Every option of an answer, with its name in Python, the shell and HTTP."""
    parts = [OPTIONS_PAGE]
    for group, title in GROUPS.items():
        rows = [
            (f"`{one.name}`", *(f"`{name}`" if name else "" for name in (one.flag, one.http)), _default(one), one.help)
            for one in option_table()
            if one.group == group
        ]
        parts += [f"## {title}\n", claims.table(("Python", "shell", "HTTP", "default", "what it does"), rows), ""]
    return "\n".join(parts).rstrip() + "\n"


def _default(one: Option) -> str:
    return "" if one.default is None or one.default == () else f"`{one.default}`"


def command_line(parser: argparse.ArgumentParser) -> str:
    """A page of every command, its arguments and their help, read off the parser and its subparsers."""
    intro = "<!-- Written by bench/generate.py from the parsers; change those, then run `make docs`. -->"
    return "\n".join(["# Command line", "", intro, "", *_command(parser, parser.prog, 2)]).rstrip() + "\n"


def shared_flags() -> str:
    """The end of that page: the flags that several verbs share."""
    return "\n" + "\n".join(line for name in TOPICS for line in _topic(name)).rstrip() + "\n"


def _topic(name: str) -> Iterator[str]:
    """The flags that several verbs share, once, with their whole help."""
    parser = topic(name)
    yield from (f"## Shared flags: {name}", "", str(parser.description), "")
    for group in parser._action_groups:
        if group._group_actions:
            titled = name == "sampling"
            yield from ([f"{str(group.title).capitalize()}:", ""] if titled else [])
            yield from (*(_option(action, parser.prog) for action in group._group_actions), "")


def _command(parser: argparse.ArgumentParser, name: str, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} `{name}`", "")
    if parser.description:
        yield from (parser.description.strip(), "")
    # argparse offers no public way to walk a parser; _actions and _SubParsersAction have been stable since Python 3.2.
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    plain = [action for action in parser._actions if action not in below and action.help != argparse.SUPPRESS]
    options = [_option(action, name) for action in plain if not isinstance(action, argparse._HelpAction)]
    yield from [*options, *([""] if options else [])]
    hidden = {
        str(group.title).partition(" (")[0] for group in parser._action_groups if "redraft help" in str(group.title)
    }
    shared = [f"[{title}](#shared-flags-{SHARED[title]})" for title in SHARED if title in hidden]
    if shared:
        yield from (f"More flags: {', '.join(shared)}.", "")
    if parser.epilog:
        yield from ("```text", parser.epilog.strip(), "```", "")
    for group in below:
        seen: list[argparse.ArgumentParser] = []
        for word, child in group.choices.items():
            if child not in seen:  # an alias is the same parser under another word
                seen.append(child)
                yield from _command(child, f"{name} {word}", level + 1)


def _option(action: argparse.Action, prog: str) -> str:
    """One line of the list: flags or name, what it takes, its help with the defaults filled in."""
    takes = _placeholder(action)
    spelt = ", ".join(f"{flag} {takes}".strip() for flag in action.option_strings) or takes
    told = {**vars(action), "prog": prog, "choices": ", ".join(map(str, action.choices or ()))}
    text = " ".join((action.help or "").split()) % told
    required = " (required)" if action.required and action.option_strings else ""
    return f"- `{spelt}`{required}" + (f": {text}" if text else "")


def _placeholder(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    name = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else None)
    name = name or (action.dest.upper() if action.option_strings else action.dest)
    word = " ".join(name) if isinstance(name, tuple) else name
    form = {"?": "[{}]", "*": "[{} ...]", "+": "{} [{} ...]"}.get(str(action.nargs), "{}")
    return form.replace("{}", word)


def main() -> int:
    """Write or check the pages; the exit code is 1 if a page is out of date or cannot be made."""
    parser = argparse.ArgumentParser(description="Write the generated pages.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    try:
        wanted = pages(ROOT)
    except (ValueError, RedraftError) as error:
        print(f"generate: {error}", file=sys.stderr)
        return 1
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is out of date; run: make docs' if check else 'written'}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
