"""Conversations of two or three questions about ordinary sentences and grids, each complete in itself."""

from collections.abc import Iterator
from random import Random

from redraft.tasks import stream_seed, task

Message = dict[str, str]

TASKS = {"extract": 6, "forms": 2, "edit": 1, "mend": 1, "fill": 1, "sudoku-4x4": 1}


def conversations(split: str, seed: int) -> Iterator[dict[str, list[Message]]]:
    """Endless rows of one split, as in a file of chats."""
    rng = Random(stream_seed("plain turns", split, seed))
    examples = [task(name).examples(split, rng.getrandbits(32)) for name in TASKS]
    while True:
        asked = [next(rng.choices(examples, list(TASKS.values()))[0]) for _ in range(rng.randint(2, 3))]
        messages = list[Message]()
        for example in asked:
            messages += [{"role": "user", "content": example.prompt}, {"role": "assistant", "content": example.answer}]
        yield {"messages": messages}
