"""Draws the README's moving pictures from real answers: a board that corrects itself, and a sentence that becomes JSON.

    python bench/pictures.py            write docs/pictures/*.svg

Each frame is what the canvas reads after a step; the first is the noise that it begins as. The pictures move by CSS,
have the light or dark colours that the reader prefers, and stand still on the last frame where no motion is wanted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import redraft
from redraft.constraints.schemas import plain_schema
from redraft.diffusion.noise import START, SeededNoise
from redraft.engine.events import Draft
from redraft.engine.request import Request
from redraft.options import Options
from redraft.prompts import of_schema

FOLDER = Path(__file__).resolve().parents[1] / "docs/pictures"
STEP, LAST = 1.2, 3.6
"""Seconds that a frame stays, and that the last one does."""
DOUBT = 0.05
"""Entropy in nats from which a position is drawn as in doubt."""

BOARD = ".153..\n..3..4\n......\n.3.245\n6514..\n.4..6."
SENTENCE, FIELDS = "Alice is 31 years old and lives in Rome.", "name, age int, city"
CELL, LEFT, TOP, GLYPH, LINE = 44, 24, 64, 10.2, 62
"""Pixels: a cell, the margins, a character, and the characters of a line."""

STYLE = """
  svg { --ink: #1b1b19; --faint: #8a8a84; --doubt: #2a5bd7; --fresh: #dbe5fb; --line: #ccccc4; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #ecebe6; --faint: #8f8f88; --doubt: #8fb0ff; --fresh: #25345c; --line: #4a4a45 }
  }
  text { font: 17px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: var(--ink); white-space: pre }
  .small { font: 14px system-ui, sans-serif; fill: var(--faint) }
  .clue { font-weight: 700 } .doubt { fill: var(--doubt) } .end { fill: var(--faint) }
  .fresh { fill: var(--fresh) } .grid { stroke: var(--line); fill: none } .box { stroke: var(--ink); fill: none }
  .frame { visibility: hidden }
"""


@dataclass(frozen=True)
class Frame:
    """What each position reads (None: an end token), whether it is in doubt, and whether it has just changed."""

    step: int
    pieces: tuple[str | None, ...]
    doubt: tuple[bool, ...]
    changed: tuple[bool, ...]


def frames(engine: redraft.Engine, request: Request) -> list[Frame]:
    """The noise of an answer's first canvas, then every step of it."""
    resolved = engine.resolve(request)
    noise = SeededNoise(resolved.seed).tokens(0, START, resolved.width, resolved.vocab).tolist()

    def pieces(tokens: Sequence[int]) -> tuple[str | None, ...]:
        return tuple(None if one in resolved.eos else _shown(engine.text.decode([one])) for one in tokens)

    everywhere = (True,) * len(noise)
    found = [Frame(0, pieces(noise), everywhere, (False,) * len(noise))]
    for event in engine.submit(resolved, drafts=True).events():
        if isinstance(event, Draft) and event.block == 0:
            doubt = tuple(nats > DOUBT for nats in event.entropy)
            found.append(Frame(event.step, pieces(event.tokens), doubt, tuple(event.changed)))
    return found


def _shown(piece: str) -> str:
    """A token's text as XML can hold it, and a reader see it."""
    return "".join(one if one.isprintable() else "�" for one in piece.replace("\n", "⏎"))


def caption(frame: Frame, last: bool) -> str:
    """A line above the canvas."""
    if frame.step == 0:
        said = "noise"
    else:
        said = f"step {frame.step}" + (", settled" if last else "")
    return f'<text class="small" x="{LEFT}" y="{TOP - 18}">{said}</text>'


def board(frame: Frame, last: bool) -> str:
    """A frame of the Sudoku: one token a cell, and one a line end."""
    size, parts = BOARD.index("\n"), [caption(frame, last)]
    for i, clue in enumerate(BOARD):
        if clue == "\n" or i >= len(frame.pieces):
            continue
        row, column = divmod(i, size + 1)
        x, y = LEFT + column * CELL, TOP + row * CELL
        if frame.changed[i] and frame.step > 1:
            parts.append(f'<rect class="fresh" x="{x}" y="{y}" width="{CELL}" height="{CELL}"/>')
        kind = "clue" if clue != "." and frame.step else "doubt" if frame.doubt[i] else ""
        piece = (frame.pieces[i] or " ").strip()[:2]
        parts.append(
            f'<text class="{kind}" x="{x + CELL / 2}" y="{y + CELL * 0.64}" text-anchor="middle">{escape(piece)}</text>'
        )
    for i in range(size + 1):
        for kind, on in (("grid", True), ("box", i % 3 == 0)):
            parts += [_line(kind, LEFT + i * CELL, TOP, 0, size * CELL)] if on else []
        for kind, on in (("grid", True), ("box", i % 2 == 0)):
            parts += [_line(kind, LEFT, TOP + i * CELL, size * CELL, 0)] if on else []
    return "".join(parts)


def _line(kind: str, x: float, y: float, across: float, down: float) -> str:
    return f'<path class="{kind}" d="M{x} {y}l{across} {down}"/>'


def sentence(frame: Frame, last: bool) -> str:
    """A frame of the JSON, in lines of `LINE` characters; after the answer's end, points."""
    ends = max((i + 1 for i, piece in enumerate(frame.pieces) if piece is not None), default=0)
    parts, column, row = [caption(frame, last)], 0, 0
    for i, piece in enumerate(frame.pieces[:ends]):
        shown = "·" if piece is None else piece
        if column + len(shown) > LINE:
            column, row = 0, row + 1
        x, y = LEFT + column * GLYPH, TOP + row * 26
        width = f"{len(shown) * GLYPH:.1f}"
        if frame.changed[i] and frame.step > 1:
            parts.append(f'<rect class="fresh" x="{x:.1f}" y="{y}" width="{width}" height="24"/>')
        kind = "end" if piece is None else "doubt" if frame.doubt[i] else ""
        parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y + 18}" textLength="{width}">{escape(shown)}</text>')
        column += len(shown)
    return "".join(parts)


def moving(title: str, drawn: Sequence[str], width: int, height: int, still: str = "") -> str:
    """An SVG that shows its frames in turn, for ever."""
    times = [i * STEP for i in range(len(drawn))]
    whole = times[-1] + LAST
    rules = []
    for i, begin in enumerate(times):
        end = times[i + 1] if i + 1 < len(times) else whole
        low, high = 100 * begin / whole, 100 * end / whole
        before = f"0%, {low - 0.01:.2f}% {{ visibility: hidden }} " if i else ""
        behind = f" {high + 0.01:.2f}%, 100% {{ visibility: hidden }}" if i + 1 < len(times) else ""
        rules.append(f"  @keyframes k{i} {{ {before}{low:.2f}%, {high:.2f}% {{ visibility: visible }}{behind} }}")
        rules.append(f"  #f{i} {{ animation: k{i} {whole:.1f}s step-end infinite }}")
    rules.append("  @media (prefers-reduced-motion: reduce) { .frame { animation: none !important }")
    rules.append(f"    #f{len(drawn) - 1} {{ visibility: visible }} }}")
    groups = "\n".join(f'<g class="frame" id="f{i}">{one}</g>' for i, one in enumerate(drawn))
    style = STYLE + "\n".join(rules)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(title)}">\n<style>{style}\n</style>\n{still}\n{groups}\n</svg>\n'
    )


def main() -> None:
    """Answer, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board-model", default="nano-sudoku", metavar="MODEL")
    parser.add_argument("--board-seed", type=int, default=3)
    parser.add_argument("--model", default="nano", metavar="MODEL")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    request = Request(f"sudoku\n{BOARD}", Options(seed=given.board_seed, canvas=48), chat=True)
    found = frames(redraft.load(given.board_model), request)
    drawn = [board(frame, frame is found[-1]) for frame in found]
    side = 2 * LEFT + 6 * CELL
    (FOLDER / "board.svg").write_text(moving("A Sudoku settles", drawn, side, side + TOP - LEFT), encoding="utf-8")
    schema = plain_schema(FIELDS)
    request = Request(of_schema(schema, SENTENCE), Options(seed=given.seed, canvas=64), chat=True, schema=schema)
    found = frames(redraft.load(given.model), request)
    still = f'<text x="{LEFT}" y="24">{escape(SENTENCE)}</text>'
    drawn = [sentence(frame, frame is found[-1]) for frame in found]
    picture = moving("A sentence becomes JSON", drawn, int(2 * LEFT + LINE * GLYPH), TOP + 120, still)
    (FOLDER / "sentence.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
