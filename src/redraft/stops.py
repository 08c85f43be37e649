"""Stop strings: where an answer ends because of what it says."""

from __future__ import annotations

from collections.abc import Sequence

from redraft.errors import RequestError

MAX_STOPS = 16
MAX_STOP_CHARS = 1000  # the search for a held-back suffix is quadratic in this


class StopStrings:
    """Cuts text before the stop string that is complete first; of two that end together, before the longer.

    So the result does not depend on how the text is cut into pieces. Only text that may still become a stop string is
    held back. Raises RequestError for an empty stop string, one of over MAX_STOP_CHARS characters, or over MAX_STOPS.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str):
            raise RequestError(f"stop is the string {stops!r}; pass a list of strings")
        if len(stops) > MAX_STOPS:
            raise RequestError(f"stop has {len(stops)} strings; pass at most {MAX_STOPS}")
        for i, stop in enumerate(stops):
            if not stop:
                raise RequestError(f"stop[{i}] is empty and would stop every text at once; leave it out")
            if len(stop) > MAX_STOP_CHARS:
                raise RequestError(f"stop[{i}] has {len(stop)} characters; pass at most {MAX_STOP_CHARS}")
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        """The stop string that the text was cut at."""

    def push(self, piece: str) -> tuple[str, bool]:
        """Add the next piece; returns the text that is safe to show and whether a stop string was found."""
        if self.found is not None:
            return "", True
        seen = self._held + piece
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := seen.find(stop)) >= 0]
        if found:
            _, cut, self.found = min(found)
            self._held = ""
            return seen[:cut], True
        cut = len(seen) - self._num_held(seen)
        self._held = seen[cut:]
        return seen[:cut], False

    def finish(self) -> str:
        """The text held back, when no more follows; nothing after a stop."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, seen: str) -> int:
        """Length of the longest suffix of `seen` that begins some stop string."""
        longest = max(map(len, self._stops), default=0)
        for size in range(min(longest - 1, len(seen)), 0, -1):
            if any(len(stop) > size and stop.startswith(seen[-size:]) for stop in self._stops):
                return size
        return 0
