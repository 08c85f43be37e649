"""The page in a real browser, against a real server process.

Where there is no browser these are skipped; with REDRAFT_BROWSER=required, as in CI, they fail.

Every test also holds the page to two rules: no error in the console, no request to anything but the server.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import ANSWER, RECORD, ROOT, USER, Process, ended, inside, start

from redraft.__main__ import main
from redraft.operations.engine import Engine
from redraft.server.http.keys import digest_of
from redraft.server.http.settings import Settings
from redraft.tasks.grids import solve
from redraft.trace.file import read_trace
from redraft.trace.recording import first_apart

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WANTED = os.environ.get("REDRAFT_BROWSER") == "required"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None and not WANTED, reason="no browser: install Debian's chromium"),
]

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
VIEWS = ("write", "infill", "edit", "schema", "sudoku", "trace")
SETTLED = ".stage[data-state=settled]"
PACE_MS = 340  # of timeline.js, from one step to the next
# It lasts until somebody ends it, on the quickest machine too.
ENDLESS = {"max_tokens": 768, "min_tokens": 768, "entropy_bound": 1e-9, "max_steps": 9000}


def readme() -> tuple[str, int, int, list[str]]:
    """The Sudoku that the readme shows: prompt, seed, canvas width, and the answer as it reads after each step."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"--seed (\d+) --canvas (\d+) \$'(sudoku[^']+)'\n((?:block.*\n)+)", text)
    assert command is not None
    steps = re.findall(r"^block 0  step +\d+  [\d.]+ nats  ([^·\n]*)", command[4], re.M)
    whole = [step.replace("⏎", "\n") for step in steps]
    return command[3].replace("\\n", "\n"), int(command[1]), int(command[2]), whole


@dataclass
class Tab:
    """One page, and what it did that it should not have. `expected` are refusals that a test asks for."""

    page: Any
    url: str
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    expected: int = 0

    def __post_init__(self) -> None:
        self.page.set_default_timeout(120_000)
        self.page.on(
            "console",
            lambda reported: self.errors.append(reported.text) if reported.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self.see)

    def see(self, request: Any) -> None:
        if not request.url.startswith(self.url + "/"):
            self.outside.append(request.url)
        if request.post_data:
            self.bodies.append(json.loads(request.post_data))

    def open(self, view: str = "write") -> Any:
        if view == "sudoku":  # a server of nano has no board
            self.page.route("**/v1/models", lambda route: renamed(route, "nano-sudoku"))
        self.page.goto(f"{self.url}/#{view}")
        self.page.wait_for_selector("nav a[aria-current]")
        return self.page

    def change(self, path: str, more: dict[str, Any]) -> None:
        """What the page sends to a path goes on with more fields."""

        def on(route: Any) -> None:
            route.continue_(post_data=json.dumps(json.loads(route.request.post_data) | more))

        self.page.route(f"**/{path}", on)

    def pretend(self, path: str, chunks: list[dict[str, Any]]) -> None:
        """A server that streams these."""
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.page.route(f"**/{path}", lambda route: route.fulfill(content_type="text/event-stream", body=body))

    def check(self) -> None:
        refusals = [text for text in self.errors if text.startswith("Failed to load resource")]
        assert len(refusals) == self.expected, self.errors
        assert len(self.errors) == self.expected, self.errors
        assert not self.outside


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    assert BROWSER is not None, "no browser: install Debian's chromium"
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def tab(browser: Any, server: Process) -> Iterator[Tab]:
    """Without motion, so that a canvas is shown as it comes."""
    context = browser.new_context(reduced_motion="reduce")
    opened = Tab(context.new_page(), server.url)
    yield opened
    context.close()
    opened.check()


def ask(page: Any, text: str, seed: int = 5, wait: str | None = SETTLED) -> None:
    """Send a prompt, and wait for what then is on the page."""
    page.get_by_label("Prompt").fill(text)
    page.locator("summary").first.click()
    page.get_by_label("Seed").fill(str(seed))
    page.locator("summary").first.click()
    page.get_by_label("Prompt").press("Control+Enter")
    if wait is not None:
        page.wait_for_selector(wait)


def test_a_canvas_settles_while_one_watches(browser: Any, server: Process) -> None:
    """With motion: a step after the other, the answer when they have been seen. The page's clock is the test's."""
    context = browser.new_context()
    tab = Tab(context.new_page(), server.url)
    tab.page.clock.install(time=0)
    page = tab.open()
    page.clock.pause_at(86_400)
    tab.pretend("v1/canvas", [*drafts("ab", "cb", "cd"), *ending("cd", steps=3)])
    ask(page, "anything", wait=None)
    page.get_by_role("button", name="Send").wait_for()  # all has arrived, and no time has passed
    where, answer, pause = page.locator(".where"), page.locator(".answer"), page.get_by_role("button", name="Pause")
    page.clock.run_for(PACE_MS // 2)  # the first is shown at once
    for step in (1, 2):
        assert where.text_content() == f"step {step} of 3"
        assert page.locator(".stage[data-state=running] .cell").count() == 2
        assert answer.is_hidden(), "the answer is shown before the canvas has been seen to settle"
        assert pause.is_visible()
        page.clock.run_for(PACE_MS)
    assert page.locator(SETTLED).count() == 1
    assert (where.text_content(), answer.text_content()) == ("step 3 of 3", "cd")
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(PACE_MS)
    assert where.text_content() == "step 2 of 3"
    pause.click()
    page.clock.run_for(10 * PACE_MS)
    assert where.text_content() == "step 2 of 3"
    context.close()
    tab.check()


def drafts(*texts: Sequence[str]) -> list[dict[str, Any]]:
    """A step each, a token for each character or piece."""
    return [
        {"type": "draft", "index": 0, "block": 0, "step": i + 1, "width": len(text), "end": None}
        | {"positions": [*range(len(text))], "tokens": [*text], "entropy": [0.1] * len(text)}
        | {"ids": [1] * len(text), "accepted": [1] * len(text), "forced": []}
        for i, text in enumerate(texts)
    ]


def ending(tokens: Sequence[str], steps: int) -> list[dict[str, Any]]:
    """The block that has settled, and what came of the request."""
    reported = {"seed": 1, "finish": "stop", "steps": [steps], "commits": 0}
    reported |= {"tokens_per_forward": 1.0, "mean_entropy": 0}
    block = {"type": "block", "text": "".join(tokens), "block": 0, "tokens": [1] * len(tokens), "pieces": [*tokens]}
    return [block, {"type": "finished", "text": "".join(tokens), "canvas": reported}]


def test_the_timeline_goes_back_through_the_steps(tab: Tab) -> None:
    page = tab.open()
    prompt, seed, width, whole = readme()
    tab.change("v1/canvas", {"canvas": {"width": width, "preset": "fast"}})
    ask(page, prompt, seed)

    def digits() -> str:
        return "".join(re.findall(r"\d", page.get_by_role("listbox", name="Canvas").text_content()))

    # What `redraft generate --watch` printed; a busy server may leave out all but the last.
    steps = ["".join(re.findall(r"\d", step)) for step in whole]
    slider = page.get_by_role("slider", name="Step")
    most, seen = int(slider.get_attribute("max")), {}
    for at in range(most + 1):
        slider.fill(str(at))
        if at == 0:  # what the canvas began as
            assert page.locator(".where").text_content() == "noise"
            continue
        reported = re.match(rf"step (\d+) of {len(steps)}$", page.locator(".where").text_content())
        assert reported is not None
        seen[int(reported[1])] = digits()
        places = page.eval_on_selector_all(".cell.changed", "cells => cells.map((cell) => cell.dataset.at)")
        if int(reported[1]) - 1 in seen:
            both = zip(steps[int(reported[1]) - 2], steps[int(reported[1]) - 1], strict=True)
            assert len(places) == sum(a != b for a, b in both)
    assert seen == {step: steps[step - 1] for step in seen}
    assert len(steps) in seen
    slider.press("Home")
    assert slider.input_value() == "0"
    slider.press("ArrowRight")
    assert slider.input_value() == str(min(1, most))
    slider.press("End")
    page.locator(".cell").first.focus()
    page.keyboard.press("ArrowRight")
    assert re.match(rf"2 .*“{steps[-1][1]}”.*nats", page.locator(".detail").text_content() or "")


def test_colour_is_doubt(tab: Tab) -> None:
    page = tab.open()
    (draft,), ended = drafts("abc"), ending("abc", steps=1)
    ended[1]["canvas"]["finish"] = "length"
    tab.pretend("v1/canvas", [draft | {"entropy": [0.0, 0.5, 4.0], "accepted": [1, 0, 0]}, *ended])
    ask(page, "anything")
    shades = page.eval_on_selector_all(
        ".cell", "cells => cells.map(cell => { const c = getComputedStyle(cell).backgroundColor; return c })"
    )
    strength = [float(re.findall(r"[\d.]+", shade)[-1]) for shade in shades]
    assert strength[0] == 0
    assert 0 < strength[1] < strength[2]
    assert page.locator(".cell.accepted").count() == 1
    assert "cut at its limit" in page.locator(".facts").text_content()


def test_a_conversation_goes_on(tab: Tab) -> None:
    page = tab.open()
    ask(page, RECORD)
    assert page.locator(".answer").text_content() == ANSWER
    ask(page, "record\nSend 9 melu to Karomi.", wait=f".turn:nth-child(2) {SETTLED}")
    roles = [(one["role"], one["content"]) for one in tab.bodies[-1]["messages"]]
    assert roles[:2] == [("user", RECORD), ("assistant", ANSWER)]
    page.get_by_role("button", name="Start over").click()
    assert page.locator(".turn").count() == 0
    page.get_by_text("Plain text").click()
    ask(page, "record")
    assert tab.bodies[-1]["prompt"] == "record"


def test_marked_cells_are_pinned_and_the_rest_is_drafted_anew(tab: Tab) -> None:
    page = tab.open()
    ask(page, RECORD)
    page.get_by_text("Redo", exact=True).click()
    assert page.get_by_role("button", name="Redraft").is_disabled()
    cells = page.locator(".cell")
    size = page.locator(".cell:not(.over)").count()
    reported = [cells.nth(i).text_content() for i in range(size)]
    holes = (size // 2, size // 2 + 1)
    cells.nth(holes[0]).click()
    cells.nth(holes[1]).focus()
    page.keyboard.press("Space")
    assert page.locator(".cell.hole").count() == 2
    page.get_by_role("button", name="Redraft").click()
    second = f".draft:nth-of-type(2) {SETTLED}"
    page.wait_for_selector(second)
    pins = tab.bodies[-1]["pins"]
    kept = [i for i in range(size) if i not in holes]
    assert [pin["at"] for pin in pins] == [*kept, size], "all but the holes, the end with them"
    after = page.locator(f"{second} .cell")
    assert [after.nth(i).text_content() for i in kept] == [reported[i] for i in kept]
    assert page.locator(f"{second} .cell.held").count() == len(pins)
    after.nth(3).click()  # the other way round: keep one, draft the rest
    page.get_by_role("button", name="Redraft").click()
    page.wait_for_selector(f".draft:nth-of-type(3) {SETTLED}")
    assert [pin["at"] for pin in tab.bodies[-1]["pins"]] == [3]
    assert page.locator(f".draft:nth-of-type(3) {SETTLED} .cell").nth(3).text_content() == reported[3]


def test_a_hole_is_filled_and_the_text_around_it_stays(tab: Tab) -> None:
    page = tab.open("infill")
    box = page.get_by_label("Text", exact=True)
    box.fill("")
    assert page.get_by_role("button", name="Fill").is_disabled()
    box.fill("sudoku\n1234\n3412\n")
    page.get_by_role("button", name="Put a hole").click()
    box.press("End")
    page.keyboard.insert_text("\n4321")
    page.get_by_label("Every hole matches").fill("[1-4]{4}")
    page.get_by_role("button", name="Fill").click()
    page.wait_for_selector(".result .diff")
    whole = page.locator(".diff").text_content()
    assert re.fullmatch(r"sudoku\n1234\n3412\n[1-4]{4}\n4321", whole)
    assert page.locator(".diff ins").text_content() == whole[17:21]
    assert page.locator(".runner").count() >= 1


def test_a_span_is_revised_and_kept(tab: Tab) -> None:
    page = tab.open("edit")
    text = "sudoku\n1234 é😀\n3412\n2144\n4321"
    page.get_by_label("Text", exact=True).fill(text)
    start_, end_ = len("sudoku\n1234 é😀") + 1, len("sudoku\n1234 é😀") + 6  # a browser counts 😀 as two
    page.evaluate(f"document.querySelector('textarea').setSelectionRange({start_ + 1}, {end_})")
    page.get_by_label("Text", exact=True).dispatch_event("select")
    assert page.locator(".chosen mark").text_content() == "3412"
    page.get_by_label("Strength").fill("1")
    page.get_by_label("Instruction").fill("")
    page.locator("summary").click()
    page.get_by_label("Seed").fill("3")
    page.get_by_role("button", name="Revise").click()
    page.wait_for_selector(".result .diff")
    parts = page.eval_on_selector(".diff", "diff => [...diff.children].map(one => [one.tagName, one.textContent])")
    assert "".join(said for tag, said in parts if tag != "INS") == text
    now = "".join(said for tag, said in parts if tag != "DEL")
    assert now != text, "with this seed something changes"
    page.get_by_role("button", name="Keep it").click()
    assert page.get_by_label("Text", exact=True).input_value() == now
    assert tab.bodies[-1]["segments"][1]["revise"] == {"text": "3412", "strength": 1}


def test_a_span_is_rewritten_by_an_instruction_and_its_steps_are_shown(tab: Tab) -> None:
    page = tab.open("edit")
    page.get_by_label("Text", exact=True).fill('{"who":"Maria","qty":317,"item":"apples"}')
    page.evaluate("document.querySelector('textarea').setSelectionRange(21, 24)")
    page.get_by_label("Text", exact=True).dispatch_event("select")
    page.get_by_label("Instruction").fill("Set qty to 520.")
    page.get_by_role("button", name="Revise").click()
    page.wait_for_selector(".result .diff")
    page.wait_for_selector(SETTLED)
    assert tab.bodies[-1]["segments"][1]["revise"]["instruction"] == "Set qty to 520."


def test_an_empty_message_is_not_sent(tab: Tab) -> None:
    page = tab.open("write")
    page.get_by_label("Prompt").fill("  ")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="A record").click()
    page.get_by_role("button", name="Send").click()
    page.wait_for_selector(SETTLED)
    assert len(tab.bodies) == 1


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs that read differently on the way, the second held to what is wrong."""
    folder = tmp_path_factory.mktemp("traces")
    words = ["generate", "--chat", "--threads", "1", "--canvas", "48", "--seed"]
    for seed, more in (("5", []), ("6", ["--choice", ANSWER.replace("417", "418")])):
        assert main([*words, seed, "--trace", str(folder / f"{seed}.jsonl"), *more, RECORD]) == 0
    return [folder / "5.jsonl", folder / "6.jsonl"]


def test_a_token_that_every_object_has_a_field_of_reads_as_it_is(tab: Tab, traces: list[Path], tmp_path: Path) -> None:
    lines = [json.loads(line) for line in traces[0].read_text(encoding="utf-8").splitlines()]
    next(line for line in lines if line.get("type") == "draft")["tokens"][0] = "constructor"
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    page = tab.open("trace")
    page.get_by_label("A trace").set_input_files(tmp_path / "a.jsonl")
    assert page.locator(".side:nth-of-type(1) .cell").first.text_content() == "constructor"


def test_traces_are_loaded_and_compared_without_the_server(tab: Tab, traces: list[Path]) -> None:
    page = tab.open("trace")
    page.get_by_label("A trace").set_input_files(traces[0])
    page.wait_for_selector(".side:nth-of-type(1) .cell")
    one, other = (read_trace(path).main for path in traces)
    slider = page.locator(".side:nth-of-type(1)").get_by_role("slider", name="Step")
    for at, frame in enumerate(one.frames):
        slider.fill(str(at))
        shown = page.locator(".side:nth-of-type(1) .cell:not(.over)").all_text_contents()
        wanted = [token.replace("\n", "⏎") for token in frame.tokens[: frame.end]]
        assert [text.replace("␣", " ") for text in shown] == wanted
    page.get_by_label("Another, to compare").set_input_files(traces[1])
    page.wait_for_selector(".side:nth-of-type(2) .cell")
    found = first_apart(one, other)
    assert found is not None
    many = len(found[1])
    said = f"First apart at step {found[0] + 1}, in {many} place{'s' if many > 1 else ''}."
    assert page.locator(".verdict").text_content() == said
    slider = page.get_by_role("slider", name="Step")
    assert slider.count() == 1, "one slider moves both"
    slider.fill(str(found[0]))
    for side in (1, 2):
        marked = page.eval_on_selector_all(
            f".side:nth-of-type({side}) .cell.apart", "cells => cells.map((cell) => Number(cell.dataset.at))"
        )
        assert set(marked) <= set(found[1])
        assert marked
    slider.press("End")
    forced = other.frames[-1].drafted.forced
    seen = page.locator(".side:nth-of-type(2) .cell.forced").count()
    assert seen == len([at for at in forced if at < other.frames[-1].end])
    assert not tab.bodies, "nothing of a trace is sent anywhere"


def test_a_server_of_nano_shows_a_board_that_was_recorded(tab: Tab) -> None:
    """The other model's run, to be gone through; no clue can be typed into it."""
    tab.page.goto(f"{tab.url}/#sudoku")
    tab.page.wait_for_selector(SETTLED)
    tab.page.get_by_role("slider", name="Step").press("End")
    cells = tab.page.get_by_role("gridcell")
    solved = "415326263154524613136245651432342561"  # the readme's board
    assert "".join(cells.all_text_contents()) == solved
    assert [i for i in range(36) if "clue" in (cells.nth(i).get_attribute("class") or "")][:4] == [1, 2, 3, 8]
    cells.first.press("1")
    assert "".join(cells.all_text_contents()) == solved
    assert not tab.bodies


def test_the_sample_stands_still_where_less_motion_is_asked_for(tab: Tab) -> None:
    page = tab.open("trace")
    page.get_by_role("button", name="Show a sample").click()
    page.wait_for_selector(SETTLED)
    for _ in range(2):
        assert page.locator(".where").first.text_content() == "step 1 of 4"
        assert page.get_by_role("button", name="Pause", exact=True).count() == 0
        page.wait_for_timeout(2 * PACE_MS)


def test_an_answer_is_of_its_schema_and_each_field_tells_how_sure_it_is(tab: Tab) -> None:
    page = tab.open("schema")
    page.get_by_role("button", name="Answer").click()
    page.wait_for_selector(".fields tbody tr")
    rows = page.locator(".fields tbody tr")
    reported = {rows.nth(i).locator("th").text_content(): rows.nth(i).locator("code").text_content() for i in range(3)}
    values = {name: json.loads(value or "") for name, value in reported.items()}
    assert list(values) == ["who", "qty", "item"]
    assert all(isinstance(values[name], str | None) for name in ("who", "item"))
    assert isinstance(values["qty"], int | None)
    assert tab.bodies[-1]["canvas"]["ask_fields"] is True
    verdicts = page.locator(".fields td:last-child").all_text_contents()
    assert all(re.search(r"\d%|the schema", one) for one in verdicts), "how sure it is, or that it had no choice"

    def taught(route: Any) -> None:  # so that one field is as this server's model would say
        asked = json.loads(route.request.post_data)
        changed = {"messages": USER, "canvas": {"stream": asked["canvas"]["stream"]}}
        route.continue_(post_data=json.dumps(asked | changed))

    page.route("**/v1/chat/completions", taught)
    held = {"who": {"const": "Karomi"}, "qty": {"const": 418}}
    schema = json.dumps({"type": "object", "properties": held, "required": list(held)})
    page.get_by_label("JSON Schema").fill(schema)
    page.get_by_role("button", name="Answer").click()
    page.wait_for_function("() => document.querySelector('.fields')?.textContent.includes('418')")
    chosen = ["the schema’s choice" in (rows.nth(i).text_content() or "") for i in range(2)]
    assert chosen == [False, True], "what the model would not have said is certain, and said to be forced"
    page.get_by_label("JSON Schema").fill("who, age int")
    page.get_by_role("button", name="Answer").click()
    page.wait_for_function("() => document.querySelector('.fields')?.textContent.includes('age')")
    assert tab.bodies[-1]["structured_outputs"] == {"json": "who, age int"}
    page.get_by_label("JSON Schema").fill("{")
    page.get_by_role("button", name="Answer").click()
    assert "not JSON" in page.get_by_role("alert").text_content()
    page.get_by_label("JSON Schema").fill('{"type": "nothing"}')
    page.get_by_role("button", name="Answer").click()
    page.wait_for_function("() => document.querySelector('.error').textContent.includes('nothing')")
    tab.expected = 1


def test_a_sudoku_keeps_its_clues_and_is_judged(tab: Tab) -> None:
    page = tab.open("sudoku")
    squares = page.locator(".square")
    assert squares.count() == 16
    squares.first.focus()
    for digit in "1234340021000000":
        page.keyboard.press("Delete" if digit == "0" else digit)
        at = page.evaluate("document.activeElement.dataset.at")
        page.keyboard.press("ArrowRight")
        assert at is not None
    page.get_by_role("button", name="Solve").click()
    page.wait_for_selector(SETTLED)
    read = [int(squares.nth(i).text_content()) for i in range(16)]
    assert read[:6] == [1, 2, 3, 4, 3, 4]
    clues = [int(digit) for digit in "1234340021000000"]
    solved = tuple(read) in solve(clues, 4, limit=100).solutions
    assert page.locator(".verdict").text_content().startswith("Solved" if solved else "Not solved")
    assert {pin["at"] for pin in tab.bodies[-1]["pins"]} == {0, 1, 2, 3, 5, 6, 10, 11}
    squares.nth(1).focus()
    page.keyboard.press("1")
    assert page.locator(".verdict").text_content() == "These clues contradict each other."
    assert page.locator(".square.wrong").count() >= 2


def test_stop_ends_the_answer_on_the_server_too(tab: Tab) -> None:
    page = tab.open()
    tab.change("v1/canvas", ENDLESS)
    ask(page, RECORD, wait=".stage[data-state=running] .cell")
    page.keyboard.press("Escape")
    page.wait_for_selector(SETTLED)
    assert page.locator(".facts").text_content() == "Stopped."
    assert page.get_by_role("button", name="Send").is_visible()
    assert page.get_by_role("alert").is_hidden()
    running = (
        "async () => (await (await fetch('/metrics')).text()).match(/^redraft_running_requests (.*)$/m)[1] === '0.0'"
    )
    page.wait_for_function(running)


def test_a_server_that_goes_away_is_reported(browser: Any) -> None:
    process = start("--quiet")
    context = browser.new_context(reduced_motion="reduce")
    tab = Tab(context.new_page(), process.url)
    try:
        page = tab.open()
        tab.change("v1/canvas", ENDLESS)
        ask(page, RECORD, wait=".stage[data-state=running] .cell")
        process.popen.kill()
        page.wait_for_function("() => /connection/.test(document.querySelector('.error').textContent)")
        page.get_by_label("Prompt").fill("again")
        page.get_by_role("button", name="Send").click()
        page.wait_for_function("() => /does not answer/.test(document.querySelector('.error').textContent)")
        assert page.locator(".turn").count() == 1, "a question that was never answered leaves nothing behind"
    finally:
        process.popen.kill()
        ended(process)
        context.close()
    assert not tab.outside


def test_a_key_is_asked_for(browser: Any, nano: Engine) -> None:
    context = browser.new_context(reduced_motion="reduce")
    for served in inside(nano, Settings(keys=(digest_of("open-sesame"),))):
        tab = Tab(context.new_page(), served.url)
        page = tab.page
        page.goto(f"{served.url}/#write")
        for word, said in (("wrong", "asks for an API key"), ("open-sesame", "missing or unknown")):
            page.wait_for_selector(f"text={said}")
            page.get_by_label("API key").fill(word)
            page.get_by_role("button", name="Use it").click()
        page.wait_for_selector("nav a[aria-current]")
        ask(page, RECORD)
        assert page.locator(".answer").text_content() == ANSWER
        assert not tab.outside
        context.close()


def test_who_arrives_sees_an_answer_settle(tab: Tab) -> None:
    """The address without a view: the first one plays by itself, from the noise on."""
    tab.page.goto(tab.url)
    tab.page.wait_for_selector(SETTLED)
    tab.page.reload()
    tab.page.wait_for_selector(SETTLED)
    assert tab.page.get_by_role("button", name="Earlier").count() == 0, "what nobody asked was kept"
    slider = tab.page.get_by_role("slider", name="Step")
    slider.fill("0")
    assert tab.page.locator(".where").text_content() == "noise"


def pretended(text: str) -> list[dict[str, Any]]:
    """A stream of /v1/canvas that settles on a text in one step, a token for each character."""
    return [{"type": "noise", "width": len(text), "tokens": ["?"] * len(text)}, *drafts(text), *ending(text, steps=1)]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_composer_hides_nothing_of_an_answer_that_has_settled(tab: Tab, width: int) -> None:
    """In a window of 800 pixels the row under the answer was behind the composer."""
    page = tab.open()
    page.set_viewport_size({"width": width, "height": 800})
    page.get_by_label("Prompt").fill(RECORD)
    page.get_by_label("Prompt").press("Enter")
    row, dock = page.locator(".turn:last-child .marking"), page.locator(".dock")

    def is_clear(what: Any) -> bool:
        box = what.bounding_box()
        return box["y"] >= 0 and box["y"] + box["height"] <= dock.bounding_box()["y"]

    row.wait_for()
    assert is_clear(row)
    page.get_by_label("Prompt").fill("more\n" * 6)  # the composer grows; what gets the focus is scrolled
    # Its height is observed some frames later.
    page.evaluate(
        """async () => {
            const height = () => `${document.querySelector(".dock").offsetHeight}px`;
            const known = () => document.documentElement.style.getPropertyValue("--dock");
            do await new Promise(requestAnimationFrame); while (known() !== height());
        }"""
    )
    row.locator("input").first.focus()
    assert is_clear(row.locator(".segments"))


def test_a_conversation_outlives_a_reload_until_it_is_cleared(tab: Tab) -> None:
    page = tab.open()
    tab.pretend("v1/canvas", pretended("an answer"))
    ask(page, "a question")
    page.reload()
    page.wait_for_selector(".turn")  # what was open is open again, and its canvas is gone
    assert page.locator(".asked pre").text_content() == "a question"
    assert page.locator(".answer").text_content() == "an answer"
    assert page.locator(".cell").count() == 0
    ask(page, "go on")
    roles = [(one["role"], one["content"]) for one in tab.bodies[-1]["messages"]]
    assert roles == [("user", "a question"), ("assistant", "an answer"), ("user", "go on")]
    kept = [
        {"id": str(i), "when": i, "mode": "chat", "turns": [{"asked": f"question {i}", "text": "a"}]} for i in range(20)
    ]
    page.evaluate("kept => localStorage.setItem('redraft.history', kept)", json.dumps(kept))
    page.get_by_role("button", name="Start over").click()
    ask(page, "one more")
    page.get_by_role("button", name="Earlier (20)").click()
    page.locator(".kept li").nth(1).get_by_role("button").click()
    assert page.locator(".asked pre").text_content() == "question 0", "the second, since the new one is the first"
    page.get_by_role("button", name="Earlier (20)").click()
    page.get_by_role("button", name="Clear the history").click()
    assert page.evaluate("localStorage.getItem('redraft.history')") is None
    assert page.get_by_role("button", name="Earlier").count() == 0


def test_markdown_is_shown_as_such_and_once(tab: Tab) -> None:
    page = tab.open()
    text = "# Title\n\nOne **bold** and `code`.\n\n- first\n- *second*\n\n3. third\n\n"
    text += "```python\na = 1 < 2 # **no**\n```\nend"
    tab.pretend("v1/canvas", pretended(text))
    ask(page, "anything", wait=f"{SETTLED}.folded")
    shown = page.eval_on_selector(".answer", "one => [...one.children].map((each) => [each.tagName, each.textContent])")
    assert shown == [
        ["H3", "Title"],
        ["P", "One bold and code."],
        ["UL", "firstsecond"],
        ["OL", "third"],
        ["PRE", "a = 1 < 2 # **no**"],
        ["P", "end"],
    ]
    assert page.locator(".answer strong").all_text_contents() == ["bold"]
    assert page.locator(".answer em").all_text_contents() == ["second"]
    assert page.locator(".answer ol").get_attribute("start") == "3"
    assert not page.locator(".canvas").is_visible()
    page.get_by_role("button", name="Show the canvas").click()
    assert page.locator(".canvas").is_visible()
    assert page.locator(".answer").is_hidden()
    page.get_by_role("button", name="Start over").click()
    page.get_by_text("Plain text").click()
    ask(page, "anything")
    assert page.locator(".answer strong").count() == 0
    assert page.locator(".canvas").is_visible()


@pytest.mark.parametrize("steps", [1, 3, 48])
def test_a_timeline_reads_at_any_length(tab: Tab, steps: int) -> None:
    """A bar a step and one for the noise; the bar under the pointer is the step on view."""
    page = tab.open()
    noise, *_ = pretended("abcd")
    texts = [f"{i:04d}" for i in range(steps)]
    tab.pretend("v1/canvas", [noise, *drafts(*texts), *ending(texts[-1], steps=steps)])
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        ask(page, "anything", wait=f".turn:last-child {SETTLED}")
        turn = page.locator(".turn:last-child")
        bars, where = turn.locator(".bars .bar"), turn.locator(".where")
        assert bars.count() == steps + 1
        boxes = [bars.nth(i).bounding_box() for i in range(steps + 1)]
        assert all(3 <= box["width"] <= 60 for box in boxes)
        for at in {0, 1, steps // 2, steps}:
            box = boxes[at]
            page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] - 1)
            assert where.text_content() == (f"step {at} of {steps}" if at else "noise")


def saved(tab: Tab, folder: Path, label: str = "Save the trace") -> Any:
    """The file that the page hands out, as this program reads it."""
    with tab.page.expect_download() as waiting:
        tab.page.get_by_role("button", name=label).click()
    waiting.value.save_as(folder / "saved.jsonl")
    return read_trace(folder / "saved.jsonl")


def test_every_view_saves_its_trace_and_the_trace_view_takes_it(tab: Tab, tmp_path: Path) -> None:
    page = tab.open()
    ask(page, RECORD)
    recording = saved(tab, tmp_path).main
    assert recording.frames[-1].text == ANSWER
    assert (recording.begun.seed, recording.finish) == (5, "stop")
    text = (tmp_path / "saved.jsonl").read_text(encoding="utf-8")
    page = tab.open("trace")
    drop = """text => {
      const data = new DataTransfer();
      data.items.add(new File([text], "a.jsonl"));
      document.querySelector(".view").dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true}));
    }"""
    page.evaluate(drop, text)
    page.wait_for_selector(SETTLED)
    page.evaluate(drop, text)
    page.wait_for_function("() => document.querySelector('.verdict').textContent.includes('the same at every step')")
    page.reload()
    page.get_by_role("button", name="Show a sample").click()
    page.wait_for_selector(SETTLED)
    page.get_by_role("slider", name="Step").press("End")
    digits = re.findall(r"\d", page.get_by_role("listbox", name="Canvas").text_content() or "")
    puzzle = "015300003004000000030245651400040060"
    assert tuple(map(int, digits)) in solve([int(digit) for digit in puzzle], 6, limit=2).solutions
    page = tab.open("schema")
    page.get_by_role("button", name="Answer").click()
    page.wait_for_selector(".fields tbody tr")
    assert json.loads(saved(tab, tmp_path).main.frames[-1].text).keys() == {"who", "qty", "item"}


def test_the_replay_of_a_filled_hole_is_the_winners(tab: Tab, tmp_path: Path) -> None:
    """One length settles before the others have begun, and wins."""
    page = tab.open("infill")

    def lane(index: int, gap: int, text: str) -> list[dict[str, Any]]:
        (step,) = drafts(text)
        begun = {"type": "request", "index": index, "width": gap, "gap": gap}
        return [begun, step | {"index": index, "ids": [7] * gap, "forced": []}]

    over = [{"type": "over", "index": index, "finish": "stop"} for index in range(3)]
    hole = {"text": "t", "tried": 3, "candidates": [{"text": "t", "tokens": 1, "score": 0.1}]}
    done = {"type": "finished", "text": "t", "holes": [hole], "forwards": 3, "seed": 4}
    tab.pretend("v1/canvas", [*lane(0, 1, "t"), over[0], *lane(1, 2, "ee"), *lane(2, 3, "eef"), *over[1:], done])
    page.get_by_role("button", name="Fill", exact=True).click()
    page.wait_for_selector(".result .diff")
    assert page.locator(".race .stage .cell").all_text_contents() == ["t"]
    trace = saved(tab, tmp_path)
    assert len(trace.recordings) == 3
    assert trace.main.frames[-1].text == "t"


def test_a_canvas_stands_beside_the_causal_mode(tab: Tab) -> None:
    page = tab.open()
    page.get_by_role("button", name="Canvas beside causal").click()
    page.locator(SETTLED).nth(1).wait_for()
    assert [body.get("canvas") for body in tab.bodies[-2:]] == [None, {"causal": True}]
    where = page.locator(".side .where")
    steps = [int((where.nth(i).text_content() or "").rpartition(" ")[2]) for i in range(2)]
    tokens = page.locator(".side").nth(1).locator(".cell").count()
    assert steps[1] == tokens, "a step a token"
    assert 0 < steps[0] < steps[1]


def test_one_of_several_names_is_picked(tab: Tab) -> None:
    page = tab.open()
    assert page.get_by_label("Model").locator("option").all_text_contents() == ["nano", "other-name"]
    page.get_by_label("Model").select_option("other-name")
    ask(page, RECORD)
    assert tab.bodies[-1]["model"] == "other-name"


def test_a_bar_stands_only_where_the_model_had_a_choice(tab: Tab) -> None:
    page = tab.open("schema")
    text = '{"a":1,"b":2,"c":3}'
    beside = {"1": -45.0, "2": -2.4, "3": -0.2}  # log-probability of another token; the third is the schema's choice
    content = [
        {"token": one, "bytes": [ord(one)], "logprob": -0.1}
        | {"top_logprobs": [{"token": one, "logprob": -0.1}, {"token": "x", "logprob": beside.get(one, -45.0)}]}
        for one in text
    ]
    (draft,) = drafts(text)
    choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": content}, "finish_reason": "stop"}
    report = ending(text, steps=1)[1]["canvas"]
    frame = {"choices": [], "canvas": draft | {"forced": [text.index("3")]}}
    tab.pretend("v1/chat/completions", [frame, {"choices": [choice | {"canvas": report}]}])
    page.get_by_role("button", name="Answer").click()
    rows = page.locator(".fields tbody tr")
    rows.nth(2).wait_for()
    assert [rows.nth(i).locator("meter").count() for i in range(3)] == [0, 1, 0]
    said = page.locator(".fields td:last-child").all_text_contents()
    assert said[0] == "the only value the schema allows"
    assert said[1].strip() == "90.5%"  # e ** -0.1
    assert said[2] == "the schema’s choice, not the model’s"


def test_what_is_read_back_is_shown_with_its_guesses(tab: Tab) -> None:
    """The page showed the canvas's answer alone, which is right less often, and named no guess."""
    page = tab.open("schema")
    first, second = '{"a":"M","b":[]}', '{"a":"L","b":[]}'

    def said(text: str) -> dict[str, Any]:
        content = [{"token": one, "bytes": [ord(one)], "logprob": -0.1, "top_logprobs": []} for one in text]
        return {"logprobs": {"content": content}, "finish_reason": "stop"}

    (draft,) = drafts(first)
    report = ending(first, steps=1)[1]["canvas"] | {"seed": 9}
    chunks = [
        {"choices": [], "canvas": draft | {"forced": []}},
        {"choices": [said(first) | {"index": 0, "delta": {"content": first}, "canvas": report}]},
    ]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    read = said(second) | {"message": {"content": second}, "canvas": {"guesses": ["/a"]}}

    def on(route: Any) -> None:
        if json.loads(route.request.post_data)["canvas"]["stream"]:
            route.fulfill(content_type="text/event-stream", body=body)
        else:
            route.fulfill(content_type="application/json", body=json.dumps({"choices": [read]}))

    page.route("**/v1/chat/completions", on)
    page.get_by_role("button", name="Answer").click()
    rows = page.locator(".fields tbody tr")
    rows.nth(1).wait_for()
    assert tab.bodies[-1]["seed"] == 9
    assert rows.locator("code").all_text_contents() == ['"L"', "[]"]
    assert ["guess" in (rows.nth(i).text_content() or "") for i in range(2)] == [True, False]
    assert "another answer was likelier" in (page.locator(".fields caption").text_content() or "")


def test_nine_by_nine_is_asked_and_contradictory_clues_are_named(tab: Tab) -> None:
    tab.page.route("**/v1/models", lambda route: renamed(route, "a-large-model"))
    page = tab.page
    page.goto(f"{tab.url}/#sudoku")
    page.get_by_role("button", name="New 9×9").click()
    page.locator(".square").nth(80).wait_for()
    page.get_by_role("button", name="Solve").click()
    page.wait_for_selector(SETTLED)
    assert max(pin["at"] for pin in tab.bodies[-1]["pins"]) > 64
    assert page.get_by_role("alert").is_hidden()
    page.get_by_role("button", name="New 4×4").click()
    for at in (0, 1):
        page.locator(".square").nth(at).focus()
        page.keyboard.press("1")
    page.get_by_role("button", name="Solve").click()
    page.wait_for_selector(SETTLED)
    assert "contradict" in (page.locator(".verdict").text_content() or "")
    assert "seed" not in (page.locator(".verdict").text_content() or "")


def renamed(route: Any, name: str) -> None:
    """The server's models under another name."""
    reply = route.fetch()
    models = reply.json()
    models["data"][0]["id"] = name
    route.fulfill(response=reply, json=models)


def walk(page: Any, what: str, key: str = "Tab") -> None:
    """Press a key until the focus is where `what`, a condition of `one`, holds."""
    for _ in range(60):
        if page.evaluate(f"(one => {what})(document.activeElement)"):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{what} is not reached")


def test_everything_is_reached_by_keyboard(tab: Tab) -> None:
    """From the skip link to an answer, a marked cell, the next draft and a copy of it, without a pointer."""
    page = tab.open()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    walk(page, "one.ariaLabel === 'Prompt'")
    first, second = RECORD.split("\n")
    page.keyboard.type(first)
    page.keyboard.press("Shift+Enter")
    page.keyboard.type(second)
    page.keyboard.press("Enter")
    page.wait_for_selector(SETTLED)
    page.wait_for_selector(".marking:not([hidden])")
    assert [body["messages"][-1]["content"] for body in tab.bodies] == [RECORD], "Shift and Enter break the line"
    walk(page, "one.classList.contains('cell')", "Shift+Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    assert page.locator(".cell.pin").count() == 1
    walk(page, "one.textContent === 'Redraft'")
    page.keyboard.press("Enter")
    page.wait_for_selector(f".draft:nth-of-type(2) {SETTLED}")
    walk(page, "one.textContent === 'Copy'", "Shift+Tab")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Copied").wait_for()
    walk(page, "one.ariaLabel === 'Prompt'")
    page.keyboard.press("Control+v")
    assert page.get_by_label("Prompt").input_value() == page.locator(".answer").last.text_content()


CONTROLS = {
    "infill": ("Put a hole ▢ at the cursor", "Fill", ".result .diff"),
    "edit": ("", "Revise", ".result .diff"),
    "schema": ("", "Answer", ".fields tbody tr"),
    "sudoku": ("New 4×4", "Solve", ".verdict:has-text('olved')"),
}


@pytest.mark.parametrize("view", CONTROLS)
def test_every_view_is_run_by_keyboard(tab: Tab, view: str) -> None:
    """Its name in the navigation, its controls in turn, its result: Space and Enter press a button alike."""
    if view == "sudoku":  # a server of nano has no board
        tab.page.route("**/v1/models", lambda route: renamed(route, "nano-sudoku"))
    page = tab.open()
    walk(page, f"one.hash === '#{view}'")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"nav a[href='#{view}'][aria-current]")
    chip, button, result = CONTROLS[view]
    if view == "edit":  # a part of the text, as the arrows choose it
        walk(page, "one.tagName === 'TEXTAREA'")
        page.keyboard.press("Control+Home")
        for _ in '{"who"':
            page.keyboard.press("Shift+ArrowRight")
        assert page.locator(".chosen mark").text_content() == '{"who"'
    if view == "sudoku":
        walk(page, "one.classList.contains('square')")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.dataset.at") == "1"
    if chip:
        walk(page, f"one.textContent === '{chip}'")
        page.keyboard.press("Space")
    walk(page, f"one.textContent === '{button}'")
    page.keyboard.press("Enter")
    page.locator(result).first.wait_for()


def test_what_a_model_says_is_never_markup(tab: Tab) -> None:
    page = tab.open()
    evil = "<img src=x onerror=\"document.title='owned'\">"
    tab.pretend("v1/canvas", [*drafts([evil]), *ending([evil], steps=1)])
    ask(page, evil)
    assert page.locator(".cell").text_content() == page.locator(".answer").text_content() == evil
    assert page.locator(".asked pre").text_content() == evil
    assert page.locator("img").count() == 0
    blocked = "() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch { return true } }"
    assert page.evaluate(blocked), "the policy lets a string become markup"
    assert page.title() == "Write — redraft"
    tab.errors = [text for text in tab.errors if "TrustedHTML" not in text]


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_fits_a_phone_and_names_its_controls(tab: Tab, view: str, traces: list[Path]) -> None:
    tab.page.set_viewport_size({"width": 320, "height": 640})
    page = tab.open(view)
    button = {"write": "Send", "infill": "Fill", "edit": "Revise", "schema": "Answer", "sudoku": "Solve"}.get(view)
    if view == "write":
        page.get_by_role("button", name="A record").click()
    if view == "trace":
        page.get_by_label("A trace").set_input_files(traces[0])
    else:
        page.locator("summary").first.click()
        page.get_by_role("button", name=button).click()
    page.wait_for_selector(".result .diff" if view in ("infill", "edit") else SETTLED)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("input, select, textarea, button, [role=listbox], [role=grid]")]
          .filter((one) => !one.labels?.length && !one.getAttribute("aria-label") && !one.textContent.trim())
          .map((one) => one.outerHTML)"""
    )
    assert nameless == []
