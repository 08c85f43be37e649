"""A progress bar on stderr while many requests are answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager


@contextmanager
def answers_bar(requests: Iterable[object], shown: bool) -> Iterator[Callable[[], None]]:
    """What to call after each answer; it moves a bar, if one is shown. Requests that can be counted give it an end."""
    if not shown:
        yield lambda: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("answers", total=len(requests) if isinstance(requests, Sized) else None)
        yield lambda: bar.advance(task)
