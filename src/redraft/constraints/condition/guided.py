"""Schemas out of an automaton's reach: a canvas finished from left to right under llguidance's matcher.

    log p ──► from the left: the model's token while the matcher takes it, else the likeliest that it takes
              └► plan: a draft that is valid so far, and tokens behind it that would complete the answer
    fixed     the first positions, up to the first token that the model was not sure of by itself; they are pinned, and
              the canvas is redrafted behind them

A matcher says which tokens may come next and nothing of how an answer ends. So a plan is kept: however the model goes
on, what has been fixed can be completed in the tokens that are left, because there was a plan when it was fixed.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from redraft.constraints.compile.lift import TokenAutomaton
from redraft.constraints.compile.limits import GRAMMARS, UNTIL, TimeLimitError
from redraft.constraints.condition.edge_layout import EdgeLayout
from redraft.constraints.condition.forward_backward import BIAS_OF_NONE
from redraft.constraints.condition.projection import Projection
from redraft.constraints.isolated import Helper
from redraft.errors import ConstraintError, DeadlineError
from redraft.shapes import Float, Int, Tensor

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

SURE = 0.9
"""A token of this probability is fixed without another look."""
MOST_FORCED = 32
"""Tokens of one step that are not the model's; what stands behind so many is drafted anew anyway."""
LETTERS = b"qZ~<"
"""Where all of these may come next, the matcher is taken to be inside a string of any characters."""
CLOSING = b'}]"0123456789ntf[{:,-'
"""How an answer is brought to its end, one byte at a time, in this order; inside a free string by its quote."""
GRAMMAR_SEC, GRAMMAR_BYTES = 5.0, 1 << 30
"""Of one schema. By the largest of MaskBench it takes 1.5 seconds."""
_GRAMMAR = """
from llguidance import LLMatcher, LLTokenizer
bytes_alone = LLTokenizer("byte")  # whether a grammar can be read does not depend on the tokens
def answer(asked):
    schema, ways = asked
    for options in ways:
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=options)
        except ValueError:  # an integer of over 64 bits
            return None
        if not LLMatcher.validate_grammar_with_warnings(grammar, bytes_alone)[0]:
            return grammar
    return None
"""
_GRAMMARS = Helper(_GRAMMAR, "llguidance", math.ceil(GRAMMAR_SEC), GRAMMAR_BYTES)
MOST_ASKED = 256
"""Bytes of a text that llguidance has turned into tokens."""
WHITE = r"[ ]|\n[ \t]*"
"""White space as people and models write it."""


@dataclass(frozen=True, eq=False)
class Guide:
    """A grammar that llguidance reads, for one tokenizer. `forbidden` tokens never occur."""

    tokenizer: LLTokenizer
    grammar: str
    pieces: tuple[bytes | None, ...]
    ends: tuple[int, ...]
    tail: tuple[int, ...]
    forbidden: frozenset[int] = frozenset()

    @cached_property
    def begin(self) -> LLMatcher:
        """A matcher before the first token; copies of it are moved."""
        from llguidance import LLMatcher

        return LLMatcher(self.tokenizer, self.grammar, log_level=0)

    def begun(self) -> Guide:
        """This, its first matcher made by turns of the callers: it may take seconds, in which others' prompts are
        read. The engine's loop, for which all wait, finds it there."""
        with GRAMMARS.turn(str(threading.get_ident()), counted=False):
            _ = self.begin
        return self

    def at(self, tokens: Sequence[int]) -> LLMatcher | None:
        """The matcher behind some tokens; None if it does not take them."""
        matcher = self.begin.deep_copy()
        return matcher if matcher.try_consume_tokens(list(tokens)) == len(tokens) else None

    def allowed(self, matcher: LLMatcher) -> NDArray[np.bool_]:
        """Which tokens may come next, end tokens not among them."""
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        found = np.unpackbits(bits, bitorder="little", count=len(self.pieces)).astype(np.bool_)
        found[[*self.ends, *self.tail, *self.forbidden]] = False
        return found

    @cached_property
    def closing(self) -> list[int]:
        """The tokens of CLOSING."""
        return self._single(CLOSING)

    @cached_property
    def quote(self) -> list[int]:
        """The token of a quote."""
        return self._single(b'"')

    @cached_property
    def letters(self) -> list[int]:
        """The tokens of LETTERS."""
        return self._single(LETTERS)

    @cached_property
    def singles(self) -> dict[int, int]:
        """The tokens of single bytes."""
        known = enumerate(self.pieces)
        return {piece[0]: at for at, piece in known if piece and len(piece) == 1 and at not in self.forbidden}

    def _single(self, text: bytes) -> list[int]:
        return [self.singles[byte] for byte in text if byte in self.singles]

    @cached_property
    def by_length(self) -> NDArray[np.integer]:
        """Tokens, short ones first, white space and what is no text last."""
        size = [len(piece) + 100 * piece.isspace() if piece else 1000 for piece in self.pieces]
        return np.argsort(size, kind="stable")

    def completion(self, matcher: LLMatcher, most: int) -> list[int] | None:
        """A short string of tokens that ends the answer, as it seems; None if none of at most `most` was found."""
        found = self._complete(matcher.deep_copy(), most, quote_first=False)
        return found if found is not None else self._complete(matcher.deep_copy(), most, quote_first=True)

    def _complete(self, matcher: LLMatcher, most: int, *, quote_first: bool) -> list[int] | None:
        found = list[int]()
        while not matcher.is_accepting():
            if len(found) >= most or matcher.is_stopped():
                return None
            free = quote_first or all(matcher.validate_tokens([token]) for token in self.letters)
            order = [*self.quote, *self.closing] if free else self.closing
            token = next((one for one in order if matcher.validate_tokens([one])), None)
            if token is None:  # a character that a pattern asks for, or a long text that stands in the schema
                text = matcher.compute_ff_bytes()
                forced = self._single(text)
                if text and len(forced) == len(text):
                    if len(forced) > most - len(found) or not matcher.consume_tokens(forced):
                        return None
                    found += forced
                    continue
                allowed = self.allowed(matcher)
                if not allowed.any():
                    return None
                token = int(self.by_length[allowed[self.by_length]][0])
            if not matcher.consume_token(token):
                return None
            found.append(token)
        return found


class NoLayout(EdgeLayout):
    """In the place of an automaton's edges where there is no automaton."""

    def __init__(self) -> None:
        pass

    @property
    def automaton(self) -> TokenAutomaton:
        """Raises ConstraintError: what needs an automaton cannot be had."""
        raise ConstraintError(
            "this schema is held from left to right, and only by itself: without thinking, pins, gaps and repairs"
        )


@dataclass
class TokenPlan:
    """Tokens from a canvas's beginning that complete the answer, and how many of them are fixed by now."""

    tokens: list[int] = field(default_factory=list)
    fixed: int = 0


@dataclass(frozen=True, kw_only=True)
class GuidedProjection(Projection):
    """What is left of a constraint for one canvas: behind the tokens `emitted`, `left` more may follow.

    It keeps the last plan from step to step, so it is good for the canvases of one answer.
    """

    guide: Guide
    emitted: tuple[int, ...] = ()
    plan: TokenPlan = field(default_factory=TokenPlan)

    @cached_property
    def matcher(self) -> LLMatcher:
        """The matcher behind what has been emitted."""
        found = self.guide.at(self.emitted)
        if found is None:  # copies of one matcher share its lexer, which after very many states takes nothing, silently
            found = replace(self.guide).at(self.emitted)
        assert found is not None, "what was emitted is not of the language"
        return found

    def __call__(self, log_p: Float[Tensor, "canvas vocab"]) -> Guided:  # type: ignore[override]  # Conditioned is all that is read
        """Read a canvas from left to right."""
        self.plan.tokens = self._planned(log_p.cpu() if log_p.device.type != "cpu" else log_p)
        found = Guided(self, log_p, tuple(self.plan.tokens))
        self.plan.fixed = found.fixed
        return found

    def after(self, tokens: Sequence[int]) -> GuidedProjection:
        """What is left when some tokens have been emitted, the end token not among them."""
        emitted = (*self.emitted, *tokens)
        return replace(
            self, emitted=emitted, left=self.left - len(tokens), plan=TokenPlan(self.plan.tokens[len(tokens) :])
        )

    @property
    def is_over(self) -> bool:
        """Whether the answer is whole and nothing could follow it."""
        return bool(self.matcher.is_accepting()) and not self.guide.allowed(self.matcher).any()

    def check(self) -> None:
        """Raise ConstraintError if no answer of at most `left` tokens was found; keep the one that was."""
        plan = self.guide.completion(self.matcher, self.left)
        if plan is None:
            longer = self.guide.completion(self.matcher, 4 * self.left + 256)
            least = "" if longer is None else f", and the shortest that was found has {len(longer)}"
            raise ConstraintError(f"no valid answer of {self.left} tokens was found{least}; raise max_tokens")
        self.plan.tokens = plan

    def _planned(self, log_p: Float[Tensor, "canvas vocab"]) -> list[int]:
        """Tokens from the canvas's beginning to the answer's end: the model's own as far as they can be completed."""
        width = min(len(log_p), self.left)
        wished, step = self._read(log_p[:width]), 1
        if (rest := self._rest(wished)) is not None:
            return wished + rest
        while len(wished) - step >= self.plan.fixed:  # ever further back, to where it can still be completed
            begun = wished[: len(wished) - step]
            if (rest := self._rest(begun)) is not None:
                return begun + rest
            step *= 2
        return self.plan.tokens

    def _rest(self, begun: list[int]) -> list[int] | None:
        matcher = self.matcher.deep_copy()
        if matcher.try_consume_tokens(begun) != len(begun):
            return None
        return self.guide.completion(matcher, self.left - len(begun))

    def _read(self, log_p: Float[Tensor, "canvas vocab"]) -> list[int]:
        """The model's tokens, or the likeliest that may stand where one of them may not, up to the answer's end."""
        guide, matcher, found, forced = self.guide, self.matcher.deep_copy(), list[int](), 0
        own = log_p.argmax(-1).tolist()
        while len(found) < len(own) and forced < MOST_FORCED:
            at = len(found)
            stop = next((i for i in range(at, len(own)) if own[i] in guide.ends or own[i] in guide.forbidden), len(own))
            taken = matcher.try_consume_tokens(own[at:stop]) if stop > at else 0
            found += own[at : at + taken]
            at += taken
            if at == len(own) or (own[at] in guide.ends and matcher.is_accepting()):
                break
            allowed = guide.allowed(matcher)
            if not allowed.any():
                break
            row = log_p[at].masked_fill(~torch.from_numpy(allowed), -torch.inf)
            token = int(row.argmax())
            over = max(float(log_p[at, end]) for end in guide.ends)
            if (matcher.is_accepting() and over > float(row[token])) or not matcher.consume_token(token):
                break
            found.append(token)
            forced += 1
        return found


@dataclass(frozen=True, eq=False)
class Guided:
    """What came of one canvas. `plan` is a whole answer from the canvas's beginning, perhaps longer than the canvas."""

    projection: GuidedProjection
    log_p: Float[Tensor, "canvas vocab"]
    plan: tuple[int, ...]

    @cached_property
    def draft(self) -> Int[Tensor, "canvas"]:
        """The plan as far as the canvas goes; behind its end the likeliest end token and the likeliest of the tail."""
        guide, width = self.projection.guide, len(self.log_p)
        kept = torch.tensor(self.plan[:width], dtype=torch.long, device=self.log_p.device)
        if len(kept) == width:
            return kept
        behind = self.log_p[len(kept) :]
        ends, tail = (torch.tensor(sorted(kind), device=behind.device) for kind in (guide.ends, guide.tail))
        return torch.cat([kept, ends[behind[:1, ends].argmax(-1)], tail[behind[1:, tail].argmax(-1)]])

    @cached_property
    def fixed(self) -> int:
        """How many of the first positions are decided: those the model is sure of, and the first that it is not."""
        likeliest = self.log_p.max(-1)
        sure = (likeliest.indices == self.draft) & (likeliest.values > np.log(SURE))
        first = int((~sure).int().argmax()) if not bool(sure.all()) else len(sure)
        end = min(len(self.plan) + 1, len(sure))
        return len(sure) if first + 1 >= end else first + 1

    @property
    def doubt(self) -> float:
        """-log of the model's probability of the draft where it is not fixed."""
        rows = slice(self.fixed, min(len(self.plan) + 1, len(self.log_p)))
        return max(0.0, -float(self.log_p[rows].gather(1, self.draft[rows, None]).sum()))

    def shifted(self) -> Float[Tensor, "canvas vocab"]:
        """Log-probabilities: certain where it is fixed, the model's own behind that."""
        found = self.log_p.clone()
        found[: self.fixed] = BIAS_OF_NONE
        found[torch.arange(self.fixed), self.draft[: self.fixed]] = 0.0
        return found

    def finished(self) -> Int[Tensor, "canvas"] | None:
        """The draft, if it ends the answer within this canvas."""
        return self.draft if len(self.plan) <= len(self.log_p) else None

    def forced(self) -> list[bool]:
        """Per position, whether the draft is another token than the model's likeliest."""
        return list((self.draft != self.log_p.argmax(-1)).tolist())

    def log_mass(self, tokens: Sequence[int]) -> list[float]:
        """At each of the first positions, the log of the probability that the model gave to all that might follow."""
        matcher, found = self.projection.matcher.deep_copy(), []
        guide, rows = self.projection.guide, self.log_p[: len(tokens)].cpu()
        for row, token in zip(rows, tokens, strict=True):
            allowed = guide.allowed(matcher)
            allowed[list(guide.ends)] = matcher.is_accepting()
            found.append(min(0.0, float(row[torch.from_numpy(allowed)].logsumexp(-1))))
            matcher.consume_token(token)
        return found

    def draw(self, uniform: Float[Tensor, "canvas"]) -> Int[Tensor, "canvas"]:
        """Texts cannot be drawn in proportion where only the next token is known, so `engine/resolve.py` refuses it."""
        raise AssertionError("a request that draws came to a schema that is held from left to right")


def tokenizer_of(pieces: Sequence[bytes | None], end: int) -> LLTokenizer:
    """llguidance's view of a vocabulary: the bytes of each token; None for those that no text holds."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Pieces(pieces, end)), n_vocab=len(pieces), eos_token=end)


class _Pieces:
    """A tokenizer as llguidance asks for one."""

    bos_token_id = None

    def __init__(self, pieces: Sequence[bytes | None], end: int) -> None:
        self.eos_token_id = end
        self.tokens = [f"<{token}>".encode() if piece is None else piece for token, piece in enumerate(pieces)]
        self.special_token_ids = [token for token, piece in enumerate(pieces) if piece is None]
        self.single = {piece: token for token, piece in enumerate(pieces) if piece is not None and len(piece) == 1}

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of some text: it is only asked which of a text's first bytes stand in one token however it goes on.

        A text that stands in a schema is asked for whole, and at each of its tokens anew, so its beginning must do.
        """
        return [self.single[bytes([byte])] for byte in text[:MOST_ASKED]]


def grammar_of(schema: Any, *, spaces: bool) -> str | None:
    """A grammar for a schema, perhaps without parts that only a validator can judge; None if llguidance has none.

    It works in a process of its own: by a schema of 40 kB, with many properties and patterns for their names, it took
    minutes, for which every other constraint waited. Raises TimeLimitError for one that takes it over GRAMMAR_SEC,
    DeadlineError over its caller's time.
    """
    said = {"whitespace_pattern": WHITE} if spaces else {"whitespace_flexible": False}
    ways = [{"lenient": lenient, "coerce_one_of": lenient, **said} for lenient in (False, True)]
    with GRAMMARS.turn(str(threading.get_ident()), counted=False):
        until = UNTIL.get()
        left = GRAMMAR_SEC if until is None else min(GRAMMAR_SEC, max(0.0, until - time.monotonic()))
        answer = _GRAMMARS.ask(json.dumps([schema, ways]).encode(), left)
    if answer is None and left < GRAMMAR_SEC:
        raise DeadlineError("the time was up before the schema was a grammar")
    if answer is None:
        limits = f"{GRAMMAR_SEC:g} seconds or {GRAMMAR_BYTES >> 20} MiB"
        raise TimeLimitError(f"the schema takes over {limits} to be made a grammar; narrow it")
    found: str | None = json.loads(answer)
    return found
