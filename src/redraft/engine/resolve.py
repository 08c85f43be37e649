"""From options to a request: everything that a caller chose, checked against the rest of it, the model and the dial."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace

import msgspec

from redraft.config import CheckpointConfig, GenerationConfig, ModelConfig
from redraft.constraints.condition.projection import MOST_ON_DEVICE
from redraft.constraints.condition.span import SpanLanguage
from redraft.constraints.language import GuidedLanguage, Language
from redraft.diffusion.accept import EntropyBound
from redraft.diffusion.denoise import Policy
from redraft.diffusion.halt import AtLeast, UntilEnd, for_draws
from redraft.diffusion.presets import PRESETS
from redraft.diffusion.rules import read_rules
from redraft.diffusion.schedule import FixedCooling
from redraft.diffusion.seed import LEAST_STEPS
from redraft.diffusion.shaping import Shaping
from redraft.engine.dial import Dial, Notch
from redraft.engine.pace import Pace
from redraft.engine.request import CANVAS_ONLY, MOST_LOGPROBS, Options, ResolvedRequest
from redraft.errors import ConstraintError, RequestError, did_you_mean
from redraft.images.prompt import PlacedImage
from redraft.options import MOST_STEPS, SeedCanvas

MOST_WORK, LEAST_WIDTH = 2**23, 8
"""Of a constraint at a step (`Language.work`, of a position, times positions), which is a fifth of a second of one core
by logarithms, and a third of that otherwise: all others wait for it. And the width that a canvas has at least."""
DIALLED = ("preset", "accept", "entropy_bound", "cooling", "steps")
"""Options that the dial sets."""


def build_request(
    prompt: list[int],
    options: Options,
    config: CheckpointConfig,
    dial: Dial | None = None,
    language: Language | None = None,
    images: tuple[PlacedImage, ...] = (),
    *,
    host: bool = True,
) -> ResolvedRequest:
    """Check options against each other and the model. Raises RequestError naming the part, the value and the remedy.

    `dial` is the checkpoint's table of settings, for options that walk it; `language` what the answer has to be of;
    `images` what stands in the prompt. `host` is whether the host conditions canvases on a language of any size.
    Without max_tokens an answer has the checkpoint's own number of tokens, or what the language's shortest needs.
    """
    options = _typed(options)
    model, shipped = config.model, config.generation
    if options.max_tokens is None and language is not None and language.shortest > shipped.max_new_tokens:
        options = replace(options, max_tokens=language.shortest)
    max_tokens = shipped.max_new_tokens if options.max_tokens is None else options.max_tokens
    preset, notches = PRESETS[preset_name(options, shipped)], _notches(options, dial)
    width = canvas_width(options, config)
    if language is not None and not options.causal and (host or language.edges > MOST_ON_DEVICE):
        width = _affordable(width, options, language)
    end_aware = preset.end_aware if options.end_aware is None else options.end_aware
    _check_limits(options, max_tokens, width, model)
    _check_prompt(prompt, max_tokens, max_tokens if options.causal else -(-max_tokens // width) * width, model)
    rules = [notch.rules.policy(shipped) for notch in notches] or [preset.policy(shipped)]
    policies = [_policy(options, one, end_aware, config) for one in rules]
    pace = None
    if options.target_ms is not None and dial is not None:
        pace = Pace(notches, tuple(policies), options.target_ms / 1e3, dial.step_ms / 1e3)
    request = ResolvedRequest(
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        seed=secrets.randbits(32) if options.seed is None else options.seed,
        policy=policies[0 if pace is None else pace.first()],
        width=0 if options.causal else width,
        vocab=model.vocab_size,
        eos=frozenset(shipped.eos_token_ids),
        stop=options.stop,
        min_tokens=max(options.min_tokens, _pinned_reach(options, max_tokens, width, config)),
        deadline_sec=options.deadline_sec,
        end_aware=end_aware,
        fitted=preset.fitted and options.canvas is None,
        logprobs=options.logprobs,
        read_prompt=options.read_prompt,
        seed_canvas=options.seed_canvas,
        pace=pace,
        images=images,
    )
    if options.read_prompt and images:
        raise RequestError("read_prompt is True and the prompt has images, which have no log-probability; leave it out")
    if options.draw and language is None:
        raise RequestError("draw is True without a constraint, one of whose texts would be drawn; give one")
    return request if language is None else _held_to(language, request, options)


def canvas_width(options: Options, config: CheckpointConfig) -> int:
    """Positions of the canvases that options come to. Raises RequestError for an unknown preset."""
    if options.canvas is not None:
        return options.canvas
    max_tokens = config.generation.max_new_tokens if options.max_tokens is None else options.max_tokens
    return PRESETS[preset_name(options, config.generation)].width(max_tokens, config.model.canvas_length)


def _affordable(width: int, options: Options, language: Language) -> int:
    """A width of canvas at which a step of the language takes the host no more than MOST_WORK; what is given is
    refused, not made narrower."""
    positions, widest = _conditioned(width, language), max(LEAST_WIDTH, MOST_WORK // max(1, language.work))
    if positions <= widest:
        return width
    if options.canvas is None and options.seed_canvas is None:
        return widest
    raise ConstraintError(
        f"the constraint has {language.automaton.states} states with {language.edges} ways between them, too many for"
        f" a canvas of {width} tokens; narrow it, or let the canvas have at most {widest}"
        + ", or do without verbatim"
        * bool(language.source.verbatim)
    )


def _conditioned(width: int, language: Language) -> int:
    """Positions of a canvas that the language is weighed at; without a canvas, one."""
    return min(width, language.width) if isinstance(language, SpanLanguage) else max(1, width)


def _held_to(language: Language, request: ResolvedRequest, options: Options) -> ResolvedRequest:
    """The request held to a language. Raises RequestError, as a ConstraintError if no text of it fits."""
    if options.stop:
        raise RequestError(
            f"stop is {list(options.stop)} with a constraint, which says itself where to end; leave it out"
        )
    if isinstance(language, GuidedLanguage):
        pinned = request.seed_canvas is not None and request.seed_canvas.pins
        for name, given in (("draw", options.draw), ("seed_canvas", pinned), ("min_tokens", options.min_tokens)):
            if given:
                raise RequestError(
                    f"{name} was given with a schema that can only be held from left to right; leave it out, or narrow"
                    " the schema"
                )
    forbidden = frozenset(request.policy.shaping.forbidden)
    if not request.causal and not isinstance(language, SpanLanguage) and request.eos <= forbidden:
        raise RequestError("bad_words forbids every end token, with which a constrained canvas is filled; allow one")
    language = language.without(forbidden)
    start = language.start(request.max_tokens, request.min_tokens)
    if request.seed_canvas is not None and request.seed_canvas.pins:
        start.check_pins(request.width, request.seed_canvas.pins)
    return replace(request, language=language, work=language.work_at(_conditioned(request.width, language)))


def _typed(options: Options) -> Options:
    """The options with every value of the type that its field names. A list stands for a tuple."""
    if not isinstance(options.seed_canvas, SeedCanvas | None):  # of others msgspec takes what it knows, and no more
        raise RequestError(f"seed_canvas is {options.seed_canvas!r:.100}; it must be a SeedCanvas")
    try:
        return msgspec.convert(vars(options), Options)
    except msgspec.ValidationError as error:
        name = re.split(r"\W+", str(error).partition("$.")[2])[0]
        wanted = Options.__annotations__[name]
        raise RequestError(f"{name} is {getattr(options, name)!r}; it must be of type {wanted}") from None


def _pinned_reach(options: Options, max_tokens: int, width: int, config: CheckpointConfig) -> int:
    """Check the seed canvas; returns how long the answer must be, because an end in front of a pin would drop it."""
    if options.seed_canvas is None:
        return 0
    options.seed_canvas.check(width, config.model.vocab_size)
    ends = config.generation.eos_token_ids
    reach = options.seed_canvas.reach(ends)
    closed = any(token in ends for _, token in options.seed_canvas.pins)
    if closed and options.min_tokens > reach:
        raise RequestError(
            f"min_tokens is {options.min_tokens} and an end token is pinned at position {reach}; lower min_tokens"
        )
    if reach > max_tokens:
        last = max(at for at, _ in options.seed_canvas.pins)
        raise RequestError(f"max_tokens is {max_tokens} and a token is pinned at position {last}; raise max_tokens")
    return reach


def _check_limits(options: Options, max_tokens: int, width: int, model: ModelConfig) -> None:
    if options.read_prompt and (options.logprobs is None or not options.causal):
        raise RequestError("read_prompt is True; set causal, the mode that reads, and logprobs, how many to tell")
    if max_tokens < (least := int(not options.read_prompt)):
        raise RequestError(f"max_tokens is {max_tokens}; it must be at least {least}")
    if not 0 <= options.min_tokens <= max_tokens:
        raise RequestError(f"min_tokens is {options.min_tokens}; it must be from 0 to max_tokens ({max_tokens})")
    if options.deadline_sec is not None and not options.deadline_sec > 0:
        raise RequestError(f"deadline_sec is {options.deadline_sec}; it must be above 0 (seconds)")
    if options.seed is not None and not 0 <= options.seed < 2**64:
        raise RequestError(f"seed is {options.seed}; it must be an integer from 0 to 2^64-1")
    if not 1 <= width <= model.canvas_length:
        raise RequestError(f"canvas is {width}; it must be from 1 to the model's canvas length ({model.canvas_length})")
    if options.logprobs is not None and not 0 <= options.logprobs <= MOST_LOGPROBS:
        raise RequestError(f"logprobs is {options.logprobs}; it must be from 0 to {MOST_LOGPROBS}")
    for name in CANVAS_ONLY:
        if options.causal and getattr(options, name) != getattr(Options, name):
            raise RequestError(f"causal and {name} were both given; a causal answer has no canvas: leave one out")


def _check_prompt(prompt: list[int], max_tokens: int, room: int, model: ModelConfig) -> None:
    if not prompt:
        raise RequestError("the prompt is empty; pass some text")
    if others := [token for token in prompt if type(token) is not int]:
        raise RequestError(f"the prompt holds {others[0]!r}; it must be token ids, which are integers")
    if len(prompt) + room > model.max_positions:
        or_less = f" or lower max_tokens ({max_tokens})" if len(prompt) < model.max_positions else ""
        raise RequestError(
            f"the prompt has {len(prompt)} tokens and the answer needs room for {room}; the model's context is "
            f"{model.max_positions}: shorten the prompt{or_less}"
        )
    worst = max(prompt)
    if worst >= model.vocab_size or min(prompt) < 0:
        raise RequestError(f"the prompt holds token id {worst}; the vocabulary ends at {model.vocab_size - 1}")


def preset_name(options: Options, shipped: GenerationConfig) -> str:
    """The preset that options come to: the one they name, else what the checkpoint says it was trained for. The causal
    mode and the dial have rules of their own, and a first canvas that is given keeps its whole width. Raises
    RequestError for a name that is none."""
    if options.preset is not None:
        if options.preset not in PRESETS:
            known = f"known: {', '.join(PRESETS)}{did_you_mean(options.preset, PRESETS)}"
            raise RequestError(f"preset is {options.preset!r}; {known}")
        return options.preset
    if options.effort is not None or options.target_ms is not None:
        return "fast"
    if options.causal:
        return "reference"
    return "fast" if shipped.preset == "flow" and options.seed_canvas is not None else shipped.preset


def _notches(options: Options, dial: Dial | None) -> tuple[Notch, ...]:
    """The notches of the dial that effort and target allow; none if neither is given."""
    if options.target_ms is None and options.min_effort:
        raise RequestError(f"min_effort is {options.min_effort} without target_ms; it is how far a target may lower it")
    if options.effort is None and options.target_ms is None:
        return ()
    for name in DIALLED:
        if getattr(options, name) != getattr(Options, name):
            raise RequestError(f"effort or target_ms was given with {name}, which the dial sets; leave one out")
    most = 1.0 if options.effort is None else options.effort
    least = most if options.target_ms is None else options.min_effort
    if not 0 <= most <= 1:
        raise RequestError(f"effort is {most}; it must be from 0 to 1")
    if not 0 <= least <= most:
        raise RequestError(f"min_effort is {least}; it must be from 0 to effort ({most:g})")
    if options.target_ms is not None and not 0 < options.target_ms < float("inf"):
        raise RequestError(f"target_ms is {options.target_ms}; it must be above 0 (milliseconds)")
    if dial is None:
        raise RequestError("effort needs a table of settings; measure one with `redraft bench --dial --model MODEL`")
    return dial.notches[dial.place(least) : dial.place(most) + 1]


def _policy(options: Options, preset: Policy, end_aware: bool, config: CheckpointConfig) -> Policy:
    """The preset's policy with what the options change."""
    shipped = config.generation
    policy = replace(preset, shaping=_shaping(options, config.model.vocab_size), draw=options.draw)
    if options.draw:
        policy = replace(policy, halt=for_draws(policy.halt))
    if options.steps is not None:
        if not 1 <= options.steps <= MOST_STEPS:
            raise RequestError(f"steps is {options.steps}; it must be from 1 to {MOST_STEPS}")
        policy = replace(policy, max_steps=options.steps)
    if options.entropy_bound is not None:
        policy = replace(policy, accept=EntropyBound(options.entropy_bound))
    if options.accept:
        if options.entropy_bound is not None:
            raise RequestError("accept and entropy_bound were both given; name the bound in accept, as entropy:0.1")
        policy = replace(policy, accept=read_rules(options.accept))
    if options.cooling is not None:
        if not 1 <= options.cooling <= MOST_STEPS:
            raise RequestError(f"cooling is {options.cooling}; it must be from 1 to {MOST_STEPS} (steps)")
        policy = replace(policy, schedule=FixedCooling(shipped.t_min, shipped.t_max, options.cooling))
    if options.seed_canvas is not None:
        policy = replace(policy, halt=AtLeast(policy.halt, LEAST_STEPS))
    if end_aware:
        policy = replace(policy, halt=UntilEnd(policy.halt, frozenset(shipped.eos_token_ids)))
    return policy


def _shaping(options: Options, vocab: int) -> Shaping:
    _refuse_penalties(options)
    longer = next((words for words in options.bad_words if len(words) != 1), None)
    if longer is not None:
        raise RequestError(f"bad_words holds {longer}, {len(longer)} tokens; only single tokens can be forbidden")
    forbidden = tuple(sorted({token for (token,) in options.bad_words}))
    for name, tokens in (("logit_bias", [token for token, _ in options.logit_bias]), ("bad_words", forbidden)):
        outside = next((token for token in tokens if not 0 <= token < vocab), None)
        if outside is not None:
            raise RequestError(f"{name} names token id {outside}; the vocabulary ends at {vocab - 1}")
    if len(forbidden) >= vocab:
        raise RequestError("bad_words forbids every token of the vocabulary; leave at least one")
    shaping = Shaping(options.temperature or 1.0, options.top_k, options.top_p, options.logit_bias, forbidden)
    # As a factor, 0 would make every position certain at once, right or not, so only the sample follows it there.
    return replace(shaping, top_k=1) if options.temperature == 0 else shaping


def _refuse_penalties(options: Options) -> None:
    neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    for name, value in neutral.items():
        if getattr(options, name) != value:
            raise RequestError(
                f"{name} is {getattr(options, name)}; it is not supported, because the positions of a canvas are drawn "
                f"at once and none is said before another: leave it at {value:g}, or use logit_bias"
            )
