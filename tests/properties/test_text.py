"""Pieces join to the whole: the Detokenizer against `decode`, StopStrings against a plain search, on random input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from redraft.stops import StopStrings
from redraft.text import Detokenizer, Text

NUM_SPECIALS = 2
UNKNOWN = 10_000  # an id that the tokenizer does not have: a model's vocabulary may be the larger one


def _build() -> Text:
    plain = ["▁", "▁▁", "a", "▁b", "é", "\n", "<0x", "<0xZZ>", ""]
    tokens = ["<pad>", "<eos>", *(f"<0x{i:02X}>" for i in range(256)), *plain]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<pad>", "<eos>"])
    tokenizer.add_tokens([AddedToken("<|plain|>", special=False)])
    byte_ids = frozenset(i for token, i in vocabulary.items() if token.startswith("<0x") and token.endswith(">"))
    return Text(tokenizer, bos_token_id=0, byte_ids=byte_ids, special_ids=frozenset(range(NUM_SPECIALS)))


def _joined(parts: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


TEXT = _build()
SIZE = TEXT.tokenizer.get_vocab_size()
EURO = [NUM_SPECIALS + value for value in "€".encode()]

# Characters as bytes are drawn whole, too: from single random bytes a valid character would hardly ever come together.
characters = st.characters(exclude_categories=["Cs"]).map(lambda c: [NUM_SPECIALS + b for b in c.encode()])
anything = st.integers(0, SIZE - 1).map(lambda token: [token])
skipped = st.sampled_from([[0], [1], [UNKNOWN]])
ids_lists = st.lists(st.one_of(characters, anything, skipped), max_size=24).map(_joined)


@st.composite
def cut_up(draw: st.DrawFn, whole: st.SearchStrategy[Sequence]) -> list[Sequence]:
    """A drawn sequence in consecutive parts, some of them empty."""
    items = draw(whole)
    borders = sorted(draw(st.lists(st.integers(0, len(items)), max_size=8)))
    return [items[a:b] for a, b in zip([0, *borders], [*borders, len(items)], strict=True)]


@given(cut_up(ids_lists), st.booleans())
@example([[EURO[0]], [0], EURO[1:]], True)
@example([[*EURO, NUM_SPECIALS + 0xFF]], True)
@example([EURO, [NUM_SPECIALS + 0xFF]], False)
def test_detokenized_pieces_join_to_the_whole(parts: list[list[int]], skip_special: bool) -> None:
    pieces = Detokenizer(TEXT, skip_special=skip_special)
    said = [*(pieces.push(part) for part in parts), pieces.finish()]
    whole = TEXT.decode(_joined(parts), skip_special=skip_special)
    assert "".join(said) == whole
    if "\N{REPLACEMENT CHARACTER}" not in whole:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in said)


@given(st.lists(characters, max_size=8).map(_joined))
def test_only_a_run_of_bytes_is_held(run: list[int]) -> None:
    """Any other token ends the wait at once, so text is never later than it has to be."""
    pieces = Detokenizer(TEXT)
    letter = TEXT.tokenizer.token_to_id("a")
    assert pieces.push([*run, letter]) == TEXT.decode([*run, letter])
    assert pieces.finish() == ""


def _cut_by_search(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Character by character: the first end of any stop string; of those that end there, the longest."""
    for end in range(len(text) + 1):
        ending = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(ending)], True
    return text, False


few_letters = st.text("ab\n", max_size=30)  # few, so that stop strings do occur


@given(cut_up(few_letters), st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4))
def test_stop_strings_equal_a_plain_search(parts: list[str], stops: list[str]) -> None:
    cutter = StopStrings(stops)
    said, stopped = [], False
    for part in parts:
        piece, stopped = cutter.push(part)
        said.append(piece)
    said.append(cutter.finish())
    assert ("".join(said), stopped) == _cut_by_search("".join(parts), stops)


@given(cut_up(few_letters), st.text("ab\n", min_size=1, max_size=5))
def test_one_stop_string_splits_at_its_first_occurrence(parts: list[str], stop: str) -> None:
    cutter = StopStrings([stop])
    said = [cutter.push(part)[0] for part in parts]
    assert "".join([*said, cutter.finish()]) == "".join(parts).split(stop, 1)[0]


@given(cut_up(few_letters), st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4))
def test_what_is_held_back_is_always_the_beginning_of_a_stop_string(parts: list[str], stops: list[str]) -> None:
    cutter = StopStrings(stops)
    said, given = "", ""
    for part in parts:
        piece, stopped = cutter.push(part)
        said, given = said + piece, given + part
        if stopped:
            break
        held = given.removeprefix(said)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
