"""Text to token ids and back, with the tokenizer and the chat template that a checkpoint brings.

    messages -> render (the checkpoint's template, sandboxed) -> encode -> ids -> blocks of ids
    blocks of ids -> Detokenizer -> pieces of whole characters -> StopStrings -> text that is safe to show

The decoder must be Gemma's: replace one character, byte fallback, fuse. Then text before a token that is not a byte
token never changes, and the Detokenizer is exact; any other decoder is refused at loading. The text of a special token
is encoded as that token, as the template needs; what a conversation itself spells stays text. Only files of the
checkpoint are read, and a template can reach neither files nor network, and has bounds on its time and its output.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from redraft.config import CheckpointConfig
from redraft.errors import ConfigError, RequestError, TextError
from redraft.files import read_small
from redraft.reader import read_json
from redraft.template import ChatTemplate, changed, strings_of

__all__ = ["Detokenizer", "Message", "Text", "read_text"]

Message = Mapping[str, Any]  # "role", "content" and any other key that the chat template reads

LONG_CHARS = 2**16
_LONG_AT_ONCE = threading.BoundedSemaphore(2)
"""Tokenizing takes 150 times the memory of its text, so of long ones only a few are read at a time."""

MOST_TOKENIZER_BYTES = 2**28
MOST_GROWN = 1000
"""Characters that a tokenizer may write for one of a text."""

_TEMPLATE_FILE, _CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"


@dataclass(frozen=True, eq=False)
class Text:
    """A checkpoint's tokenizer and chat template; `read_text` fills and checks every field."""

    tokenizer: Tokenizer
    bos_token_id: int
    byte_ids: frozenset[int]  # tokens of one byte each, "<0x00>" to "<0xFF>"
    special_ids: frozenset[int]  # left out of decoded text unless asked for
    template: str | None = field(default=None, repr=False)
    template_name: str = _TEMPLATE_FILE
    named_tokens: Mapping[str, str] = field(default_factory=dict)  # "bos_token" and so on, for the template
    context: int = 0  # tokens that the model can read, 0 if that is not known
    longest: int = 0  # characters of the longest token, 0 if a token may stand for any number

    def encode(self, text: str, *, bos: bool) -> list[int]:
        """Token ids of `text`; with `bos`, after exactly one beginning-of-sequence token.

        Raises RequestError for text that is not valid Unicode, or too long for the model whatever its tokens are.
        """
        self._refuse_long(len(text))
        try:
            text.encode()
        except UnicodeEncodeError as error:
            bad = f"{text[error.start]!r} at character {error.start}"
            raise RequestError(f"the text has an unpaired surrogate, {bad}; send valid Unicode") from None
        # A batch of one, because that call lets other threads run meanwhile.
        with _LONG_AT_ONCE if len(text) > LONG_CHARS else nullcontext(), _no_panic():
            ids: list[int] = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return [self.bos_token_id, *ids] if bos and ids[:1] != [self.bos_token_id] else ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids that the tokenizer does not have are left out."""
        with _no_panic():
            return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    def places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of `text`, and the characters that each stands for: the first, and the one behind the last."""
        with _no_panic():
            found = self.tokenizer.encode(text, add_special_tokens=False)
        return found.ids, found.offsets

    def render(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool = False,
        generation_prompt: bool = True,
        tools: Sequence[Message] = (),
    ) -> str:
        """The conversation as the checkpoint's chat template prints it, `<bos>` included. `tools` are declarations of
        functions, for a template that reads them (`knows_tools`).

        Raises TextError if there is no template or it fails, RequestError if it refuses these messages, if they are not
        JSON, or if it has no thinking mode.
        """
        if thinking and "enable_thinking" not in self._template.variables:
            raise RequestError(f"thinking is True; {self.template_name} has no enable_thinking, leave thinking off")
        try:
            plain, known = json.loads(json.dumps([messages, tools]))  # the template gets no object with own methods
        except (TypeError, ValueError) as error:
            raise RequestError(f"the messages are not JSON ({error}); use strings, numbers, lists and dicts") from None
        return self._template.render(
            {
                **self.named_tokens,
                "messages": plain,
                "tools": known or None,
                "documents": None,
                "add_generation_prompt": generation_prompt,
                "enable_thinking": thinking,
            }
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool = False,
        generation_prompt: bool = True,
        tools: Sequence[Message] = (),
        parse_special: bool = False,
    ) -> list[int]:
        """Token ids of the rendered conversation. The template prints `<bos>`, so none is added. Raises as `render`.

        Special tokens are those that the template prints. One that the conversation spells stays text, so that nobody
        forges a turn; with `parse_special` it becomes a token.
        """
        if self.context and len(messages) > self.context:  # each takes a token at least
            raise RequestError(f"there are {len(messages)} turns; the model's context is {self.context}: send fewer")
        self._refuse_long(sum(len(one) for message in messages for one in strings_of(message.get("content"))))
        given, split = (messages, tools), ""
        if not parse_special and any(self._marks.search(part) for part in strings_of(given)):
            # One character, which no template cuts or changes; where all are used, what nobody knows and can spell.
            used = set("".join(strings_of(given)))
            split = next((mark for mark in map(chr, range(0xE000, 0xF8FF)) if mark not in used), secrets.token_hex(12))
            given = changed(given, lambda part: self._broken(part, split))
        shown = self.render(given[0], thinking=thinking, generation_prompt=generation_prompt, tools=given[1])
        parts = shown.split(split) if split else [shown]
        self._refuse_long(sum(map(len, parts)))  # before each is encoded alone: calls and tools are printed, too
        return [token for part in parts for token in self.encode(part, bos=False)]

    @property
    def reach(self) -> int:
        """Most characters that fit into the model's context, whatever their tokens are."""
        return self.context * self.longest or sys.maxsize

    def _refuse_long(self, characters: int) -> None:
        if characters > self.reach:
            raise RequestError(
                f"the text has {characters} characters, at least {-(-characters // self.longest)} tokens; the model's"
                f" context is {self.context}: shorten it"
            )

    def _broken(self, text: str, split: str) -> str:
        """A text with a mark behind the first character of each special token that it spells."""
        cuts, at = [0], 0
        while found := self._marks.search(text, at):  # they may overlap
            at = found.start() + 1
            cuts.append(at)
        return split.join(text[a:b] for a, b in pairwise([*cuts, len(text)]))

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        added = self.tokenizer.get_added_tokens_decoder().values()
        return re.compile(_any_of({token.content for token in added if token.special and len(token.content) > 1}))

    @property
    def has_template(self) -> bool:
        """Whether `render` and `chat` can work at all."""
        return self.template is not None

    @property
    def knows_tools(self) -> bool:
        """Whether the template prints declarations of tools."""
        return self.template is not None and "tools" in self._template.variables

    @cached_property
    def _template(self) -> ChatTemplate:
        if self.template is None:
            raise TextError(
                f"this checkpoint has no chat template ({_TEMPLATE_FILE}, or chat_template in {_CONFIG_FILE});"
                " add one, or pass the prompt as text"
            )
        return ChatTemplate(self.template, self.template_name)


@contextmanager
def _no_panic() -> Iterator[None]:
    """Within this a panic of the tokenizer's library, which is no Exception, is a RequestError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RequestError(f"the tokenizer fails at this text ({error}); change the text, or the tokenizer") from None


def _any_of(words: set[str]) -> str:
    """A regular expression of some words, as a tree: thousands of them are tried at once."""
    if not words:
        return r"(?!)"
    rest: dict[str, set[str]] = {}
    for word in words - {""}:
        rest.setdefault(word[0], set()).add(word[1:])
    ways = "|".join(re.escape(first) + ("" if more == {""} else _any_of(more)) for first, more in rest.items())
    return f"(?:{ways})?" if "" in words else f"(?:{ways})"


class Detokenizer:
    """Turns ids into text as they arrive: the joined pieces are exactly `text.decode` of all ids.

    A run of byte tokens is held back until another token ends it, however long it is: the decoder reads a run as a
    whole, so one bad byte at its end turns all of it into U+FFFD. Every id is decoded once.
    """

    def __init__(self, text: Text, *, skip_special: bool = True) -> None:
        self._text, self._hidden = text, text.special_ids if skip_special else frozenset()
        self._run: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """Add the next ids; returns the text that can no longer change."""
        # Skipped ids are removed first: to the decoder, the bytes on both sides of one are a single run.
        piece = self._text.tokenizer.id_to_token
        shown = [token for token in ids if token not in self._hidden and piece(token) is not None]
        cut = len(shown)
        while cut and shown[cut - 1] in self._text.byte_ids:
            cut -= 1
        if cut == 0:
            self._run += shown
            return ""
        ready, self._run = self._run + shown[:cut], shown[cut:]
        return self._text.decode(ready, skip_special=False)

    def finish(self) -> str:
        """The text still held back, when no more ids follow."""
        ready, self._run = self._run, []
        return self._text.decode(ready, skip_special=False) if ready else ""


def read_text(folder: Path, config: CheckpointConfig) -> Text:
    """Read tokenizer.json, and tokenizer_config.json and chat_template.jinja if present, from a checkpoint folder.

    Raises TextError for a file that is missing, damaged or inconsistent with `config`.
    """
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    vocabulary = tokenizer.get_vocab()
    _check_ids(set(vocabulary.values()), config)
    settings = _read_settings(folder / _CONFIG_FILE)
    named = _named_tokens(settings, tokenizer, config)
    source, name = _find_template(folder / _TEMPLATE_FILE, settings)
    return Text(
        tokenizer=tokenizer,
        bos_token_id=config.model.bos_token_id,
        # Looser than the decoder's own test, on purpose: to hold back a token that is not a byte does no harm.
        byte_ids=frozenset(i for token, i in vocabulary.items() if token.startswith("<0x") and token.endswith(">")),
        special_ids=frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special),
        template=source,
        template_name=name,
        named_tokens=named,
        context=config.model.max_positions,
        longest=max(map(len, vocabulary)) if _keeps_length(tokenizer) else 0,
    )


def _keeps_length(tokenizer: Tokenizer) -> bool:
    """Whether no token stands for more characters than it has: none is dropped or joined before the tokens are found,
    and what no token has is read byte by byte."""
    plain = all(
        step["type"] == "Prepend"
        or (step["type"] == "Replace" and step["content"] and _is_one_character(step["pattern"]))
        for step in _steps(tokenizer.normalizer)
    )
    apart = not getattr(tokenizer.model, "fuse_unk", True)  # unknown characters are a token each
    return plain and (apart or all(tokenizer.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256)))


def _read_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise TextError(f"{path} does not exist; a checkpoint folder needs it")
    if path.stat().st_size > MOST_TOKENIZER_BYTES:
        raise TextError(f"{path} has over {MOST_TOKENIZER_BYTES} bytes, more than any tokenizer; fetch the file again")
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()  # a file saved while training can have a length limit, which cuts prompts in silence
        tokenizer.no_padding()
        steps = _steps(tokenizer.decoder)
        if max(_growth(_steps(tokenizer.normalizer)), _growth(steps)) > MOST_GROWN:
            raise TextError(f"{path} may write over {MOST_GROWN} characters for one; use another tokenizer")
        tokenizer.encode_batch_fast(["a b"], add_special_tokens=False)  # some faults show only now
    except (KeyboardInterrupt, SystemExit, TextError):
        raise
    except BaseException as error:  # the library raises plain Exception, and where it panics not even that
        raise TextError(f"{path} is not a tokenizer ({error}); fetch the file again") from None
    kinds = [step["type"] for step in steps if step["type"] != "Replace" or _is_one_character(step["pattern"])]
    if len(kinds) < len(steps) or "Fuse" not in kinds or set(kinds) - {"Replace", "ByteFallback", "Fuse"}:
        raise TextError(
            f"{path}: the decoder is {json.dumps(steps)[:200]}; supported: Replace of one character, ByteFallback, Fuse"
        )
    return tokenizer


def _steps(part: Any) -> list[Mapping[str, Any]]:
    """What a normalizer or a decoder does, in order. Its pickle state is the library's only cheap way to read it."""
    return [] if part is None else list(_flat(json.loads(part.__getstate__())))


def _flat(form: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if form["type"] != "Sequence":
        yield form
    for step in form.get("normalizers", form.get("decoders", ())):
        yield from _flat(step)


def _growth(steps: Sequence[Mapping[str, Any]]) -> int:
    """Most characters that replacements make of one: where one follows another, they multiply. A pattern may match
    nothing at all, and then all that is written is new."""
    return math.prod(
        max(1, len(step.get("content", step.get("prepend", ""))) + (not step.get("pattern", {}).get("String")))
        for step in steps
        if step["type"] in ("Replace", "Prepend")
    )


def _is_one_character(pattern: Mapping[str, str]) -> bool:
    return len(pattern.get("String", "")) == 1


def _check_ids(known: set[int], config: CheckpointConfig) -> None:
    size = config.model.vocab_size
    if max(known, default=0) >= size:
        raise TextError(
            f"tokenizer.json has token ids up to {max(known)}; config.json has a vocab_size of {size}:"
            " use the tokenizer.json of this checkpoint"
        )
    for file, part in (("config.json", config.model), ("generation_config.json", config.generation)):
        named = [("pad_token_id", part.pad_token_id), ("bos_token_id", part.bos_token_id)]
        named += [("eos_token_id", token) for token in part.eos_token_ids]
        for key, token in named:
            if token not in known:
                raise TextError(f"{file}: {key} is {token}, which tokenizer.json does not have; use one it has")


def _read_settings(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        return read_json(path)
    except ConfigError as error:
        raise TextError(str(error)) from None


def _named_tokens(settings: Mapping[str, Any], tokenizer: Tokenizer, config: CheckpointConfig) -> dict[str, str]:
    """The tokens that a template may print by name: from tokenizer_config.json, else by the ids of config.json."""
    model = config.model
    ids = {"bos_token": model.bos_token_id, "eos_token": model.eos_token_ids[0], "pad_token": model.pad_token_id}
    named = {key: token for key, i in ids.items() if (token := tokenizer.id_to_token(i)) is not None}
    extra = settings.get("extra_special_tokens")
    for key, value in {**settings, **(extra if isinstance(extra, dict) else {})}.items():
        token = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(token, str):
            # The library cannot take half a surrogate pair.
            is_text = not any("\ud800" <= one <= "\udfff" for one in token)
            if not is_text or tokenizer.token_to_id(token) is None:
                raise TextError(f"{_CONFIG_FILE}: {key} is {token!r}, which tokenizer.json does not have")
            named[key] = token
    if tokenizer.token_to_id(named["bos_token"]) != model.bos_token_id:
        raise TextError(
            f"{_CONFIG_FILE}: bos_token is {named['bos_token']!r}, id {tokenizer.token_to_id(named['bos_token'])};"
            f" config.json has a bos_token_id of {model.bos_token_id}: make them agree"
        )
    return named


def _find_template(path: Path, settings: Mapping[str, Any]) -> tuple[str | None, str]:
    """The template's source, None if there is none, and the name of the file or key that it is from."""
    if path.exists():
        try:
            return read_small(path), _TEMPLATE_FILE
        except (OSError, UnicodeDecodeError) as error:
            raise TextError(f"{path} cannot be read ({error}); fetch the file again") from None
    found = settings.get("chat_template")
    name = f"chat_template of {_CONFIG_FILE}"
    if isinstance(found, list):  # the old form: several templates, each with a name
        entries = [entry for entry in found if isinstance(entry, dict)]
        found = next((entry.get("template") for entry in entries if entry.get("name") == "default"), found)
    if found is not None and not isinstance(found, str):
        raise TextError(f"{name} is a {type(found).__name__}; supported: a string, or a list with one named 'default'")
    return found, name
