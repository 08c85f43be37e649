"""Rows answered by Ray Data: an engine in each actor, rows that begin alike in one batch, answers in the rows' order.

Ray runs a batch again whose actor or node is lost. What it gives twice is the same, for a row's seed is its own, and
the one who writes the output, the caller, takes each row once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow

from redraft.distributed.fleet import Fleet, fleet_of
from redraft.server.http.errors import ApiError
from redraft.server.http.places import blocks_of
from redraft.server.openai.batch import answer, service_for_rows

BATCH = 64
"""Rows of a batch: what one replica runs at a time."""

WINDOW = 32 * BATCH
"""Rows that are sorted by how they begin, and so the most that are answered before their turn to be written."""

BATCH_BYTES, WINDOW_BYTES = 2**25, 2**28
"""At which a batch or a window ends, however few its rows are: rows may be long."""

UNDER_WAY = 2
"""Batches of one actor, so that the next one's rows fill the forwards that the last rows of one leave room in."""


class Answerer:
    """An actor's engine. Ray awaits the batches under way together."""

    def __init__(self, args: Mapping[str, Any], seed: int | None) -> None:
        fleet, self._seed = fleet_of(args), seed
        self._service = service_for_rows(fleet.settings, fleet.load())

    async def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        """A column reply in the place of the rows."""
        replies = await asyncio.gather(*(self._answer(**row) for row in batch.to_pylist()))
        return batch.drop_columns("row").append_column("reply", pyarrow.array(replies, pyarrow.large_binary()))

    async def _answer(self, number: int, row: bytes) -> bytes:
        try:
            reply = await answer(self._service, row, None if self._seed is None else self._seed + number)
        except ApiError as refusal:
            reply = refusal.status, refusal.body
        return json.dumps(reply).encode()  # which has a form for unpaired surrogates, too


def answers(ray: Any, fleet: Fleet, rows: Iterator[bytes], *, first: int, seed: int | None) -> Iterator[Any]:
    """Status and body of the answers to rows in their order, the first of which has the number `first`; row i has
    `seed` + i."""
    tables = [ray.put(table) for table in _tables(rows, first)]
    if not tables:
        return
    done = ray.data.from_arrow_refs(tables).map_batches(
        Answerer,
        fn_constructor_args=(fleet.args, seed),
        batch_size=None,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            size=min(fleet.replicas, len(tables)),  # no engine is loaded for nothing
            max_tasks_in_flight_per_actor=2 * UNDER_WAY,
            max_concurrent_calls_per_actor=UNDER_WAY,
        ),
        num_cpus=fleet.cpus,
        num_gpus=fleet.gpus or None,
    )
    waiting: dict[int, bytes] = {}
    for block in done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
        waiting |= {row["number"]: row["reply"] for row in block.to_pylist()}
        while first in waiting:
            yield json.loads(waiting.pop(first))
            first += 1


def _tables(rows: Iterator[bytes], first: int) -> Iterator[pyarrow.Table]:
    """Batches of numbered rows; of each window, rows of one beginning stand together."""
    numbered = enumerate(rows, first)
    while window := sorted(_few(numbered, WINDOW, WINDOW_BYTES), key=lambda one: (blocks_of(one[1])[:1], one[0])):
        left = iter(window)
        while batch := _few(left, BATCH, BATCH_BYTES):
            numbers, data = zip(*batch, strict=True)
            yield pyarrow.table({"number": numbers, "row": pyarrow.array(data, pyarrow.large_binary())})


def _few(numbered: Iterator[tuple[int, bytes]], most: int, most_bytes: int) -> list[tuple[int, bytes]]:
    """The next rows, at most so many, and no more behind so many bytes."""
    found, size = list[tuple[int, bytes]](), 0
    while len(found) < most and size < most_bytes and (one := next(numbered, None)):
        found.append(one)
        size += len(one[1])
    return found
