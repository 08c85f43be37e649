"""Which characters of an answer each of its tokens stands for, and each of its values."""

import json
import time
from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from redraft.constraints.places import plain_spans
from redraft.engine.fields import token_spans
from redraft.operations.engine import Engine


def test_a_token_stands_for_its_characters_and_a_byte_for_that_which_it_is_part_of(engine: Engine) -> None:
    """Held to offsets in UTF-8. Two halves of one character are shown as two, and a special token as none."""
    said, piece = 'Zoë, "☃ 😀😀": x', engine.text.tokenizer.id_to_token
    tokens, behind, wanted = engine.text.encode(said, bos=False), 0, list[tuple[int, int]]()
    for token in tokens:
        size = 1 if token in engine.text.byte_ids else len(piece(token).replace("▁", " ").encode())
        inside = [at for at in range(len(said)) if len(said[: at + 1].encode()) > behind]
        behind += size
        last = next(at for at in inside if len(said[: at + 1].encode()) >= behind)
        wanted.append((inside[0], last + 1))
    assert token_spans(engine.text, tokens) == wanted
    a, half, x = *engine.text.encode("☃", bos=False)[:2], engine.text.encode("x", bos=False)[0]
    assert token_spans(engine.text, [x, a, 1, half, x]) == [(0, 1), (1, 2), (1, 1), (2, 3), (3, 4)]
    assert token_spans(engine.text, [a, 10**6, half]) == [(0, 1), (0, 0), (1, 2)]
    began = time.monotonic()
    assert token_spans(engine.text, tokens * 2000)[-1][1] == len(said) * 2000
    assert time.monotonic() - began < 10  # each is decoded once: a minute and more if all before are, each time


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


def leaves(value: Any) -> int:
    """Plain values and empty lists, which say that there is nothing."""
    inner = [*value.values()] if isinstance(value, dict) else value
    return sum(map(leaves, inner)) if isinstance(inner, list) and value != [] else 1


@given(
    st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
)
def test_where_plain_values_stand_is_where_they_are_read(
    value: Any, indent: int | str | None, ascii_only: bool
) -> None:
    """Of Python's own writer, by its own reader: each span holds its value, and no value is without one."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    found = plain_spans(text)
    assert all(
        json.loads(text[begin:end]) == reduce(lambda a, b: a[b], path, value) for path, (begin, end) in found.items()
    )
    assert len(found) == leaves(value)
    fields = plain_spans("```json\n" + text + "\n```")
    assert {path: (begin + 8, end + 8) for path, (begin, end) in found.items()} == fields


def test_of_a_key_given_twice_the_last_counts() -> None:
    assert plain_spans('{"a": {"x": 1}, "b": 3, "a": 2}') == {("a",): (29, 30), ("b",): (21, 22)}
