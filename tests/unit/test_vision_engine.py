"""Images through the engine: loaded late, encoded once, never cut, and the same alone and among others."""

from __future__ import annotations

import struct
import threading
import zlib
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from PIL import Image
from tests.helpers import alone, edit_tensors, new_prefix, side_by_side
from tests.pictures import MOST_TOKENS, asking, drawn, encoded, write_whole

import redraft
from redraft.cache import Prefix
from redraft.constraints.compile.limits import PREPARING
from redraft.engine.loop import Loop, LoopConfig
from redraft.engine.request import Options, Request, ResolvedRequest
from redraft.engine.runner import encode_prompt
from redraft.engine.vision import Vision
from redraft.errors import RequestError, UnsatisfiedError, WeightsError
from redraft.images.messages import GivenImage
from redraft.images.prompt import Prompt
from redraft.model.rows import Mode, SoftTokens, Span
from redraft.operations.engine import Engine

SMALL = Options(seed=3, max_tokens=20, steps=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whole(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(folder: Path) -> Engine:
    return redraft.load(folder, device="cpu", dtype="float32")


def vision_of(engine: Engine) -> Vision:
    assert engine.vision is not None
    return engine.vision


def asked(engine: Engine, *parts: Any, **options: Any) -> ResolvedRequest:
    return engine.resolve(Request(asking(*parts), replace(SMALL, **options)))


def test_the_tower_is_loaded_with_the_first_image_and_a_picture_is_encoded_once(engine: Engine) -> None:
    vision = vision_of(engine)
    engine.generate("hello", chat=True, options=SMALL)
    assert not vision.is_loaded
    one, other = drawn(60, 40), drawn(60, 40, seed=1)
    first = engine.generate(asking(one, "what?"), options=SMALL)
    assert vision.is_loaded
    again = engine.generate(asking(encoded(one), "what?"), options=SMALL)
    assert again.tokens == first.tokens
    assert vision.encodings == 1
    changed = engine.generate(asking(other, "what?"), options=SMALL)
    assert vision.encodings == 2
    assert changed.entropy != first.entropy


def test_an_image_is_read_while_another_is_encoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the tower, and so did all others that were read. The first waits, and holds no place meanwhile."""
    vision, seen = vision_of(engine), list[bool]()
    load = vision._load

    def loaded() -> Any:
        turn = PREPARING.mine
        seen.append(turn is not None and turn.aside)
        return load()

    monkeypatch.setattr(vision, "_load", loaded)
    with PREPARING.turn("images"):
        asked(engine, drawn(48, 36))
    assert seen == [True]
    reading = threading.Thread(target=asked, args=(engine, drawn(48, 36)))
    with vision._encoding:
        reading.start()
        reading.join(10)
        assert not reading.is_alive()
    assert vision.is_loaded


def test_kept_soft_tokens_are_bounded(folder: Path, engine: Engine) -> None:
    one = 4 * MOST_TOKENS * engine.config.model.hidden_size
    small = Vision(folder, engine.model, max_bytes=2 * one)
    engine = replace(engine, vision=small)
    for seed in range(4):
        asked(engine, drawn(48, 36, seed)).images[0].soft()
        assert small.num_bytes <= 2 * one
    soft = asked(engine, drawn(48, 36, 3)).images[0].soft()
    assert (small.encodings, soft.shape) == (4, (MOST_TOKENS, engine.config.model.hidden_size))
    asked(engine, drawn(48, 36, 0)).images[0].soft()  # the oldest had to go
    assert small.encodings == 5


@pytest.mark.parametrize("rule", ["reference", "gemma4"])
def test_batches_with_and_without_images_give_what_each_request_has_alone(folder: Path, rule: str) -> None:
    """Images between text, at the beginning, over the border of a chunk, and a text without any."""
    engine = redraft.load(folder, device="cpu", dtype="float32", image_attention=rule)
    border = "x" * 240
    requests = [
        asked(engine, "a", drawn(60, 40), "b"),
        asked(engine, "only text " * 30, seed=1),
        asked(engine, border, drawn(48, 36, 1), "y" * 300, drawn(10, 80, 2), seed=2),
        asked(engine, drawn(48, 36, 1), drawn(60, 40), seed=4, causal=True, max_tokens=5),
        asked(engine, border, drawn(48, 36, 1), "y" * 300, drawn(10, 80, 2), seed=5),
    ]
    run, cuts = requests[2].images[0].run, requests[2].cuts
    assert run.start < 256 < run.stop
    assert cuts[:2] == (run.start, run.stop)  # behind it the grid is as it was
    assert cuts[2] == 512
    wanted = alone(engine.model, requests)
    loop = Loop(engine.model, LoopConfig(max_rows=400, max_running=3))
    assert side_by_side(loop, requests) == wanted
    hits = loop.runner.prefixes.hits
    assert hits >= 256  # the last request begins as the third does, which is ahead
    text = asked(engine, "a b")
    assert alone(engine.model, [text]) != wanted[:1]


def test_prefixes_are_kept_by_their_pixels(engine: Engine) -> None:
    """Same tokens, other pixels: only what stands before the image is taken over."""
    said = "x" * 300
    prefixes = engine.loop.runner.prefixes
    first = asked(engine, said, drawn(48, 36, 1), said)
    alike, other = asked(engine, said, drawn(48, 36, 1), "z" * 300), asked(engine, said, drawn(48, 36, 2), said)
    assert other.prompt == first.prompt
    engine.run(first)
    before = prefixes.hits
    done = engine.run(alike)
    assert prefixes.hits - before == 256 + 256 - 256  # its second chunk has another text behind the image
    before = prefixes.hits
    engine.run(other)
    assert prefixes.hits - before == 256
    before = prefixes.hits
    again = engine.run(alike)
    assert prefixes.hits - before == 512
    assert again.tokens == done.tokens
    assert again.entropy == done.entropy


def test_variants_with_an_image_share_its_prompt(engine: Engine) -> None:
    found = engine.variants(asked(engine, drawn(60, 40), "what?"), 4)
    assert vision_of(engine).encodings == 1
    alone = [engine.run(asked(engine, drawn(60, 40), "what?", seed=3 + i)) for i in range(4)]
    together = {one.seed: one.tokens for variant in found for one in variant.answers}
    assert together == {one.seed: one.tokens for one in alone}
    assert engine.loop.encoded_rows > 0


def test_a_prompt_that_cannot_be_taken_over_is_encoded_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory for the copy a variant begins anew, its images too, also where it had begun with a kept chunk."""
    requests = [asked(engine, "x" * 200, drawn(48, 36), "y" * 200, seed=seed) for seed in range(3)]
    loop = Loop(engine.model)
    loop.submit(requests[2])
    loop.drain()
    monkeypatch.setattr(Prefix, "take", Mock(side_effect=MemoryError))
    assert side_by_side(loop, requests[:2], variants=True) == alone(engine.model, requests[:2])


def test_a_request_with_another_picture_does_not_take_over_a_prompt(engine: Engine) -> None:
    """Tokens of two pictures of one size are the same; a variant's prompt is shared where the pixels are, too."""
    first, second = asked(engine, drawn(60, 40)), asked(engine, drawn(60, 40, 1))
    assert first.prompt == second.prompt
    assert not first.shares_prompt(second)
    assert first.shares_prompt(asked(engine, drawn(60, 40), seed=9))
    got = side_by_side(Loop(engine.model), [first, second], variants=True)
    assert got[1:] == alone(engine.model, [second])


def test_schemas_decisions_and_checks_read_the_image(engine: Engine) -> None:
    done = engine.generate(asking(drawn(60, 40), "read"), schema="a int", options=replace(SMALL, max_tokens=40))
    assert done.text.startswith("{")
    shares = [engine.decide(Request(asking(drawn(60, 40, i), "?"), SMALL), ["a", "b"]).shares for i in range(2)]
    assert shares[0] != shares[1]
    seen: list[str] = []

    def check(text: str) -> list[str]:
        seen.append(text)
        return ["no"]

    with pytest.raises(UnsatisfiedError):  # repairs go on behind the image, with the prompt's own pixels
        engine.generate(asking(drawn(60, 40), "read"), check=check, options=SMALL)
    assert len(seen) > 1
    assert vision_of(engine).encodings == 2


def test_chunks_encode_what_one_forward_does(engine: Engine) -> None:
    """The rule of who sees an image is kept over the cuts: within float32's roundings of one forward over all."""
    one = asked(engine, "x" * 250, drawn(48, 36), "y" * 80)
    with torch.inference_mode():
        chunks = torch.cat(list(encode_prompt(engine.model, one, new_prefix(engine.model))))
        images = tuple(SoftTokens(image.run.start, image.soft()) for image in one.images)
        rows = engine.model.rows([Span(new_prefix(engine.model), len(one.prompt), Mode.ENCODE, images=images)])
        whole = engine.model(torch.tensor(one.prompt), None, rows)
    assert torch.allclose(chunks, whole, atol=2e-4)


def test_prompts_may_be_made_apart(engine: Engine) -> None:
    prompt = engine.chat_prompt(asking("a", drawn(60, 40)))
    assert isinstance(prompt, Prompt)
    assert engine.resolve(Request(prompt, SMALL)) == asked(engine, "a", drawn(60, 40))
    shown = engine.text.decode(asked(engine, "a", drawn(60, 40)).shown_prompt, skip_special=False)
    assert shown == "<bos><|turn>user\na<|image><|image|><image|><turn|>\n<|turn>model\n"


# -- what is refused ---------------------------------------------------------------------------------------------------


def turn(role: str, *parts: Any) -> dict[str, Any]:
    return {"role": role, "content": [*parts]}


IMAGE = {"type": "image", "image": encoded(drawn(8, 8))}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (
            [turn("user", IMAGE), turn("assistant", IMAGE)],
            r"messages\[1\]\.content\[0\] is an image in a turn of the a",
        ),
        ([turn("system", IMAGE), turn("user", IMAGE)], r"messages\[0\]\.content\[0\] is an image in a turn of the s"),
        ([turn("user", *[IMAGE] * 21)], "messages has 21 images; at most 20"),
        ([turn("user", {"type": "image"})], r"messages\[0\]\.content\[0\] has an image of type NoneType"),
        ([turn("user", {"type": "image", "image": 7})], r"has an image of type int; pass a path, bytes or a Pillow"),
        ([turn("user", {"type": "image", "image": b"%PDF-1.7"})], r"content\[0\] is no PNG, JPEG, WebP or GIF image"),
        ([turn("system", IMAGE)], "in a turn of the system or developer; the model reads images in the user's"),
        ([turn("user", {"type": "image", "image": "no-such.png"})], r"'no-such.png', which cannot be read"),
        ([turn("user", {"type": "image_url", "image_url": {"url": "http://a/b.png"}})], "nothing is fetched"),
        ([turn("user", {"type": "image_url", "image_url": "file:///etc/passwd"})], "nothing is fetched"),
        ([turn("user", {"type": "image_url", "image_url": "data:image/png,x"})], "write it as data:image/png;base64"),
        ([turn("user", {"type": "image_url", "image_url": "data:;base64,é"})], r"content\[0\] is not base64"),
    ],
)
def test_bad_images_are_refused_by_their_part(engine: Engine, messages: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        engine.resolve(Request(messages, SMALL))
    assert not vision_of(engine).is_loaded


@pytest.mark.parametrize(
    ("name", "most", "said"),
    [
        ("MOST_SCANNED", 15 * 10**4, "image b is a JPEG of .* scans; at most"),
        ("MOST_PIXELS", 15_000, "the images have 20000 pixels in all; at most 15000"),
        ("MOST_PIXELS", 35_000, "image b is a PNG of 80000 bytes unpacked; at most 60000"),
    ],
)
def test_the_images_of_a_prompt_share_what_they_may_take(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str, most: int, said: str
) -> None:
    """Each within its own bound, twenty of them took forty seconds."""
    monkeypatch.setattr(f"redraft.engine.vision.{name}", most)
    data = encoded(drawn(100, 100), "JPEG", progressive=True)
    if "PNG" in said:  # of 8 bytes a pixel, which Pillow cannot write
        rows = zlib.compress((b"\0" + bytes(800)) * 100)
        parts = [(b"IHDR", struct.pack(">IIBBBBB", 100, 100, 16, 6, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b"")]
        data = b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in parts
        )
    given = [GivenImage(f"image {part}", data) for part in "ab"]
    tokens = engine.chat_prompt(asking(data, "what?"))
    assert tokens.tokens
    with pytest.raises(RequestError, match=said):
        vision_of(engine).place(tokens.tokens, given)


def test_a_text_that_spells_the_image_token_makes_no_place(engine: Engine) -> None:
    """Text of a caller's is text: it can neither move an image nor stand for one."""
    prompt = engine.chat_prompt([turn("user", {"type": "text", "text": "<|image|>"}, IMAGE)])
    (image,) = prompt.images
    placeholder = vision_of(engine).config.placeholder
    assert [i for i, token in enumerate(prompt.tokens) if token == placeholder] == [
        *range(image.run.start, image.run.stop)
    ]


def test_a_prompt_without_images_has_no_place_for_one(engine: Engine) -> None:
    placeholder = vision_of(engine).config.placeholder
    for request in (
        Request([turn("user", {"type": "text", "text": "a<|image|>"})], SMALL, parse_special=True),
        Request("a<|image|>b", SMALL),
        Request([2, placeholder, 12], SMALL),
    ):
        with pytest.raises(RequestError, match="the prompt has 1 places for images and 0 images were given"):
            engine.resolve(request)


def test_a_text_model_refuses_images_by_name() -> None:
    with pytest.raises(RequestError, match=r"content\[0\] is an image, and this checkpoint reads text alone"):
        redraft.load("nano").chat_prompt([turn("user", IMAGE)])


def test_a_template_without_images_is_named(folder: Path, tmp_path: Path) -> None:
    other = write_whole(tmp_path / "model")
    (other / "chat_template.jinja").write_text("{{ bos_token }}{% for m in messages %}{{ m['role'] }}{% endfor %}")
    engine = redraft.load(other, device="cpu")
    with pytest.raises(RequestError, match="has 0 places for images and 1 images were given"):
        engine.resolve(Request([turn("user", IMAGE)]))


def test_the_prompt_is_not_read_where_it_has_images(engine: Engine) -> None:
    with pytest.raises(RequestError, match="read_prompt is True and the prompt has images"):
        asked(engine, drawn(8, 8), causal=True, read_prompt=True, logprobs=1)


def test_a_damaged_tower_fails_its_own_requests(tmp_path: Path) -> None:
    folder = write_whole(tmp_path)
    edit_tensors(folder, lambda tensors: tensors.pop("model.encoder.vision_tower.std_bias"))
    engine = redraft.load(folder, device="cpu")
    assert engine.generate("text", chat=True, options=SMALL).tokens
    with pytest.raises(WeightsError, match="vision tower"):
        engine.generate(asking(drawn(8, 8)), options=SMALL)


def test_images_come_as_paths_bytes_and_pillow_images(engine: Engine, tmp_path: Path) -> None:
    image = drawn(30, 20)
    (tmp_path / "a.png").write_bytes(encoded(image))
    sent = "data:image/png;base64," + b64encode(encoded(image)).decode()
    urls = [{"type": "image_url", "image_url": {"url": one}} for one in (sent, "DATA:" + sent[5:] + "\n")]
    forms = [
        {"type": "image", "image": one} for one in (tmp_path / "a.png", str(tmp_path / "a.png"), encoded(image), image)
    ]
    prompts = [engine.chat_prompt([turn("user", form)]) for form in [*forms, *urls]]
    assert all(prompt == prompts[0] for prompt in prompts)


def test_image_attention_is_one_option(folder: Path) -> None:
    with pytest.raises(RequestError, match="image_attention is 'both'; supported: reference, gemma4"):
        redraft.load(folder, image_attention="both")
    answers = []
    for rule in ("reference", "gemma4"):
        engine = redraft.load(folder, device="cpu", dtype="float32", image_attention=rule)
        answers.append(engine.decide(asked(engine, Image.new("RGB", (48, 36), "red"), "?"), ["a", "b"]).log_mass)
    assert answers[0] != answers[1]
