"""Fill-in-the-middle prompts of other models, recognised: editors write the seams with marks that their model knows.

    <|fim_prefix|>def f():<|fim_suffix|>return 1<|fim_middle|>    →    a hole between "def f():" and "return 1"

A prompt counts only if all marks of one set are there once, in their order, and the last one ends it. A checkpoint
whose tokenizer has the marks as tokens of its own gets its prompt as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redraft.text import Text


@dataclass(frozen=True)
class FimMarks:
    """One set. `swapped`: the suffix comes first. `last` may be missing where the prompt ends with the prefix."""

    first: str
    second: str
    last: str = ""
    swapped: bool = False


SETS: Mapping[str, FimMarks] = {
    "qwen, codegemma": FimMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    "starcoder": FimMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    "codellama": FimMarks("<PRE> ", " <SUF>", " <MID>"),
    "deepseek": FimMarks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    "codestral": FimMarks("[SUFFIX]", "[PREFIX]", swapped=True),
    "glm": FimMarks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    "tabby": FimMarks("", "<|FIM|>"),
}


def split(prompt: str, text: Text) -> tuple[str, str] | None:
    """Prefix and suffix of a prompt with marks; None for any other prompt."""
    for marks in SETS.values() if len(prompt) <= text.reach else ():
        if text.tokenizer.token_to_id(marks.second.strip()) is not None:
            continue
        found = _split(prompt, marks)
        if found is not None:
            return found
    return None


def _split(prompt: str, marks: FimMarks) -> tuple[str, str] | None:
    parts = [marks.first, marks.second, marks.last]
    if any(part and prompt.count(part) != 1 for part in parts):
        return None
    begin, _, two = prompt.partition(marks.second)
    head, first, one = begin.partition(marks.first) if marks.first else ("", "", begin)
    two, last, rest = two.partition(marks.last) if marks.last else (two, "", "")
    if first != marks.first or last != marks.last or rest.strip():
        return None
    return (head + two, one) if marks.swapped else (head + one, two)
