"""What a throughput measurement sends, and when, and what comes back: jobs made from a seed, the same for every side.

one         one request at a time
together    eight of mixed lengths at once
poisson     the same kind as a Poisson stream
variants    eight seeds of one prompt at once
long        one long prompt asked five questions, one after another
long-4k     the same on a random model with room for it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Literal

import torch

from redraft.config import CheckpointConfig, read_config
from redraft.diffusion.halt import first_end
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.errors import RequestError, did_you_mean
from redraft.files import copy_files
from redraft.tasks import Example, task
from redraft.text import Message, Text
from redraft.weights.build import random_model
from redraft.weights.save import save_model
from redraft.weights.source import TEXT_FILES, WeightSource

TASKS = ("records", "sudoku-4x4")
AT_ONCE, STREAM, QUESTIONS = 8, 40, 5
SHORTEST, LONGEST = 20, 200
FEWEST_TOKENS, MOST_TOKENS = 8, 64
ANSWER_TOKENS = 32
HEADS, HEADS_SEED = 400, 10**6  # answered examples that stand before questions
RATE = 30.0
"""Requests per second of the Poisson stream by default."""


@dataclass(frozen=True)
class TimedRequest:
    """One request, when it arrives (seconds after the start), and what it should be answered with.

    `example` is None where exactness cannot be judged: a model without training, or an answer longer than the limit.
    """

    request: ResolvedRequest
    arrives: float = 0.0
    task: str = TASKS[0]
    example: Example | None = None


@dataclass
class Outcome:
    """What one request got; times are seconds after its arrival. An empty answer's first text is its end."""

    request: ResolvedRequest
    arrives: float
    tokens: list[int] = field(default_factory=list)
    first: float | None = None
    seconds: float | None = None

    def take(self, canvas: Sequence[int], now: float) -> None:
        """A finished canvas, handed out at `now`; what is beyond the end or the limit is left out."""
        if self.seconds is not None:
            return
        left = self.request.max_tokens - len(self.tokens)
        end = first_end(torch.tensor(canvas), self.request.eos)
        useful = list(canvas[:end])[:left]
        self.tokens += useful
        if useful and self.first is None:
            self.first = now - self.arrives
        if end is not None or len(useful) == left:
            self.close(now)

    def close(self, now: float) -> None:
        """Nothing more comes."""
        if self.seconds is None:
            self.seconds = now - self.arrives
        self.first = self.seconds if self.first is None else self.first

    @property
    def first_sec(self) -> float:
        """Seconds to the first text."""
        assert self.first is not None, "the request is still open"
        return self.first

    @property
    def latency(self) -> float:
        """Seconds to the last useful token."""
        assert self.seconds is not None, "the request is still open"
        return self.seconds


@dataclass(frozen=True)
class Pass:
    """One pass over some jobs: outcomes in their order, seconds until the last one, forwards of the network."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    forwards: int

    @property
    def tokens(self) -> int:
        """Useful tokens of all answers."""
        return sum(len(outcome.tokens) for outcome in self.outcomes)

    @property
    def tokens_per_sec(self) -> float:
        """Useful tokens per second of the whole pass."""
        return self.tokens / self.seconds

    @property
    def requests_per_sec(self) -> float:
        """Requests answered per second of the whole pass."""
        return len(self.outcomes) / self.seconds


@dataclass(frozen=True)
class Material:
    """What jobs are made from: a checkpoint's text side and settings, the stream's rate, and the repetition."""

    text: Text
    config: CheckpointConfig
    rate: float = RATE
    seed: int = 0
    scored: bool = True

    def job(self, messages: Sequence[Message], name: str, example: Example, max_tokens: int, seed: int) -> TimedRequest:
        """A checked job. Its exactness counts if the right answer fits in its limit."""
        options = Options(max_tokens=max_tokens, seed=seed, preset="reference")
        request = build_request(self.text.chat(messages), options, self.config)
        fits = len(self.text.encode(example.answer, bos=False)) <= max_tokens
        return TimedRequest(request, 0.0, name, example if fits and self.scored else None)


@dataclass(frozen=True)
class Scenario:
    """A kind of load. In a `serial` one a request is sent when the one before it has been answered.

    `counted` is what its claim counts per second: requests where the model has little or nothing to say.
    """

    name: str
    about: str
    make: Callable[[Material], list[TimedRequest]]
    serial: bool = False
    counted: Literal["tokens", "requests"] = "tokens"
    positions: int | None = None  # context of the random model it runs on; None: the checkpoint itself

    def jobs(self, material: Material) -> list[TimedRequest]:
        """Its jobs in order of arrival: the same for the same material."""
        return self.make(replace(material, scored=self.positions is None))


def find_scenarios(names: Sequence[str]) -> list[Scenario]:
    """The scenarios of these names, each once; "all" means every one. Raises RequestError for an unknown name."""
    for name in names:
        if name != "all" and name not in SCENARIOS:
            raise RequestError(
                f"scenario is {name!r}; known: {', '.join(SCENARIOS)}, all{did_you_mean(name, SCENARIOS)}"
            )
    wanted = SCENARIOS if "all" in names else dict.fromkeys(names)
    return [SCENARIOS[name] for name in wanted]


@lru_cache
def examples(name: str, seed: int, count: int) -> tuple[Example, ...]:
    """Held-out examples of one task. Kept: a stream of puzzles looks for hundreds before it gives the first."""
    return tuple(islice(task(name).examples("held_out", seed), count))


def held_out(count: int) -> list[str]:
    """Prompts of both tasks in turn."""
    streams = [task(name).examples("held_out", 0) for name in TASKS]
    return [next(streams[i % len(streams)]).prompt for i in range(count)]


def user(example: Example) -> Message:
    """The turn that asks."""
    return {"role": "user", "content": example.prompt}


def turns(material: Material, name: str, seed: int, target: int) -> list[Message]:
    """Answered examples of a task, as many as bring a conversation near `target` tokens; none if one is too many."""
    pool, found = examples(name, HEADS_SEED, HEADS), list[Message]()
    for i in range(HEADS):
        example = pool[(seed + i) % HEADS]
        more = [*found, user(example), {"role": "assistant", "content": example.answer}]
        if len(material.text.chat(more)) > target:
            break
        found = more
    return found


def plain(material: Material, count: int) -> list[TimedRequest]:
    """Single questions of both tasks in turn, with room for every answer."""
    pools = [examples(name, material.seed, count) for name in TASKS]
    picked = [(TASKS[i % 2], pools[i % 2][i // 2]) for i in range(count)]
    seed = material.seed * 1000
    return [material.job([user(one)], name, one, ANSWER_TOKENS, seed + i) for i, (name, one) in enumerate(picked)]


def mixed(material: Material, count: int) -> list[TimedRequest]:
    """Questions behind none to several answered ones, so that prompts differ, with limits that differ."""
    rng, found = Random(f"mixed {material.seed}"), []
    pools = {name: examples(name, 10_000 + material.seed, count) for name in TASKS}
    for i in range(count):
        name, target = rng.choice(TASKS), rng.randint(SHORTEST, LONGEST)
        example, seed = pools[name][i], material.seed * 1000 + i
        question = len(material.text.chat([user(example)]))
        head = turns(material, name, rng.randrange(HEADS), target - question)
        found.append(material.job([*head, user(example)], name, example, rng.randint(FEWEST_TOKENS, MOST_TOKENS), seed))
    return found


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Times of a Poisson stream: gaps are exponential with mean 1 / rate, and the first request comes at once."""
    rng = Random(f"arrivals {seed}")
    return list(islice(accumulate((rng.expovariate(rate) for _ in range(count)), initial=0.0), count))


def stream(material: Material) -> list[TimedRequest]:
    """Mixed jobs as a Poisson stream."""
    times = arrivals(STREAM, material.rate, material.seed)
    return [replace(job, arrives=when) for job, when in zip(mixed(material, STREAM), times, strict=True)]


def variants(material: Material) -> list[TimedRequest]:
    """One question, eight seeds."""
    name = TASKS[material.seed % 2]
    (example,) = examples(name, material.seed, 1)
    seeds = range(material.seed * 1000, material.seed * 1000 + AT_ONCE)
    return [material.job([user(example)], name, example, ANSWER_TOKENS, seed) for seed in seeds]


def long_prompt(material: Material, target: int) -> list[TimedRequest]:
    """Questions that share all but their last turn."""
    name = TASKS[0]
    head = turns(material, name, material.seed, target)
    asked = examples(name, material.seed, QUESTIONS)
    return [
        material.job([*head, user(one)], name, one, ANSWER_TOKENS, material.seed * 1000 + i)
        for i, one in enumerate(asked)
    ]


def checkpoint_of(scenario: Scenario, folder: Path) -> AbstractContextManager[Path]:
    """The checkpoint a scenario runs on: `folder`, or a random one of its shape that is gone afterwards."""
    return nullcontext(folder) if scenario.positions is None else random_checkpoint(folder, scenario.positions)


@contextmanager
def random_checkpoint(folder: Path, positions: int) -> Iterator[Path]:
    """An untrained model of a checkpoint's shape with a longer context, saved with the checkpoint's tokenizer.

    Its end tokens have zero embeddings, so that, the head being tied, they are never the likeliest: answers are as
    long as allowed, and no canvas settles before the last step.
    """
    shipped = read_config(folder)
    config = replace(shipped.model, max_positions=positions)
    model = random_model(config, 0)
    with torch.no_grad():
        model.embed.weight[list(shipped.generation.eos_token_ids)] = 0.0
    with TemporaryDirectory(prefix="redraft-bench-") as name:
        place = Path(name)
        save_model(model, place, generation=shipped.generation, vision=WeightSource(folder))
        copy_files(TEXT_FILES, folder, place)
        yield place


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("one", "single questions, one request at a time", lambda s: plain(s, AT_ONCE), serial=True),
        Scenario("together", "8 requests of mixed lengths arriving together", lambda s: mixed(s, AT_ONCE)),
        Scenario("poisson", f"{STREAM} requests of mixed lengths in a Poisson stream", stream),
        Scenario("variants", "8 variants of one prompt, each its own seed", variants),
        Scenario(
            "long",
            "a prompt of about 750 tokens (the context is 1024) asked 5 questions, one after another",
            lambda s: long_prompt(s, 730),
            serial=True,
            counted="requests",
        ),
        Scenario(
            "long-4k",
            "a prompt of about 4000 tokens asked 5 questions, one after another, on a random model",
            lambda s: long_prompt(s, 4000),
            serial=True,
            positions=32_768,
        ),
    )
}
