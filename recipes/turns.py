"""Conversations of two or three questions, each of a built-in task and none about another: what
`nano-sudoku-turns.toml` adds.

A model that saw only single questions takes a second one for a continuation of the first.
"""

from collections.abc import Iterator
from random import Random

from redraft.tasks import names, stream_seed, task

Message = dict[str, str]


def conversations(split: str, seed: int) -> Iterator[dict[str, list[Message]]]:
    """Endless rows of one split, as in a file of chats."""
    rng = Random(stream_seed("turns", split, seed))
    examples = [task(name).examples(split, rng.getrandbits(32)) for name in names("nano-sudoku")]
    while True:
        asked = [next(rng.choice(examples)) for _ in range(rng.randint(2, 3))]
        messages = list[Message]()
        for example in asked:
            messages += [{"role": "user", "content": example.prompt}, {"role": "assistant", "content": example.answer}]
        yield {"messages": messages}
