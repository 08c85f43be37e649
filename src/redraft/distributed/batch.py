"""Rows answered by Ray Data: an engine in each actor, rows that begin alike in one batch, answers in the rows' order.

Ray runs a batch again whose actor or node is lost. What it gives twice is the same, for a row's seed is its own, and
the one who writes the output, the caller, takes each row once.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import pyarrow

from redraft.distributed.fleet import Fleet, fleet_of
from redraft.errors import RedraftError
from redraft.server.http.errors import refusal_of
from redraft.server.http.limits import Limits
from redraft.server.http.places import blocks_of
from redraft.server.http.service import Service
from redraft.server.openai.batch import answer

BATCH = 64
"""Rows of a batch: what one replica runs at a time."""

WINDOW = 32 * BATCH
"""Rows that are sorted by how they begin, and so the most that are answered before their turn to be written."""

UNDER_WAY = 2
"""Batches of one actor, so that the next one's rows fill the forwards that the last rows of one leave room in."""

MANY = 2**31
Answer = tuple[bytes, int, Mapping[str, Any]]
"""A row with the status and the body of its answer."""


class Answerer:
    """An actor's engine; called with a batch of numbered rows."""

    def __init__(self, args: Mapping[str, Any], seed: int | None) -> None:
        fleet, self._seed = fleet_of(args), seed
        limits = Limits(per_key=MANY, in_flight=MANY, request_sec=86_400.0)
        self._service = Service(replace(fleet.settings, limits=limits))
        self._service.ready(fleet.load())
        self._loop = asyncio.new_event_loop()  # one for all batches under way, each of which waits on its own thread
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        """A column reply, beside number and row."""
        replies = asyncio.run_coroutine_threadsafe(self._answers(batch.to_pylist()), self._loop).result()
        return batch.append_column("reply", pyarrow.array(replies, pyarrow.large_binary()))

    async def _answers(self, rows: list[dict[str, Any]]) -> list[bytes]:
        return list(await asyncio.gather(*(self._answer(**row) for row in rows)))

    async def _answer(self, number: int, row: bytes) -> bytes:
        try:
            reply = await answer(self._service, row, None if self._seed is None else self._seed + number)
        except RedraftError:  # of the engine, not of the row
            raise
        except Exception as error:
            refusal = refusal_of(error)
            reply = refusal.status, refusal.body
        return json.dumps(reply).encode()  # which has a form for unpaired surrogates, too


def answers(ray: Any, fleet: Fleet, rows: Iterator[bytes], *, first: int, seed: int | None) -> Iterator[Answer]:
    """The answers to rows, of which the first has the number `first`, in their order; row i has `seed` + i."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    tables = [ray.put(_table(part)) for window in _windows(rows, first) for part in window]
    if not tables:
        return
    done = ray.data.from_arrow_refs(tables).map_batches(
        Answerer,
        fn_constructor_args=(fleet.args, seed),
        batch_size=None,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            size=fleet.replicas,
            max_tasks_in_flight_per_actor=2 * UNDER_WAY,
            max_concurrent_calls_per_actor=UNDER_WAY,
            enable_true_multi_threading=True,
        ),
        num_cpus=fleet.cpus,
        num_gpus=fleet.gpus or None,
    )
    waiting: dict[int, tuple[bytes, bytes]] = {}
    for block in done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
        waiting |= {row["number"]: (row["row"], row["reply"]) for row in block.to_pylist()}
        while first in waiting:
            row, reply = waiting.pop(first)
            yield row, *json.loads(reply)
            first += 1


def _windows(rows: Iterator[bytes], first: int) -> Iterator[list[list[tuple[int, bytes]]]]:
    """Batches of numbered rows, window by window; in a window rows of one beginning stand together."""
    numbered = enumerate(rows, first)
    while window := list(islice(numbered, WINDOW)):
        window.sort(key=lambda one: (blocks_of(one[1])[:1], one[0]))
        yield [window[start : start + BATCH] for start in range(0, len(window), BATCH)]


def _table(part: list[tuple[int, bytes]]) -> pyarrow.Table:
    numbers, rows = zip(*part, strict=True)
    return pyarrow.table({"number": numbers, "row": pyarrow.array(rows, pyarrow.large_binary())})
