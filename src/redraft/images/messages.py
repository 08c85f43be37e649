"""Images in messages: what stands in their parts, and the messages as a chat template reads them.

    {"type": "image", "image": a path, bytes or a Pillow image}                     Python's form
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}          OpenAI's form

A part may say under "part" what errors are to call it. Nothing is fetched here: an http URL is refused by name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from redraft.errors import RequestError
from redraft.images.pixels import Given

MOST_IMAGES = 20
"""Images of one request."""


@dataclass(frozen=True)
class GivenImage:
    """An image as a caller gave it. `part` names it in errors, such as "messages[0].content[1]"."""

    part: str
    image: Given


def split_images(messages: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], list[GivenImage]]:
    """Messages with `{"type": "image"}` in place of every image, and the images in their order.

    Raises RequestError for a part that holds no image, one outside a user's turn, and more than MOST_IMAGES.
    """
    plain, found = list[Mapping[str, Any]](), list[GivenImage]()
    for i, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, list | tuple):
            plain.append(message)
            continue
        parts = []
        for j, part in enumerate(content):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in ("image", "image_url"):
                name = str(part.get("part") or f"messages[{i}].content[{j}]")
                if message.get("role") != "user":
                    raise RequestError(
                        f"{name} is an image in a turn of the {message.get('role')}; the model reads images in the "
                        "user's turns alone, so put it there"
                    )
                found.append(GivenImage(name, image_of(part, name)))
                part = {"type": "image"}
            parts.append(part)
        plain.append({**message, "content": parts})
    if len(found) > MOST_IMAGES:
        raise RequestError(f"messages has {len(found)} images; at most {MOST_IMAGES} go into one request")
    return (plain if found else messages), found


def image_of(part: Mapping[str, Any], name: str) -> Given:
    """What a part holds: a path, bytes or a Pillow image. Raises RequestError."""
    if part["type"] == "image_url":
        url = part.get("image_url")
        return data_of(url.get("url") if isinstance(url, Mapping) else url, name)
    image = part.get("image")
    if isinstance(image, str) and image.startswith("data:"):
        return data_of(image, name)
    if not isinstance(image, str | Path | bytes | Image.Image):
        raise RequestError(f"{name} has an image of type {type(image).__name__}; pass a path, bytes or a Pillow image")
    return image


def data_of(url: object, name: str) -> bytes:
    """The bytes of a data URL. Raises RequestError for any other URL."""
    if not isinstance(url, str) or not url.startswith("data:"):
        raise RequestError(
            f"{name} has the URL {str(url)[:60]!r}, and nothing is fetched; send the image as data:image/png;base64,…"
        )
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise RequestError(f"{name} is a data URL that begins {url[:40]!r}; write it as data:image/png;base64,…")
    return decoded(data, name)


def decoded(text: str, name: str) -> bytes:
    """The bytes of a text in base64. Raises RequestError."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{name} is not base64 ({error}); encode the image's bytes again") from None
