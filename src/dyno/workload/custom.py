"""Prompts of the user's own, as JSON lines: {"prompt": text or ids, "output_tokens": number}."""

from collections.abc import Iterator
from random import Random
from typing import Annotated

import msgspec

from dyno import files
from dyno.errors import WorkloadError
from dyno.facts.request import Request
from dyno.facts.workload import WorkloadSpec
from dyno.workload.file import read
from dyno.workload.tokenizer import Tokenizer


class Line(msgspec.Struct):
    prompt: str | list[Annotated[int, msgspec.Meta(ge=0)]]
    output_tokens: int | None = None


def custom(spec: WorkloadSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    if spec.path is None:
        raise WorkloadError(
            'The dataset custom needs its file, one {"prompt": "…"} a line: give it with --dataset-path.'
        )
    lines = [
        _decode(raw, f"{spec.path}, line {number}", spec.output_len)
        for number, raw in enumerate(read(spec.path).splitlines(), 1)
        if raw.strip()
    ]
    if spec.shuffle:
        Random(spec.seed).shuffle(lines)  # vLLM's generator: the same seed gives the same order
    for prompt, output_tokens in lines:
        count = tokenizer.count(prompt) if isinstance(prompt, str) else len(prompt)
        yield Request(prompt, count, output_tokens)


def _decode(raw: bytes, where: str, output_len: int | None) -> tuple[str | list[int], int]:
    try:
        line = msgspec.json.decode(raw, type=Line, strict=False)
    except files.BROKEN as e:
        raise WorkloadError(
            f'{where}: {e}. Each line must be an object like {{"prompt": "text or list of ids", "output_tokens": 128}}.'
        ) from None
    if not line.prompt:
        raise WorkloadError(f"{where}: the prompt is empty. Fill it in or delete the line.")
    output_tokens = output_len or line.output_tokens
    if output_tokens is None:
        raise WorkloadError(f'{where}: no "output_tokens". Add it, or set one number for all with --custom-output-len.')
    if output_tokens < 1:
        raise WorkloadError(f'{where}: "output_tokens" is {output_tokens}; it must be at least 1.')
    return line.prompt, output_tokens
