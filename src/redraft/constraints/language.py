"""A language made ready for one tokenizer: what a request carries, and how it comes about.

    schema | regex | choices | grammar | template ──► Source ──► Dfa ──► lift(vocabulary) ──► Language
                                                        └── kept on disk under its hash and the tokenizer's ──┘

Compiling is once for a source and a tokenizer. What is kept on disk is only arrays and numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from redraft.config import CheckpointConfig
from redraft.constraints.compile.automaton import NOWHERE, Compiled
from redraft.constraints.compile.dialect import closed, draft_of, nodes
from redraft.constraints.compile.document import Document
from redraft.constraints.compile.hints import hints_of
from redraft.constraints.compile.lift import TokenAutomaton, Trie, build_trie, lift, token_bytes
from redraft.constraints.compile.limits import (
    DEFAULT_LIMITS,
    TURNS,
    CompileLimits,
    OutOfReachError,
    TimeLimitError,
    time_limit,
)
from redraft.constraints.compile.verbatim import as_text
from redraft.constraints.condition.edge_layout import EdgeLayout
from redraft.constraints.condition.guide import (
    LOOK_WORK,
    POSITION_LOOKS,
    Guide,
    grammar_of,
    most_looks,
    tokenizer_of,
)
from redraft.constraints.condition.guided import GuidedProjection, NoLayout
from redraft.constraints.condition.projection import Projection
from redraft.constraints.disk_cache import Entry, code_version, read_entry, write_entry
from redraft.constraints.validation import Problem, check_readable, contradictions, schema_problems
from redraft.errors import ConstraintError
from redraft.model.gpu.automata import ConditionKernels
from redraft.text import Text

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MOST_SOURCE_BYTES = 1_000_000
MOST_LATE, LATE_SEC = 256, 60.0
_LATE: dict[str, tuple[float, str]] = {}
"""Of constraints that took too long to compile, by their keys: until when they are refused, and why."""
MOST_PROPERTIES = 4000
"""Properties of one object that are held from left to right: llguidance takes a second for so many, and four times as
long for twice as many."""
LAID_OUT_BYTES = 64  # of an edge
MOST_SHORTEST = 4096
"""Tokens of an answer that is looked for to learn how short one can be."""
TEXT = "text"
MARKS = {
    "<|tool_call>": b"\xf8",
    "<tool_call|>": b"\xf9",
    '<|"|>': b"\xfa",
    "<|channel>": b"\xfb",
    "<channel|>": b"\xfc",
}
"""Special tokens that a language may hold (constraints/compile/tool_calls.py), as bytes that UTF-8 does not have."""


@dataclass(frozen=True)
class Source:
    """What a language was made from: its kind, its text in one spelling, how to make the automaton, the options of
    that, and the text that values are copied from."""

    kind: str
    text: str
    compile: Callable[[CompileLimits], Compiled] = field(compare=False, repr=False)
    options: tuple[int | str, ...] = ()
    verbatim: str = ""

    def __post_init__(self) -> None:
        size = len(as_text(self.text, self.kind).encode())
        if size > MOST_SOURCE_BYTES:
            raise ConstraintError(f"the {self.kind} has {size} bytes; at most {MOST_SOURCE_BYTES}")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model as bytes, and which of them end an answer or stand behind its end."""

    pieces: tuple[bytes | None, ...]
    ends: frozenset[int]
    tail: frozenset[int]

    @cached_property
    def trie(self) -> Trie:
        """The tokens as a tree."""
        return build_trie(self.pieces)

    @cached_property
    def llguidance(self) -> LLTokenizer:
        """The tokens as llguidance reads them."""
        return tokenizer_of(self.pieces, min(self.ends))

    @cached_property
    def key(self) -> str:
        """A hash of all of it."""
        digest = hashlib.sha256(repr((sorted(self.ends), sorted(self.tail))).encode())
        for piece in self.pieces:
            digest.update(b"-" if piece is None else len(piece).to_bytes(4, "big") + piece)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Language:
    """Which token strings are answers. `checked` if some part of the schema is only read by a validator, afterwards;
    `ignored` are the keywords that the schema's draft does not define, as JSON pointers."""

    source: Source
    layout: EdgeLayout
    checked: bool
    ignored: tuple[str, ...] = field(default=(), kw_only=True)
    _less: dict[frozenset[int], EdgeLayout] = field(default_factory=dict, init=False, repr=False)

    @property
    def automaton(self) -> TokenAutomaton:
        """The automaton over tokens."""
        return self.layout.automaton

    @property
    def held(self) -> str:
        """How answers are held: `exact` by the projection alone, `checked` by a validator, too, or `guided` from left
        to right."""
        return "checked" if self.checked else "exact"

    @property
    def num_bytes(self) -> int:
        """Bytes of its edges in the orders that messages sum them in, about."""
        return LAID_OUT_BYTES * len(self.automaton.src)

    @property
    def edges(self) -> int:
        """Its edges, those between the same states counted once."""
        return len(self.layout.merged.src)

    @property
    def work(self) -> int:
        """What a position of a canvas costs the host, in edges, about: as many as there are classes in kinds, too, and
        a state counts as four."""
        return self.edges + len(self.layout.merged.members) + 4 * self.automaton.states

    def work_at(self, positions: int) -> int:
        """What a step costs the host for so many positions, in edges."""
        return self.work * positions

    @property
    def is_text(self) -> bool:
        """Whether answers may be any text, and so be cut where there is no more room."""
        return self.source.kind == TEXT

    @property
    def shortest(self) -> int:
        """Tokens of the shortest answer."""
        return int(self.automaton.to_end[0])

    def start(self, max_tokens: int, min_tokens: int = 0, kernels: ConditionKernels | None = None) -> Projection:
        """The constraint on the first canvas of an answer. Raises ConstraintError if none has so many tokens."""
        found = Projection(self.layout, 0, max_tokens, min_tokens, kernels=kernels)
        found.check()
        return found

    def holds(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens, without an end token, are a whole answer."""
        state = self.automaton.after(0, tokens)
        return state != NOWHERE and bool(self.automaton.accepts[state])

    def answer(self, tokens: Sequence[int]) -> Sequence[int]:
        """The part of the emitted tokens whose text checks read: all of them."""
        return tokens

    @property
    def is_validated(self) -> bool:
        """Whether there is an independent validator for its answers: for those of a schema."""
        return self.source.kind == "schema"

    def problems(self, text: str) -> list[Problem]:
        """What the validator has to say against an answer. If the automaton has all of the schema that is nothing,
        unless it was compiled wrongly."""
        if not self.is_validated:
            return []
        return (schema_problems if self.checked else contradictions)(json.loads(self.source.text), text)

    def without(self, tokens: frozenset[int]) -> Language:
        """The same without answers that hold some tokens. Raises ConstraintError if there are no others."""
        if not tokens:
            return self
        if (found := self._less.get(tokens)) is None:  # kept for the other answers of a request
            self._less.clear()
            found = self._less[tokens] = EdgeLayout(self.automaton.without(tokens))
        return dataclasses.replace(self, layout=found)


@dataclass(frozen=True, eq=False)
class GuidedLanguage(Language):
    """A schema that no automaton of a bounded size is known for: held from left to right (`condition/guided.py`)."""

    guide: Guide

    @property
    def held(self) -> str:
        return "guided"

    @property
    def edges(self) -> int:
        """It has no automaton."""
        return 0

    @property
    def work(self) -> int:
        """What a position's looks take of the host at most (`condition/guide.py`); a step has some in any case."""
        return LOOK_WORK * POSITION_LOOKS

    def work_at(self, positions: int) -> int:
        return LOOK_WORK * most_looks(positions, self.shortest or MOST_SHORTEST)

    @cached_property
    def shortest(self) -> int:
        """Tokens of a short answer; 0 if none of up to MOST_SHORTEST was found."""
        return len(self.guide.completion(self.guide.begin, MOST_SHORTEST) or ())

    def start(self, max_tokens: int, min_tokens: int = 0, kernels: ConditionKernels | None = None) -> GuidedProjection:
        """The constraint on the first canvas; `min_tokens` is 0. Raises ConstraintError if no short answer is found."""
        found = GuidedProjection(self.layout, 0, max_tokens, guide=self.guide, shortest=self.shortest or MOST_SHORTEST)
        found.check()
        return found

    def holds(self, tokens: Sequence[int]) -> bool:
        matcher = self.guide.at(tokens)
        return matcher is not None and bool(matcher.is_accepting())

    def without(self, tokens: frozenset[int]) -> GuidedLanguage:
        """The same without answers that hold some tokens."""
        less = dataclasses.replace(self.guide, forbidden=tokens) if tokens else None
        return self if less is None else dataclasses.replace(self, guide=less.begun())


def ready(
    source: Source,
    vocabulary: Vocabulary,
    *,
    kept_in: Path | None = None,
    limits: CompileLimits = DEFAULT_LIMITS,
    counted: bool = True,
) -> Language:
    """The language of a source over a vocabulary, from the folder `kept_in` if it was made before. If it is `counted`,
    it is refused to a caller that has many in the works.

    Raises ConstraintError for sources that cannot be kept, that no text satisfies, or that pass the limits; for those
    from the folder, too, unless it was the time that was up.
    """
    if kept_in is None:
        with TURNS.turn(secrets.token_hex(), counted=counted):  # nobody can look up what it makes
            return _language(source, vocabulary, _compiled(source, vocabulary, limits))
    parts = [code_version(), source.kind, source.text, source.options, vocabulary.key, dataclasses.astuple(limits)]
    key = json.dumps(parts)
    while (entry := read_entry(kept_in, key)) is None:
        if (late := _LATE.get(key)) is not None and time.monotonic() < late[0]:
            raise TimeLimitError(late[1])
        with TURNS.turn(key, counted=counted) as turn:  # of several that want the same one compiles it
            if not turn.over.is_set():
                turn.found = read_entry(kept_in, key) or _kept(source, vocabulary, limits, kept_in, key)
            if isinstance(turn.found, Entry):
                entry = turn.found
                break
    return _language(source, vocabulary, entry)


def _kept(source: Source, vocabulary: Vocabulary, limits: CompileLimits, folder: Path, key: str) -> Entry:
    """The entry, compiled and written down, as a refusal is. What takes too long is refused for a while without trying
    again."""
    try:
        entry = _compiled(source, vocabulary, limits)
    except TimeLimitError as error:
        while len(_LATE) >= MOST_LATE:
            _LATE.pop(next(iter(_LATE)))
        _LATE[key] = time.monotonic() + LATE_SEC, str(error)
        raise
    except ConstraintError as error:
        write_entry(folder, key, Entry(None, refused=str(error)))
        raise
    if entry.lasting:
        write_entry(folder, key, entry)
    return entry


def _compiled(source: Source, vocabulary: Vocabulary, limits: CompileLimits) -> Entry:
    trie = vocabulary.trie  # made once for all languages, and not on the clock of the first
    with time_limit(limits):
        try:
            found = source.compile(limits)
            automaton = lift(found.dfa, trie, vocabulary.ends, vocabulary.tail, limits)
        except RecursionError:
            raise OutOfReachError(f"the {source.kind} nests too deeply to compile; flatten it") from None
        except OutOfReachError as error:
            return _guided(source, error)
    return Entry(automaton, found.checked, found.ignored)


def _guided(source: Source, error: OutOfReachError) -> Entry:
    """The entry of a schema that is held from left to right, without a code block around it. Raises the reason why it
    has no automaton if it is no schema, or one that llguidance cannot hold either."""
    if source.verbatim:  # llguidance knows of no parts
        raise type(error)(
            f"{error}, or do without verbatim: the text to copy from has {len(source.verbatim)} characters"
        )
    if source.kind != "schema" or "without" in source.options:
        raise error
    schema = json.loads(source.text)
    check_readable(schema)
    if any(len(node.get("properties", ())) > MOST_PROPERTIES for node, _ in nodes(schema, draft_of(schema))):
        raise error
    grammar = grammar_of(closed(schema), spaces=bool(source.options[1]))
    if grammar is None:
        raise error
    ignored = tuple(Document(schema).ignored)
    lasting, hints = not isinstance(error, TimeLimitError), tuple[str, ...]()
    try:
        hints = hints_of(schema)
    except TimeLimitError:  # another time there may be some
        lasting = False
    return Entry(None, True, ignored, grammar=grammar, hints=hints, lasting=lasting)


def _language(source: Source, vocabulary: Vocabulary, entry: Entry) -> Language:
    if entry.refused:
        raise ConstraintError(entry.refused)
    if entry.automaton is None:
        ends, tail = tuple(sorted(vocabulary.ends)), tuple(sorted(vocabulary.tail))
        guide = Guide(vocabulary.llguidance, entry.grammar, vocabulary.pieces, ends, tail, hints=entry.hints)
        return GuidedLanguage(source, NoLayout(), True, guide.begun(), ignored=entry.ignored)
    return Language(source, EdgeLayout(entry.automaton), entry.checked, ignored=entry.ignored)


def vocabulary_of(text: Text, config: CheckpointConfig) -> Vocabulary:
    """The vocabulary of a checkpoint: behind an answer may stand its end tokens again, or padding."""
    ends = frozenset(config.generation.eos_token_ids)
    ours = frozenset(MARKS.values())  # a token of such a byte alone is no way to any character
    pieces = [None if piece in ours else piece for piece in token_bytes(text, config.model.vocab_size)]
    for mark, byte in MARKS.items():
        token = text.tokenizer.token_to_id(mark)
        if token is not None and token < len(pieces):
            pieces[token] = byte
    return Vocabulary(tuple(pieces), ends, ends | {config.generation.pad_token_id})
