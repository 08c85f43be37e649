"""The small models' tokenizers: a few hundred tokens, in the form that Gemma's tokenizer has.

    text -> " " becomes "▁" -> cut by one regular expression -> a piece in the vocabulary is one token,
                                                                any other character is its UTF-8 bytes

Only the regular expression decides: the BPE model has no merges and takes whole pieces (`ignore_merges`). A piece is a
word of a prompt, a bit of JSON, a syllable or one character. So a name has the same tokens in a sentence as in the
answer and is copied piece by piece. For this reason "▁" is a token of its own before a name: otherwise "▁Ka" and "Ka"
would be two tokens.

There are three vocabularies. "records" has the tokens of records and Sudoku. "python" has the same tokens with the same
ids, then those of `tune/words.py`; both encode records and Sudoku alike, so a model of the first can grow into the
second. "plain" is for ordinary sentences: characters, and the whole words and JSON pieces of `tune/plain.py`.

Decoding returns the encoded text with two exceptions: "▁" itself (U+2581) becomes a space, as in Gemma, and the text of
a special token is read as that token. Encoding adds no token in front; the chat template prints `<bos>`.
"""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from redraft.files import write_json, write_whole
from redraft.tasks.records import FIELDS, FORMS, SYLLABLES
from redraft.tune.plain import ACCENTED, PLAIN_GLUE
from redraft.tune.plain import WORDS as PLAIN_WORDS
from redraft.tune.words import SIGNS, SPACED, WORDS

VOCABULARIES = ("records", "python", "plain")

SPECIALS = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>")  # a token's place here is its id

_SPACE = "▁"
_GLUE = ('{"', '":"', '":', '","', ',"', '"}')  # longer before shorter where one begins another
_PRINTABLE = tuple(map(chr, range(0x21, 0x7F)))
# Every byte that UTF-8 can need for a character outside the vocabulary: control characters but "\n", then the bytes of
# multi-byte sequences. 0xC0, 0xC1 and 0xF5 upwards occur in no UTF-8.
_BYTES = tuple(f"<0x{b:02X}>" for b in (*range(0x20), *range(0x7F, 0xC0), *range(0xC2, 0xF5)) if b != ord("\n"))
_SYLLABLES = (*SYLLABLES, *(syllable.capitalize() for syllable in SYLLABLES))

# A tool's result reads as a user's turn, and a call as its name and arguments: nano was trained on no other turns. A
# client that ran a forced call sends both with its next request.
CHAT_TEMPLATE = (
    "{{- bos_token -}}{%- for message in messages -%}"
    "{%- set role = message['role'] -%}"
    "{%- if role not in ['user', 'assistant', 'model', 'system', 'tool'] -%}"
    "{{- raise_exception('role is ' + role + '; supported: user, assistant, model, system, tool') -}}"
    "{%- endif -%}"
    "{%- set calls = message['tool_calls'] or [] -%}"
    "{%- if message['content'] is not string and not calls -%}"
    "{{- raise_exception('content of the ' + role + ' message must be a string') -}}"
    "{%- endif -%}"
    "{{- '<|turn>' + ('model' if role == 'assistant' else 'user' if role == 'tool' else role) + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] | trim -}}{%- endif -%}"
    "{%- for call in calls -%}{%- set given = call['function']['arguments'] -%}"
    "{{- '\\n' if message['content'] or not loop.first else '' -}}"
    "{{- call['function']['name'] + ' ' + (given if given is string else given | tojson) -}}"
    "{%- endfor -%}"
    "{{- '<turn|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|turn>model\\n' -}}{%- endif -%}"
)


def build_tokenizer(name: str = "records") -> Tokenizer:
    """The tokenizer of one of VOCABULARIES, the same ids every time."""
    more = name == "python"
    tokens, cut = (_plain_tokens(), _plain_cut()) if name == "plain" else (_tokens(more), _cut(more))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, ignore_merges=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(cut), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def write_tokenizer(folder: Path, name: str = "records") -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja, as transformers' AutoTokenizer reads."""
    folder.mkdir(parents=True, exist_ok=True)
    # Not by its own `save`, which raises a bare Exception where the disk is full.
    write_whole(folder / "tokenizer.json", build_tokenizer(name).to_str(pretty=True).encode())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "<eos>",
        "bos_token": "<bos>",
        "unk_token": "<unk>",
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,  # the clean-up deletes spaces before punctuation
    }
    write_json(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _words() -> tuple[str, ...]:
    """Roles, task names, keys, and the words of the sentence forms with their leading space, in order of appearance."""
    blank = "0"  # stands for a value: not a letter, so that a form's words end at it
    forms = (form.format_map(dict.fromkeys(FIELDS, blank)).replace(" ", _SPACE) for form in FORMS)
    found = (word for form in forms for word in re.findall(f"{_SPACE}?[A-Za-z]+", form))
    return tuple(dict.fromkeys(("system", "user", "model", "sudoku", "record", *FIELDS, *found)))


def _tokens(more: bool) -> tuple[str, ...]:
    """Every token in order of id; the order is part of every trained checkpoint."""
    first = (*SPECIALS, *_BYTES, _SPACE, "\n", *_PRINTABLE, *_SYLLABLES, *_words(), *_GLUE)
    return tuple(dict.fromkeys((*first, *WORDS, *SPACED, *SIGNS) if more else first))


def _cut(more: bool) -> str:
    """The regular expression whose matches are the pieces.

    It matches every character: unmatched text would be one piece of any length, and the text "<0x41>" a byte token.
    """
    words = tuple(dict.fromkeys((*_words(), *WORDS, *SPACED))) if more else _words()
    spaced = "|".join(word for word in words if word.startswith(_SPACE))
    bare = "|".join(word for word in words if not word.startswith(_SPACE))
    glue = "|".join(map(re.escape, (*_GLUE, *SIGNS) if more else _GLUE))
    syllable = "|".join(_SYLLABLES)
    # Only whole words match: "▁to" must not be cut from "▁tomu", whose first syllable is "to".
    letter = "[A-Za-z]"
    return rf"(?:{spaced})(?!{letter})|(?<!{letter})(?:{bare})(?!{letter})|{glue}|{syllable}|[\s\S]"


def _plain_tokens() -> tuple[str, ...]:
    """Every token of "plain" in order of id; the order is part of every trained checkpoint."""
    pieces = (*SPECIALS, *_BYTES, _SPACE, "\n", *_PRINTABLE, *ACCENTED, *PLAIN_WORDS, *PLAIN_GLUE)
    return tuple(dict.fromkeys(pieces))


def _plain_cut() -> str:
    """The regular expression whose matches are the pieces of "plain"; it matches every character."""
    glue = "|".join(map(re.escape, PLAIN_GLUE))
    words = "|".join(map(re.escape, sorted(PLAIN_WORDS, key=len, reverse=True)))
    letter = r"\p{L}"  # of any alphabet
    return rf"{glue}|(?<!{letter})(?:{words})(?!{letter})|[\s\S]"
