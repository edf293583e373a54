"""Pictures made in place, each different: noise as JPEG or PNG, and the size of a picture in a file.

A JPEG picture is put together from rows of coded blocks, which restart markers keep independent: a thousand take
seconds, and no package that draws is needed.
"""

import struct
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING

from dyno.errors import WorkloadError

if TYPE_CHECKING:
    import numpy as np

_ROWS = 32  # coded rows of a width, from which pictures take all but their first
_BLOCKS = 128  # coded blocks, from which rows are made
_COEFFICIENTS = (2, 16)  # of a block, at least and below
_BLOCK = 8  # pixels
# Code lengths: 12 codes of 4 bits for the sizes of a block's first value, 13 for runs and sizes of the others.
_DC_CODES = 12
_AC = (0x00, 0x01, 0x02, 0x03, 0x04, 0x11, 0x12, 0x13, 0x21, 0x22, 0x31, 0x41, 0xF0)
_SOI, _EOI = b"\xff\xd8", b"\xff\xd9"


def jpeg(width: int, height: int, seed: int) -> bytes:
    """Return a picture of noise in colour."""
    across, down = -(-width // _BLOCK), -(-height // _BLOCK)
    import numpy as np  # here: help would load it

    rng = np.random.default_rng([seed, 11])
    known = _known_rows(across)
    chosen = rng.integers(0, _ROWS, down).tolist()
    rows = [_row(across, rng), *(known[i] for i in chosen[1:])]
    parts = [_jpeg_head(width, height, across)]
    for number, row in enumerate(rows):
        parts.append(row)
        if number + 1 < down:
            parts.append(bytes((0xFF, 0xD0 + number % 8)))
    return b"".join((*parts, _EOI))


def png(width: int, height: int, seed: int) -> bytes:
    """Return a picture of noise in colour, without loss."""
    import numpy as np

    pixels = np.random.default_rng([seed, 12]).integers(
        0, 256, (height, 1 + 3 * width), np.uint8
    )
    pixels[:, 0] = 0  # no filter
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(pixels.tobytes(), 1)
    chunks = ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(*each) for each in chunks)


MAKERS = {"jpeg": jpeg, "png": png}


def read_size(data: bytes, name: str) -> tuple[str, int, int]:
    """Return format, width and height of a picture in a file."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        return "png", *struct.unpack(">II", data[16:24])
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and (size := _webp_size(data)):
        return "webp", *size
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        return "gif", *struct.unpack("<HH", data[6:10])
    if data[:2] == _SOI and (size := _jpeg_size(data)):
        return "jpeg", *size
    raise WorkloadError(
        f"{name} is not a picture that dyno knows: use JPEG, PNG, WebP or GIF."
    )


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    checked = kind + data
    return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))


def _jpeg_head(width: int, height: int, across: int) -> bytes:
    def segment(marker: int, data: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, 2 + len(data)) + data

    components = bytes(
        value for number in (1, 2, 3) for value in (number, 0x11, 0)
    )  # each at full size, with the one table
    counts = [0] * 16
    counts[3] = _DC_CODES
    dc = bytes((0x00, *counts, *range(_DC_CODES)))
    counts[3] = len(_AC)
    ac = bytes((0x10, *counts, *_AC))
    scan = bytes((3, 1, 0x00, 2, 0x00, 3, 0x00, 0, 63, 0))
    return b"".join(
        (
            _SOI,
            segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"),
            segment(0xDB, bytes((0, *([12] * 64)))),
            segment(0xC0, struct.pack(">BHHB", 8, height, width, 3) + components),
            segment(0xC4, dc),
            segment(0xC4, ac),
            segment(0xDD, struct.pack(">H", across)),
            segment(0xDA, scan),
        )
    )


@lru_cache(16)
def _known_rows(across: int) -> list[bytes]:
    import numpy as np

    rng = np.random.default_rng([across, 13])
    return [_row(across, rng) for _ in range(_ROWS)]


def _row(across: int, rng: "np.random.Generator") -> bytes:
    """Return one row of coded blocks, filled up to a whole byte."""
    blocks = _coded_blocks()
    chosen = rng.integers(0, _BLOCKS, 3 * across).tolist()
    bits = "".join([blocks[i] for i in chosen])
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8).replace(b"\xff", b"\xff\0")


@lru_cache(1)
def _coded_blocks() -> list[str]:
    """Return blocks as their bits."""
    import numpy as np

    rng = np.random.default_rng(14)
    blocks = []
    for _ in range(_BLOCKS):
        step = int(rng.integers(-7, 8))
        bits = _code(step.bit_length() if step >= 0 else (-step).bit_length())
        bits += _value(step)
        for value in rng.integers(-7, 8, int(rng.integers(*_COEFFICIENTS))).tolist():
            size = abs(value).bit_length() or 1
            bits += _code(_AC.index(size)) + _value(value or 1)
        blocks.append(bits + _code(0))
    return blocks


def _code(number: int) -> str:
    return f"{number:04b}"


def _value(value: int) -> str:
    """Return a value's bits as JPEG writes them: those of a negative one are inverted."""
    size = abs(value).bit_length()
    if not size:
        return ""
    return f"{value if value > 0 else value + (1 << size) - 1:0{size}b}"


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    position = 2
    while position + 9 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # a fill byte
            position += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[position + 5 : position + 9])
            return width, height
        position += 2 + int.from_bytes(data[position + 2 : position + 4])
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return (
            1 + int.from_bytes(data[24:27], "little"),
            1 + int.from_bytes(data[27:30], "little"),
        )
    if kind == b"VP8L" and len(data) >= 25:
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and len(data) >= 30:
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None
