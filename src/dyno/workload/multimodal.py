"""Prompts with images and videos, and sounds: generated in place, or files of the user."""

import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np

from dyno import files
from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.outside import OutsideName, UnsafeName
from dyno.workload import synthetic
from dyno.workload.datasets.audio import CustomAudioSpec, RandomAudioSpec
from dyno.workload.datasets.images import (
    ImagesSpec,
    RandomMmSpec,
    parse_buckets,
    parse_limits,
)
from dyno.workload.draw import Draw
from dyno.workload.media import Medium, audio_file, image_file
from dyno.workload.recorded import read
from dyno.workload.request import Dropped, MediaRequest
from dyno.workload.tokenizer import Tokenizer

_OUTPUT_LEN = 256  # vLLM's, of custom data sets
_FEWEST_S = 0.1


# ---- images and videos ----


def random_mm(spec: RandomMmSpec, tokenizer: Tokenizer) -> Iterator[MediaRequest]:
    """Yield random prompts with images: number, kinds and sizes by vLLM's rule."""
    # The lengths are those of random prompts with this seed; warm-ups come after them, with another one.
    rounds = [spec]
    if spec.num_warmups:
        seed = int(np.random.default_rng([spec.seed, 16]).integers(1 << 31))
        rounds.append(
            msgspec.structs.replace(spec, seed=seed, num_prompts=spec.num_warmups)
        )
    for part in rounds:
        sampler = _Sampler(part)
        for number, request in enumerate(synthetic.random(part, tokenizer)):
            yield MediaRequest(
                request.prompt,
                request.prompt_tokens,
                request.output_tokens,
                media=list(sampler.media(number)),
            )


class _Sampler:
    """Draws the media of requests."""

    def __init__(self, spec: RandomMmSpec) -> None:
        self._spec = spec
        self._rng = np.random.default_rng([spec.seed, 17])
        self._shares = parse_buckets(spec.random_mm_bucket_config)
        self._limits = parse_limits(spec.random_mm_limit_mm_per_prompt)
        kinds = {bucket.kind for bucket in self._shares}
        allowed = sum(self._limits.get(kind, 0) for kind in kinds)
        base, ratio = (
            spec.random_mm_base_items_per_request,
            spec.random_mm_num_mm_items_range_ratio,
        )
        self._most = min(math.ceil(base * (1 + ratio)), allowed)
        self._least = min(math.floor(base * (1 - ratio)), self._most)

    def media(self, number: int) -> Iterator[Medium]:
        """Yield those of one request."""
        wanted = int(self._rng.integers(self._least, self._most + 1))
        left = dict(self._limits)
        shares = dict(self._shares)
        for item in range(wanted):
            buckets, weights = list(shares), np.array(list(shares.values()))
            bucket = buckets[int(self._rng.choice(len(buckets), p=weights / weights.sum()))]
            left[bucket.kind] -= 1
            if not left[bucket.kind]:
                shares = {b: s for b, s in shares.items() if b.kind != bucket.kind}
            yield Medium(
                bucket.kind,
                self._spec.image_format,
                bucket.width,
                bucket.height,
                bucket.frames,
                seed=self._seed(number, item),
            )

    def _seed(self, number: int, item: int) -> int:
        rng = np.random.default_rng([self._spec.seed, 18, number, item])
        return int(rng.integers(1 << 40))


class ImageLine(msgspec.Struct):
    prompt: str
    image_files: list[str] = []
    output_tokens: int | None = None


def custom_image(spec: ImagesSpec, tokenizer: Tokenizer) -> Iterator[MediaRequest]:
    """Yield prompts of the user with all of their images."""
    for where, line in _lines(spec, ImageLine, '{"prompt": "…", "image_files": ["a.png"]}'):
        if not line.image_files:
            raise WorkloadError(f"{where}: image_files is empty. Name at least one image.")
        media = [image_file(_beside(spec, name)) for name in line.image_files]
        count = tokenizer.count(line.prompt)
        output = spec.output_len or line.output_tokens or _OUTPUT_LEN
        yield MediaRequest(line.prompt, count, output, media=media)


# ---- sounds ----


def random_audio(spec: RandomAudioSpec, tokenizer: Tokenizer) -> Iterator[MediaRequest]:
    rng = np.random.default_rng([spec.seed, 19])
    count = spec.num_prompts + spec.num_warmups
    lengths = Draw.parse(spec.audio_len_s).numbers(rng, count, least=_FEWEST_S)
    seeds = rng.integers(1 << 40, size=count).tolist()
    for seconds, seed in zip(lengths, seeds, strict=True):
        output = spec.output_len or synthetic.RANDOM_OUTPUT_LEN
        sound = Medium("audio", "wav", seconds=round(seconds, 3), seed=seed)
        yield MediaRequest("", 0, output, media=[sound])


class AudioLine(msgspec.Struct):
    audio: str = ""
    audio_path: str = ""
    prompt: str = ""
    output_tokens: int | None = None


def custom_audio(
    spec: CustomAudioSpec, tokenizer: Tokenizer
) -> Iterator[MediaRequest | Dropped]:
    for where, line in _lines(spec, AudioLine, '{"audio": "a.wav", "prompt": "…"}'):
        name = line.audio or line.audio_path
        if not name:
            raise WorkloadError(f"{where}: audio is missing. Name the file of a sound.")
        sound = audio_file(_beside(spec, name))
        least, most = spec.asr_min_audio_len_sec, spec.asr_max_audio_len_sec or math.inf
        if sound.seconds and not least <= sound.seconds <= most:
            yield Dropped("sounds that are too short or too long")
            continue
        count = tokenizer.count(line.prompt) if line.prompt else 0
        output = spec.output_len or line.output_tokens or _OUTPUT_LEN
        yield MediaRequest(line.prompt, count, output, media=[sound])


def _lines(spec: Any, kind: type[Any], example: str) -> Iterator[tuple[str, Any]]:
    """Yield the lines of the file, each with its place in it."""
    if spec.path is None:
        raise WorkloadError(
            f"The dataset {spec.dataset} needs its file, one {example} a line: give it with "
            f"{setting_name('--dataset-path')}."
        )
    lines = []
    for number, raw in enumerate(read(spec.path).splitlines(), 1):
        where = f"{spec.path}, line {number}"
        if not raw.strip():
            continue
        try:
            lines.append((where, msgspec.json.decode(raw, type=kind, strict=False)))
        except files.BROKEN as e:
            raise WorkloadError(
                f"{where}: {e}. Each line must be like {example}."
            ) from None
    if spec.shuffle:
        Random(spec.seed).shuffle(lines)
    yield from lines


def _beside(spec: Any, name: str) -> Path:
    """Return the path of a file that a line names, below the folder of the lines: they may be someone else's."""
    try:
        return OutsideName(name).below(Path(spec.path).expanduser().parent)
    except UnsafeName:
        raise WorkloadError(
            f"{spec.path} names {name!r}. Name files relative to it, in its folder or below."
        ) from None
