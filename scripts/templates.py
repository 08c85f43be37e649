"""Measures whether a template is filled better by trying several widths side by side than by one canvas; a record.

    python scripts/templates.py --count 200 [--model nano] --record benchmarks/templates-nano.json

    one canvas   the automaton weighs every alignment of the text with the canvas: what engine.fill does
    seeds        SEEDS such canvases, with seeds of their own
    lengths      one for every length of the whole text; the holes share it out among them, judged as a gap's widths are
    widths       one for each of the MOST likeliest widths of all holes, the text around them pinned; LEAST_STEPS each
    told         the same for the right widths alone
    causal       the causal mode, token by token, with the template as a mask

Which lengths and widths there are, and how likely each is, is learnt from answers of the training split. Of several
canvases one is chosen by a score: the mean entropy of the holes at step 2, as `infill` does, or the likelihood of the
text in the causal mode, for one more forward each. Prompt i has seed i, and all ways take turns on it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from redraft.constraints.compile.template import Template, read_template
from redraft.constraints.language import Language, ready
from redraft.diffusion.presets import narrowest
from redraft.diffusion.seed import LEAST_STEPS, SeedCanvas
from redraft.engine.engine import Engine, load
from redraft.engine.fill import ROOM
from redraft.engine.gap import JUDGED_AT
from redraft.engine.infill import KEEP
from redraft.engine.race import Doubt, Drop, race
from redraft.engine.request import Options, Request
from redraft.engine.variants import mean
from redraft.errors import ConstraintError
from redraft.measure.evals import said, share_of
from redraft.measure.record import new_record, write_record
from redraft.tasks import task
from redraft.tasks.records import FIELDS

SEEDS, MOST, LEARNT = 4, 36, 200
FAST = Options(preset="fast")
KINDS = {
    "who": "string",
    "qty": "int(1..999)",
    "item": "string",
    "word": "string",
    "number": "int(0..999)",
    "name": "enum(true|false|null)",
    "list": "regex([0-9]{1,2}(,[0-9]{1,2}){0,2})",
}
TASKS = {"records": ("records", 1), "repairs": ("repair", 1), "lists": ("lists", 3), "plain text": ("records", 8)}
"""Of each kind of template the task, and of how many prompts one is asked: long and unsure answers take longer."""


Key = TypeVar("Key")
Part = tuple[str, str]  # a literal as ("", text), or a hole as (its kind, what belongs in it)


@dataclass(frozen=True, eq=False)
class Asked:
    """A prompt with a template, and what belongs in its holes."""

    engine: Engine
    prompt: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The right filling."""
        return "".join(text for _, text in self.parts)

    @cached_property
    def template(self) -> Template:
        """The template."""
        holes = itertools.count()
        return read_template(
            "".join(f"{{{{h{next(holes)}: {KINDS[kind]}}}}}" if kind else text for kind, text in self.parts)
        )

    @cached_property
    def language(self) -> Language:
        """Its fillings."""
        return ready(self.template.source(), self.engine.vocabulary)

    def ids(self, text: str) -> list[int]:
        """Tokens of a text."""
        return self.engine.text.encode(text, bos=False)

    @property
    def told(self) -> tuple[int, ...]:
        """The right widths of the holes, in tokens."""
        return tuple(len(self.ids(text)) for kind, text in self.parts if kind)

    @property
    def fixed(self) -> int:
        """Tokens of the text around the holes."""
        return sum(len(self.ids(text)) for kind, text in self.parts if not kind)

    def request(self, options: Options) -> Request:
        """A request for a filling."""
        return self.engine.request(self.prompt, chat=True, options=options, language=self.language)

    def free(self, options: Options) -> Request:
        """A request with as much room as engine.fill gives."""
        least, shipped = int(self.language.automaton.to_end[0]), self.engine.config.generation.max_new_tokens
        room = max(shipped, least + ROOM * len(self.template.holes))
        return self.request(replace(options, max_tokens=room))

    def of_length(self, tokens: int, seed: int) -> Request:
        """A canvas for a text of just so many tokens. Raises ConstraintError if there is none."""
        return self.request(replace(FAST, seed=seed, max_tokens=tokens, min_tokens=tokens))

    def of_widths(self, widths: Sequence[int], options: Options) -> Request:
        """A canvas with all but the holes pinned. Raises ConstraintError if they have no text of these widths."""
        pins, at, left = list[tuple[int, int]](), 0, iter(widths)
        for kind, text in self.parts:
            ids = [] if kind else self.ids(text)
            pins += [(at + i, token) for i, token in enumerate(ids)]
            at += next(left) if kind else len(ids)
        width = narrowest(at + 1, self.engine.config.model.canvas_length)
        pins += [(i, self.engine.config.model.eos_token_ids[0]) for i in range(at, width)]
        return self.request(replace(options, max_tokens=width, canvas=width, seed_canvas=SeedCanvas(tuple(pins))))


@dataclass(frozen=True)
class Seen:
    """How often a hole of each kind had each width."""

    widths: Mapping[str, Counter[int]]

    def likeliest(self, asked: Asked) -> list[tuple[int, ...]]:
        """The MOST likeliest widths of all holes."""
        counts = [self.widths[kind] for kind, _ in asked.parts if kind]
        found = itertools.product(*(sorted(count) for count in counts))
        return sorted(found, key=lambda each: -math.prod(c[w] for c, w in zip(counts, each, strict=True)))[:MOST]

    def lengths(self, asked: Asked) -> list[int]:
        """Every length that the whole text may have."""
        found = {asked.fixed}
        for kind, _ in asked.parts:
            found = {before + width for before in found for width in self.widths[kind]} if kind else found
        return sorted(found)


@dataclass(frozen=True)
class Candidate:
    """What one canvas came to: its filling, its tokens, and the mean entropy of its holes at the step of judgement."""

    text: str
    tokens: tuple[int, ...]
    doubt: float


@dataclass(frozen=True)
class Run:
    """One way's candidates for one prompt. `steps` counts the forwards of all canvases, `there`: the right widths or
    the right length was tried."""

    found: list[Candidate]
    canvases: int
    steps: int
    there: bool


def run(asked: Asked, requests: list[Request], doubt: Doubt, keep: int, *, there: bool = True) -> Run:
    """Let canvases compete, of which the `keep` least doubtful go on."""
    if not requests:
        return Run([], 0, 0, there)
    results = list(race(asked.engine, requests, doubt, Drop(keep, JUDGED_AT)))
    steps = sum(sum(one.done.steps) for one in results) + JUDGED_AT * (len(requests) - len(results))
    found = [Candidate(one.done.text, one.done.tokens, one.doubt) for one in results]
    return Run(found, len(requests), steps, there)


def one_canvas(asked: Asked, _: Seen, seed: int) -> Run:
    """What engine.fill does."""
    return _alone(asked, replace(FAST, seed=seed))


def causal(asked: Asked, _: Seen, seed: int) -> Run:
    """From left to right."""
    return _alone(asked, Options(causal=True, seed=seed))


def _alone(asked: Asked, options: Options) -> Run:
    done = asked.engine.finish(asked.free(options))
    return Run([Candidate(done.text, done.tokens, 0.0)], 1, sum(done.steps), True)


def seeds(asked: Asked, _: Seen, seed: int) -> Run:
    """The same with several seeds."""
    requests = [asked.free(replace(FAST, seed=seed + 1_000_000 * number)) for number in range(SEEDS)]
    return run(asked, requests, lambda _, nats: mean(nats), SEEDS)


def lengths(asked: Asked, seen: Seen, seed: int) -> Run:
    """Every length of the whole text, of which the KEEP least doubtful go on."""
    requests = _possible({length: partial(asked.of_length, length, seed) for length in seen.lengths(asked)})
    tried, there = [*requests], asked.fixed + sum(asked.told) in requests
    return run(asked, [*requests.values()], lambda at, nats: mean(nats[: tried[at]]), KEEP, there=there)


def widths(asked: Asked, seen: Seen, seed: int) -> Run:
    """The likeliest widths of all holes, two steps each; as cool as steps of a canvas that may take all of them."""
    cap = asked.engine.config.generation.max_denoising_steps
    options = replace(FAST, seed=seed, steps=LEAST_STEPS, cooling=cap)
    requests = _possible({each: partial(asked.of_widths, each, options) for each in seen.likeliest(asked)})
    tried = [*requests]  # what is pinned has no entropy
    there = asked.told in requests
    return run(asked, [*requests.values()], lambda at, nats: sum(nats) / sum(tried[at]), MOST, there=there)


def told(asked: Asked, _: Seen, seed: int) -> Run:
    """The right widths alone."""
    return run(asked, [asked.of_widths(asked.told, replace(FAST, seed=seed))], lambda _, nats: mean(nats), 1)


WAYS: Mapping[str, Callable[[Asked, Seen, int], Run]] = {
    "one canvas": one_canvas,
    "seeds": seeds,
    "lengths": lengths,
    "widths": widths,
    "told": told,
    "causal": causal,
}


def _possible(made: Mapping[Key, Callable[[], Request]]) -> dict[Key, Request]:
    """The requests that can be made: of some widths the template has no text."""
    found = {}
    for key, make in made.items():
        with suppress(ConstraintError):
            found[key] = make()
    return found


def surprise(asked: Asked, found: Sequence[Candidate]) -> list[float]:
    """-log of the probability of each filling in the causal mode, its end included, in nats."""
    before = asked.request(replace(FAST, seed=0)).prompt
    reading = Options(causal=True, logprobs=0, read_prompt=True, max_tokens=0, seed=0)
    end = asked.engine.config.model.eos_token_ids[0]
    texts = [[*one.tokens, end] for one in found]
    done = asked.engine.map(asked.engine.request_of([*before, *text], reading) for text in texts)
    return [-sum(row[0][1] for row in one.prompt_logprobs[-len(text) :]) for one, text in zip(done, texts, strict=True)]


@dataclass(frozen=True)
class Row:
    """One prompt answered in one way by one score."""

    exact: bool
    holes: float
    canvases: int
    steps: int
    wall: float
    cpu: float
    there: bool


def answered(asked: Asked, seen: Seen, seed: int, way: str) -> dict[str, Row]:
    """A way's answers by each score; times of the second include the first's canvases, not its choice."""
    clocks = [(time.perf_counter(), time.process_time())]
    ran = WAYS[way](asked, seen, seed)
    clocks.append((time.perf_counter(), time.process_time()))
    scores, read = {"entropy": [one.doubt for one in ran.found]}, 0
    if way not in ("one canvas", "told", "causal"):
        scores["likelihood"], read = surprise(asked, ran.found), len(ran.found)
        clocks.append((time.perf_counter(), time.process_time()))
    rows = {}
    for (label, score), clock in zip(scores.items(), clocks[1:], strict=False):
        best = min(zip(score, ran.found, strict=True), key=lambda pair: pair[0], default=(0.0, None))[1]
        text, steps = "" if best is None else best.text, ran.steps + (read if label == "likelihood" else 0)
        wall, cpu = (then - before for then, before in zip(clock, clocks[0], strict=True))
        name = f"{way}, by {label}" if len(scores) > 1 else way
        rows[name] = Row(text == asked.text, right_holes(asked, text), ran.canvases, steps, wall, cpu, ran.there)
    return rows


def right_holes(asked: Asked, text: str) -> float:
    """Share of the holes that have what belongs in them."""
    wanted = [right for kind, right in asked.parts if kind]
    got = [value for _, value in asked.template.values(text)] if text else [""] * len(wanted)
    return mean([float(a == b) for a, b in zip(wanted, got, strict=True)])


def examples(engine: Engine, name: str, split: str, count: int) -> Iterator[Asked]:
    """Prompts of a kind with their templates."""
    for one in itertools.islice(task(TASKS[name][0]).examples(split, 0), count):
        value = json.loads(one.answer)
        asked = Asked(engine, one.prompt, tuple(_joined(plain(value) if name == "plain text" else json_parts(value))))
        assert name == "plain text" or asked.text == one.answer
        yield asked


def json_parts(value: object) -> Iterator[Part]:
    """A value of the tasks as text, what changes from one to the next being holes: keys and types do not."""
    if isinstance(value, dict) and value:
        for i, (key, inside) in enumerate(value.items()):
            yield "", f'{"," if i else "{"}"{key}":'
            yield from ((key if kind and key in FIELDS else kind, text) for kind, text in json_parts(inside))
        yield "", "}"
    elif isinstance(value, list) and isinstance(value[0], dict):
        for i, inside in enumerate(value):
            yield "", "," if i else "["
            yield from json_parts(inside)
        yield "", "]"
    elif isinstance(value, list):
        yield from (("", "["), ("list", ",".join(map(str, value))), ("", "]"))
    elif isinstance(value, str):
        yield from (("", '"'), ("word", value), ("", '"'))
    else:
        yield "name" if value is None or isinstance(value, bool) else "number", json.dumps(value)


def plain(value: Mapping[str, object]) -> Iterator[Part]:
    """A record as a sentence that no task has."""
    yield from (("qty", str(value["qty"])), ("", " of "), ("item", str(value["item"])), ("", ", for "))
    yield from (("who", str(value["who"])), ("", "."))


def _joined(parts: Iterator[Part]) -> Iterator[Part]:
    for hole, some in itertools.groupby(parts, key=lambda part: bool(part[0])):
        texts = list(some)
        yield from texts if hole else [("", "".join(text for _, text in texts))]


def learnt(engine: Engine, name: str) -> Seen:
    """Widths of holes in answers of the training split."""
    found: dict[str, Counter[int]] = {}
    for asked in examples(engine, name, "train", LEARNT):
        for (kind, _), width in zip((part for part in asked.parts if part[0]), asked.told, strict=True):
            found.setdefault(kind, Counter())[width] += 1
    return Seen(found)


def measured(engine: Engine, name: str, count: int) -> dict[str, list[Row]]:
    """Every way on every prompt, in turns that begin with another way each time."""
    seen, rows, ways = learnt(engine, name), dict[str, list[Row]](), list(WAYS)
    for seed, asked in enumerate(examples(engine, name, "held_out", count)):
        asked.request(replace(FAST, seed=0))  # compiled before the clock runs
        for way in ways[seed % len(ways) :] + ways[: seed % len(ways)]:
            for label, row in answered(asked, seen, seed, way).items():
                rows.setdefault(label, []).append(row)
        print(f"\r{name}: {seed + 1} of {count}", end="", flush=True)
    print()
    return rows


def figures_of(rows: list[Row], base: list[Row]) -> dict[str, object]:
    """A way's figures; `gained` and `lost` are prompts beside one canvas, `chance` the sign test's p of both."""
    gained = sum(a.exact > b.exact for a, b in zip(rows, base, strict=True))
    lost = sum(a.exact < b.exact for a, b in zip(rows, base, strict=True))
    tail = sum(math.comb(gained + lost, k) for k in range(min(gained, lost) + 1)) / 2 ** (gained + lost)
    return {
        "prompts": len(rows),
        **share_of(sum(row.exact for row in rows), len(rows), "exact"),
        "holes": round(mean([row.holes for row in rows]), 4),
        "gained": gained,
        "lost": lost,
        "chance": round(min(1.0, 2 * tail), 4),
        "right_widths_tried": round(mean([float(row.there) for row in rows]), 4),
        "canvases": round(mean([row.canvases for row in rows]), 2),
        "most_canvases": max(row.canvases for row in rows),
        "forwards_of_a_canvas": round(mean([row.steps for row in rows]), 2),
        "wall_ms": round(1e3 * median(row.wall for row in rows), 1),
        "cpu_ms": round(1e3 * median(row.cpu for row in rows), 1),
    }


def told_of(found: Mapping[str, object]) -> str:
    """Such figures in words."""
    return (
        f"{said(found, 'exact')} exact, {found['holes']:.1%} of holes, {found['gained']} gained and {found['lost']} "
        f"lost beside one canvas, {found['canvases']} canvases (most {found['most_canvases']}), "
        f"{found['forwards_of_a_canvas']} forwards of a canvas, {found['wall_ms']:.0f} ms"
    )


def main() -> None:
    """All kinds of templates, one record."""
    parser = argparse.ArgumentParser(description="Measure ways to find the widths of a template's holes.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--count", type=int, default=200, help="prompts (default: 200); see TASKS")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engine, model = load(arguments.model), Path(arguments.model).name
    figures = {}
    for name in TASKS:
        rows = measured(engine, name, -(-arguments.count // TASKS[name][1]))
        figures[name] = {label: figures_of(each, rows["one canvas"]) for label, each in rows.items()}
    summary = [
        (f"template of {name}, {label}: {found['prompts']} prompts", told_of(found))
        for name, ways in figures.items()
        for label, found in ways.items()
    ]
    workload = {"model": model, "count": arguments.count, "seeds": SEEDS, "most": MOST, "keep": KEEP, "learnt": LEARNT}
    workload |= {"preset": FAST.preset, "load_average": [round(load, 1) for load in os.getloadavg()]}
    record = new_record(f"templates-{model}", workload=workload, figures=figures, summary=summary)
    write_record(record, arguments.record)
    print(record)


if __name__ == "__main__":
    main()
