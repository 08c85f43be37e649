"""An answer read a second time, from left to right, by the same weights.

A canvas settles all of its tokens together; the causal mode says how likely each is behind those before it. Where the
two disagree the answer is often wrong (record `plain-nano`): a second opinion for the price of one forward.
"""

from __future__ import annotations

from redraft.engine.engine import Core
from redraft.engine.request import Generation, Options, Request, ResolvedRequest
from redraft.errors import RequestError

READING = Options(causal=True, read_prompt=True, logprobs=1, max_tokens=0, seed=0)


def read_back(engine: Core, request: Request | ResolvedRequest, done: Generation) -> tuple[float, ...]:
    """The log-probability of each token of the answer to a request, in nats, whatever held it.

    `field_likelihood` makes probabilities of fields of them. Raises RequestError for a prompt with images, and for one
    that leaves the answer no room in the context.
    """
    asked = request if isinstance(request, ResolvedRequest) else engine.resolve(request)
    if asked.images:
        raise RequestError("the prompt has images, behind which nothing can be read back; leave the reading out")
    read = engine.run(engine.resolve(Request([*asked.prompt, *done.tokens], READING)))
    return tuple(row[0][1] for row in read.prompt_logprobs[len(asked.prompt) - 1 :])
