"""128 streams at once, of which some hang up, some are hostile and some are bombs of constraints: what is lost.

    python bench/streams.py --count 600 --record bench/records/streams.json

`--count` is seconds. Of the requests LEAVE hang up after their first chunk, HOSTILE are cases of bench/hostile.py, and
BOMBS ask for an expression whose automaton doubles with each of its counts, another one each time, or for a schema by
which a validator never comes to an end. All others are held to a schema, with a few seeds, so that each has an answer
that is known beforehand. What must hold, or the exit code is
1: every such stream ends, with that answer; nothing has a status above 499 that is not promised; and resident memory,
less the prefixes that the server keeps, is no more than GROWN above what it was at the first third of the time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from random import Random
from typing import Any

import httpx2

from command import arguments, finish
from hostile import BRANCHING, GROWN, OTHER, OURS, STRANGER, bodies, client, hurried, state
from redraft.cli.common import progress
from redraft.errors import RunError
from redraft.measure.record import Progress, Record, new_record

STREAMS, LEAVE, HOSTILE, BOMBS, SEEDS = 128, 0.10, 0.05, 0.02, 8
PATH = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"who": {"type": "string", "maxLength": 6}, "qty": {"type": "integer"}},
    "required": ["who", "qty"],
    "additionalProperties": False,
}


def plain(seed: int) -> dict[str, Any]:
    """A request whose answer is known after it was asked once."""
    return {
        "messages": [{"role": "user", "content": "Send 417 apples to Maria."}],
        "structured_outputs": {"json": SCHEMA},
        "max_tokens": 24,
        "canvas": {"width": 32},
        "seed": seed,
        "stream": True,
    }


async def streamed(http: httpx2.AsyncClient, body: dict[str, Any], *, leave: bool = False) -> str:
    """The text of a stream, or of its first chunk. Raises RunError if it does not end as it should."""
    text, done, finish_reason = "", False, None
    async with http.stream("POST", PATH, json=body) as reply:
        if reply.status_code != 200:
            raise RunError(f"status {reply.status_code}")
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RunError(str(chunk["error"])[:200])
                for choice in chunk["choices"]:
                    text += choice["delta"].get("content") or ""
                    finish_reason = choice.get("finish_reason") or finish_reason
                if leave:
                    return text
    if not done or finish_reason is None:
        raise RunError(f"the stream ended after {text!r}")
    return text


async def load(url: str, pid: int, seconds: int, report: Progress) -> dict[str, Any]:
    """The figures of so many seconds."""
    seen, wrong, strange_wrong, memory = Counter[str](), list[str](), list[str](), list[float]()
    rng, cases = Random("streams"), bodies(Random("streams"))
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    more: dict[str, Any] = {"timeout": 300, "limits": limits}
    async with client(url, OTHER, **more) as http, client(url, STRANGER, **more) as strange:
        known = [await streamed(http, plain(seed)) for seed in range(SEEDS)]
        for answer in known:
            json.loads(answer)
        began = time.monotonic()

        async def one_after_another() -> None:
            while time.monotonic() - began < seconds:
                draw, seed = rng.random(), rng.randrange(SEEDS)
                try:
                    if draw < LEAVE:
                        seen["left"] += 1
                        await streamed(http, plain(seed), leave=True)
                    elif draw < LEAVE + HOSTILE + BOMBS:
                        bomb = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8}
                        automaton = {"regex": f"(a|b)*a(a|b){{{16 + seed}}}{rng.randrange(10**9)}"}
                        bomb["structured_outputs"] = rng.choice([automaton, {"json": BRANCHING}])
                        path, body = (PATH, json.dumps(bomb).encode()) if draw >= LEAVE + HOSTILE else next(cases)
                        seen["bombs" if draw >= LEAVE + HOSTILE else "hostile"] += 1
                        reply = await strange.post(path, content=body, headers={"content-type": "application/json"})
                        if reply.status_code >= 500 and reply.status_code not in OURS:
                            strange_wrong.append(f"{path}: {reply.status_code}: {body[:200]!r}")
                    else:
                        seen["answers"] += 1
                        if (text := await streamed(http, plain(seed))) != known[seed]:
                            wrong.append(f"seed {seed}: {text!r}")
                except (RunError, httpx2.HTTPError) as error:
                    (wrong if draw < LEAVE or draw >= LEAVE + HOSTILE + BOMBS else strange_wrong).append(
                        repr(error)[:300]
                    )

        async def watch() -> None:
            while time.monotonic() - began < seconds:
                resident, kept, _ = await state(http, pid)
                memory.append(resident - kept)
                report("second", int(time.monotonic() - began), seconds)
                await asyncio.sleep(max(1, seconds / 60))

        await asyncio.gather(watch(), *(one_after_another() for _ in range(STREAMS)))
    third = max(memory[: max(1, len(memory) // 3)])
    return {
        "seconds": round(time.monotonic() - began, 1),
        "requests": dict(sorted(seen.items())),
        "wrong": wrong[:20],
        "wrong_count": len(wrong),
        "hostile_wrong": strange_wrong[:20],
        "hostile_wrong_count": len(strange_wrong),
        "memory_mib": [round(one, 1) for one in memory],
        "broken": (["a stream was lost or invalid"] if wrong else [])
        + (["a hostile request had no answer that is promised"] if strange_wrong else [])
        + (["memory grew"] if memory[-1] > (1 + GROWN) * third else []),
    }


def record_of(figures: dict[str, Any]) -> Record:
    """What is quoted of them."""
    asked = figures["requests"]
    return new_record(
        "streams",
        workload={"streams": STREAMS, "leave": LEAVE, "hostile": HOSTILE, "bombs": BOMBS},
        figures=figures,
        summary=[
            (f"requests in {figures['seconds']:.0f} s over {STREAMS} streams", str(sum(asked.values()))),
            (
                f"of {asked['answers']} streams that were read to their end: lost or invalid",
                str(figures["wrong_count"]),
            ),
            (
                f"of {asked['hostile'] + asked['bombs']} hostile ones and bombs: without a promised answer",
                str(figures["hostile_wrong_count"]),
            ),
            (
                "resident memory first and last",
                "{:.0f} and {:.0f} MiB".format(*figures["memory_mib"][:: len(figures["memory_mib"]) - 1]),
            ),
            ("what did not hold", "; ".join(figures["broken"]) or "nothing"),
        ],
    )


def main() -> None:
    """One record."""
    asked = arguments(__doc__ or "", count=600)
    with hurried("--max-seconds", "600") as (url, pid):
        figures = asyncio.run(load(url, pid, asked.count, progress))
    print(json.dumps(figures, indent=1), file=sys.stderr)
    finish(record_of(figures), asked.record)
    if figures["broken"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
