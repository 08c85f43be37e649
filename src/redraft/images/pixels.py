"""From a file, bytes or a Pillow image to a tower's pixels, bit-equal to transformers' Pillow class.

    open, guarded ──► upright (EXIF) ──► RGB of 8 bits ──► bicubic resize to whole tokens ──► patches, row by row

Nothing is decoded before its format and its size are known and allowed; only four formats are supported. Every refusal
is a RequestError that names the part of the request, what is wrong and what to do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from redraft.errors import RequestError
from redraft.files import read_start
from redraft.images.config import ImageConfig
from redraft.images.parts import MOST_EXIF, MOST_SCANNED, RESTARTED, complaint, png_bytes, scans, webp_size

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
Given = str | Path | bytes | Image.Image
"""Forms of an image: the path of a file, its bytes, or a Pillow image."""


@dataclass(frozen=True)
class ImageLimits:
    """Limits of one image. `num_pixels` counts the image as sent; the default is Pillow's own limit. `webp_pixels` are
    fewer: Pillow holds three copies of such a picture. `num_scanned` are pixels times scans of a JPEG, of which one
    scan is always allowed. `gif_bytes` are fewer: Pillow makes objects of a GIF's blocks, of a byte each."""

    num_bytes: int = 32 * 2**20
    gif_bytes: int = 2**23
    num_pixels: int = 89_478_485
    webp_pixels: int = 2**25
    num_scanned: int = MOST_SCANNED


LIMITS = ImageLimits()
SMALL_PIXELS, SMALL_BYTES = 2**24, 2**20
"""More pixels than a telephone's photograph has; decoding so many takes less than a second."""
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture upright, by Exif's orientation."""
STRIP, MOST_SIDE = 2**20, 65_535
"""Pixels of an image that are laid on white at a time, in whole rows; and of a side, as JPEG and GIF have them."""


@dataclass(frozen=True, eq=False)
class Picture:
    """An image for the tower: RGB, upright, its sides whole numbers of soft tokens. Equal if its digest is."""

    pixels: NDArray[np.uint8]  # [height, width, 3]
    config: ImageConfig

    @property
    def columns(self) -> int:
        """Patches in a row."""
        return int(self.pixels.shape[1]) // self.config.vision.patch_size

    @property
    def num_patches(self) -> int:
        return int(self.pixels.shape[0]) // self.config.vision.patch_size * self.columns

    @property
    def num_tokens(self) -> int:
        """Soft tokens, and placeholders in a prompt."""
        return self.num_patches // self.config.vision.pooling**2

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that identify these pixels in this shape; two files of one picture have the same digest."""
        height, width, _ = self.pixels.shape
        return blake2b(b"%d %d " % (height, width) + self.pixels.tobytes(), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picture) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def patches(self) -> NDArray[np.float32]:
        """[patches, values]: row by row of the image, each patch by row, column and colour, from 0 to 1."""
        side = self.config.vision.patch_size
        tiles = self.pixels.reshape(-1, side, self.columns, side, 3).transpose(0, 2, 1, 3, 4)
        return _LEVELS[tiles.reshape(self.num_patches, -1)]

    def positions(self) -> NDArray[np.int64]:
        """[patches, 2]: column and row of each patch."""
        index = np.arange(self.num_patches)
        return np.stack([index % self.columns, index // self.columns], axis=-1)


_LEVELS = (np.arange(256, dtype=np.float64) * (1 / 255)).astype(np.float32)  # with the reference's roundings


def read_picture(given: Given, config: ImageConfig, *, part: str = "the image") -> Picture:
    """Load an image and prepare it for a tower. `part` names it in errors, such as "messages[0].content[1]".

    Raises RequestError for data that is not an image, damaged, animated, too large or without 8-bit colours.
    """
    return prepare(load_rgb(given, part=part), config, part=part)


def load_rgb(given: Given, *, part: str = "the image", limits: ImageLimits = LIMITS) -> Image.Image:
    """The image upright, as RGB, with white behind transparency. Raises as `read_picture`."""
    if isinstance(given, Image.Image):
        return _decode(given, part, limits)
    data = given if isinstance(given, bytes) else _read_file(given, part, limits)
    _check_unopened(data, part, limits)
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        most = min(limits.num_pixels, Image.MAX_IMAGE_PIXELS or limits.num_pixels)
        raise RequestError(f"{part} has over {most} pixels; make it smaller") from None
    except MemoryError as error:
        raise RequestError(f"{part} is too large ({_reason(error)}); make it smaller") from None
    except Exception as error:  # a parser of untrusted bytes can raise anything
        raise RequestError(_unreadable(part, data, error)) from None
    with image:
        if scans(data) > (most := max(1, limits.num_scanned // max(1, image.width * image.height))):
            raise RequestError(
                f"{part} is a JPEG of {scans(data)} scans; at most {most} of its size (one with many restarts counts "
                f"{RESTARTED}), so save it again"
            )
        if image.width * image.height <= limits.num_pixels and png_bytes(data) > (most := 4 * limits.num_pixels):
            raise RequestError(
                f"{part} is a PNG of {png_bytes(data)} bytes unpacked; at most {most}, so take fewer bits"
            )
        return _decode(image, part, limits)


def _check_unopened(data: bytes, part: str, limits: ImageLimits) -> None:
    """Raise RequestError for what is refused by its bytes alone: to open it may take minutes, or much memory."""
    if len(data) > limits.num_bytes:
        raise RequestError(f"{part} has {len(data)} bytes; at most {limits.num_bytes}, so send a smaller one")
    if said := complaint(data):
        raise RequestError(f"{part} {said}")
    if data.startswith(b"GIF8") and len(data) > limits.gif_bytes:
        raise RequestError(f"{part} is a GIF of {len(data)} bytes; at most {limits.gif_bytes}, so save it as PNG")
    width, height = webp_size(data)
    if width * height > (most := min(limits.num_pixels, limits.webp_pixels)):
        raise RequestError(f"{part} is a WebP image of {width}x{height}; at most {most} pixels, so make it smaller")


def sent_pixels(data: object) -> int:
    """The pixels of an image by its head, without decoding it: 0 for what cannot be opened, which is refused later, and
    for a large file, which may take a second to open, by what stands in front of the picture."""
    if not isinstance(data, bytes) or len(data) > SMALL_BYTES:
        return 0
    try:
        _check_unopened(data, "", LIMITS)
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            return image.width * image.height
    except Exception:  # Pillow's readers raise anything; who loads the image says what is wrong
        return 0


def is_small(data: bytes) -> bool:
    """Whether an image is decoded in a moment, by its size and what its head says; one that is refused, is, too."""
    if len(data) > SMALL_BYTES:
        try:
            _check_unopened(data, "", LIMITS)
        except RequestError:
            return True
        return False
    pixels = sent_pixels(data)
    return not pixels or max(pixels, pixels * scans(data), png_bytes(data) // 4) <= SMALL_PIXELS


def prepare(image: Image.Image, config: ImageConfig, *, part: str = "the image") -> Picture:
    """Resize an RGB image to whole tokens. Raises RequestError if no size fits the tower."""
    width, height = fitted_size(image.width, image.height, config, part=part)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return Picture(np.array(image), config)


def fitted_size(width: int, height: int, config: ImageConfig, *, part: str = "the image") -> tuple[int, int]:
    """The new width and height of an image in pixels: as large as its tokens allow, in its own proportions.

    Sides are multiples of a token's side. Raises RequestError if a side would be 0, or have more patches than the tower
    has positions.
    """
    vision, most, side = config.vision, config.most_tokens, config.vision.token_side
    factor = math.sqrt(most * side**2 / (width * height))
    new_width, new_height = (math.floor(factor * length / side) * side for length in (width, height))
    if not new_width and not new_height:
        raise RequestError(f"{part} is {width}x{height}; no size of at most {most} tokens fits it, so crop it")
    if not new_height:  # so long that its short side would vanish: one row of tokens, less stretched
        new_width, new_height = min(width // height, most) * side, side
    elif not new_width:
        new_width, new_height = side, min(height // width, most) * side
    longest = max(new_width, new_height) // vision.patch_size
    if longest > vision.positions:
        raise RequestError(
            f"{part} is {width}x{height}, which makes {longest} patches in a row; the tower places at most"
            f" {vision.positions}, so crop it"
        )
    return new_width, new_height


def _read_file(path: str | Path, part: str, limits: ImageLimits) -> bytes:
    try:
        return read_start(Path(path), limits.num_bytes + 1)  # and no more, for any size of file
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{part} is {str(path)[:200]!r}, which cannot be read: {reason}") from None


def _decode(image: Image.Image, part: str, limits: ImageLimits) -> Image.Image:
    width, height = image.size
    if width * height > limits.num_pixels:
        raise RequestError(
            f"{part} is {width}x{height}, {width * height} pixels; at most {limits.num_pixels}, so make it smaller"
        )
    if not 0 < min(width, height) <= max(width, height) <= MOST_SIDE:
        raise RequestError(f"{part} is {width}x{height}; a side has 1 to {MOST_SIDE} pixels, so crop it")
    try:
        # A JPEG of several pictures (MPO, from phones) is not an animation: its first picture is the photograph.
        animated = image.format in ("GIF", "PNG", "WEBP") and getattr(image, "is_animated", False)
        found = None if animated else _to_rgb(_upright(image, part))  # which copies
    except RequestError:
        raise
    except MemoryError as error:
        raise RequestError(f"{part} is too large ({_reason(error)}); make it smaller") from None
    except Exception as error:  # as above
        raise RequestError(
            f"{part} is damaged or cut short ({_reason(error)}); send the whole file or save the image again"
        ) from None
    if animated:
        raise RequestError(f"{part} is an animation; send a single frame, or several frames as images of their own")
    if found is None:
        raise RequestError(f"{part} has pixels of mode {image.mode}, whose range is unknown; save it with 8 bits")
    return found


def _upright(image: Image.Image, part: str) -> Image.Image:
    """An image as its Exif says that it is held. Pillow's own way writes all of the Exif anew, tag by tag."""
    image.load()  # a PNG's Exif may stand behind the picture
    for name in ("exif", "Raw profile type exif"):
        if len(image.info.get(name) or "") > MOST_EXIF:  # the second is in hexadecimal digits
            raise RequestError(f"{part} has over {MOST_EXIF} bytes of Exif; save it without")
    try:
        turn = _TURNS.get(image.getexif().get(0x0112, 1))
    except Exception:  # Exif that cannot be read says nothing; the picture is whole
        turn = None
    return image if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image | None:
    """Convert as transformers does, except 16-bit grey, which Pillow clamps to white: use its upper 8 bits.

    None for a mode without a known range of numbers.
    """
    if image.mode.startswith("I;16"):
        grey = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if image.mode in ("I", "F"):
        return None
    if image.mode in ("La", "RGBa"):  # multiplied by how opaque they are
        image = image.convert(image.mode.upper())
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    found = Image.new("RGB", image.size)
    for top in range(0, image.height, rows := max(1, STRIP // image.width)):  # whole it takes three times the memory
        strip = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
        found.paste(Image.alpha_composite(white, strip).convert("RGB"), (0, top))
    return found


def _unreadable(part: str, data: bytes, error: Exception) -> str:
    """The error message for bytes that cannot be opened."""
    if not data:
        return f"{part} is empty; send a PNG, JPEG, WebP or GIF image"
    if not data.startswith((b"\x89PNG", b"\xff\xd8", b"GIF8")) and data[8:12] != b"WEBP":
        return f"{part} is no PNG, JPEG, WebP or GIF image (it begins with {data[:8]!r}); convert it to one of these"
    reason = "its header is no valid one" if isinstance(error, UnidentifiedImageError) else _reason(error)
    return f"{part} is damaged or cut short ({reason}); send the whole file or save the image again"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
