"""The options of one answer, declared once.

    Options (Python)        cli/flags.py: --flags        server: fields of a body        docs/options.md: the table

Each field carries its help, its unit, its flag and its HTTP field. Importing this imports no torch: `--help` is quick.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from redraft.errors import RequestError

MOST_LOGPROBS = 20
"""Most alternatives per position; OpenAI's clients ask for no more."""

MOST_STEPS, MOST_STEPS_IN_ALL = 10_000, 20_000
"""Most steps of a canvas, which will never settle if it has not by then, and of the answers to one request: behind its
share of them each further canvas of an answer has one, as a number and no time decides, so that answers are the same on
any machine."""

PRESET_NAMES = ("reference", "fast", "flow")
"""The presets, which `diffusion/presets.py` defines; a test holds the two equal."""

GROUPS = {
    "everyday": "What most calls set",
    "length": "Where the answer ends",
    "sample": "How a token is chosen from its distribution",
    "rules": "How a canvas is denoised",
    "effort": "Speed against quality, by the checkpoint's measured table",
    "output": "What else is returned",
    "python": "For programs",
}
"""The groups of options, in the order of the documentation."""

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """How one field of `Options` is explained and spelt. An empty `flag` or `http` means that there is none."""

    name: str
    help: str
    group: str
    unit: str
    flag: str
    http: str
    choices: tuple[str, ...]
    default: Any
    kind: str


def option(
    default: T,
    text: str,
    *,
    group: str,
    unit: str = "",
    flag: str | None = None,
    http: str | None = None,
    choices: tuple[str, ...] = (),
) -> T:
    """A field of `Options`. `flag` and `http` are its other names, where they differ from the field's own."""
    metadata = {"help": text, "group": group, "unit": unit, "flag": flag, "http": http, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SeedCanvas:
    """Tokens of the first canvas, as pairs of a position, counted from 0, and a token id. Pins stay, given tokens may
    change (`diffusion/seed.py`)."""

    pins: tuple[tuple[int, int], ...] = ()
    given: tuple[tuple[int, int], ...] = ()

    def check(self, width: int, vocab: int) -> None:
        """Raise RequestError for a position outside the canvas, an id outside the vocabulary, or a contradiction."""
        placed: dict[int, int] = {}
        for name, pairs in (("pins", self.pins), ("given", self.given)):
            for position, token in pairs:
                if not 0 <= position < width:
                    raise RequestError(
                        f"seed_canvas.{name} names position {position}; the first canvas has positions 0 to {width - 1}"
                    )
                if not 0 <= token < vocab:
                    raise RequestError(
                        f"seed_canvas.{name} puts token id {token} at position {position}; the vocabulary ends at "
                        f"{vocab - 1}"
                    )
                if placed.setdefault(position, token) != token:
                    raise RequestError(
                        f"seed_canvas.{name} holds position {position} to token {token}, which is held to "
                        f"{placed[position]}; keep one"
                    )

    def reach(self, ends: Iterable[int]) -> int:
        """Tokens up to the last pin, or up to the first pinned end token: the least length of the answer."""
        if not self.pins:
            return 0
        closing = [position for position, token in self.pins if token in set(ends)]
        return min(closing) if closing else 1 + max(position for position, _ in self.pins)


@dataclass(frozen=True)
class Options:
    """The options of one answer. None means the checkpoint's own value (`generation_config.json`)."""

    max_tokens: int | None = option(None, "most tokens to return; never exceeded", group="everyday", unit="N")
    seed: int | None = option(
        None,
        "seed of all noise; one is drawn if none is given, and the result names it. On a CPU in float32 a seed repeats"
        " the answer, alone and in any batch",
        group="everyday",
        unit="N",
    )
    steps: int | None = option(
        None,
        "cap on denoising steps per canvas; by the reference's schedule it also sets the cooling",
        group="everyday",
        unit="N",
        http="max_steps",
    )
    temperature: float = option(
        1.0,
        "factor on the temperature schedule, 0.01 to 10; 1 is the schedule itself, 0 samples the likeliest token",
        group="everyday",
        unit="X",
    )
    preset: str | None = option(
        None,
        "sampler rules by name; by default what the checkpoint says it was trained for, else reference",
        group="everyday",
        unit="NAME",
        http="canvas.preset",
        choices=PRESET_NAMES,
    )
    stop: tuple[str, ...] = option((), "end the answer before this text; repeatable", group="length", unit="TEXT")
    min_tokens: int = option(
        0,
        "no end token before this many; cures the empty answers that terse prompts get",
        group="length",
        unit="N",
    )
    deadline_sec: float | None = option(
        None,
        "time from submission after which the best canvas so far is the answer",
        group="length",
        unit="SEC",
        flag="--deadline",
        http="deadline_ms",
    )
    top_k: int | None = option(None, "sample from the N likeliest tokens only", group="sample", unit="N")
    top_p: float = option(1.0, "sample from the tokens that together have this probability", group="sample", unit="P")
    draw: bool = option(
        False,
        "under a constraint: return a valid text drawn in proportion to its probability, not the likeliest one",
        group="sample",
        http="canvas.draw",
    )
    logit_bias: tuple[tuple[int, float], ...] = option(
        (), "(token id, nats): added at every position and step before anything is read", group="sample", flag=""
    )
    bad_words: tuple[tuple[int, ...], ...] = option(
        (), "token sequences that must not occur; only single tokens can be forbidden", group="sample", flag=""
    )
    repetition_penalty: float = option(
        1.0, "refused unless 1: no token of a canvas comes before another", group="sample", flag=""
    )
    presence_penalty: float = option(0.0, "refused unless 0, for the same reason", group="sample", flag="")
    frequency_penalty: float = option(0.0, "refused unless 0, for the same reason", group="sample", flag="")
    entropy_bound: float | None = option(
        None, "entropy that one step may accept, summed over the canvas", group="rules", unit="NATS"
    )
    accept: tuple[str, ...] = option(
        (),
        "acceptance rule instead of the preset's, as confidence:0.9, factor, frechet, margin or entropy:0.1;"
        " repeatable: what any of the rules keeps is kept (docs/denoising.md)",
        group="rules",
        unit="RULE",
        http="canvas.accept",
    )
    cooling: int | None = option(
        None,
        "steps over which the temperature falls, whatever the cap; by default over the cap, as the reference does",
        group="rules",
        unit="N",
        http="canvas.cooling",
    )
    canvas: int | None = option(
        None,
        "width of the canvases, in tokens; narrower ones cost less per step. By default the preset's: the"
        " checkpoint's for reference, else the narrowest of 16, 32, 64, 128, 256 that holds max_tokens",
        group="rules",
        unit="N",
        http="canvas.width",
    )
    end_aware: bool | None = option(
        None,
        "neither wait for nor compute positions after the answer's end; by default as the preset does: all but"
        " reference do so",
        group="rules",
        http="canvas.end_aware",
    )
    causal: bool = option(
        False,
        "answer from left to right, one token per forward, with the same weights",
        group="rules",
        http="canvas.causal",
    )
    effort: float | None = option(
        None,
        "0 to 1, instead of a preset: a setting of the table that `redraft bench --dial` measures",
        group="effort",
        unit="X",
    )
    target_ms: float | None = option(
        None,
        "time from submission that the answer should take: the effort is lowered after each step as needed",
        group="effort",
        unit="MS",
    )
    min_effort: float = option(
        0.0,
        "with target_ms: never lower the effort below this, even if the target is missed",
        group="effort",
        unit="X",
        http="canvas.min_effort",
    )
    logprobs: int | None = option(
        None,
        "return the log-probability of each token and of this many of the likeliest tokens in its place, in the"
        f" distribution that the last step of its canvas read; at most {MOST_LOGPROBS}",
        group="output",
        unit="N",
        flag="",
    )
    read_prompt: bool = option(
        False,
        "with causal and logprobs: return those of the prompt's tokens, too; max_tokens may then be 0",
        group="output",
        flag="",
        http="echo",
    )
    seed_canvas: SeedCanvas | None = option(
        None,
        "what the first canvas begins with: pinned tokens, which stay, and given ones. No answer ends before a pin",
        group="python",
        flag="",
        http="",
    )


CANVAS_ONLY = (
    *("seed_canvas", "preset", "accept", "entropy_bound", "canvas", "end_aware"),
    *("effort", "min_effort", "target_ms", "draw"),
)
"""Options that a causal answer cannot honour."""


def option_table() -> Iterator[Option]:
    """Every option, in the order of the groups."""
    found = [_option(one) for one in fields(Options)]
    for group in GROUPS:
        yield from (one for one in found if one.group == group)


def described(name: str) -> str:
    """The help of an option. Raises KeyError for an unknown name."""
    return str(Options.__dataclass_fields__[name].metadata["help"])


def _option(one: Field[Any]) -> Option:
    stored = one.metadata
    flag = f"--{one.name.replace('_', '-')}" if stored["flag"] is None else stored["flag"]
    http = one.name if stored["http"] is None else stored["http"]
    named = {key: stored[key] for key in ("help", "group", "unit", "choices")}
    return Option(name=one.name, flag=flag, http=http, default=one.default, kind=str(one.type), **named)


Options.__doc__ = f"{Options.__doc__}\n\n" + "\n".join(f"    {one.name:<15} {one.help}" for one in option_table())
