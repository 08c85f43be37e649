"""Images in messages: from the parts that clients send to what the engine takes, bytes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redraft.errors import RequestError
from redraft.images.messages import MOST_IMAGES, data_of
from redraft.server.http.fetch import Fetcher
from redraft.server.openai.fields import Content, ImagePart, text_of


def contents_of(contents: Sequence[Content | None], fetcher: Fetcher) -> list[str | list[dict[str, Any]]]:
    """The contents of messages as the engine takes them: a text, or parts where there are images.

    Images are read from data URLs, and fetched from hosts that the server allows. Raises RequestError, which names the
    part; the images are counted before the first is fetched.
    """
    images = sum(isinstance(part, ImagePart) for content in contents for part in _parts(content))
    if images > MOST_IMAGES:
        raise RequestError(f"messages has {images} images; at most {MOST_IMAGES} go into one request")
    fetcher = fetcher.of_one_request
    return [_content(content, fetcher, f"messages[{i}].content") for i, content in enumerate(contents)]


def _content(content: Content | None, fetcher: Fetcher, name: str) -> str | list[dict[str, Any]]:
    parts = _parts(content)
    if not any(isinstance(part, ImagePart) for part in parts):
        return text_of(content)
    found: list[dict[str, Any]] = []
    for i, part in enumerate(parts):
        if not isinstance(part, ImagePart):
            found.append({"type": "text", "text": part.text})
            continue
        where = f"{name}[{i}]"
        is_remote = part.url[:8].lower().startswith(("http://", "https://"))
        image = fetcher.fetch(part.url, where) if is_remote else data_of(part.url, where)
        found.append({"type": "image", "image": image})
    return found


def _parts(content: Content | None) -> Sequence[Any]:
    return [] if content is None or isinstance(content, str) else content
