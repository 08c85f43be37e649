"""Images that a server fetches for its clients: from hosts on its list alone, and from nowhere inside its network.

    URL ──► host on the list? ──► resolved once, every address public? ──► that address asked, no redirect, bounded

A list of names is not enough: a name may come to stand for an address of this machine or of the network behind it, and
a redirect may lead there. So the address that was checked is the one that is connected to, and no redirect is followed.
"""

from __future__ import annotations

import ipaddress
import math
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import httpx2

from redraft.constraints.compile.limits import PREPARING, UNTIL, Turns
from redraft.errors import RequestError

TIMEOUT_SEC = 10.0
MOST_BYTES = 32 * 2**20
PORTS = {"http": 80, "https": 443}
FETCHING = Turns(around=PREPARING, places=16, share=4)
"""Fetches at a time, since each may hold MOST_BYTES, and of these a client's."""
LEAST_PIECES, LEAST_BYTES = 1000, 128
"""Behind so many pieces of an answer, they have so many bytes on average: one byte alone costs as much as many."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates that are trusted, read once: that takes longer than all else of a fetch."""
    return httpx2.create_ssl_context(trust_env=False)


def is_public(address: str) -> bool:
    """Whether an address is outside: not of this machine, a private network, a link or a group, in any spelling."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if found.is_site_local:
            return False
    return found.is_global and not found.is_multicast and not found.is_reserved


@dataclass(frozen=True)
class Fetcher:
    """Fetches from `hosts`, names as "images.example" or "images.example:8080"; without any, nothing is fetched. `kept`
    is what one request has fetched, which together has at most `max_bytes`."""

    hosts: tuple[str, ...] = ()
    seconds: float = TIMEOUT_SEC
    max_bytes: int = MOST_BYTES
    allows: Callable[[str], bool] = is_public
    kept: dict[str, bytes] | None = None

    @property
    def of_one_request(self) -> Fetcher:
        """This one, which keeps what it fetches."""
        return self if self.kept is not None else replace(self, kept={})

    def fetch(self, url: str, part: str) -> bytes:
        """What a URL has, on a thread that may wait, but not for longer than its caller. Raises RequestError, which
        begins with the `part`'s name, and DeadlineError if others' fetches take all its time."""
        if self.kept is None:
            return self._fetched(url, part)
        if url not in self.kept:
            with FETCHING.turn(secrets.token_hex(), counted=False):
                left = (UNTIL.get() or math.inf) - time.monotonic()
                self.kept[url] = replace(self, seconds=max(0.01, min(self.seconds, left)))._fetched(url, part)
        return self.kept[url]

    def _fetched(self, url: str, part: str) -> bytes:
        where, host, port = self._checked(url, part)
        began, data, links = time.monotonic(), bytearray(), list[socket.socket]()
        before = sum(map(len, (self.kept or {}).values()))
        address = self._resolved(host, port, part)  # in its own time, which counts
        timeout = httpx2.Timeout(self.seconds / 2)  # of each wait; together they have `seconds`
        headers = {"host": where.netloc.decode("ascii"), "accept": "image/*", "accept-encoding": "identity"}

        def noted(event: str, of: Mapping[str, Any]) -> None:
            if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
                links.append(of["return_value"].get_extra_info("socket"))

        alarm = threading.Timer(began + self.seconds - time.monotonic(), _shut, [links])
        alarm.start()
        try:
            with (
                httpx2.Client(timeout=timeout, follow_redirects=False, trust_env=False, verify=_trusted()) as client,
                client.stream(
                    "GET",
                    where.copy_with(host=address),
                    headers=headers,
                    extensions={"sni_hostname": host, "trace": noted},
                ) as answer,
            ):
                if answer.status_code != 200:
                    said = "a redirect, which is not followed" if answer.is_redirect else f"{answer.status_code}"
                    raise RequestError(f"{part} is at {host}, which answered {said}; send the image as a data: URL")
                for number, piece in enumerate(answer.iter_raw()):
                    data += piece
                    if time.monotonic() - began >= self.seconds:  # the alarm shuts only what was open by then
                        raise httpx2.ReadTimeout("slow")
                    if number > LEAST_PIECES and len(data) < number * LEAST_BYTES:
                        raise RequestError(
                            f"{part} is at {host} and comes in too small pieces; send the image as a data: URL"
                        )
                    if before + len(data) > self.max_bytes:
                        beside = f" beside the {before} bytes that were fetched before it" if before else ""
                        raise RequestError(
                            f"{part} is at {host} and too large{beside}: send at most {self.max_bytes} bytes"
                        )
                if time.monotonic() - began >= self.seconds:
                    raise httpx2.ReadTimeout("slow")
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            if isinstance(error, httpx2.TimeoutException) or time.monotonic() - began >= self.seconds:
                late = f"{part} has not come from {host} within {self.seconds:g} seconds; send it"
                raise RequestError(late) from None
            raise RequestError(f"{part} is at {host}, which did not answer; send the image as a data: URL") from None
        finally:
            alarm.cancel()
        return bytes(data)

    def _checked(self, url: str, part: str) -> tuple[httpx2.URL, str, int]:
        """The URL, its host and its port. Raises RequestError unless the list has them."""
        try:
            found = httpx2.URL(url)
            host = found.raw_host.decode("ascii").rstrip(".").lower()
        except (httpx2.InvalidURL, ValueError):
            raise RequestError(f"{part} has the URL {url[:60]!r}, which cannot be read; send a data: URL") from None
        if found.scheme not in PORTS or found.userinfo:
            raise RequestError(f"{part} has the URL {url[:60]!r}; send data:image/png;base64,…, or a plain https URL")
        port = found.port or PORTS[found.scheme]
        names = {f"{host}:{port}"} | ({host} if port == PORTS[found.scheme] else set())
        if names.isdisjoint(name.lower() for name in self.hosts):
            raise RequestError(
                f"{part} has a URL of {host[:100]!r}, from where this server fetches nothing; send the image as"
                " data:image/png;base64,…, or start the server with --image-host"
            )
        return found.copy_with(userinfo=b"", fragment=None), host, port

    def _resolved(self, host: str, port: int, part: str) -> str:
        """The address to connect to. Raises RequestError if there is none, or if one is not public."""
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise RequestError(f"{part} is at {host}, which has no address; send the image as a data: URL") from None
        addresses = [str(one[4][0]) for one in found]
        if not all(map(self.allows, addresses)):
            raise RequestError(
                f"{part} is at {host}, an address that is not public; nothing was fetched: send a data: URL"
            )
        return addresses[0]


def _shut(links: Sequence[socket.socket]) -> None:
    """Shut connections down from another thread. A thread that reads from one of them gets the end of the stream."""
    for link in links:
        with suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)
