"""The page held to WCAG 2.2 AA by axe-core, in every view, at two widths, light and dark.

    npm pack axe-core && tar xzf axe-core-*.tgz
    python bench/page_axe.py package/axe.min.js --record bench/records/page-axe.json --pictures FOLDER

Two servers are started, one for each model in the package, and Debian's chromium goes through the views of both. Each
is checked with an answer in it. Console errors, requests to anything but the server and a page wider than its window
count as findings too. With --pictures a screenshot of every state is kept, to be looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from command import finish, served
from redraft.measure.record import check_place, new_record

ROOT = Path(__file__).resolve().parent.parent
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
WIDTHS, COLOURS = (1280, 390), ("light", "dark")
TALL = 2400
"""Height of the window that axe sees: nothing is scrolled behind the composer at its lower edge."""
SETTLED = ".stage[data-state=settled]"
MARKDOWN = "# A list\n\nOne **bold** word, `code`:\n\n- first\n- second\n\n```python\nprint(1)\n```"


def write(page: Any) -> None:
    """The example that plays by itself, then settings and a marked cell."""
    page.wait_for_selector(SETTLED)
    page.locator("summary").first.click()
    page.locator(".cell").nth(2).click()


def markdown(page: Any) -> None:
    """A conversation out of the history, with Markdown in it."""
    kept = [{"id": "a", "when": 0, "mode": "chat", "turns": [{"asked": "a list", "text": MARKDOWN}]}]
    page.evaluate("kept => localStorage.setItem('redraft.history', kept)", json.dumps(kept))
    page.reload()
    page.get_by_role("button", name="Earlier").click()
    page.locator(".kept li button").first.click()
    page.wait_for_selector(".answer pre.code")


def beside(page: Any) -> None:
    """A canvas beside the causal mode."""
    page.get_by_role("button", name="Canvas beside causal").click()
    page.locator(SETTLED).nth(1).wait_for()


def infill(page: Any) -> None:
    """A hole filled."""
    page.get_by_role("button", name="Fill", exact=True).click()
    page.wait_for_selector(".runners")


def edit(page: Any) -> None:
    """A span revised."""
    page.get_by_role("button", name="Revise").click()
    page.wait_for_selector(".result .diff")


def schema(page: Any) -> None:
    """Fields with bars, and the settings."""
    page.get_by_role("button", name="Answer").click()
    page.wait_for_selector(".fields tbody tr")
    page.locator("summary").first.click()


def sudoku(page: Any) -> None:
    """A board solved."""
    page.get_by_role("button", name="Solve").click()
    page.wait_for_selector(SETTLED)


def trace(page: Any) -> None:
    """The sample, at its last step."""
    page.get_by_role("button", name="Show a sample").click()
    page.wait_for_selector(SETTLED)
    page.get_by_role("slider", name="Step").press("End")


def nothing(_page: Any) -> None:
    """Only as it opens."""


VIEWS: dict[str, tuple[str, str, Callable[[Any], None]]] = {
    "write": ("nano", "", write),
    "write, Markdown": ("nano", "#write", markdown),
    "write, beside causal": ("nano", "#write", beside),
    "infill": ("nano", "#infill", infill),
    "edit": ("nano", "#edit", edit),
    "schema": ("nano", "#schema", schema),
    "sudoku": ("nano-sudoku", "#sudoku", sudoku),
    "sudoku, no such model": ("nano", "#sudoku", nothing),
    "trace": ("nano", "#trace", trace),
}
"""A view: its model, its address, and what is done in it before it is checked again."""


@dataclass
class Findings:
    """Of one view."""

    violations: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def of(self, page: Any, state: str) -> None:
        """Check the page as it is now."""
        found = page.evaluate("rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", RULES)
        self.violations += [
            f"{state}: {one['id']}, {node['target'][0]}" for one in found["violations"] for node in one["nodes"]
        ]
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            self.violations.append(f"{state}: wider than its window")

    @property
    def count(self) -> int:
        """How many."""
        return len(self.violations) + len(self.console) + len(self.outside)


def checked(context: Any, url: str, view: str, axe: str, pictures: Path | None) -> Findings:
    """One view with an answer in it, at all widths in both colours."""
    found, page = Findings(), context.new_page()
    page.set_default_timeout(120_000)
    page.on("console", lambda said: found.console.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.console.append(str(error)))
    page.on("request", lambda one: None if one.url.startswith((url, "blob:")) else found.outside.append(one.url))
    _, address, drive = VIEWS[view]
    page.goto(f"{url}/{address}")
    page.wait_for_selector("nav a[aria-current]")
    drive(page)
    page.evaluate(axe)
    for width in WIDTHS:
        for colour in COLOURS:
            page.emulate_media(color_scheme=colour, reduced_motion="reduce")
            state = f"{width} px, {colour}"
            page.set_viewport_size({"width": width, "height": TALL})
            found.of(page, state)
            page.set_viewport_size({"width": width, "height": 800})
            if pictures is not None:
                name = f"{view} {state}".replace(",", "").replace(" ", "-")
                page.screenshot(path=pictures / f"{name}.png", full_page=True)
    return found


def measured(axe: str, pictures: Path | None) -> dict[str, Any]:
    """All views: the findings of each."""
    figures: dict[str, Any] = {}
    with (
        sync_playwright() as driver,
        served("--model", "nano") as (nano, _),
        served("--model", "nano-sudoku") as (sudokus, _),
    ):
        urls = {"nano": nano, "nano-sudoku": sudokus}
        browser = driver.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=FLAGS)
        for view, (model, _, _) in VIEWS.items():
            context = browser.new_context(reduced_motion="reduce")
            found = checked(context, urls[model], view, axe, pictures)
            context.close()
            figures[view] = asdict(found)
            print(view, found.count, *found.violations, *found.console, *found.outside, sep="\n  ", file=sys.stderr)
        browser.close()
    return figures


def main() -> None:
    """One record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axe", type=Path, help="axe.min.js of the npm package axe-core")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the record to this file")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="also keep screenshots here")
    asked = parser.parse_args()
    if asked.record is not None:
        check_place(asked.record)
    axe = asked.axe.read_text(encoding="utf-8")
    version = re.search(r"axe v([\d.]+)", axe)
    figures = measured(axe, asked.pictures)
    counts = {kind: sum(len(view[kind]) for view in figures.values()) for kind in ("violations", "console", "outside")}
    workload = {
        "axe": version[1] if version else "unknown",
        "rules": RULES,
        "widths": WIDTHS,
        "height": TALL,
        "colours": COLOURS,
    }
    summary = [
        ("views, each at two widths in two colours", str(len(figures))),
        ("violations of WCAG 2.2 AA", str(counts["violations"])),
        ("console errors, requests to others", f"{counts['console']}, {counts['outside']}"),
    ]
    finish(new_record("page-axe", workload=workload, figures=figures, summary=summary), asked.record)


if __name__ == "__main__":
    main()
