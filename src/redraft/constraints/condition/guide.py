"""What may come next in an answer of a schema, and how it may be brought to its end: llguidance's matcher, guided.

A matcher says which tokens may come next and nothing of how an answer ends. So a short way to the end is tried: quotes
and brackets that close first, then the simplest values. If that leads ever deeper, as into a key that may be left out
and whose value holds the like again, another way is taken at the place that came most often.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redraft.constraints.compile.limits import GRAMMARS, UNTIL, TimeLimitError
from redraft.constraints.isolated import Helper
from redraft.errors import DeadlineError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

LETTERS = b"qZ~<"
"""Where all of these may come next, the matcher is taken to be inside a string of any characters."""
CLOSING = b'}]",0123456789ntf[{:-'
"""How an answer is brought to its end, one byte at a time, in this order; inside a free string by its quote."""
OPENING = b"ntf[{"
"""What may begin something that goes on: a word, a list, an object."""
MOST_TURNED, LEAST_TIMES, LEARNT = 8, 4, 512
"""Ways that are tried, how often a choice came that leads ever deeper, and tokens to find those of a whole answer."""
POSITION_LOOKS, LEAST_LOOKS, OWED_LOOKS = 16, 1000, 2**13
"""Tokens and hints that a step looks at for each position of its canvas, at least, and at most where the shortest
answer has half as many tokens, as a list may by its `minItems`: some 25 microseconds each, or 100 of a schema that
means it ill, and all others wait. Ordinary schemas need up to some 200."""
LOOK_WORK = 2**9
"""A look in units of `Language.work`: the edges that a processor walks meanwhile, about."""
MOST_SAME = 4
"""Times in a row that one token is taken before hints are tried."""
MOST_REPEATED = 48
"""Times in a row that the same bytes may come."""
MOST_EXPLORED = 512
"""Tokens of a way that is looked for by what was seen least."""
MOST_MARKS = 20
"""Bytes that may come outside of a string; inside one there may be more, and only its quote ends it."""
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


def most_looks(positions: int, shortest: int) -> int:
    """How many looks a step has, by the positions of its canvas and the tokens of the shortest answer."""
    return max(LEAST_LOOKS, POSITION_LOOKS * positions, min(OWED_LOOKS, 2 * shortest))


class Looks:
    """How many tokens and hints may still be looked at. A number and not a time: an answer does not depend on how fast
    a machine is."""

    def __init__(self, left: float = math.inf) -> None:
        self.left = left

    def take(self) -> None:
        """One more. Raises SpentError if there are none."""
        if self.left < 1:
            raise SpentError
        self.left -= 1


class SpentError(Exception):
    """All looks are taken."""


@dataclass(frozen=True, eq=False)
class Guide:
    """A grammar that llguidance reads, for one tokenizer. `forbidden` tokens never occur; `hints` are short texts that
    a string may end with, its quote included, and numbers."""

    tokenizer: LLTokenizer
    grammar: str
    pieces: tuple[bytes | None, ...]
    ends: tuple[int, ...]
    tail: tuple[int, ...]
    forbidden: frozenset[int] = frozenset()
    hints: tuple[str, ...] = ()

    @cached_property
    def begin(self) -> LLMatcher:
        """A matcher before the first token; copies of it are moved."""
        from llguidance import LLMatcher

        return LLMatcher(self.tokenizer, self.grammar, log_level=0)

    def begun(self) -> Guide:
        """This, its first matcher made by turns of the callers: it may take seconds, in which others' prompts are
        read. The engine's loop, for which all wait, finds it there."""
        with GRAMMARS.turn(str(threading.get_ident()), counted=False):
            _ = self.turned
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
    def singles(self) -> dict[int, int]:
        """The tokens of single bytes."""
        known = enumerate(self.pieces)
        return {piece[0]: at for at, piece in known if piece and len(piece) == 1 and at not in self.forbidden}

    @cached_property
    def visible(self) -> dict[int, int]:
        """Those that are no white space."""
        return {byte: token for byte, token in self.singles.items() if byte not in b" \t\r\n"}

    def _single(self, text: bytes) -> list[int]:
        return [self.singles[byte] for byte in text if byte in self.singles]

    @cached_property
    def by_length(self) -> NDArray[np.integer]:
        """Tokens, short ones first, white space and what is no text last."""
        size = [len(piece) + 100 * piece.isspace() if piece else 1000 for piece in self.pieces]
        return np.argsort(size, kind="stable")

    @cached_property
    def turned(self) -> Mapping[bytes, int]:
        """The choices at which the first way leads ever deeper, as far as an answer's beginning tells."""
        return self._way(self.begin, LEARNT, Counter(), MOST_TURNED, Looks())[1]

    def completion(self, matcher: LLMatcher, most: int, looks: Looks | None = None) -> list[int] | None:
        """A short string of tokens that ends the answer, as it seems; None if none of at most `most` was found, or
        not by so many `looks`."""
        looks = looks or Looks()
        try:
            found = self._way(matcher, most, Counter(self.turned), 2, looks)[0]
            return self._explored(matcher.deep_copy(), min(most, MOST_EXPLORED), looks) if found is None else found
        except SpentError:
            return None

    def _way(
        self, matcher: LLMatcher, most: int, turned: Counter[bytes], tries: int, looks: Looks
    ) -> tuple[list[int] | None, Counter[bytes]]:
        often = Counter[bytes]()
        for _ in range(tries):
            for quote_first in (False, True):
                found = self._complete(matcher.deep_copy(), most, turned, often, looks, quote_first=quote_first)
                if found is not None:
                    return found, turned
            choice, times = max(often.items(), key=lambda one: one[1], default=(b"", 0))
            if times < LEAST_TIMES:
                break
            turned[choice] += 1
            often.clear()
        return None, Counter()

    def _explored(self, matcher: LLMatcher, most: int, looks: Looks) -> list[int] | None:
        """A way to the end by what has been seen least: behind the next byte may come such bytes as have come least
        often, or a hint. So it leaves what repeats itself, as the digits ahead of a point."""
        found, seen, behind = list[int](), Counter[bytes](), dict[bytes, dict[int, bytes]]()
        order, last, same = b'"' + CLOSING, b"", 0
        while not matcher.is_accepting():
            looks.take()
            may = self._may(matcher)
            if not may or len(found) >= most or matcher.is_stopped():
                return None
            ends = [byte for byte in may if byte in (b'"' if len(may) > MOST_MARKS else b'",}]')]
            if not ends and (hint := self._hint(matcher, most - len(found), looks)):
                matcher.consume_tokens(hint)
                found += hint
                continue
            seen[may] += 1
            same = same + 1 if may == last else 0
            last = may
            if same > MOST_REPEATED:
                return None
            if len(may) > 1 and may not in behind:
                behind[may] = {byte: self._may_behind(matcher, byte, looks) for byte in may}
            ways = behind.get(may, {may[0]: b""})
            byte = min(ends or may, key=lambda one: (seen[ways[one]], order.find(one) % len(order), one))
            if not matcher.consume_token(self.singles[byte]):
                return None
            found.append(self.singles[byte])
        return found

    def _hint(self, matcher: LLMatcher, most: int, looks: Looks) -> list[int]:
        """The first hint that may come here and ends a value; none if there is none."""
        for tokens in self.hinted:
            looks.take()
            ahead = matcher.deep_copy()
            if len(tokens) > most or ahead.try_consume_tokens(tokens) < len(tokens):
                continue
            may = self._may(ahead)
            if ahead.is_accepting() or (len(may) <= MOST_MARKS and set(may) & set(b",}]")):  # and not within a string
                return tokens
        return []

    @cached_property
    def hinted(self) -> list[list[int]]:
        """The tokens of the hints that can be written."""
        spelt = [(self._single(hint.encode()), len(hint.encode())) for hint in self.hints]
        return [tokens for tokens, size in spelt if len(tokens) == size]

    def _may(self, matcher: LLMatcher) -> bytes:
        """The bytes that may come next, white space not among them."""
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        return bytes(byte for byte, token in self.visible.items() if bits[token >> 3] >> (token & 7) & 1)

    def _may_behind(self, matcher: LLMatcher, byte: int, looks: Looks) -> bytes:
        """Those that may come behind one of them; none behind one that is no way to any."""
        looks.take()
        matcher = matcher.deep_copy()
        return self._may(matcher) if matcher.consume_token(self.singles[byte]) else b""

    def _complete(
        self,
        matcher: LLMatcher,
        most: int,
        turned: Mapping[bytes, int],
        often: Counter[bytes],
        looks: Looks,
        *,
        quote_first: bool,
    ) -> list[int] | None:
        """One way to the end. Where one of several bytes has to come, it is the first that leads on, or a later one as
        far as these are `turned`; `often` counts them."""
        found = list[int]()
        while not matcher.is_accepting():
            looks.take()
            if len(found) >= most or matcher.is_stopped():
                return None
            free = quote_first or all(matcher.validate_tokens([token]) for token in self._single(LETTERS))
            order = self._single(b'"' + CLOSING if free else CLOSING)
            token = next((one for one in order if matcher.validate_tokens([one])), None)
            if token is None:  # a character that a pattern asks for, or a long text that stands in the schema
                text = matcher.compute_ff_bytes()
                forced = self._single(text)
                if text and len(forced) == len(text):
                    if len(forced) > most - len(found) or not matcher.consume_tokens(forced):
                        return None
                    found += forced
                    continue
            if token is None or (not free and token in self._single(OPENING)):
                token = self._chosen(matcher, token, turned, often)
            same = self.hints and len(found) % MOST_SAME == 0 and found[-MOST_SAME:] == [token] * MOST_SAME
            if same and (hint := self._hint(matcher, most - len(found), looks)):  # a pattern waits for something else
                matcher.consume_tokens(hint)
                found += hint
                continue
            if token is None or not matcher.consume_token(token):
                return None
            found.append(token)
        return found

    def _chosen(
        self, matcher: LLMatcher, first: int | None, turned: Mapping[bytes, int], often: Counter[bytes]
    ) -> int | None:
        """One that may come next: `first`, or the shortest, unless the choice is turned; None if none may."""
        allowed = self.allowed(matcher)
        choice = bytes(byte for byte, token in self.visible.items() if allowed[token])
        if len(choice) > 1:
            often[choice] += 1
            if turn := turned.get(choice, 0) % len(choice):
                ways = self._single(choice)
                first = ways[(turn + (0 if first is None else ways.index(first))) % len(ways)]
        if first is None and allowed.any():
            first = int(self.by_length[allowed[self.by_length]][0])
        return first


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
