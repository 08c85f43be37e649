"""Pictures: what is read, what is refused, and pixels bit-equal to transformers' Pillow class."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from tests.pictures import encoded

from redraft.errors import RequestError
from redraft.images import pixels
from redraft.images.config import ImageConfig, VisionConfig
from redraft.images.parts import MOST_PARTS, scans, webp_size
from redraft.images.pixels import ImageLimits, fitted_size, load_rgb, prepare, read_picture

SHAPE = VisionConfig(hidden_size=8, intermediate_size=8, layers=1, heads=1, kv_heads=1, head_dim=8)


def drawn(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Noise, so that a pixel in the wrong place shows."""
    shape = (height, width, len(mode)) if len(mode) > 1 else (height, width)
    return Image.fromarray(np.random.default_rng(width * 31 + height).integers(0, 256, shape, np.uint8), mode)


def theirs(image: Image.Image | list[Image.Image], tokens: int = 280) -> Any:
    """transformers' Pillow class on an image that it loads itself."""
    transformers = pytest.importorskip("transformers", minversion="5.23.0")
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    assert transformers
    return Gemma4ImageProcessorPil(max_soft_tokens=tokens)(images=image, return_tensors="np")


def check_equal(image: Image.Image, tokens: int = 280) -> None:
    wanted = theirs(image, tokens)
    got = read_picture(image, ImageConfig(SHAPE, 3, 4, 5, most_tokens=tokens))
    real = (wanted["image_position_ids"][0] >= 0).all(-1)
    patches = got.patches()
    assert patches.dtype == wanted["pixel_values"].dtype == np.float32
    assert np.array_equal(patches, wanted["pixel_values"][0][real])
    assert np.array_equal(got.positions(), wanted["image_position_ids"][0][real])
    assert got.num_tokens == wanted["num_soft_tokens_per_image"][0]
    assert got.num_patches == real.sum()


@pytest.mark.parametrize("size", [(640, 480), (31, 57), (1, 1), (48, 48), (3, 700), (1, 900), (900, 1), (960, 672)])
@pytest.mark.parametrize("tokens", [70, 280])
def test_pixels_are_bit_equal_to_transformers(size: tuple[int, int], tokens: int) -> None:
    check_equal(drawn(*size), tokens)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "CMYK", "1", "P"])
def test_every_mode_becomes_rgb_as_in_transformers(mode: str) -> None:
    """Transparency is laid on white there, so it is here."""
    image = drawn(50, 70, mode) if mode not in ("1", "P") else drawn(50, 70).convert(mode)
    check_equal(image, 70)


def test_transparent_palettes_become_rgb_as_in_transformers() -> None:
    image = drawn(50, 70).convert("P")
    for transparency in (7, bytes(range(256))):
        with Image.open(io.BytesIO(encoded(image, transparency=transparency))) as held:
            check_equal(held, 70)


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_colours_multiplied_by_their_opacity_are_divided_by_it(mode: str) -> None:
    """Pillow makes black of one and refuses the other."""
    image = drawn(50, 70, mode)
    image.putalpha(255)
    check_equal(image)
    got, wanted = (load_rgb(one) for one in (image.convert(mode[:-1] + "a"), image))
    assert got.tobytes() == wanted.tobytes()


@settings(max_examples=200)
@given(st.integers(1, 12_000), st.integers(1, 12_000), st.sampled_from([70, 140, 280, 560, 1120]))
@example(1, 10_000, 280)
@example(10_000, 1, 280)
@example(1, 12_000, 1120)
def test_the_size_rule_is_that_of_transformers(width: int, height: int, tokens: int) -> None:
    pytest.importorskip("transformers", minversion="5.23.0")
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size as fit

    got = fitted_size(width, height, ImageConfig(SHAPE, 3, 4, 5, most_tokens=tokens))
    assert got[::-1] == fit(height, width, 16, tokens * 9, 3)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_four_formats_are_read_from_bytes_and_files(form: str, tmp_path: Path) -> None:
    data = encoded(drawn(40, 30).convert("P" if form == "GIF" else "RGB"), form)
    path = tmp_path / "picture"
    path.write_bytes(data)
    wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    with Image.open(path) as held:
        for given_as in (data, path, str(path), held):
            assert np.array_equal(np.asarray(load_rgb(given_as)), wanted)


@pytest.mark.parametrize("count", [100, 20_000])
@pytest.mark.parametrize(
    ("form", "at", "part"),
    [
        ("PNG", 33, b"\0\0\0\0teXt" + struct.pack(">I", zlib.crc32(b"teXt"))),
        ("JPEG", 2, b"\xff\xfe\0\2"),
        ("JPEG", 2, b"\xff"),
        ("JPEG", 20, b"a"),
        ("JPEG", 2, b"\xff\0"),
        ("JPEG", 2, b"\xff\xd0"),
    ],
)
def test_a_file_of_very_many_parts_is_refused(form: str, at: int, part: bytes, count: int) -> None:
    """Pillow reads each in Python: 24 MiB took 21 seconds, while no other image was read."""
    whole = encoded(drawn(8, 8), form)
    many = whole[:at] + part * count + whole[at:]
    if count < MOST_PARTS:
        assert load_rgb(many).size == (8, 8)
        return
    with pytest.raises(RequestError, match="10000 parts"):
        load_rgb(many)


PACKED = zlib.compress(bytes(2**20 - 1), 9)
CUT = PACKED[:-1]
"""It makes as much, and is no text that Pillow counts."""


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize("count", [30, 2000])
@pytest.mark.parametrize(
    ("form", "at", "part"),
    [
        ("PNG", 33, chunk(b"iCCP", b"a\0\0" + PACKED)),
        ("PNG", 33, chunk(b"zTXt", b"a\0\0" + CUT)),
        ("PNG", 33, chunk(b"iTXt", b"a\0\1\0\0\0" + CUT)),
        ("JPEG", 2, b"\xff\xe1" + struct.pack(">H", 2308) + b"Exif\0\0" + bytes(2300)),
    ],
)
def test_a_file_of_many_heavy_parts_is_refused(form: str, at: int, part: bytes, count: int) -> None:
    """9 MiB of compressed chunks took 31 seconds, 23 of Exif segments 15, while no other image was read."""
    whole = encoded(drawn(8, 8), form)
    many = whole[:at] + part * count + whole[at:]
    if count == 30:
        assert load_rgb(many).size == (8, 8)
        return
    with pytest.raises(RequestError, match=r"10000 parts \(heavy ones count 100\); save it again"):
        load_rgb(many)


LONG = bytes(2**18 + 1)
TINY = encoded(drawn(8, 8))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (TINY[:33] + chunk(b"eXIf", LONG) + TINY[33:], "262144 bytes of Exif; save it without"),
        (TINY[:-12] + chunk(b"eXIf", LONG) + TINY[-12:], "262144 bytes of Exif"),
        (TINY[:33] + chunk(b"tEXt", b"Raw profile type exif\0" + LONG) + TINY[33:], "262144 bytes of Exif"),
        (encoded(drawn(8, 8), "WEBP", exif=LONG), "262144 bytes of Exif"),
    ],
    ids=["in front", "behind", "as text", "webp"],
)
def test_exif_has_a_bound(data: bytes, said: str) -> None:
    """Six megabytes took 22 seconds, in which nobody else had an answer: Pillow makes a fraction of every eight."""
    with pytest.raises(RequestError, match=said):
        load_rgb(data)


def segment(mark: int, data: bytes) -> bytes:
    return struct.pack(">HH", mark, len(data) + 2) + data


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (segment(0xFFE1, b"Exif\0\0" + bytes(65_500)) * 3, None),
        (segment(0xFFE1, b"Exif\0\0" + bytes(65_500)) * 5, "has over 262144 bytes of Exif; save it without"),
        (b"\xff" * 2**16, "10000 parts"),
        (b"\xff\xc0\0\x11\x08\0\x08\0\x08\3\1\x11\0\2\x11\0\3\x11\0", r"is a JPEG of 2 frames \(SOF\); save it again"),
        *((segment(mark, b"\0\0"), "arithmetic coding .marker FFC") for mark in range(0xFFC9, 0xFFD0)),
    ],
)
def test_the_segments_of_a_jpeg(part: bytes, said: str | None) -> None:
    """Arithmetic coding took 23 seconds for 10 KB, and 24 MB of frames 700 MB of memory."""
    whole = encoded(drawn(8, 8), "JPEG")
    if said is None:
        assert load_rgb(whole[:2] + part + whole[2:]).size == (8, 8)
        return
    with pytest.raises(RequestError, match=said):
        load_rgb(whole[:2] + part + whole[2:])


def test_a_jpeg_is_read_up_to_its_end() -> None:
    """Phones store a film behind a photograph, and what a segment holds is no mark."""
    image = drawn(300, 300)
    whole, within = encoded(image, "JPEG", progressive=True), segment(0xFFEB, b"\xff\xda\xff\xd9" * 16_000)
    behind = within + b"\xff\xda" * 20_000 + b"\xff" * 2**16
    assert scans(whole) == scans(whole[:2] + within + whole[2:] + behind) == 10  # libjpeg's own progression
    got = np.asarray(load_rgb(whole[:2] + within + whole[2:] + behind, limits=ImageLimits(num_scanned=900_000)))
    assert np.array_equal(got, np.asarray(Image.open(io.BytesIO(whole))))
    assert scans(encoded(image, "MPO", save_all=True, append_images=[image] * 3)) == 1


def test_a_scan_has_no_long_fill_and_a_segment_may() -> None:
    """libjpeg reads a unit anew with every block of a file that Pillow feeds it: 25 MB of fill took five seconds."""
    whole = encoded(drawn(8, 8), "JPEG")
    maker_note = segment(0xFFED, b"\xff" * 1000)
    assert load_rgb(whole[:2] + maker_note + whole[2:]).size == (8, 8)
    scan = whole.index(b"\xff\xda") + 20
    assert load_rgb(whole[:-2] + b"\xff" * 200 + whole[-2:]).size == (8, 8)
    with pytest.raises(RequestError, match="10000 parts"):
        load_rgb(whole[:scan] + b"\xff" * 300 + b"\0" + whole[scan:])


def test_scans_with_many_restarts_count_more() -> None:
    """Behind each restart a unit is read from nothing: 8 MB of eleven scans took twelve seconds."""
    assert [
        scans(encoded(drawn(300, 300), "JPEG", progressive=progressive, restart_marker_blocks=blocks))
        for progressive, blocks in [(True, 1), (True, 15), (True, 16), (False, 1)]
    ] == [109, 109, 10, 1]


@pytest.mark.parametrize(
    "data",
    [
        TINY[:8] + chunk(b"tEXt", b"a\0b") + TINY[8:],
        TINY[:33] + TINY[8:],
        TINY[:-12] + TINY[8:33] + TINY[-12:],
        TINY[:8] + chunk(b"IHDR", TINY[16:29] + b"\0") + TINY[33:],
        TINY[:12],
    ],
)
def test_a_png_has_one_header(data: bytes) -> None:
    """The first says how large the picture is, and Pillow goes by the last."""
    with pytest.raises(RequestError, match=r"is damaged or cut short: a PNG has one header \(IHDR\), at its beginning"):
        load_rgb(data)


@pytest.mark.parametrize(
    "data",
    [
        TINY + bytes(200_000),
        TINY[:33] + chunk(b"eXIf", b"no TIFF") + TINY[33:],
        TINY[:33] + chunk(b"tEXt", b"Raw profile type exif\0\n\n\nxyz") + TINY[33:],
        encoded(drawn(8, 8), "WEBP", exif=b"no TIFF"),
    ],
    ids=["padded", "png", "text", "webp"],
)
def test_what_does_not_concern_the_picture_is_passed_over(data: bytes) -> None:
    assert np.array_equal(np.asarray(load_rgb(data)), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_a_png_is_bounded_by_what_it_unpacks_to() -> None:
    """Eight megabytes of 16 bits a channel took eight seconds."""
    limits = ImageLimits(num_pixels=64)
    assert load_rgb(encoded(drawn(8, 8).convert("RGBA")), limits=limits).size == (8, 8)
    deep = TINY[:8] + chunk(b"IHDR", TINY[16:24] + b"\x10\x06\0\0\0") + TINY[33:]
    with pytest.raises(RequestError, match="a PNG of 512 bytes unpacked; at most 256, so take fewer bits"):
        load_rgb(deep, limits=limits)


def test_a_gif_is_smaller_than_other_files() -> None:
    """Pillow makes an object of each block: 20 MiB of a comment took a gigabyte."""
    whole = encoded(drawn(8, 8).convert("L"), "GIF")
    assert load_rgb(whole + bytes(2**23 - len(whole))).size == (8, 8)
    with pytest.raises(RequestError, match="a GIF of 8388609 bytes; at most 8388608, so save it as PNG"):
        load_rgb(whole + bytes(2**23 - len(whole) + 1))


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    """Each goes over the whole picture, in 127 bytes: 236 KB took half a minute."""
    whole = encoded(drawn(1000, 1000), "JPEG", progressive=True)
    assert load_rgb(whole).size == (1000, 1000)
    with pytest.raises(RequestError, match="1010 scans; at most 1000 of its size"):
        load_rgb(whole[:-2] + segment(0xFFDA, b"\1\1\0\0\x3f\0") * 1000 + whole[-2:])


@pytest.mark.parametrize(
    "options", [{"lossless": True}, {"quality": 50}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}]
)
@pytest.mark.parametrize("size", [(1, 1), (300, 70), (16383, 2)])
def test_a_webp_image_is_measured_before_it_is_opened(size: tuple[int, int], options: dict[str, Any]) -> None:
    """34 bytes of 16383x5400 took two gigabytes to open, and over a second in which nothing else ran."""
    data = encoded(drawn(*size), "WEBP", **options)
    assert webp_size(data) == size == Image.open(io.BytesIO(data)).size
    with pytest.raises(
        RequestError, match=f"a WebP image of {size[0]}x{size[1]}; at most {size[0] * size[1] - 1} pixels"
    ):
        load_rgb(data, limits=ImageLimits(webp_pixels=size[0] * size[1] - 1))


@pytest.mark.parametrize("data", [b"", b"RIFF", b"RIFF\0\0\0\0WEBPVP8X", b"RIFF\0\0\0\0WEBPABCD" + bytes(99)])
def test_what_is_no_webp_image_has_no_size(data: bytes) -> None:
    assert webp_size(data) == (0, 0)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_laid_on_white_by_strips_is_as_if_whole(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "STRIP", 500)
    image = drawn(5, 203).convert("RGBA")
    image.putalpha(drawn(5, 203).convert("L"))
    data = encoded(image.convert(mode), **({"transparency": 0} if mode == "P" else {}))
    whole = Image.open(io.BytesIO(data)).convert("RGBA")
    wanted = Image.alpha_composite(Image.new("RGBA", whole.size, "white"), whole).convert("RGB")
    assert np.array_equal(np.asarray(load_rgb(data)), np.asarray(wanted))


@pytest.mark.parametrize("orientation", range(10))
def test_a_turned_photograph_stands_as_pillow_turns_it(orientation: int) -> None:
    image = drawn(40, 30)
    turned = Image.Exif()
    turned[0x0112] = orientation
    data = encoded(image, exif=turned.tobytes())
    wanted = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert np.array_equal(np.asarray(load_rgb(data)), np.asarray(wanted))
    if orientation == 6:  # by 90 degrees
        assert np.array_equal(np.asarray(wanted), np.rot90(np.asarray(image), -1))


def test_what_stands_upright_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 89 million pixels, the copy was 340 MB of 1,100, and half of the time."""
    monkeypatch.setattr(Image.Image, "transpose", None)
    assert load_rgb(encoded(drawn(40, 30))).size == (40, 30)


def test_grey_of_16_bits_keeps_its_upper_eight() -> None:
    """Pillow's own conversion clamps to 255, which leaves white paper of a scan with anything on it."""
    grey = np.arange(0, 65536, 32, dtype=np.uint16).reshape(64, 32)
    got = np.asarray(load_rgb(encoded(Image.fromarray(grey))))
    assert np.array_equal(got, np.repeat((grey >> 8).astype(np.uint8)[..., None], 3, -1))


def test_a_photograph_of_several_pictures_is_its_first() -> None:
    """Phones store a JPEG with a second picture behind it; it has two frames and is no animation."""
    first = drawn(32, 32)
    data = encoded(first, "MPO", save_all=True, append_images=[drawn(16, 16)])
    assert load_rgb(data).size == (32, 32)


def test_the_digest_is_of_pixels_and_shape() -> None:
    image = drawn(100, 80)
    config = ImageConfig(SHAPE, 3, 4, 5, most_tokens=4)
    one = read_picture(encoded(image), config)
    assert one.digest == read_picture(encoded(image, "WEBP", lossless=True), config).digest
    assert len(one.digest) == 16
    assert one.digest != read_picture(image.transpose(Image.Transpose.ROTATE_180), config).digest
    grey = [prepare(Image.new("RGB", size), config) for size in ((96, 48), (48, 96))]
    assert grey[0].pixels.tobytes() == grey[1].pixels.tobytes()
    assert grey[0].digest != grey[1].digest


def png_header(width: int, height: int) -> bytes:
    """The first chunk of a PNG that claims a size and brings nothing."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 8) + b"IDAT" + b"\0" * 12


def frames(form: str) -> bytes:
    return encoded(drawn(20, 20), form, save_all=True, append_images=[drawn(20, 20).rotate(90)])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (encoded(drawn(60, 60))[:2000], "is damaged or cut short .* send the whole file"),
        (encoded(drawn(60, 60), "JPEG")[:600], "is damaged or cut short"),
        (encoded(drawn(60, 60), "WEBP")[:600], "is damaged or cut short"),
        (b"%PDF-1.7\n%rest of it", r"is no PNG, JPEG, WebP or GIF image \(it begins with b'%PDF-1.7'\); convert it"),
        (encoded(drawn(9, 9), "BMP"), "is no PNG, JPEG, WebP or GIF"),
        (b"", "is empty"),
        (frames("GIF"), "is an animation; send a single frame"),
        (frames("WEBP"), "is an animation"),
        (frames("PNG"), "is an animation"),
        (png_header(20_000, 20_000), "has over 89478485 pixels; make it smaller"),
        (png_header(9_500, 9_500), "is 9500x9500, 90250000 pixels; at most 89478485, so make it smaller"),
        (png_header(0, 5), "is damaged or cut short .its header is no valid one.; send the whole file"),
        (b"GIF89a\1", "is damaged or cut short"),
        (b"\xff\xd8\xff", "is damaged or cut short"),
        (png_header(1, 65_536), "is 1x65536; a side has 1 to 65535 pixels, so crop it"),
    ],
    ids=[
        "png",
        "jpeg",
        "webp",
        "pdf",
        "bmp",
        "empty",
        "gif",
        "animated_webp",
        "apng",
        "bomb",
        "warned",
        "zero",
        "cut_gif",
        "cut_jpeg",
        "long",
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_is_no_usable_image_is_refused_by_name(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    for given_as in (data, path):
        with pytest.raises(RequestError, match=rf"^messages\[0\]\.content\[1\] ({said})"):
            load_rgb(given_as, part="messages[0].content[1]")


def test_limits_are_the_callers() -> None:
    data = encoded(drawn(40, 30))
    with pytest.raises(RequestError, match=f"^the image has {len(data)} bytes; at most {len(data) - 1}"):
        load_rgb(data, limits=ImageLimits(num_bytes=len(data) - 1))
    with pytest.raises(RequestError, match="is 40x30, 1200 pixels; at most 1199"):
        load_rgb(data, limits=ImageLimits(num_pixels=1199))
    with pytest.raises(RequestError, match="1200 pixels"):
        load_rgb(drawn(40, 30), limits=ImageLimits(num_pixels=1199))


def test_a_file_is_read_no_further_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "long.png"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(RequestError, match="has 101 bytes; at most 100"):
        load_rgb(path, limits=ImageLimits(num_bytes=100))


@pytest.mark.parametrize("path", ["absent.png", ".", "a\0b", "https://example.com/a.png"])
def test_a_path_that_cannot_be_read_is_named(path: str) -> None:
    with pytest.raises(RequestError, match=r"^image 2 is .* which cannot be read: "):
        load_rgb(path, part="image 2")


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_of_no_known_range_are_refused(mode: str) -> None:
    with pytest.raises(RequestError, match=f"pixels of mode {mode}, whose range is unknown; save it with 8 bits"):
        load_rgb(drawn(8, 8).convert("L").convert(mode))


def test_an_image_longer_than_the_tower_has_places_is_refused() -> None:
    config = ImageConfig(VisionConfig(8, 8, 1, 1, 1, 8, positions=100), 3, 4, 5)
    with pytest.raises(
        RequestError, match="is 1x10000, which makes 840 patches in a row; the tower places at most 100"
    ):
        fitted_size(1, 10_000, config)


@settings(max_examples=150)
@given(
    st.integers(0, 3), st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=6), st.integers(0, 600)
)
def test_damaged_files_are_images_or_refused(form: int, changes: list[tuple[int, int]], cut: int) -> None:
    """Whatever a decoder raises becomes one kind of error."""
    image = drawn(17, 13)
    data = bytearray(encoded(image.convert("P") if form == 3 else image, ("PNG", "JPEG", "WEBP", "GIF")[form]))
    for at, value in changes:
        data[at % len(data)] = value
    with contextlib.suppress(RequestError):
        assert load_rgb(bytes(data[: len(data) - cut]), limits=ImageLimits(num_pixels=10**6)).mode == "RGB"
