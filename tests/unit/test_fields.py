"""Which characters of an answer each of its tokens stands for."""

import time

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
