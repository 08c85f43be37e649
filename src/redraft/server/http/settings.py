"""The settings of one server."""

from __future__ import annotations

from dataclasses import dataclass

from redraft.server.http.fetch import Fetcher
from redraft.server.http.limits import ServerLimits

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Settings:
    """Fixed when the server starts.

    names        what it calls its model, the first one in answers; "*" accepts every name
    keys         SHA-256 digests of API keys, none for an open server
    origins      web pages elsewhere that may call it
    hosts        the names it answers to, "*" for all
    fetcher      what gets images of other hosts for clients; by default from none
    preset       sampler rules of requests that name none; None leaves them to the checkpoint
    clip         whether an answer that passes the context is cut to it instead of refused
    ask_fields   `canvas.ask_fields` of requests that send a schema and no such field
    page         whether it serves the web page
    log_prompts  whether the log has prompts
    version      this program's
    """

    names: tuple[str, ...] = ("nano",)
    keys: tuple[bytes, ...] = ()
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = LOOPBACK
    limits: ServerLimits = ServerLimits()
    fetcher: Fetcher = Fetcher()
    preset: str | None = None
    clip: bool = False
    ask_fields: bool = False
    page: bool = True
    log_prompts: bool = False
    version: str = "unknown"

    @property
    def name(self) -> str:
        """The model's name in answers."""
        return self.names[0]
