"""From samples to rows: token sequences and the canvases in them.

    example, conversation   <bos> turns, model header | answer <eos>    canvases: every block of the answer
    example with a suffix   <bos> text before | the gap                 canvas:   the gap; the text behind it, pinned
    passage                 <bos> text                                  canvases: block after block from somewhere on

Canvases come in several widths, because callers use several: the narrowest multiple of `fit_step` that holds the
answer, or one of the recipe's.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random

from torch.utils.data import DataLoader, Dataset

from redraft.errors import RecipeError, RedraftError, RequestError
from redraft.tasks import Example, stream_seed
from redraft.text import Message
from redraft.tune.base import Base
from redraft.tune.images import Shown, rendered
from redraft.tune.layout import WIDTH_STEP, Row, Spot, blocks, pack
from redraft.tune.objective import Batch
from redraft.tune.recipe import Recipe
from redraft.tune.sources import ANSWERING, Conversation, Made, Passage, Sample, SampleSource, sources

SEED_STRIDE = 1_000_003
_LEAST_CONTEXT = 4  # pinned tokens behind a gap, if there are so many


class Feed:
    """Batches of a recipe's sources. `batches(step)` is a pure function of the recipe, its files and the step."""

    def __init__(self, recipe: Recipe, base: Base, made: Made | None = None) -> None:
        self._made: Made = {} if made is None else made
        self.recipe, self.base, self.text = recipe, base, base.text
        self._stages: dict[int, Feed] = {}
        self.sources: list[tuple[SampleSource, float]] = sources(recipe.data, self._made)
        self.end = base.config.eos_token_ids[0]

    def batches(self, step: int) -> list[Batch]:
        """The samples of one step, sources in the recipe's shares."""
        if self.recipe.stages:
            return self._stage(step).batches(step)
        seed = self.recipe.train.seed * SEED_STRIDE + step
        rng = Random(stream_seed("layout", "train", seed))
        # One width a step beside the narrowest: fewer and larger batches, which is a third of the time on a CPU.
        width = rng.choice(self.recipe.data.widths or (self.base.config.canvas_length,))
        rows = [self.row(sample, rng, width) for sample in self.samples(seed)]
        if step < self.recipe.train.encode_steps:  # no canvas is run: widths need not separate batches
            rows = [replace(row, spots=()) if any(row.scored) else row for row in rows]
        return self.pack(rows)

    def digests(self, step: int) -> dict[str, str]:
        """What the files hold from which the first `step` steps are drawn, and of which probes are, by name; and what
        the start holds."""
        reached = [stage.from_step for stage in self.recipe.stages if stage.from_step < step]
        found = dict(self.base.digests)
        for begins, feed in {0: self, **{begins: self._stage(begins) for begins in reached}}.items():
            named = {name: source.digest for name, source in feed.named() if source.digest}
            found |= named  # older states have these alone: of a name that several stages have, the last
            if reached:
                found |= {f"{name} from step {begins}": digest for name, digest in named.items()}
        return found

    def named(self) -> Iterator[tuple[str, SampleSource]]:
        """Every source by a name of its own: files of one name in several folders get numbers from the second on."""
        seen = Counter[str]()
        for source, _ in self.sources:
            seen[source.name] += 1
            yield source.name + (f" ({seen[source.name]})" if seen[source.name] > 1 else ""), source

    def look_ahead(self, step: int) -> None:
        """Open the sources of which steps behind this one are drawn. Raises RecipeError for one that is no use."""
        total = self.recipe.train.encode_steps + self.recipe.train.steps
        starts = [0, *(stage.from_step for stage in self.recipe.stages), total]
        for start, end in pairwise(starts):
            if self.recipe.stages and start < total and min(end, total) > step:
                self._stage(start)

    def _stage(self, step: int) -> Feed:
        """The feed of the recipe's stage at a step."""
        number = sum(stage.from_step <= step for stage in self.recipe.stages)
        if number not in self._stages:
            self._stages[number] = Feed(self.recipe.at(step), self.base, self._made)
        return self._stages[number]

    def ahead(self, steps: range) -> Iterator[list[Batch]]:
        """Batches of one step after another; the recipe's workers prepare the next steps meanwhile."""
        workers = self.recipe.train.workers
        if not workers:
            yield from map(self.batches, steps)
            return
        drawn: DataLoader[bytes] = DataLoader(
            _Drawn(self), batch_size=None, sampler=steps, num_workers=workers, multiprocessing_context="fork"
        )
        for each in drawn:
            found = pickle.loads(each)
            if isinstance(found, RedraftError):
                raise found
            yield found

    def pack(self, rows: list[Row]) -> list[Batch]:
        """Batches of rows by the recipe's settings."""
        return pack(
            rows,
            pad=self.base.config.pad_token_id,
            draws=self.recipe.objective.draws,
            most_rows=self.recipe.train.most_rows,
            pack_tokens=self.recipe.data.pack_tokens,
            length_step=self.recipe.data.length_step,
            merge_rows=self.recipe.data.merge_rows or 0,
        )

    def samples(self, seed: int) -> list[Sample]:
        """The samples of one step."""
        counts = _counts(self.recipe.train.batch_size, [share for _, share in self.sources], seed)
        drawn = (source.samples(seed, count) for (source, _), count in zip(self.sources, counts, strict=True))
        return [sample for samples in drawn for sample in samples]

    def row(self, sample: Sample, rng: Random, width: int) -> Row:
        """Sequence and canvases of a sample, on the narrowest canvas or one of `width`, as `rng` decides.

        It also decides what is pinned, and whether the causal mode is scored on the answer. Raises RecipeError for a
        sample that does not fit the context or the canvases.
        """
        if isinstance(sample, Passage):
            row = self._passage(sample, rng, width)
        elif isinstance(sample, Conversation):
            row = self._conversation(sample, rng, width)
        elif sample.suffix is not None:
            row = self._infill(sample, sample.suffix, rng, width)
        else:
            row = self._example(sample, rng, width)
        most = self.base.config.max_positions
        if max(len(row.clean), *(spot.start + len(spot.target) for spot in row.spots)) > most:
            raise RecipeError(f"{_where(sample)}: prompt and answer do not fit the model's context of {most} tokens")
        return row

    def chat(self, messages: Sequence[Message], where: str) -> tuple[list[int], tuple[Shown, ...]]:
        """A conversation, ready for the model's turn, and its images. Raises RecipeError that begins with `where`."""
        return rendered(self.text, messages, self.base.images, where)

    def prompt(self, text: str) -> list[int]:
        """One user turn in the checkpoint's chat form, ready for the model's turn."""
        return self.text.chat([{"role": "user", "content": text}])

    def _example(self, example: Example, rng: Random, width: int) -> Row:
        ids, places = self.text.places(example.answer)
        given = [False] * len(ids)
        if example.given and rng.random() < self.recipe.objective.pinned_share:
            given = [any(low <= start and end <= high for low, high in example.given) for start, end in places]
        width = self._answer_width(ids, rng, width, _where(example))
        return self._answer(self.prompt(example.prompt), ids, given, rng, width)

    def _conversation(self, sample: Conversation, rng: Random, width: int) -> Row:
        *asked, last = sample.messages
        prompt, images = self.chat(asked, sample.where)
        answer = self._encoded(last["content"], sample.where)
        turns = range(len(asked)) if self.recipe.data.turns == "all" else ()
        earlier = [turn for i in turns if (turn := self._turn(sample, i, prompt))]
        # The canvases of a row are of one width, with which the last answer's have to fit the context, too.
        step = self.recipe.data.fit_step
        config = self.base.config
        room = min(config.max_positions - len(prompt), config.canvas_length) // step * step
        longest = max((len(said) for _, said in earlier if len(said) < room), default=0)
        width = self._answer_width(answer, rng, width, sample.where, longest)
        earlier = [(at, said) for at, said in earlier if len(said) < self.recipe.data.most_blocks * width]
        row = self._answer(prompt, answer, [False] * len(answer), rng, width)
        if images:
            inside = {i for one in images for i in range(one.start - 1, one.stop + 1)}  # an image is not guessed
            marks = tuple(mark and i not in inside for i, mark in enumerate(row.scored))
            row = replace(row, scored=marks, images=images)
        scored = list(row.scored)
        spots = [spot for at, said in earlier for spot in blocks(said, [False] * len(said), at, width, self.end)]
        for spot in spots:
            scored[spot.start : spot.start + spot.content] = [True] * spot.content
        return Row(row.clean, tuple(scored), (*spots, *row.spots), images)

    def _encoded(self, answer: str, where: str) -> list[int]:
        """Tokens of an answer. Raises RecipeError that begins with `where`."""
        try:
            return self.text.encode(answer.strip(), bos=False)
        except RequestError as error:
            raise RecipeError(f"{where}: {error}") from None

    def _turn(self, sample: Conversation, i: int, whole: list[int]) -> tuple[int, list[int]] | None:
        """Start and tokens of an earlier answer, if these are in the whole conversation what they are alone."""
        messages = sample.messages
        if messages[i]["role"] not in ANSWERING or not (content := messages[i]["content"].strip()):
            return None
        prompt, answer = self.chat(messages[:i], sample.where)[0], self._encoded(content, sample.where)
        return (len(prompt), answer) if whole[: len(prompt) + len(answer)] == prompt + answer else None

    def _answer_width(self, answer: list[int], rng: Random, other: int, where: str, beside: int = 0) -> int:
        """The width of the canvases of an answer, and of one of so many tokens beside it. Raises RecipeError that
        begins with `where` if the answer would take too many."""
        most, width = self.recipe.data.most_blocks, self._width(max(len(answer), beside) + 1, rng, other)
        if len(answer) + 1 > most * width:
            raise RecipeError(
                f"{where}: the answer has {len(answer)} tokens and one for its end; {most} canvases of"
                f" {width} are allowed; raise [data] widths or most_blocks, or [model] canvas_length"
            )
        return width

    def _answer(self, prompt: list[int], answer: list[int], given: list[bool], rng: Random, width: int) -> Row:
        objective, spots = self.recipe.objective, blocks(answer, given, len(prompt), width, self.end)
        if len(answer) < width and rng.random() >= objective.causal_share:
            return Row(tuple(prompt), (False,) * len(prompt), spots)
        scored = [objective.tell_prompt] * len(prompt) + [True] * (len(answer) + 1)
        return Row((*prompt, *answer, self.end), (False, *scored[1:]), spots)

    def _infill(self, example: Example, suffix: str, rng: Random, other: int) -> Row:
        before = self.text.encode(example.prompt, bos=True)
        gap, after = self.text.encode(example.answer, bos=False), self.text.encode(suffix, bos=False)
        least = len(gap) + min(_LEAST_CONTEXT, len(after))
        room = -(-least // WIDTH_STEP) * WIDTH_STEP + rng.choice((0, WIDTH_STEP, 2 * WIDTH_STEP))
        width = self._width(min(room, self.base.config.canvas_length), rng, max(other, room))
        width = max(min(width, self.base.config.canvas_length), len(gap))
        if width > self.base.config.canvas_length:
            raise RecipeError(f"{_where(example)}: a gap of {len(gap)} tokens is wider than the canvas")
        target = (gap + after)[:width]
        spot = Spot(
            start=len(before),
            target=(*target, *[self.end] * (width - len(target))),
            pinned=(*[False] * len(gap), *[True] * (width - len(gap))),
            content=min(width, len(target) + 1),
        )
        clean = (*before, *gap)
        return Row(clean, (False, *[True] * (len(clean) - 1)), (spot,))

    def _passage(self, sample: Passage, rng: Random, other: int) -> Row:
        """Canvases from a random start on, without an end token: a passage is part of a longer text."""
        config = self.base.config
        # No token is longer than `longest`: what is behind that many characters cannot be read.
        begin = sample.text[: self.text.longest * self.text.context or None]
        tokens = self.text.encode(begin, bos=True)[: config.max_positions]
        width = min(other, config.canvas_length, len(tokens) - 1)  # a short text is one narrow canvas
        count = min((len(tokens) - 1) // width, self.recipe.data.most_blocks)
        start = rng.randint(1, len(tokens) - count * width)
        clean = tuple(tokens[: start + count * width])
        spots = tuple(
            Spot(at, clean[at : at + width], (False,) * width, width) for at in range(start, len(clean), width)
        )
        return Row(clean, (False, *[True] * (len(clean) - 1)), spots)

    def _width(self, least: int, rng: Random, other: int) -> int:
        """The narrowest canvas for that many positions, or the other width; if that is too narrow, several blocks."""
        step = self.recipe.data.fit_step
        fit = -(-least // step) * step
        return fit if fit <= self.base.config.canvas_length and rng.random() < self.recipe.data.fit_share else other


class _Drawn(Dataset[bytes]):
    """Steps of a feed as a worker sends them: pickled, because torch would open a file for every tensor."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __getitem__(self, step: int) -> bytes:
        try:
            return pickle.dumps(self._feed.batches(step))
        except RedraftError as error:  # its message, without the worker's traceback around it
            return pickle.dumps(error)


def _counts(size: int, shares: Sequence[float], seed: int) -> list[int]:
    """How many of a step's samples each source gives: its share, rounded, and the last one what the others leave.

    Where that is less than the last one's rounded share, or a whole sample more than its share, or where a source would
    give none at any step, each is rounded up or down by the seed, so that in the long run each gets its share.
    """
    whole = sum(shares)
    *first, last = (size * share / whole for share in shares)
    counts = [round(share) for share in first]
    left = size - sum(counts)
    if round(last) <= left < last + 1 and all((*counts, left)):
        return [*counts, left]
    offset = Random(stream_seed("shares", "train", seed)).random()
    ends = [0, *(min(size, math.floor(end + offset)) for end in accumulate(first)), size]
    return [end - begin for begin, end in pairwise(ends)]


def _where(sample: Sample) -> str:
    return f"the answer {sample.answer[:60]!r}" if isinstance(sample, Example) else sample.where
