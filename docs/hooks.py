"""What the site does beyond mkdocs: README.md is its front page, and it holds what pages link to outside docs/.

Pages are written to be read in the repository, where `../bench/records/x.json` and `docs/cli.md` are right. In the site
the folder docs/ is the root, so those links lose their first part, and the files they name are copied in.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "", "CONTRIBUTING.md": "", "SECURITY.md": ""}
DECISIONS = "decisions/index.md"
LINK = re.compile(r"\]\((?P<up>(?:\.\./)*)(?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository's root, and every file outside docs/ that a page links to."""
    for name, target in PAGES.items():
        files.append(File.generated(config, target or name, content=(REPOSITORY / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, DECISIONS, content=_decisions()))
    pages = [*sorted((REPOSITORY / "docs").rglob("*.md")), *(REPOSITORY / name for name in PAGES)]
    for page in pages:
        for link in LINK.finditer(page.read_text(encoding="utf-8")):
            linked = (page.parent / link["up"] / link["path"]).resolve()
            inside = linked.is_relative_to(REPOSITORY) and not linked.is_relative_to(REPOSITORY / "docs")
            name = linked.relative_to(REPOSITORY).as_posix() if inside else ""
            if linked.is_file() and name and name not in PAGES and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, content=linked.read_bytes()))
    return files


def _decisions() -> str:
    """A page that lists the decision records by their titles."""
    lines = ["# Decisions", ""]
    for record in sorted((REPOSITORY / "docs/decisions").glob("[0-9]*.md")):
        title = record.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
        lines.append(f"* [{title}]({record.name})")
    return "\n".join([*lines, ""])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the site, whose root is docs/."""
    source = page.file.src_uri
    original = next((name for name, target in PAGES.items() if (target or name) == source), f"docs/{source}")
    folder = (REPOSITORY / original).parent

    def moved(link: re.Match[str]) -> str:
        linked = (folder / link["up"] / link["path"]).resolve()
        if not linked.is_relative_to(REPOSITORY) or not linked.exists():
            return link[0]
        name = linked.relative_to(REPOSITORY).as_posix()
        name = PAGES.get(name, "") or name.removeprefix("docs/")
        if linked.is_dir() and linked != REPOSITORY / "docs/decisions":
            return "]"  # a folder has no page
        if linked.is_dir():
            name = DECISIONS
        return f"]({'../' * source.count('/')}{name}{link['anchor'] or ''})"

    return LINK.sub(moved, markdown)
