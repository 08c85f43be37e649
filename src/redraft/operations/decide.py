"""Decisions: the probabilities of given answers, read from one denoising step; nothing is generated.

The prompt is encoded, a canvas of noise is denoised once, and the probability of every choice is read from its
distributions. A choice's *share* is its part of what all choices have. Several canvases of other noise are averaged.

    decide       one question: the exact probability of a choice and the end behind it, over all its tokenizations
    decide_all   many questions in one canvas: a form, whose text is pinned, with a slot of noise for every answer

        1 : ▒ ⏎ 2 : ▒ ⏎ 3 : ▒ ⏎        choices of a slot have one number of tokens, so everything else has its place

Shares are the model's own. `Decision.at` applies a temperature; one fitted on questions with known answers calibrates
them (docs/deciding.md), and may be kept beside the checkpoint (`read_belief`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import torch

from redraft.cache import Prefix
from redraft.constraints.language import ready
from redraft.constraints.sources import choices_source
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.seed import SeedCanvas, seeded
from redraft.engine.engine import Core
from redraft.engine.request import Request, ResolvedRequest
from redraft.engine.runner import encode_prompt
from redraft.errors import RequestError, refuse_nan
from redraft.files import read_small, write_whole
from redraft.shapes import Float, Tensor
from redraft.weights.fingerprint import known_fingerprint

T = TypeVar("T")
MOST_CANVASES = 64
UNEXPECTED = -50.0
"""Below this `log_mass` the model would say none of the choices, and their shares say nothing (docs/deciding.md)."""
BELIEF = "belief.json"  # in the checkpoint's folder

Form = Sequence[str | Sequence[str]]
"""Texts, and lists of choices where an answer is to be read."""


@dataclass(frozen=True)
class Decision:
    """Shares of the choices, which sum to 1, in their order; `log_mass` is the log of the probability of all choices.

    Shares only compare the choices: where `log_mass` is below UNEXPECTED, a high one says nothing. `temperature` is
    what the logs of the model's own shares were divided by.
    """

    shares: dict[str, float]
    log_mass: float
    temperature: float = 1.0

    @property
    def best(self) -> str:
        """The likeliest choice; of equal ones the first."""
        return max(self.shares, key=self.shares.__getitem__)

    def at(self, temperature: float) -> Decision:
        """The same at a temperature: above 1 flatter, below 1 sharper. Raises RequestError unless it is above 0."""
        if not 0 < temperature < math.inf:
            raise RequestError(f"temperature is {temperature}; it must be a number above 0 (1 is the model's own)")
        tiniest = torch.finfo(torch.float64).tiny
        logs = torch.tensor([*self.shares.values()], dtype=torch.float64).clamp_min(tiniest).log()
        # Below the largest, so that what overflows at a tiny temperature is the others alone.
        shares = torch.softmax((logs - logs.max()) * self.temperature / temperature, 0).tolist()
        return Decision(dict(zip(self.shares, shares, strict=True)), self.log_mass, temperature)

    @property
    def mean(self) -> float:
        """The expected value of choices that are numbers. Raises RequestError if one is not."""
        try:
            return sum(float(choice) * share for choice, share in self.shares.items())
        except ValueError:
            raise RequestError(f"choices {list(self.shares)[:5]} are not all numbers; a mean needs numbers") from None


@dataclass(frozen=True)
class Belief:
    """How well a checkpoint's decisions are calibrated (bench/belief.py). On `decisions` held-out ones of `tasks`, at
    the fitted `temperature`, `told` was the mean probability of the best choice and `right` the share that was right;
    `error` is the expected calibration error, `error_before` that at temperature 1."""

    checkpoint: str
    taken: str
    tasks: tuple[str, ...]
    decisions: int
    temperature: float
    told: float
    right: float
    error: float
    error_before: float


def read_belief(engine: Core) -> Belief | None:
    """The calibration beside the checkpoint; None if there is none, it is damaged, or it is of other weights."""
    if engine.folder is None or not engine.as_stored:
        return None
    try:
        found = msgspec.json.decode(read_small(engine.folder / BELIEF), type=Belief)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    ours = found.checkpoint == known_fingerprint(engine.folder)
    return found if ours and 0 < found.temperature < math.inf else None


def write_belief(belief: Belief, folder: Path) -> None:
    """Write a calibration beside the checkpoint. Raises OSError."""
    write_whole(folder / BELIEF, msgspec.json.format(msgspec.json.encode(belief), indent=1) + b"\n")


def decide(
    engine: Core,
    request: str | Request | ResolvedRequest,
    choices: Sequence[str],
    *,
    canvases: int = 1,
    check: Callable[[], None] = lambda: None,
) -> Decision:
    """The shares of some choices as answers to a request's prompt. Raises RequestError for choices that do not fit.

    `check` is called before every forward and every choice, and may raise to end the work.
    """
    request = engine.resolve(request)
    _refuse(request, canvases)
    choices_source(choices)  # refuses what is no list of texts
    kept = list(dict.fromkeys(choices))
    goals = [ready(choices_source([choice]), engine.vocabulary).start(request.width) for choice in _each(kept, check)]
    read = _read(engine, request, (), canvases, check)
    found = [torch.tensor([goal(log_p).log_total for goal in _each(goals, check)]) for log_p in read]
    return _decision(kept, found)


def decide_all(
    engine: Core,
    request: str | Request | ResolvedRequest,
    form: Form,
    *,
    canvases: int = 1,
    check: Callable[[], None] = lambda: None,
) -> list[Decision]:
    """The shares of the choices of every slot of a form, all read from the same canvases.

    A choice is read as the tokens it is encoded to; `check` is as in `decide`. Raises RequestError for a form without a
    slot, one that the canvas cannot hold, and choices of one slot that have not the same number of tokens.
    """
    request = engine.resolve(request)
    _refuse(request, canvases)
    pins, slots = _laid_out(engine, request, form, check)
    read = list(_read(engine, request, pins, canvases, check))
    return [_decision(slot.choices, [slot.log_p(log_p) for log_p in read]) for slot in slots]


def form_size(engine: Core, form: Form, check: Callable[[], None]) -> int:
    """Tokens of a form. Raises RequestError as `decide_all`, and what `check` raises, which is called before it."""
    check()
    return sum(
        len(engine.text.encode(part, bos=False)) if isinstance(part, str) else len(_slot(engine, 0, part, 1).tokens[0])
        for part in form
    )


def read_form(text: str) -> Form:
    """A form from a text with {{yes|no}} where an answer is to be read."""
    found, at = list[str | list[str]](), 0
    while (opened := text.find("{{", at)) >= 0 and (closed := text.find("}}", opened + 2)) >= 0:
        found += [text[at:opened], text[opened + 2 : closed].split("|")]
        at = closed + 2
    return [*found, text[at:]]


@dataclass(frozen=True)
class _Slot:
    """Where in the canvas an answer stands, and its choices as tokens, all of one length."""

    at: int
    choices: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]

    def log_p(self, read: Float[Tensor, "canvas vocab"]) -> Float[Tensor, "choices"]:
        """Log-probability of each choice."""
        tokens = torch.tensor(self.tokens, device=read.device)
        rows = torch.arange(self.at, self.at + tokens.shape[1], device=read.device)
        return read[rows, tokens].sum(-1)


def _laid_out(
    engine: Core, request: ResolvedRequest, form: Form, check: Callable[[], None]
) -> tuple[tuple[tuple[int, int], ...], list[_Slot]]:
    """The pins of a form and its slots. What stands behind it are end tokens, pinned."""
    pins, slots, at = list[tuple[int, int]](), list[_Slot](), 0
    for part in _each(form, check):
        if isinstance(part, str):
            tokens = engine.text.encode(part, bos=False)
            pins += enumerate(tokens, start=at)
            at += len(tokens)
        else:
            slots.append(_slot(engine, at, part, len(slots) + 1))
            at += len(slots[-1].tokens[0])
    if not slots:
        raise RequestError(
            "the form has no slot; write {{yes|no}}, or a list of choices, where an answer is to be read"
        )
    if at >= request.width:
        raise RequestError(f"the form has {at} tokens; with its end it must fit a canvas of {request.width}: split it")
    end = engine.config.model.eos_token_ids[0]
    return (*pins, *((i, end) for i in range(at, request.width))), slots


def _slot(engine: Core, at: int, choices: Sequence[str], number: int) -> _Slot:
    choices_source(choices)
    kept = tuple(dict.fromkeys(choices))
    tokens = tuple(tuple(engine.text.encode(choice, bos=False)) for choice in kept)
    odd = next((i for i, each in enumerate(tokens) if len(each) != len(tokens[0])), None)
    if odd is not None:
        raise RequestError(
            f"slot {number}: {kept[0]!r} has {len(tokens[0])} tokens and {kept[odd]!r} {len(tokens[odd])}; choices of"
            " one slot need one number of tokens: use labels such as A and B, or decide one question at a time"
        )
    if not tokens[0]:
        raise RequestError(f"slot {number} has an empty choice; leave it out")
    return _Slot(at, kept, tokens)


def _decision(choices: Sequence[str], found: Sequence[Tensor]) -> Decision:
    # Averaged as logarithms: one canvas that all but rules a choice out is not outvoted by its neighbours' noise.
    mean = torch.stack([one.double() for one in found]).mean(0)
    shares = torch.softmax(mean, 0).tolist()
    refuse_nan(shares)
    return Decision(dict(zip(choices, shares, strict=True)), min(0.0, float(torch.logsumexp(mean, 0))))


def _refuse(request: ResolvedRequest, canvases: int) -> None:
    """Refuse what a decision cannot honour."""
    if type(canvases) is not int or not 1 <= canvases <= MOST_CANVASES:
        raise RequestError(f"canvases is {canvases!r}; it must be an integer from 1 to {MOST_CANVASES}")
    refused = {"causal": request.causal, "a language": request.language, "seed_canvas": request.seed_canvas}
    for name, given in refused.items():
        if given:
            raise RequestError(f"{name} was given; a decision is read off a canvas of noise: leave it out")


def _each(things: Sequence[T], check: Callable[[], None]) -> Iterator[T]:
    for one in things:
        check()
        yield one


@torch.inference_mode()
def _read(
    engine: Core, request: ResolvedRequest, pins: tuple[tuple[int, int], ...], canvases: int, check: Callable[[], None]
) -> Iterator[Float[Tensor, "canvas vocab"]]:
    """Log-probabilities of canvases at their first step, not cooled: the schedule is for settling, not for shares."""
    model = engine.model
    prefix = Prefix(model.config.layers, room=len(request.prompt), dtype=model.dtype, device=model.device)
    check()
    for _ in encode_prompt(model, request, prefix):
        check()
    for number in _each(range(canvases), check):
        noise = SeededNoise((request.seed + number) % 2**64)
        canvas = seeded(noise, request.width, request.vocab, SeedCanvas(pins))
        logits = request.policy.shaping.biased(model.denoise(canvas.tokens, None, prefix))
        yield torch.log_softmax(logits / request.policy.shaping.temperature, dim=-1)
