"""The parts of a JPEG or PNG file, counted before a decoder reads them: a small file may have a million of them.

Pillow reads the parts in front of a picture in Python, a few microseconds for each. A compressed one becomes up to a
MiB, and with each Exif segment all before it are copied; so these are heavy. A fraction is made of every eight bytes of
Exif. Each scan of a JPEG goes over the whole picture, however few bytes it has, and bytes that fill are read anew with
every block. Data that end early go on as zeros: arithmetic coding reads them as slowly as data, Huffman coding
only to the end of a unit (MCU), but anew behind each restart.
"""

from __future__ import annotations

import re

from PIL.JpegImagePlugin import MARKER

MOST_PARTS, HEAVY = 10_000, 100
"""Segments of a JPEG up to its picture's end, or chunks of a PNG; and as how many of them a heavy one counts."""
MANY = f"is a file of over {MOST_PARTS} parts (heavy ones count {HEAVY}); save it again"
MOST_EXIF, FILL = 2**18, b"\xff" * 2**8
"""Bytes of Exif, of which a JPEG's segment has at most 64 KiB; and a run of fill that no scan needs: before each byte
of a unit (MCU) it would be read anew with every block."""
MOST_SCANNED, RESTARTED = 10**9, 12
"""Pixels times scans of a JPEG, which took at most 2.8 seconds; and as how many scans one behind the first counts that
restarts within 16 units. Ordinary files have one scan, or about ten."""


def complaint(data: bytes) -> str:
    """Why the parts of a JPEG or PNG forbid to decode it, to stand behind its name. Empty if they do not, and for other
    formats."""
    if data.startswith(b"\xff\xd8"):
        return _walk_jpeg(data)[0]
    return _walk_png(data) if data.startswith(b"\x89PNG") else ""


def scans(data: object) -> int:
    """Scans of a JPEG's first picture, those with many restarts by RESTARTED. 0 for what is no JPEG's bytes."""
    return _walk_jpeg(data)[1] if isinstance(data, bytes) and data.startswith(b"\xff\xd8") else 0


def png_bytes(data: bytes) -> int:
    """Bytes that a PNG file's picture is unpacked to, by its first chunk; 0 for what is none."""
    if not data.startswith(b"\x89PNG") or len(data) < 26:
        return 0
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    return width * height * {2: 3, 4: 2, 6: 4}.get(data[25], 1) * data[24] // 8


def webp_size(data: bytes) -> tuple[int, int]:
    """Width and height of a WebP file, by its first chunk (RFC 9649); 0 and 0 for what is none. Pillow asks for
    the memory of three copies of a picture as soon as such a file is opened."""
    kind, body = data[12:16], data[20:30]
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(body) < 10:
        return 0, 0
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L":
        both = int.from_bytes(body[1:5], "little")
        return (both & 0x3FFF) + 1, (both >> 14 & 0x3FFF) + 1
    return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF


_MARK = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""What starts a segment; neither data of a scan nor a mark to restart at."""
_SEGMENTS = frozenset(mark & 0xFF for mark, (_, _, read) in MARKER.items() if read is not None)
_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xDE})


def _walk_jpeg(data: bytes) -> tuple[str, int]:
    """What is wrong with a JPEG's segments, and its scans, up to the end of its picture, as Pillow and libjpeg find
    them. Bytes between segments count one each in front of the first scan."""
    at, found, exif, frames, scans, weight, first, stop = 2, 0, 0, 0, 0, 1, len(data), len(data)
    while found <= MOST_PARTS and (mark := _MARK.search(data, at)):
        kind, end = data[mark.end() - 1], mark.end()
        if 0xC9 <= kind <= 0xCF:
            return f"is a JPEG with arithmetic coding (marker FF{kind:X}); save it with Huffman coding", scans
        if kind == 0xD9 and scans:
            stop = end
            break
        length = max(int.from_bytes(data[end : end + 2], "big"), 2) if kind in _SEGMENTS else 0
        found += 1 if scans else 1 + mark.start() - at
        if kind == 0xE1 and not scans and data.startswith(b"Exif", end + 2):
            found, exif = found + HEAVY, exif + length
        if kind == 0xDD:
            weight = RESTARTED if 0 < int.from_bytes(data[end + 2 : end + 4], "big") < 16 else 1
        if kind == 0xDA:
            scans, first = scans + (weight if scans else 1), min(first, end)
        frames, at = frames + (kind in _FRAMES), end + length
    if exif > MOST_EXIF:
        return f"has over {MOST_EXIF} bytes of Exif; save it without", scans
    if frames > 1:
        return f"is a JPEG of {frames} frames (SOF); save it again", scans
    found += 0 if scans else max(0, len(data) - at)
    return MANY if found > MOST_PARTS or data.find(FILL, first, stop) >= 0 else "", scans


def _walk_png(data: bytes) -> str:
    headers, at, found = 0, 8, 0
    while at + 8 <= len(data) and found <= MOST_PARTS and (kind := data[at + 4 : at + 8]) != b"IEND":
        headers += kind == b"IHDR"
        found += HEAVY if kind in (b"iCCP", b"iTXt", b"zTXt") else 1
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    if headers != 1 or data[8:16] != b"\0\0\0\rIHDR":
        return "is damaged or cut short: a PNG has one header (IHDR), at its beginning; save the image again"
    return MANY if found > MOST_PARTS else ""
