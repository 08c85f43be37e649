"""Infilling and edits over random text, bytes and tokenizers: what was not asked to change comes back byte for byte."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.helpers import tiny_checkpoint, tiny_config
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import redraft
from redraft.engine.request import Options
from redraft.errors import RequestError
from redraft.operations.engine import Engine
from redraft.tune.vocabulary import SPECIALS, build_tokenizer

TOKENIZERS = ("records", "python", "merged")
QUICK = Options(steps=2)


def merged_tokenizer() -> Tokenizer:
    """One with merges over spaces and line ends, as a large vocabulary has, where seams rarely fall on tokens."""
    text = ["def area(radius):\n    return radius * 2\n\n\nprint(area(2))\r\n", "the older of the two\n", "äöü €"] * 40
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split("\n\n", "merged_with_previous")
    learner.train_from_iterator(text, trainers.BpeTrainer(vocab_size=120, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    pieces = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *learnt["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[tuple(pair) for pair in learnt["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


@cache
def engine(name: str) -> Engine:
    folder = Path(mkdtemp())
    tokenizer = merged_tokenizer() if name == "merged" else build_tokenizer(name)
    config = tiny_config(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=160)
    tiny_checkpoint(folder, replace(config, canvas_length=32, pad_token_id=0, bos_token_id=2))
    tokenizer.save(str(folder / "tokenizer.json"))
    return redraft.load(folder)


def torn_end(data: bytes) -> bool:
    """Whether bytes end inside a character: one of the last three begins one that is not over."""
    for tail in (data[-n:] for n in (1, 2, 3) if n <= len(data)):
        try:
            tail.decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return True
    return False


def torn_start(data: bytes) -> bool:
    return bool(data) and data[0] >> 6 == 0b10


texts = st.text(st.sampled_from("def rns(x):\n\r\t ä€😀\ufeff▁\x00<pad>\u2028"), max_size=60)
anything = st.one_of(st.binary(max_size=40), texts.map(str.encode), texts)


@settings(max_examples=15)
@example("python", b"", b"", 3)
@example("merged", "a <eos> b", "<eos>", 3)
@example("records", b"\xe2\x82", b"\xac", 3)
@example("records", "\ud800", "", 3)
@given(st.sampled_from(TOKENIZERS), anything, anything, st.integers(1, 3))
def test_what_stands_around_a_gap_comes_back_byte_for_byte(
    name: str, prefix: str | bytes, suffix: str | bytes, max_tokens: int
) -> None:
    before, behind = (p if isinstance(p, bytes) else p.encode(errors="surrogatepass") for p in (prefix, suffix))
    surrogates = any(isinstance(p, str) and not p.isascii() and "\ud800" in p for p in (prefix, suffix))
    if torn_end(before) or torn_start(behind) or surrogates:
        with pytest.raises(RequestError, match=r"inside a character|surrogate"):
            engine(name).infill(prefix, suffix, max_tokens=max_tokens, seed=1, options=QUICK)
        return
    done = engine(name).infill(prefix, suffix, max_tokens=max_tokens, seed=1, options=QUICK)
    assert done.data == before + done.gap.encode() + behind
    assert engine(name).infill(prefix, suffix, max_tokens=max_tokens, seed=1, options=QUICK) == done
    special = engine(name).text.special_ids
    assert not any(token in done.gap for token in (engine(name).text.decode([i], skip_special=False) for i in special))


@settings(max_examples=60)
@given(
    st.sampled_from(TOKENIZERS),
    st.one_of(st.binary(max_size=90), texts),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.floats(0.01, 1),
    st.integers(0, 2),
)
def test_nothing_outside_an_edited_span_changes(
    name: str, text: str | bytes, shares: tuple[float, float], strength: float, slack: int
) -> None:
    low, high = sorted(round(share * len(text)) for share in shares)
    before, span, behind = text[:low], text[low:high], text[high:]
    torn = isinstance(text, bytes) and (torn_end(text[:low]) or torn_end(text[low:high]) or torn_start(text[high:]))
    if torn or not span:
        with pytest.raises(RequestError, match=r"inside a character" if span else "is empty"):
            engine(name).edit(text, (low, high), strength=strength)
        return
    done = engine(name).edit(text, (low, high), strength=strength, slack=slack, seed=3, options=QUICK)
    raw = [part if isinstance(part, bytes) else part.encode() for part in (before, behind)]
    assert done.data == raw[0] + done.after.encode() + raw[1]


@settings(max_examples=10)
@given(st.lists(texts, min_size=2, max_size=4))
def test_several_gaps_keep_every_part_in_order(parts: list[str]) -> None:
    done = engine("python").infill_all(parts, max_tokens=2, options=Options(seed=1, steps=2))
    whole = parts[0] + "".join(one.gap + part for one, part in zip(done, parts[1:], strict=True))
    assert done[-1].text == whole


def test_a_text_longer_than_the_context_is_seen_in_part_and_kept_whole() -> None:
    prefix, suffix = "def area(radius):\n" * 200, "    return radius\n" * 200
    done = engine("python").infill(prefix, suffix, max_tokens=2, seed=1, options=QUICK)
    assert done.text == prefix + done.gap + suffix
    revised = engine("python").edit(prefix, (1000, 1400), strength=0.5, seed=1, options=QUICK)
    assert revised.canvases > 1
    assert revised.text == prefix[:1000] + revised.after + prefix[1400:]
