"""From the fields of a body to resolved requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from redraft.constraints.compile.limits import UNTIL
from redraft.diffusion.presets import WIDTHS
from redraft.engine.request import Request, ResolvedRequest
from redraft.engine.resolve import canvas_width
from redraft.errors import ConstraintError, DeadlineError, RequestError
from redraft.images.prompt import Prompt
from redraft.options import Options, option_table
from redraft.server.http.errors import api_error, unsupported
from redraft.server.http.service import Service
from redraft.server.openai.constraint import Constraint
from redraft.server.openai.fields import Sampling

GREEDY = 1e-3
"""top_p up to which the likeliest token alone is left."""
OF_CHAT = ("ask_fields", "verbatim", "read_back")
"""Options of a canvas that only chat has."""
OWN = ("logprobs", "read_prompt")  # which endpoints spell in ways of their own
SENT = {one.name: one.http.split(".") for one in option_table() if one.http and one.name not in OWN}
"""Options that every endpoint takes, and where a body has them."""


class RequestBuilder:
    """Builds what the engine runs for one body. Everything that can be refused is refused here, before it runs."""

    def __init__(self, service: Service, body: Sampling, *, is_chat: bool = False) -> None:
        """Raises ApiError for a model that is not here, for options of a stream without one, and for those of a chat
        elsewhere."""
        service.check_name(body.model)
        self.engine, self.settings, self.body = service.engine, service.settings, body
        if body.canvas is not None and body.canvas.stream and not body.stream:
            raise unsupported("canvas.stream", "canvas.stream adds steps to a stream; set stream to true")
        asked = () if is_chat else [name for name in OF_CHAT if getattr(body.canvas, name, None)]
        for name in asked:
            message = f"canvas.{name} is of /v1/chat/completions and /v1/responses with a schema; leave it out"
            raise unsupported(f"canvas.{name}", message)
        if any(wanted for _, wanted in body.stream_options or ()) and not body.stream:
            raise unsupported("stream_options", "stream_options describes a stream; set stream to true")

    def options(self, *, max_tokens: int | None, keeps_canvas: bool = False, causal: bool = False) -> Options:
        """The options of a body, for an answer that will be `causal` or not.

        `max_tokens` holds where the body has none; None is the checkpoint's own. With `keeps_canvas`, for a canvas that
        begins with text of the caller's, a served preset that slides it gives way.
        """
        body, sent = self.body, dict[str, Any]()
        for name, path in SENT.items():
            value: Any = body
            for part in path:
                value = None if value is None else getattr(value, part)
            if value is not None:
                sent[name] = CONVERTED[name](value) if name in CONVERTED else value
        most = sent.get("max_tokens", max_tokens)
        sent["max_tokens"] = self.engine.config.generation.max_new_tokens if most is None else most
        if body.ignore_eos:
            if body.min_tokens is not None:
                raise RequestError("ignore_eos is True and min_tokens was given too; leave one out")
            sent["min_tokens"] = sent["max_tokens"]
        if body.bad_words:
            sent["bad_words"] = tuple(self._single(word) for word in body.bad_words)
        longest = self.settings.limits.request_sec
        sent["deadline_sec"] = min(longest, sent.get("deadline_sec", longest))
        # The dial and the causal mode have rules of their own, with which a preset would be refused.
        causal = causal or bool(sent.get("causal"))
        if causal and body.canvas is not None and body.canvas.stream:
            raise unsupported("canvas.stream", "an answer from left to right has no steps; leave canvas.stream out")
        others = causal or not sent.keys().isdisjoint({"effort", "target_ms"})
        if "preset" not in sent and not others:
            served = self.settings.preset
            sent["preset"] = "fast" if keeps_canvas and served == "flow" else served
        if "seed" not in sent and (sent.get("temperature") == 0 or sent.get("top_p", 1.0) <= GREEDY):
            sent["seed"] = 0  # who asks for no chance means: the same again
        return Options(**sent)

    def _single(self, word: str) -> tuple[int, ...]:
        """A word that is one token. Raises RequestError for another, before the next is read."""
        tokens = self.engine.text.encode(word, bos=False)
        if len(tokens) != 1:
            said = f"bad_words holds {word[:40]!r}, {len(tokens)} tokens; only single tokens can be forbidden"
            raise RequestError(said)
        return tuple(tokens)

    def requests(
        self,
        prompts: Sequence[Sequence[int] | Prompt],
        options: Options,
        answers: int,
        constraint: Constraint | None = None,
    ) -> tuple[ResolvedRequest, ...]:
        """`answers` requests for each prompt, whose seeds count up. Raises ApiError for a constraint without a text.

        A constrained answer is valid or an error, so no stop string cuts one.
        """
        found: list[ResolvedRequest] = []
        if constraint is not None:
            options = replace(options, stop=())
        wholes = [prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt)) for prompt in prompts]
        owns = [self._clipped(options, len(whole.tokens)) for whole in wholes]
        for whole, own in zip(wholes, owns, strict=True):
            if len(whole.tokens) >= self.engine.config.model.max_positions:
                self.engine.resolve(Request(whole, own))  # refused before anything is compiled for it
        try:
            room = min((own.max_tokens for own in owns if own.max_tokens is not None), default=None)
            language = None if constraint is None else constraint.language(self.engine, room)
            thinking = constraint is not None and constraint.thinking
            for whole, own in zip(wholes, map(_timely, owns), strict=True):
                one = self.engine.resolve(Request(whole, own, thinking=thinking, constraint=language))
                one = replace(one, answers=answers * len(wholes))
                found += [replace(one, seed=(one.seed + i) % 2**64) for i in range(answers)]
        except ConstraintError as error:
            raise api_error(error, field=None if constraint is None else constraint.field) from None
        return tuple(found)

    def _clipped(self, options: Options, prompt: int) -> Options:
        """The options, with as many tokens as the context has room for if more were asked for and the server clips."""
        model, asked = self.engine.config.model, options.max_tokens or 0
        free = model.max_positions - prompt

        def fits(tokens: int) -> bool:
            width = 1 if options.causal else canvas_width(replace(options, max_tokens=tokens), self.engine.config)
            return tokens > 0 and width > 0 and -(-tokens // width) * width <= free

        if not self.settings.clip or free < 1 or not asked or (asked <= free and fits(asked)):
            return options
        widths = (1,) if options.causal else (max(1, options.canvas or model.canvas_length), *WIDTHS)
        most = max((tokens for width in widths if fits(tokens := min(asked, free // width * width))), default=asked)
        return replace(options, max_tokens=most, min_tokens=min(options.min_tokens, most))


def _timely(options: Options) -> Options:
    """The options of an answer whose prompt and constraint have had some of its time. Raises DeadlineError."""
    until = UNTIL.get()
    if until is None or options.deadline_sec is None:
        return options
    if (left := until - time.monotonic()) <= 0:
        raise DeadlineError("the time was up before the answer began")
    return replace(options, deadline_sec=min(options.deadline_sec, left))


def _biases(sent: dict[str, float]) -> tuple[tuple[int, float], ...]:
    for token in sent:
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise RequestError(f"logit_bias names {token[:100]!r}; its keys are token ids, as /tokenize gives them")
    return tuple((int(token), nats) for token, nats in sent.items())


CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    "seed": lambda sent: sent % 2**64,
    "stop": lambda sent: (sent,) if isinstance(sent, str) else tuple(sent),
    "deadline_sec": lambda sent: sent / 1e3,
    "top_p": lambda sent: GREEDY if sent == 0 else sent,
    "top_k": lambda sent: None if sent in (0, -1) else sent,
    "accept": tuple,
    "logit_bias": _biases,
    "bad_words": lambda _: (),  # texts, which the tokenizer reads
}
"""Options whose value is written otherwise in a body."""
