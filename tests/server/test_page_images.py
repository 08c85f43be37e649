"""The page with a model that reads images: chosen, pasted and dropped, in a real browser."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pictures import drawn, encoded
from tests.server.conftest import Inside, inside
from tests.server.test_page_browser import Tab, browser, pytestmark

from redraft.operations.engine import Engine
from redraft.server.http.settings import Settings

__all__ = ["browser", "pytestmark"]

GIVE = """([name, data]) => {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "given.png", { type: "image/png" }));
  const what = { bubbles: true, cancelable: true };
  const event = name === "paste"
    ? new ClipboardEvent("paste", { ...what, clipboardData: transfer })
    : new DragEvent("drop", { ...what, dataTransfer: transfer });
  document.querySelector("textarea").dispatchEvent(event);
}"""


@pytest.fixture
def server(seeing: Engine) -> Iterator[Inside]:
    yield from inside(seeing, Settings(names=("eye",)))


def test_images_are_chosen_pasted_and_dropped(browser: Any, server: Inside, tmp_path: Path) -> None:
    tab = Tab(browser.new_context(reduced_motion="reduce").new_page(), server.url)
    page = tab.open()
    tab.change("v1/canvas", {"max_tokens": 16, "max_steps": 2})
    data = [encoded(drawn(30, 20, seed)) for seed in range(3)]
    (tmp_path / "0.png").write_bytes(data[0])
    (tmp_path / "bad.png").write_bytes(b"%PDF-1.7")
    page.get_by_label("Images").set_input_files(str(tmp_path / "0.png"))
    for i, way in enumerate(("paste", "drop"), start=1):
        page.locator(".composer .pictures canvas").nth(i - 1).wait_for()
        page.evaluate(GIVE, [way, base64.b64encode(data[i]).decode()])
    page.locator(".composer .pictures canvas").nth(2).wait_for()
    page.get_by_label("Images").set_input_files(str(tmp_path / "bad.png"))
    page.get_by_role("alert").get_by_text("bad.png is damaged").wait_for()
    page.get_by_label("Leave out given.png").first.click()
    page.get_by_label("Prompt").fill("what?")
    page.get_by_label("Prompt").press("Control+Enter")
    page.wait_for_selector(".stage[data-state=settled]")
    (body,) = (one for one in tab.bodies if "messages" in one)
    urls = [part["image_url"]["url"] for part in body["messages"][0]["content"][:-1]]
    assert [base64.b64decode(url.partition(",")[2]) for url in urls] == [data[0], data[2]]
    assert body["messages"][0]["content"][-1] == {"type": "text", "text": "what?"}
    assert page.locator(".asked canvas").count() == 2
    assert page.locator(".composer .pictures canvas").count() == 0
    page.get_by_text("Plain text").click()
    assert page.get_by_role("button", name="Add an image").is_hidden()
    tab.check()


def test_a_text_model_offers_no_images(browser: Any, served: Inside) -> None:
    tab = Tab(browser.new_context().new_page(), served.url)
    assert tab.open().get_by_role("button", name="Add an image").count() == 0
    tab.check()
