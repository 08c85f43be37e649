"""What the README shows is what happens: its Python block runs, its transcript is the program's own output."""

import re
from pathlib import Path

import pytest

import transcripts

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("kind", [transcripts.BLOCK, transcripts.CODE], ids=["shell", "Python"])
def test_what_is_shown_is_what_is_printed(kind: re.Pattern[str]) -> None:
    """Drafts and answers are compared; of figures, those that other processors round alike."""
    shown = "".join(found[0] for found in kind.finditer(README.read_text(encoding="utf-8")))
    assert shown.count("$ redraft ") >= 5 or "engine.extract" in shown
    assert transcripts.rounded(shown) == transcripts.rounded(transcripts.taken(shown))


def test_every_linked_page_exists() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    missing = [link for link in links if not (README.parent / link).exists()]
    assert not missing
