"""Pictures drawn with Pillow, and what they say: boards of 6x6 Sudoku as lines of digits, receipts as JSON.

A picture is a page of 6 lines of 7 squares, and a square holds at most one character, somewhere in it: a square is what
one soft token sees. The lines of a board's answer have 7 tokens, too, six cells and a line end, so that a cell and its
digit are equally far apart all over the board. Size, place, ink and paper differ from picture to picture; the training
and the held-out ones are apart by their seeds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from redraft.tasks import stream_seed

COLUMNS, LINES, SQUARE, MOVED = 7, 6, 12, 2  # squares, squares, pixels, pixels
BOARD, RECEIPT = "digits", "receipt"
SHOPS = ("Melu", "Karo", "Nemi", "Bako", "Sola", "Duvi", "Tomi", "Rena")
WARES = ("tea", "rice", "milk", "bread", "salt", "corn", "soap", "oil")


def boards(split: str, seed: int) -> Iterator[dict[str, Any]]:
    """Endless rows: a board as a picture, its cells as lines of digits, a dot for an empty one."""
    rng = Random(stream_seed(BOARD, split, seed))
    while True:
        image, page = board(rng)
        yield asked(image, BOARD, "\n".join(line[:6] for line in page))


def receipts(split: str, seed: int) -> Iterator[dict[str, Any]]:
    """Endless rows: a receipt as a picture, and its shop, wares and total as JSON."""
    rng = Random(stream_seed(RECEIPT, split, seed))
    while True:
        image, page = receipt(rng)
        shop, *bought, last = (line.split() for line in page if line.strip())
        items = [{"name": name, "price": int(price)} for name, price in bought]
        said = {"shop": shop[0], "items": items, "total": int(last[0].removeprefix("total") or last[-1])}
        yield asked(image, RECEIPT, json.dumps(said, separators=(",", ":")))


def board(rng: Random, moved: tuple[int, int] | None = None) -> tuple[Image.Image, list[str]]:
    """A board as a picture, and its page: lines of 7 characters, the last one a line end."""
    page = ["".join(rng.choice(".123456") for _ in range(6)) + "\n" for _ in range(LINES)]
    return _drawn(page, rng, frame=True, moved=moved), page


def receipt(rng: Random) -> tuple[Image.Image, list[str]]:
    """A receipt as a picture, and its page: the shop, a line for each ware, the total."""
    bought = [(ware, rng.randint(1, 9)) for ware in rng.sample(WARES, rng.randint(1, 4))]
    lines = [(rng.choice(SHOPS), ""), *((ware, str(price)) for ware, price in bought)]
    lines.append(("total", str(sum(price for _, price in bought))))
    lines += [("", "")] * (LINES - len(lines))
    page = [left + right.rjust(COLUMNS - len(left)) for left, right in lines]
    return _drawn(page, rng, frame=False), page


def _drawn(page: list[str], rng: Random, *, frame: bool, moved: tuple[int, int] | None = None) -> Image.Image:
    """The page in ink on paper, `moved` or by chance by up to 2 pixels each way; a dot and white space are no ink."""
    paper, ink = (tuple(rng.randint(low, high) for _ in range(3)) for low, high in ((215, 255), (0, 70)))
    scale = rng.choice((1, 2))  # the larger ones are made smaller for the tower, which blurs them
    side, font = SQUARE * scale, ImageFont.load_default(rng.choice((9, 10, 11)) * scale)
    image = Image.new("RGB", (COLUMNS * side, LINES * side), paper)
    draw = ImageDraw.Draw(image)
    across, down = moved or (rng.randint(-MOVED, MOVED), rng.randint(-MOVED, MOVED))
    x0, y0 = scale * across, scale * down
    if frame:
        for i in range(7):
            at = i * side
            draw.line((x0, y0 + at, x0 + 6 * side, y0 + at), fill=ink)
            draw.line((x0 + at, y0, x0 + at, y0 + 6 * side), fill=ink)
    for row, line in enumerate(page):
        for column, char in enumerate(line):
            if char not in ". \n":
                at = x0 + column * side + side // 2, y0 + row * side + side // 2
                draw.text(at, char, fill=ink, font=font, anchor="mm")
    return image


def asked(image: Image.Image, what: str, answer: str) -> dict[str, Any]:
    """A row: a picture, a word that says what is wanted of it, and the answer."""
    parts = [{"type": "image", "image": image}, {"type": "text", "text": what}]
    return {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]}
