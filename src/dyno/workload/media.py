"""Images, sounds and videos of requests: described in the workload, made or read where a request is encoded."""

import base64
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec

from dyno.errors import WorkloadError
from dyno.workload import pictures

Kind = Literal["image", "video", "audio"]

# The type of a message's part that stands for a medium until the request is encoded.
PART = "dyno:medium"
SAMPLES_PER_S = 16_000  # of a sound, as models of speech take it
FRAMES_PER_S = 30
_FILE_MAX = 64 << 20
_SUFFIXES = {".wav": "wav", ".mp3": "mp3", ".flac": "flac", ".ogg": "ogg", ".m4a": "m4a"}


class Medium(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image, a sound or a video: generated from a seed, or a file's."""

    kind: Kind
    form: str  # of its file: jpeg, png, wav …
    width: int = 0
    height: int = 0
    frames: int = 1  # of a video
    seconds: float = 0.0  # of a sound
    seed: int = 0
    path: str = ""  # '': generated
    sha256: str = ""  # of the file

    @property
    def mime(self) -> str:
        # vLLM reads several JPEG files in a row, with commas between, as a video's frames
        return f"{self.kind}/{self.form}"

    def files(self) -> list[bytes]:
        """Return its bytes: of a video one file for each frame."""
        if self.path:
            return [_file_bytes(self.path, self.sha256)]
        if self.kind == "audio":
            return [tone(self.seconds, self.seed)]
        make = pictures.MAKERS[self.form]
        seeds = (self.seed * self.frames + i for i in range(self.frames))
        return [make(self.width, self.height, seed) for seed in seeds]

    def url(self) -> str:
        """Return it as a data URL."""
        data = ",".join(base64.b64encode(file).decode("ascii") for file in self.files())
        return f"data:{self.mime};base64,{data}"


def image_file(path: Path) -> Medium:
    data = _bytes(path)
    form, width, height = pictures.read_size(data, str(path))
    checksum = sha256(data).hexdigest()
    return Medium("image", form, width, height, path=str(path), sha256=checksum)


def audio_file(path: Path) -> Medium:
    data = _bytes(path)
    form = _SUFFIXES.get(path.suffix.lower())
    if form is None:
        raise WorkloadError(
            f"{path} is not a sound that dyno knows: use {', '.join(_SUFFIXES)}."
        )
    seconds = wav_seconds(data) if form == "wav" else 0.0
    checksum = sha256(data).hexdigest()
    return Medium("audio", form, seconds=seconds, path=str(path), sha256=checksum)


def tone(seconds: float, seed: int) -> bytes:
    """Return a sound of changing tones with noise, mono, 16 bit, as a WAV file."""
    import numpy as np  # here: help would load it

    rng = np.random.default_rng([seed, 15])
    count = max(round(seconds * SAMPLES_PER_S), 1)
    syllables = -(-count // (SAMPLES_PER_S // 5))
    pitch = np.repeat(rng.uniform(90, 400, syllables), SAMPLES_PER_S // 5)[:count]
    loudness = np.repeat(rng.uniform(0.0, 0.4, syllables), SAMPLES_PER_S // 5)[:count]
    phase = np.cumsum(2 * np.pi * pitch / SAMPLES_PER_S)
    wave = loudness * (np.sin(phase) + 0.5 * np.sin(2 * phase))
    wave += rng.normal(0, 0.01, count)
    samples = (wave.clip(-1, 1) * 32767).astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", 1, 1, SAMPLES_PER_S, 2 * SAMPLES_PER_S, 2, 16)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


def wav_seconds(data: bytes) -> float:
    """Return how long the sound of a WAV file is; 0: unknown."""
    position, rate = 12, 0
    while data[:4] == b"RIFF" and position + 8 <= len(data):
        name = data[position : position + 4]
        (size,) = struct.unpack("<I", data[position + 4 : position + 8])
        if name == b"fmt " and position + 20 <= len(data):
            (rate,) = struct.unpack("<I", data[position + 16 : position + 20])
        elif name == b"data":
            return min(size, len(data) - position - 8) / rate if rate else 0.0
        position += 8 + size + size % 2
    return 0.0


def part(medium: Medium) -> dict[str, Any]:
    """Return the part of a message that stands for it."""
    return {"type": PART, "medium": medium}


def contents(text: str, media: Iterable[Medium]) -> list[dict[str, Any]]:
    """Return a message's content: the text, then the media, in vLLM's order."""
    return [{"type": "text", "text": text}, *map(part, media)]


def with_media(
    messages: Iterable[dict[str, Any]], write: Callable[[Medium], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return messages whose media are written as an API wants them."""
    return [
        {**message, "content": [_written(each, write) for each in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _written(each: Any, write: Callable[[Medium], dict[str, Any]]) -> Any:
    if not isinstance(each, dict) or each.get("type") != PART:
        return each
    return write(msgspec.convert(each["medium"], Medium))


@lru_cache(256)
def _file_bytes(path: str, checksum: str) -> bytes:
    data = _bytes(Path(path))
    if checksum and sha256(data).hexdigest() != checksum:
        raise WorkloadError(f"{path} has changed since the workload was made.")
    return data


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _FILE_MAX:
            raise WorkloadError(
                f"{path} is larger than {_FILE_MAX >> 20} MB, more than dyno sends."
            )
        return path.read_bytes()
    except OSError as e:
        raise WorkloadError(f"{path} can't be read: {e.strerror}.") from None
