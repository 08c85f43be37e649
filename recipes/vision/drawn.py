"""Pictures drawn with Pillow, and what they say: boards of 6x6 Sudoku as lines of digits, receipts as JSON.

Size, place, ink and paper differ from picture to picture; the training and the held-out ones are apart by their seeds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from redraft.tasks import stream_seed

SIDE = (
    84  # pixels: seven soft tokens of twelve, as a line of the answer has six digits and a line end, so that a cell and
)
# its digit are equally far apart all over the board, which is what attention learns first
BOARD, RECEIPT = "digits", "receipt"
SHOPS = ("Melu", "Karo", "Nemi", "Bako", "Sola", "Duvi", "Tomi", "Rena")
WARES = ("tea", "rice", "milk", "bread", "salt", "corn", "soap", "oil")


def boards(split: str, seed: int) -> Iterator[dict[str, Any]]:
    """Endless rows: a board as a picture, its cells as lines of digits, a dot for an empty one."""
    rng = Random(stream_seed(BOARD, split, seed))
    while True:
        cells = [rng.choice(".123456") for _ in range(36)]
        answer = "\n".join("".join(cells[row : row + 6]) for row in range(0, 36, 6))
        yield _row(board(cells, rng), BOARD, answer)


def receipts(split: str, seed: int) -> Iterator[dict[str, Any]]:
    """Endless rows: a receipt as a picture, and its shop, wares and total as JSON."""
    rng = Random(stream_seed(RECEIPT, split, seed))
    while True:
        wares = [(ware, rng.randint(1, 9)) for ware in rng.sample(WARES, rng.randint(1, 4))]
        shop, total = rng.choice(SHOPS), sum(price for _, price in wares)
        said = {"shop": shop, "items": [{"name": ware, "price": price} for ware, price in wares], "total": total}
        yield _row(receipt(shop, wares, total, rng), RECEIPT, json.dumps(said, separators=(",", ":")))


def board(cells: list[str], rng: Random) -> Image.Image:
    """36 cells as a picture."""
    image, draw, ink = _page(rng)
    font, x0, y0 = ImageFont.load_default(rng.choice((9, 10, 11))), rng.randint(0, 3), rng.randint(0, 3)
    for i in range(7):
        at = 12 * i
        draw.line((x0, y0 + at, x0 + 72, y0 + at), fill=ink)
        draw.line((x0 + at, y0, x0 + at, y0 + 72), fill=ink)
    for i, cell in enumerate(cells):
        if cell != ".":
            draw.text((x0 + 12 * (i % 6) + 6, y0 + 12 * (i // 6) + 6), cell, fill=ink, font=font, anchor="mm")
    return image


def receipt(shop: str, wares: list[tuple[str, int]], total: int, rng: Random) -> Image.Image:
    """A receipt as a picture: the shop, a line for each ware, the total."""
    image, draw, ink = _page(rng)
    font, x, y = ImageFont.load_default(rng.choice((10, 11))), 5 + rng.randint(-2, 2), 3 + rng.randint(-2, 2)
    draw.text((x, y), shop, fill=ink, font=font)
    for i, (ware, price) in enumerate([*wares, ("total", total)], start=1):
        draw.text((x, y + 14 * i), ware, fill=ink, font=font)
        draw.text((SIDE - 6, y + 14 * i), str(price), fill=ink, font=font, anchor="ra")
    return image


def _page(rng: Random) -> tuple[Image.Image, ImageDraw.ImageDraw, tuple[int, ...]]:
    paper = tuple(rng.randint(215, 255) for _ in range(3))
    image = Image.new("RGB", (SIDE, SIDE), paper)
    return image, ImageDraw.Draw(image), tuple(rng.randint(0, 70) for _ in range(3))


def _row(image: Image.Image, asked: str, answer: str) -> dict[str, Any]:
    parts = [{"type": "image", "image": image}, {"type": "text", "text": asked}]
    return {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]}
