"""The small tokenizer: cuts worked out by hand, lossless on any text, and the same when transformers reads it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from redraft.config import read_config
from redraft.tasks import Records, Sudoku
from redraft.text import read_text
from redraft.tune.vocabulary import CHAT_TEMPLATE, build_tokenizer, write_tokenizer
from redraft.weights.source import locate

SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
TOKENIZER = build_tokenizer()


def cut(text: str) -> list[str]:
    tokens: list[str] = TOKENIZER.encode(text).tokens
    return tokens


def rendered(prompt: str) -> str:
    return f"<bos><|turn>user\n{prompt}<turn|>\n<|turn>model\n"


def test_special_tokens_have_their_ids() -> None:
    assert [TOKENIZER.token_to_id(token) for token in SPECIALS] == [0, 1, 2, 3, 4, 5]
    assert TOKENIZER.encode("".join(SPECIALS)).ids == [0, 1, 2, 3, 4, 5]
    assert TOKENIZER.decode([2, 4, 5]) == "", "special tokens are not text"
    assert TOKENIZER.encode("").ids == [], "the template prints <bos>, the tokenizer does not"


def test_vocabulary_is_small_dense_and_the_same_each_time() -> None:
    vocabulary = TOKENIZER.get_vocab()
    assert len(vocabulary) < 512
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert build_tokenizer().to_str() == TOKENIZER.to_str()


@given(st.text().filter(lambda text: not any(special in text for special in SPECIALS)))
@example("\x00\x7f\r\n\t ")
@example("  two  spaces  ")
@example("👩‍👩‍👧 e\u0301 \u00e9 \ufffd \U0010ffff \ufeff")
@example("<0x41><0xFF>")
@example("".join(map(chr, range(0x300))))
def test_decoding_gives_back_any_text(text: str) -> None:
    """But for U+2581, which is how Gemma's tokenizers write a space."""
    ids = TOKENIZER.encode(text).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text.replace("▁", " ")
    assert 3 not in ids, "<unk> would lose the character"


def test_task_texts_are_short() -> None:
    sudoku, records = (list(islice(t.examples("train", seed=0), 3000)) for t in (Sudoku(), Records()))
    assert {len(cut(e.answer)) for e in sudoku} == {19}
    assert {len(cut(rendered(e.prompt))) for e in sudoku} == {30}
    assert max(len(cut(e.answer)) for e in records) == 18
    assert max(len(cut(rendered(e.prompt))) for e in records) <= 32


def test_a_value_is_the_same_tokens_in_sentence_and_answer() -> None:
    """Copying is then piece by piece; a space joined to the first syllable would make it a translation."""
    for record in islice(Records().examples("train", seed=1), 500):
        sentence, answer = " ".join(cut(record.prompt)), cut(record.answer)
        joined = " ".join(answer)
        for value in joined.replace('{" who ":" ', "").replace(' "}', "").split(' "," qty ": '):
            for part in value.split(' ," item ":" '):
                assert part in sentence, (part, sentence)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_transformers_gives_the_same_ids(loaded: Any) -> None:
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.bos_token_id, loaded.unk_token_id) == (0, 1, 2, 3)
    assert (len(loaded), loaded.padding_side) == (TOKENIZER.get_vocab_size(), "left")
    records = [e.prompt for e in islice(Records().examples("train", seed=2), 50)]
    for text in (*records, rendered("sudoku\n1..4"), "é \x00 👩‍👧 , . ' n't", ""):
        ids = TOKENIZER.encode(text).ids
        assert loaded(text)["input_ids"] == ids
        assert loaded.decode(ids) == text


def test_transformers_renders_the_template(loaded: Any) -> None:
    assert loaded.chat_template == CHAT_TEMPLATE
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  hi \n"},
        {"role": "assistant", "content": "yo"},
    ]
    reported = "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\nyo<turn|>\n"
    assert loaded.apply_chat_template(chat, tokenize=False) == reported
    asked = [{"role": "user", "content": "record\nSend 417 melu to Karomi."}]
    text = loaded.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert text == rendered("record\nSend 417 melu to Karomi.")
    ids = loaded.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    assert ids == TOKENIZER.encode(text).ids


CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "function": {"name": "weather", "arguments": {"city": "Oslo", "days": 3}}},
            {"id": "2", "function": {"name": "time", "arguments": "now"}},
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": " rain\n"},
    {"role": "assistant", "content": "Then:", "tool_calls": [{"function": {"name": "time", "arguments": {}}}]},
]


@pytest.mark.parametrize("name", ["nano", "nano-sudoku"])
def test_a_conversation_with_calls_reads_as_turns_that_the_model_knows(name: str) -> None:
    """A client that ran a forced call sends the call and what it returned with its next request."""
    folder = locate(name)
    shown = (
        '<bos><|turn>user\nWeather?<turn|>\n<|turn>model\nweather {"city": "Oslo", "days": 3}\ntime now<turn|>\n'
        "<|turn>user\nrain<turn|>\n<|turn>model\nThen:\ntime {}<turn|>\n<|turn>model\n"
    )
    text = read_text(folder, read_config(folder))
    assert text.render(CALLED) == shown
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.apply_chat_template(CALLED, tokenize=False, add_generation_prompt=True) == shown


TURNS = "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\nyo<turn|>\n<|turn>user\n?<turn|>\n"


@pytest.mark.parametrize("name", ["nano", "nano-sudoku"])
def test_turns_have_the_tokens_that_the_weights_were_trained_on(name: str) -> None:
    folder = locate(name)
    said = [("system", "Be brief."), ("user", " hi"), ("assistant", "yo\n"), ("user", "?")]
    text = read_text(folder, read_config(folder))
    ids = text.tokenizer.encode(TURNS + "<|turn>model\n", add_special_tokens=False).ids
    assert text.chat([{"role": role, "content": content} for role, content in said]) == ids


def test_template_refuses_what_it_would_garble(loaded: Any) -> None:
    refused: list[dict[str, Any]] = [
        {"role": "function", "content": "x"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
    ]
    for message in refused:
        with pytest.raises(Exception, match=r"supported: user|must be a string"):
            loaded.apply_chat_template([message], tokenize=False)


def test_written_tokenizer_is_the_built_one(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "new" / "folder")
    assert Tokenizer.from_file(str(tmp_path / "new" / "folder" / "tokenizer.json")).to_str() == TOKENIZER.to_str()


def test_a_tokenizer_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    """On a full disk `redraft tune` ended in an internal error: the library raises a bare Exception."""
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_tokenizer(tmp_path)
