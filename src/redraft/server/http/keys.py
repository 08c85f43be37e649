"""API keys: read at the start, kept as SHA-256 digests, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path

from redraft.errors import RequestError

MOST_KEYS_BYTES = 2**20


def digest_of(key: str) -> bytes:
    """The digest of an API key. All digests have one length, so a comparison reveals nothing of the key's."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def key_number(digests: Sequence[bytes], given: str) -> int | None:
    """Which of the keys this is, None for an unknown one. It is compared with every key. `given` is a header's bytes
    as Latin-1; clients send other letters than ASCII as that, or as UTF-8."""
    sent, found = (digest_of(given), hashlib.sha256(given.encode("latin-1")).digest()), None
    for i, key in enumerate(digests):
        if hmac.compare_digest(sent[0], key) | hmac.compare_digest(sent[1], key):  # both, always
            found = i
    return found


def sent_key(headers: Mapping[str, str]) -> str:
    """The API key of a request, empty if it has none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def read_keys(file: Path | None, environment: str | None) -> tuple[bytes, ...]:
    """Digests of the keys of a file, one a line, and of a comma-separated variable. Raises RequestError."""
    given = [] if environment is None else environment.split(",")
    if file is not None:
        try:
            with file.open("rb") as opened:
                data = opened.read(MOST_KEYS_BYTES + 1)
            if len(data) > MOST_KEYS_BYTES:
                raise RequestError(
                    f"--api-key-file {file} has over {MOST_KEYS_BYTES} bytes; give one with a key a line"
                )
            given += data.decode("utf-8-sig").splitlines()
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
