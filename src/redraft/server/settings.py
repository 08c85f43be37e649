"""What a server is told once, when it starts."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from redraft.errors import RequestError

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, one key and all of them together may take.

    body_bytes       of a request's body
    choices          answers to one request: prompts times n
    constraint_bytes of a schema, expression or list of choices
    per_key          answers under way for one API key; beyond it 429
    in_flight        answers under way in all; beyond it 503
    request_sec      seconds an answer may take; then the best canvas so far is the answer
    stall_sec        seconds a reader may take for one piece of a stream before it is dropped
    quiet_sec        seconds of silence after which a stream carries a comment
    drain_sec        seconds that answers under way get when the server is told to stop
    """

    body_bytes: int = 4 * 2**20
    choices: int = 64
    constraint_bytes: int = 64 * 2**10
    per_key: int = 256
    in_flight: int = 1024
    request_sec: float = 600.0
    stall_sec: float = 30.0
    quiet_sec: float = 10.0
    drain_sec: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise RequestError(f"{name} is {value}; it must be above 0")


@dataclass(frozen=True)
class Settings:
    """One server. `names` are what it calls its model, the first one in answers; "*" accepts every name.

    `keys` are SHA-256 digests of API keys, none for an open server. `origins` are web pages elsewhere that may call it,
    `hosts` the names it answers to ("*" for all). `preset` are the sampler rules of requests that name none;
    None leaves them to the checkpoint. `version` is this program's.
    """

    names: tuple[str, ...] = ("nano",)
    keys: tuple[bytes, ...] = ()
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = LOOPBACK
    limits: Limits = Limits()
    preset: str | None = None
    page: bool = True
    log_prompts: bool = False
    version: str = "unknown"

    @property
    def name(self) -> str:
        """The model's name in answers."""
        return self.names[0]

    def key_number(self, given: str) -> int | None:
        """Which of the keys this is. Every key is compared, each in constant time."""
        digest, found = digest_of(given), None
        for i, key in enumerate(self.keys):
            if hmac.compare_digest(digest, key):
                found = i
        return found


def digest_of(key: str) -> bytes:
    """What is kept of an API key: all digests are of one length, so a comparison tells nothing of the key's."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(file: Path | None, environment: str | None) -> tuple[bytes, ...]:
    """Digests of the keys of a file, one a line, and of a comma-separated variable. Raises RequestError."""
    given = [] if environment is None else environment.split(",")
    if file is not None:
        try:
            given += file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise RequestError(f"--api-key-file {file} cannot be read: {why}; give one with a key a line") from None
    keys = [key.strip() for key in given if key.strip() and not key.strip().startswith("#")]
    if not keys and (file is not None or environment is not None):
        raise RequestError("API keys were asked for and none was given; write one a line, or leave the option out")
    short = next((i for i, key in enumerate(keys, 1) if len(key) < 8), None)
    if short is not None:
        raise RequestError(f"API key number {short} has fewer than 8 characters; use longer ones")
    return tuple(dict.fromkeys(map(digest_of, keys)))
