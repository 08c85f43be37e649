"""A backend for callers that wait: questions one after the other over one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from redraft.remote.channel import Backend, Channel, Reply


@dataclass(frozen=True)
class Wish:
    """What is asked of an answer; None is left to the server. `schema` is a JSON Schema, for a conversation only."""

    max_tokens: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    schema: Any = None

    def fields(self) -> dict[str, Any]:
        """As OpenAI's interface names them."""
        named: dict[str, Any] = {"max_tokens": self.max_tokens, "seed": self.seed, "temperature": self.temperature}
        named |= {"top_p": self.top_p, "stop": list(self.stop) or None}
        if self.schema is not None:
            named["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": self.schema, "strict": True},
            }
        return {name: value for name, value in named.items() if value is not None}


class Remote:
    """Use it with `with`: it holds a connection."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._channel = Channel(backend)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._channel.__aexit__(None, None, None))
        self._runner.close()

    def ask(
        self, prompt: str | Sequence[Mapping[str, Any]], wish: Wish, told: Callable[[str], None] = lambda _: None
    ) -> Reply:
        """Answer a conversation, or continue a text. Raises as `Channel.ask`."""
        if isinstance(prompt, str):
            return self._runner.run(self._channel.ask("completions", {"prompt": prompt, **wish.fields()}, told))
        body = {"messages": list(prompt), **wish.fields()}
        return self._runner.run(self._channel.ask("chat/completions", body, told))
