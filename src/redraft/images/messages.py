"""Images in messages: what stands in their parts, and the messages as a chat template reads them.

    {"type": "image", "image": a path, bytes or a Pillow image}                     Python's form
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}          OpenAI's form

A part may say under "part" what errors are to call it. Nothing is fetched here: an http URL is refused by name.
"""

from __future__ import annotations

import base64
import binascii
import math
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
                if (role := message.get("role")) != "user":
                    whose = "system or developer" if role == "system" else role  # one turn to the template
                    raise RequestError(
                        f"{name} is an image in a turn of the {whose}; the model reads images in the user's turns "
                        "alone, so put it there"
                    )
                found.append(GivenImage(name, image_of(part, name)))
                part = {"type": "image"}
            parts.append(part)
        plain.append({**message, "content": parts})
    if len(found) > MOST_IMAGES:
        raise RequestError(f"messages has {len(found)} images; at most {MOST_IMAGES} go into one request")
    return (plain if found else messages), found


def frames(images: Sequence[Given], seconds: Sequence[float]) -> list[dict[str, Any]]:
    """A video's frames as the parts of a user's message: before each the time at which it was taken, as mm:ss.

    The form is that of transformers' Gemma 4 processor. Raises RequestError where times and frames are not as many, or
    a time is not a second of the video.
    """
    if len(images) != len(seconds):
        raise RequestError(
            f"frames has {len(images)} images and {len(seconds)} times; pass one time, in seconds, for each"
        )
    parts = list[dict[str, Any]]()
    for i, (image, second) in enumerate(zip(images, seconds, strict=True)):
        if not 0 <= second < math.inf:
            raise RequestError(f"seconds[{i}] is {second}; it must be a time from 0 on")
        parts.append({"type": "text", "text": f"{int(second // 60):02d}:{int(second % 60):02d} "})
        parts.append({"type": "image", "image": image})
    return parts


def image_of(part: Mapping[str, Any], name: str) -> Given:
    """What a part holds: a path, bytes or a Pillow image. Raises RequestError."""
    if part["type"] == "image_url":
        url = part.get("image_url")
        return data_of(url.get("url") if isinstance(url, Mapping) else url, name)
    image = part.get("image")
    if isinstance(image, str) and is_data(image):
        return data_of(image, name)
    if not isinstance(image, str | Path | bytes | Image.Image):
        raise RequestError(f"{name} has an image of type {type(image).__name__}; pass a path, bytes or a Pillow image")
    return image


def data_of(url: object, name: str) -> bytes:
    """The bytes of a data URL. Raises RequestError for any other URL."""
    if not isinstance(url, str) or not is_data(url):
        raise RequestError(
            f"{name} has the URL {str(url)[:60]!r}, and nothing is fetched; send the image as data:image/png;base64,…"
        )
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise RequestError(f"{name} is a data URL that begins {url[:40]!r}; write it as data:image/png;base64,…")
    return decoded(data.strip(), name)


def is_data(url: str) -> bool:
    """Whether a URL has its data in it."""
    return url[:5].lower() == "data:"


def decoded(text: str, name: str) -> bytes:
    """The bytes of a text in base64. Raises RequestError."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{name} is not base64 ({error}); encode the image's bytes again") from None
