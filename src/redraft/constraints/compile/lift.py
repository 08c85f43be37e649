"""From an automaton over bytes to one over tokens, with tokens that act alike merged into classes.

    vocabulary ──► Trie (once per tokenizer)
                        │   walked by levels, every node as what it does to every state
    Dfa over bytes ─────┴──► TokenAutomaton: class of each token, edges (state, class, state)

What a token does is a map from states to states. Bytes of one class make the same map of the map before them, and maps
that are equal are one from there on. So the walk costs as many compositions as there are distinct maps, some hundreds
to some thousands, whatever the size of the vocabulary and however long a bounded string may be; the vocabulary itself
is only looked up. Maps are distinguished by 64-bit hashes of their pairs, two of them, and their number of pairs.

Special tokens are in no trie, so no language can hold them. Half a UTF-8 sequence is no way to an accepting state, so
no token can leave one behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from redraft.constraints.compile.automaton import FAR, NOWHERE, Dfa, Ints, distance
from redraft.constraints.compile.limits import DEFAULT_LIMITS, CompileLimits, OutOfReachError, check_time
from redraft.constraints.compile.values import FOLLOW, LEADS, TAILS
from redraft.errors import ConstraintError
from redraft.text import Text

Longs = NDArray[np.int64]
MOST_EDGES = 500_000
"""Beside as many a step of the narrowest canvas takes a tenth of a second, and a request 30 MB."""
MOST_COUNTED = 4_000_000
"""Numbers up to this are distinguished by a table of all of them; beyond, they are sorted."""
_WIDE = re.compile(b"|".join(
    b"[%b]" % re.escape(lead) + b"[%b]" % re.escape(b"".join(TAILS[i] for i in allowed)) + b"[\x80-\xbf]{%d}" % more
    for lead, (allowed, more) in zip(LEADS, FOLLOW, strict=True)
))  # fmt: skip
"""A character that is not ASCII, in UTF-8."""
PAIRS_AT_ONCE, MOST_KEPT = 1_000_000, 8_000_000
"""Pairs of states that are composed together, and that all maps of a lift may have: 8 bytes each."""


@dataclass(frozen=True, eq=False)
class Trie:
    """The byte strings of a vocabulary as a tree, by levels; node 0 is the root.

    parent, byte   of each node, parents first        levels   first node of each level, and the end
    node_of        [vocab], where each token ends; NOWHERE for tokens that no language may hold
    folded         the tree of the same tokens with one character for all that are not ASCII, about a third of it

    Indices have 8 bytes, since numpy converts those of 4 at every lookup.
    """

    parent: Longs
    byte: NDArray[np.uint8]
    levels: tuple[int, ...]
    node_of: Longs
    folded: Trie | None = None


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """A language over tokens. State `end` is behind the answer: end tokens lead to it, and it keeps to the tail.

    class_of   [vocab], class of each token; class 0 are tokens that the language never holds
    src, cls, dst   edges, sorted by dst; those of the end and the tail among them
    accepts    [states], whether the answer may be over there
    """

    class_of: Ints
    src: Ints
    cls: Ints
    dst: Ints
    accepts: NDArray[np.bool_]

    @property
    def states(self) -> int:
        """Number of states, `end` among them."""
        return len(self.accepts)

    @property
    def end(self) -> int:
        """The state behind the answer."""
        return len(self.accepts) - 1

    @cached_property
    def classes(self) -> int:
        """Number of classes, the one of unusable tokens among them."""
        return int(max(self.class_of.max(), self.cls.max(initial=0))) + 1

    @cached_property
    def to_end(self) -> Ints:
        """Fewest tokens from each state until the answer may be over, the end token not counted."""
        return distance(self.src, self.dst, self.accepts, self.states)

    def is_over(self, state: int) -> bool:
        """Whether an answer that is here has ended: no token but an end token could follow."""
        return bool(self.accepts[state] and not self.goes_on[state])

    @cached_property
    def goes_on(self) -> NDArray[np.bool_]:
        """States that some token of an answer leads away from."""
        found = np.zeros(self.states, dtype=np.bool_)
        found[self.src[self.dst != self.end]] = True
        return found

    def without(self, tokens: frozenset[int]) -> TokenAutomaton:
        """The automaton without some tokens. Raises ConstraintError if every answer needs one of them."""
        class_of = self.class_of.copy()
        class_of[sorted(tokens)] = 0
        spelt = np.isin(self.cls, class_of[class_of > 0])
        src, cls, dst = self.src[spelt], self.cls[spelt], self.dst[spelt]
        alive = distance(src, dst, self.accepts, self.states) < FAR
        if not alive[0]:
            raise ConstraintError("every valid answer holds a forbidden token (bad_words); allow some")
        kept = alive[src] & alive[dst]
        return TokenAutomaton(class_of, src[kept], cls[kept], dst[kept], self.accepts)

    @cached_property
    def _edge_keys(self) -> tuple[Longs, Longs]:
        keys = self.src.astype(np.int64) * self.classes + self.cls
        order = np.argsort(keys)
        return keys[order], order

    def after(self, state: int, tokens: Sequence[int]) -> int:
        """The state behind some tokens, NOWHERE if the language does not hold them."""
        keys, order = self._edge_keys
        for token in tokens:
            key = state * self.classes + int(self.class_of[token])
            at = int(np.searchsorted(keys, key))
            if at == len(keys) or keys[at] != key:
                return NOWHERE
            state = int(self.dst[order[at]])
        return state


def token_bytes(text: Text, vocab: int) -> list[bytes | None]:
    """What each token adds to the decoded text; None for special ones and ids without a token."""
    found: list[bytes | None] = [None] * vocab
    for piece, token in text.tokenizer.get_vocab(with_added_tokens=True).items():
        if token in text.special_ids or token >= vocab:
            continue
        found[token] = bytes([int(piece[3:5], 16)]) if token in text.byte_ids else piece.replace("▁", " ").encode()
    return found


def build_trie(pieces: Sequence[bytes | None]) -> Trie:
    """The trie of a vocabulary. A token of no bytes would make answers of any length, and is left out."""
    alike = [piece and _WIDE.sub(b"\xc2\x80", piece) for piece in pieces]
    return replace(_trie(pieces), folded=_trie(alike))


def _trie(pieces: Sequence[bytes | None]) -> Trie:
    sizes = np.array([len(piece or b"") for piece in pieces])
    padded = np.zeros((len(pieces), int(sizes.max(initial=1))), dtype=np.uint8)
    padded[np.arange(padded.shape[1]) < sizes[:, None]] = np.frombuffer(b"".join(p or b"" for p in pieces), np.uint8)
    node_of = np.full(len(pieces), NOWHERE)
    parents, labels, levels = [np.zeros(1, np.int64)], [np.zeros(1, np.uint8)], [0, 1]
    alive = np.flatnonzero(sizes)
    at = np.zeros(len(alive), dtype=np.int64)
    for depth in range(padded.shape[1]):
        keys, where = np.unique(at * 256 + padded[alive, depth], return_inverse=True)
        parents.append(keys >> 8)
        labels.append((keys & 255).astype(np.uint8))
        at = levels[-1] + where.reshape(-1)
        levels.append(levels[-1] + len(keys))
        ends = sizes[alive] == depth + 1
        node_of[alive[ends]] = at[ends]
        alive, at = alive[~ends], at[~ends]
    return Trie(np.concatenate(parents), np.concatenate(labels), tuple(levels), node_of)


def lift(
    dfa: Dfa, trie: Trie, ends: frozenset[int], tail: frozenset[int], limits: CompileLimits = DEFAULT_LIMITS
) -> TokenAutomaton:
    """The automaton over tokens. `ends` are the tokens that end an answer, `tail` those that may stand behind it.

    Raises ConstraintError for a language without strings, or one whose edges are too many.
    """
    if dfa.is_empty:
        raise ConstraintError("no text satisfies the constraint; look for parts of it that contradict each other")
    if len(dfa) > limits.states:
        raise OutOfReachError(f"the constraint has {len(dfa)} states, over the {limits.states} allowed; narrow it")
    trie = trie.folded if trie.folded is not None and _folds(dfa) else trie
    maps = _Maps(dfa)
    map_of_node = np.zeros(len(trie.parent) + 1, dtype=np.int64)  # the last is of NOWHERE
    map_of_node[0] = maps.identity
    labels = dfa.class_of.astype(np.int64).take(trie.byte)
    for begin, stop in zip(trie.levels[1:], trie.levels[2:], strict=False):
        level = slice(begin, stop)
        map_of_node[level] = maps.compose(map_of_node.take(trie.parent[level]), labels[level])
    return _assemble(dfa, maps, map_of_node.take(trie.node_of), ends, tail)


def _folds(dfa: Dfa) -> bool:
    """Whether all characters that are not ASCII move every state alike, as where only JSON's own syntax counts."""
    if any((dfa.class_of[list(same)] != dfa.class_of[same[0]]).any() for same in (*LEADS, *TAILS)):
        return False
    table = np.vstack([dfa.table, np.full((1, dfa.table.shape[1]), NOWHERE, np.int32)])  # NOWHERE is the last row
    leads, tails = (table[:, dfa.class_of[[same[0] for same in kind]]].T for kind in (LEADS, TAILS))
    expected = tails[0][leads[0]]
    for moved, (allowed, more) in zip(leads, FOLLOW, strict=True):
        reached = [tails[i][moved] for i in allowed]
        for _ in range(more):
            reached = [tail[states] for states in reached for tail in tails]
        if any((states != expected).any() for states in reached):
            return False
    return True


class _Maps:
    """Distinct maps from states to states, as lists of pairs. Map 0 leads nowhere."""

    def __init__(self, dfa: Dfa) -> None:
        self.dfa, self.identity = dfa, 1
        self.states = np.arange(len(dfa), dtype=np.int32)
        nothing = np.empty(0, dtype=np.int32)
        self.src, self.dst = [nothing, self.states], [nothing, self.states]
        self.known: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
        self.pairs = 0

    def compose(self, before: Longs, labels: Longs) -> Longs:
        """For each of many (map, byte class), the map of doing the second after the first."""
        return replaced(before * self.dfa.table.shape[1] + labels, self._each)

    def _each(self, keys: Longs) -> Longs:
        parents, moves = np.divmod(keys, self.dfa.table.shape[1])
        # Maps that lead nowhere stay so; their whole subtrees pass by here as one key.
        sizes = np.array([len(self.src[parent]) for parent in parents], dtype=np.int64)
        total, found, begin = sizes.cumsum(), [], 0
        while begin < len(keys):
            check_time()
            stop = max(begin + 1, int(np.searchsorted(total, total[begin] + PAIRS_AT_ONCE)))
            found.append(self._composed(parents[begin:stop], moves[begin:stop], sizes[begin:stop]))
            begin = stop
        return np.concatenate(found)

    def _composed(self, parents: Longs, moves: Longs, sizes: Longs) -> Longs:
        src = np.concatenate([self.src[parent] for parent in parents])
        dst = self.dfa.table[np.concatenate([self.dst[parent] for parent in parents]), np.repeat(moves, sizes)]
        owner = np.repeat(np.arange(len(parents)), sizes)
        kept = dst != NOWHERE
        return self._number(src[kept], dst[kept], owner[kept], len(parents))

    def _number(self, src: Ints, dst: Ints, owner: Longs, count: int) -> Longs:
        starts = np.searchsorted(owner, np.arange(count + 1))
        sizes = np.diff(starts)
        pairs = src.astype(np.uint64) * np.uint64(len(self.dfa)) + dst.astype(np.uint64)
        first, second = (_sums(_mixed(pairs, salt), starts) for salt in (1, 2))
        numbers = np.empty(count, dtype=np.int64)
        for i, key in enumerate(zip(sizes.tolist(), first.tolist(), second.tolist(), strict=True)):
            number = self.known.get(key)
            if number is None:
                number = self.known[key] = len(self.src)
                # Copies: a view would keep all that was composed with it.
                self.src.append(src[starts[i] : starts[i + 1]].copy())
                self.dst.append(dst[starts[i] : starts[i + 1]].copy())
                self.pairs += key[0]
            numbers[i] = number
        if self.pairs > MOST_KEPT:
            raise OutOfReachError(f"the constraint moves its states in over {MOST_KEPT} ways; narrow its lengths")
        return numbers


def replaced(values: Longs, new: Callable[[Longs], Longs]) -> Longs:
    """Small natural numbers, each replaced by what `new`, called once with the different ones in order, makes of it."""
    top = int(values.max(initial=-1)) + 1
    if top > MOST_COUNTED:
        found, where = np.unique(values, return_inverse=True)
        return new(found)[where.reshape(-1)]
    present = np.zeros(top, dtype=np.bool_)
    present[values] = True
    table, found = np.empty(top, np.int64), np.flatnonzero(present)
    table[found] = new(found)
    return table.take(values)


def _mixed(values: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: equal values stay equal, all others look random."""
    x = values + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _sums(values: NDArray[np.uint64], starts: Longs) -> NDArray[np.uint64]:
    """Sums of consecutive runs, wrapping; a run may be empty."""
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    return np.asarray(total[starts[1:]] - total[starts[:-1]])


def _assemble(dfa: Dfa, maps: _Maps, map_of_token: Longs, ends: frozenset[int], tail: frozenset[int]) -> TokenAutomaton:
    """Number the maps that are used as classes, add the end, and sort the edges."""
    present = np.zeros(len(maps.src), np.bool_)
    present[map_of_token] = present[0] = True
    used, class_of = np.flatnonzero(present), (np.cumsum(present, dtype=np.int32) - 1).take(map_of_token)
    sizes = np.array([len(maps.src[number]) for number in used])
    if sizes.sum() > MOST_EDGES:
        raise OutOfReachError(f"the constraint has {sizes.sum()} edges, over the {MOST_EDGES} allowed; narrow it")
    src = [maps.src[number] for number in used]
    dst = [maps.dst[number] for number in used]
    cls = [np.repeat(np.arange(len(used), dtype=np.int32), sizes)]
    end, final = len(dfa), np.flatnonzero(dfa.accepts).astype(np.int32)
    for label, kinds in ((len(used), ends), (len(used) + 1, tail - ends)):
        class_of[sorted(kinds)] = label
        sources = np.append(final, end) if label == len(used) else np.array([end])
        src.append(sources.astype(np.int32))
        dst.append(np.full(len(sources), end, np.int32))
        cls.append(np.full(len(sources), label, np.int32))
    order = np.argsort(np.concatenate(dst) * np.int64(end + 1) + np.concatenate(src))
    whole_src, whole_cls, whole_dst = (np.concatenate(part).astype(np.int32)[order] for part in (src, cls, dst))
    accepts = np.append(dfa.accepts, True)
    alive = distance(whole_src, whole_dst, accepts, end + 1) < FAR
    kept = np.flatnonzero(alive[whole_src] & alive[whole_dst])
    if not alive[0]:
        raise ConstraintError("the tokenizer has no tokens that could spell any text of the constraint")
    return TokenAutomaton(class_of, whole_src[kept], whole_cls[kept], whole_dst[kept], accepts)
