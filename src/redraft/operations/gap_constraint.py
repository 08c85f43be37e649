"""Conditions on the text in a gap, as a language, and token healing at the gap's seams.

A tokenizer cuts the text before a gap as if nothing followed. Where the last token before the gap begins a longer one,
or the first behind it ends one, the model has learnt to expect the longer, and the cut forces an unlikely text on it.
Token healing takes such a token into the gap, whose text must then begin, or end, with that token's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from redraft.constraints.compile.automaton import Compiled, Dfa, intersect, subtract
from redraft.constraints.compile.builder import Builder
from redraft.constraints.compile.limits import DEFAULT_LIMITS, CompileLimits
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.compile.remembered import remembered
from redraft.constraints.compile.verbatim import as_text
from redraft.constraints.condition.span import SpanLanguage
from redraft.constraints.language import Language, Source, Vocabulary, ready
from redraft.errors import ConstraintError, RequestError

MOST_WORDS = 256
"""Words that are counted. A canvas of the released model has 256 tokens, and each more word is 23 states."""

_ANYTHING, _SOMETHING = "(?s:.*)", "(?s:.+)"


@dataclass(frozen=True)
class GapConstraint:
    """Conditions on a text, all of which hold. Without a `regex` it is not empty.

    regex      a regular expression that all of it matches (Rust's dialect)
    words      (number, word): the word of that number, counted from 1; words are what stands between white space
    contains   texts that occur in it        lacks   texts that do not
    """

    regex: str | None = None
    words: tuple[tuple[int, str], ...] = ()
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for number, word in self.words:
            if not 1 <= number <= MOST_WORDS:
                raise RequestError(f"word {number} is {word!r}; words are counted from 1 to {MOST_WORDS}")
            if not word or word.split() != [word]:
                raise RequestError(f"word {number} is {word!r}; a word is not empty and has no white space in it")
        for name, texts in (("contains", self.contains), ("lacks", self.lacks)):
            if not all(texts):
                raise RequestError(f"{name} is {list(texts)}; an empty text occurs everywhere: leave it out")

    def __bool__(self) -> bool:
        return self != GapConstraint()

    def dfa(self, limits: CompileLimits = DEFAULT_LIMITS) -> Dfa:
        """The texts that are wanted. Raises ConstraintError if there are none."""
        found = whole_match(_SOMETHING if self.regex is None else self.regex)
        for number, word in self.words:
            before = rf"\s*(?:\S+\s+){{{number - 1}}}"
            found = intersect(found, _around(before, word, rf"(?:\s{_ANYTHING})?", limits))
        for text in self.contains:
            found = intersect(found, _around(_ANYTHING, text, _ANYTHING, limits))
        for text in self.lacks:
            found = subtract(found, _around(_ANYTHING, text, _ANYTHING, limits))
        if found.is_empty:
            raise ConstraintError(f"no text satisfies all of these conditions: {self._described()}")
        return found

    def _described(self) -> str:
        return ", ".join(f"{name} {value!r}" for name, value in vars(self).items() if value)


def _around(before: str, text: str, behind: str, limits: CompileLimits) -> Dfa:
    """A text between two regular expressions."""
    build = Builder(limits)
    parts = (
        build.embed(whole_match(before)),
        build.literal(as_text(text, "text of a gap").encode()),
        build.embed(whole_match(behind)),
    )
    return build.finish(build.then(*parts))


@remembered
def span_language(
    constraint: GapConstraint, vocabulary: Vocabulary, *, begins: bytes = b"", ends: bytes = b""
) -> Language:
    """The texts that are wanted, between the bytes of healed tokens. Raises ConstraintError."""

    def compile_it(limits: CompileLimits) -> Compiled:
        build = Builder(limits)
        parts = (build.literal(begins), build.embed(constraint.dfa(limits)), build.literal(ends))
        return Compiled(build.finish(build.then(*parts)))

    return ready(Source("gap", repr((astuple(constraint), begins, ends)), compile_it), vocabulary)


def of_width(language: Language, width: int) -> SpanLanguage:
    """The language for a gap of exactly `width` tokens."""
    return SpanLanguage(language.source, language.layout, language.checked, width)


def grows_right(vocabulary: Vocabulary, token: int) -> bytes:
    """The bytes of a token if it begins a longer one, else none."""
    node = int(vocabulary.trie.node_of[token])
    piece = vocabulary.pieces[token]
    if piece is None or node < 0 or not bool(np.any(vocabulary.trie.parent == node)):
        return b""
    return piece


def grows_left(vocabulary: Vocabulary, token: int) -> bytes:
    """The bytes of a token if it ends a longer one, else none."""
    piece = vocabulary.pieces[token]
    if not piece:
        return b""
    longer = any(other is not None and len(other) > len(piece) and other.endswith(piece) for other in vocabulary.pieces)
    return piece if longer else b""


def spelt(vocabulary: Vocabulary, tokens: Sequence[int]) -> bytes:
    """The bytes of tokens that a language allows."""
    return b"".join(vocabulary.pieces[token] or b"" for token in tokens)
