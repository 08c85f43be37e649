"""A trace as recordings of whole canvases, and where two recordings differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from redraft.trace.lines import Begun, Drafted, Ended, Header, Line, Settled, Taken


@dataclass(frozen=True)
class Frame:
    """A whole canvas after a step, behind the `pieces` of text that had settled, of which there were `count` then.

    `changed` marks positions that differ from the previous frame, if that was of the same canvas.
    """

    drafted: Drafted
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    changed: tuple[bool, ...]
    pieces: Sequence[str]
    count: int

    def before(self, most: int) -> str:
        """At most so many last characters of the text before it, without a look at the others, which may be many."""
        found, at = list[str](), self.count
        while at and most > 0:
            at -= 1
            found.append(self.pieces[at][-most:])
            most -= len(found[-1])
        return "".join(reversed(found))

    @property
    def end(self) -> int:
        """Positions up to the end of the answer."""
        return self.drafted.width if self.drafted.end is None else self.drafted.end

    @property
    def text(self) -> str:
        """The text of the answer now."""
        return "".join((*self.pieces[: self.count], *self.tokens[: self.end]))


def apart(one: Frame, other: Frame) -> list[int]:
    """Positions at which two canvases differ; positions that only one of them has are included."""
    both = zip(one.ids, other.ids, strict=False)
    least, most = sorted((len(one.ids), len(other.ids)))
    return [at for at, (a, b) in enumerate(both) if a != b] + list(range(least, most))


@dataclass
class Recording:
    """One request of a trace: its frames, its blocks, its end, if there is one, and whether it won against others."""

    begun: Begun
    frames: list[Frame] = field(default_factory=list)
    blocks: list[Settled] = field(default_factory=list)
    ended: Ended | None = None
    taken: bool = False
    _pieces: list[str] = field(default_factory=list, init=False, repr=False, compare=False)  # none is empty

    @property
    def finish(self) -> str:
        """Why it ended."""
        return "cut off" if self.ended is None else self.ended.finish

    def take(self, line: Line) -> None:
        """Its next line. Raises ValueError for one that cannot follow."""
        if isinstance(line, Taken):
            self.taken = True
            return
        if self.ended is not None or isinstance(line, Begun):
            raise ValueError(f"request {line.index} has ended" if self.ended else f"request {line.index} begins twice")
        if isinstance(line, Ended):
            self.ended = line
        elif isinstance(line, Settled):
            self.blocks.append(line)
            self._pieces += filter(None, line.pieces)
        else:
            self.frames.append(self._frame(line))

    def _frame(self, line: Drafted) -> Frame:
        last = self.frames[-1] if self.frames else None
        if last is not None and last.drafted.block != line.block:
            last = None if line.step == 1 else replace(last, ids=())  # a flowing canvas goes on counting steps
        if line.step != (1 if last is None else last.drafted.step + 1):
            raise ValueError(f"step {line.step} of request {line.index} does not follow its last step")
        if last is not None and len(last.ids) == line.width:
            tokens, ids = list(last.tokens), list(last.ids)
        elif len(line.positions) == line.width:
            tokens, ids = [""] * line.width, [0] * line.width
        else:
            raise ValueError(f"a new canvas of {line.width} positions lists only {len(line.positions)} of them")
        for at, token, number in zip(line.positions, line.tokens, line.ids, strict=True):
            tokens[at], ids[at] = token, number
        past = () if last is None else last.ids
        changed = tuple(at < len(past) and number != past[at] for at, number in enumerate(ids))
        return Frame(line, tuple(tokens), tuple(ids), changed, self._pieces, len(self._pieces))


def first_apart(one: Recording, other: Recording) -> tuple[int, list[int]] | None:
    """The first frame in which two recordings differ, and the positions; None if they never differ. One that ends
    sooner keeps its last frame."""
    for at in range(max(len(one.frames), len(other.frames))):
        found = apart(one.frames[min(at, len(one.frames) - 1)], other.frames[min(at, len(other.frames) - 1)])
        if found:
            return at, found
    return None


@dataclass(frozen=True)
class Trace:
    """A trace that was read. `recordings` are those that took a step, in the order in which they began; `instead` is
    the text that was used if it is of none of them, but was written from left to right."""

    header: Header
    recordings: tuple[Recording, ...]
    instead: str | None = None

    @property
    def main(self) -> Recording:
        """The recording to show first: the one that was taken, else the longest of those with a proper end."""

        def worth(recording: Recording) -> tuple[bool, bool, int]:
            return recording.taken, recording.finish not in ("aborted", "error", "cut off"), len(recording.frames)

        return max(self.recordings, key=worth)
