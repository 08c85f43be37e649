"""The parts of a JPEG or PNG file, counted before a decoder reads them: a small file may have a million of them.

Pillow reads the parts in front of a picture in Python, a few microseconds for each. A compressed one becomes up to a
MiB, and with each Exif segment all before it are copied; so these are heavy. A fraction is made of every eight bytes of
Exif. Each scan of a JPEG goes over the whole picture, however few bytes it has, and bytes that fill are read anew with
every block.
"""

from __future__ import annotations

from PIL.JpegImagePlugin import MARKER

MOST_PARTS, HEAVY = 10_000, 100
"""Segments of a JPEG in front of its first scan, or chunks of a PNG; and as how many of them a heavy one counts."""
MOST_EXIF, FILL = 2**17, b"\xff" * 2**16
"""Bytes of Exif, of which an ordinary file has one segment of at most 64 KiB; and a run of fill that no JPEG needs."""
MOST_SCANNED = 10**9
"""Pixels times scans of a JPEG, which take about a second. Ordinary files have one scan, or about ten."""


def too_many_parts(data: bytes) -> bool:
    """Whether a JPEG or PNG has over MOST_PARTS. False for other formats, and for what is damaged before that."""
    if data.startswith(b"\xff\xd8"):
        return FILL in data or _segments(data) > MOST_PARTS
    return data.startswith(b"\x89PNG") and _chunks(data) > MOST_PARTS


def scans(data: object) -> int:
    """Scans of a JPEG, or more: within a scan's own bytes its mark cannot occur, in other parts it can. 0 for what is
    no JPEG's bytes."""
    return data.count(b"\xff\xda") if isinstance(data, bytes) and data.startswith(b"\xff\xd8") else 0


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


def _segments(data: bytes) -> int:
    """Marks of a JPEG up to its first scan, as Pillow finds them: bytes between them count one each."""
    at, found = 2, 0
    while at + 1 < len(data) and found <= MOST_PARTS:
        mark = data[at] << 8 | data[at + 1]
        found += 1
        if mark == 0xFFE1 and data.startswith(b"Exif", at + 4):
            found += HEAVY + MOST_PARTS * int.from_bytes(data[at + 2 : at + 4], "big") // MOST_EXIF
        if mark == 0xFFDA:
            break
        if data[at] != 0xFF or mark == 0xFFFF:
            at += 1
        elif mark in MARKER and MARKER[mark][2] is not None:
            at += 2 + max(int.from_bytes(data[at + 2 : at + 4], "big"), 2)
        else:
            at += 2
    return found


def _chunks(data: bytes) -> int:
    at, found = 8, 0
    while at + 8 <= len(data) and found <= MOST_PARTS:
        found += HEAVY if data[at + 4 : at + 8] in (b"iCCP", b"iTXt", b"zTXt") else 1
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    return found
