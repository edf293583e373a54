"""Datasets read from a file: recorded conversations (ShareGPT), and prompts of the user's own as JSON lines."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Annotated, Any

import msgspec

from dyno import files
from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.scratch import scratch
from dyno.workload.common import CommonSpec
from dyno.workload.request import Request
from dyno.workload.tokenizer import Tokenizer

# Unpacked: JSON and CSV shrink to a tenth or a fiftieth, a bomb to a thousandth.
_RATIO, _SMALL = 200, 64 << 20  # times the packed size; bytes that need no ratio
MIN_TOKENS = 4
MAX_PROMPT_TOKENS = 1024
MAX_TOTAL_TOKENS = 2048
_MOST_ROWS = 20_000_000  # of a Parquet file, which packs equal rows to nothing


class ShareGptTurn(msgspec.Struct):
    value: str = ""


class Conversation(msgspec.Struct):
    conversations: list[ShareGptTurn] = []
    image: Any = None
    video: Any = None


def _check_text(entries: list[Conversation], path: str) -> None:
    """Refuse conversations about images, whose text alone is another load."""
    if any(entry.image or entry.video for entry in entries):
        raise WorkloadError(
            f"{path} asks about images or videos: dyno sends text only. Give another file with "
            f"{setting_name('--dataset-path')}."
        )


def sharegpt(spec: CommonSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield the first two turns of recorded conversations, chosen as vLLM chooses them."""
    if spec.path is None:
        raise WorkloadError(
            "The dataset sharegpt needs its file. Fetch ShareGPT_V3_unfiltered_cleaned_split.json from "
            "https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered and give it with "
            f"{setting_name('--dataset-path')}. {setting_name('--dataset-name')} sharegpt-shaped has about the "
            "same lengths and needs no file."
        )
    try:
        entries = msgspec.json.decode(read(spec.path), type=list[Conversation])
    except files.BROKEN as e:
        raise WorkloadError(
            f"{spec.path} is not ShareGPT's JSON, a list of "
            f'{{"conversations": [{{"value": "…"}}, …]}}: {e}. '
            f"Fetch it again, or use {setting_name('--dataset-name')} custom for JSON lines of your own."
        ) from None
    _check_text(entries, spec.path)
    pairs = [entry.conversations[:2] for entry in entries if len(entry.conversations) >= 2]
    if spec.shuffle:
        # vLLM's generator: the same seed gives the same order
        Random(spec.seed).shuffle(pairs)
    none = True
    for prompt, completion in pairs:
        prompt_tokens = tokenizer.count(prompt.value)
        if not MIN_TOKENS <= prompt_tokens <= MAX_PROMPT_TOKENS:
            continue
        output_tokens = spec.output_len or tokenizer.count(completion.value)
        if output_tokens < MIN_TOKENS and not spec.output_len:
            continue
        if prompt_tokens + output_tokens > MAX_TOTAL_TOKENS:
            continue
        none = False
        yield Request(prompt.value, prompt_tokens, output_tokens)
    if none:
        raise WorkloadError(
            f"None of the {len(entries)} conversations in {spec.path} can be used: {len(pairs)} have two turns, "
            f"and of these none has a prompt of {MIN_TOKENS} to {MAX_PROMPT_TOKENS} tokens, an answer of at least "
            f"{MIN_TOKENS}, and at most {MAX_TOTAL_TOKENS} together. Check {setting_name('--dataset-path')} and "
            f"{setting_name('--sharegpt-output-len')}."
        )


class CustomLine(msgspec.Struct):
    prompt: str | list[Annotated[int, msgspec.Meta(ge=0)]]
    output_tokens: int | None = None


def custom(spec: CommonSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield prompts of the user's own: {"prompt": text or ids, "output_tokens": number} a line."""
    if spec.path is None:
        raise WorkloadError(
            'The dataset custom needs its file, one {"prompt": "…"} a line: give it with '
            f"{setting_name('--dataset-path')}."
        )
    lines = [
        _decode(raw, f"{spec.path}, line {number}", spec.output_len)
        for number, raw in enumerate(read(spec.path).splitlines(), 1)
        if raw.strip()
    ]
    if spec.shuffle:
        # vLLM's generator: the same seed gives the same order
        Random(spec.seed).shuffle(lines)
    for prompt, output_tokens in lines:
        if isinstance(prompt, str) and not spec.skip_chat_template:
            prompt = templated(tokenizer, prompt)
        count = tokenizer.count(prompt) if isinstance(prompt, str) else len(prompt)
        yield Request(prompt, count, output_tokens)


def templated(tokenizer: Tokenizer, prompt: str, system: str = "") -> str:
    """Return the prompt as a chat's first message; as it is, where there is no template or the server applies it."""
    if tokenizer.template is None:
        return prompt
    messages = [{"role": "system", "content": system}] if system else []
    return tokenizer.template.render([*messages, {"role": "user", "content": prompt}])


def _decode(raw: bytes, where: str, output_len: int | None) -> tuple[str | list[int], int]:
    try:
        line = msgspec.json.decode(raw, type=CustomLine, strict=False)
    except files.BROKEN as e:
        raise WorkloadError(
            f'{where}: {e}. Each line must be an object like {{"prompt": "text or list of ids", "output_tokens": 128}}.'
        ) from None
    if not line.prompt:
        raise WorkloadError(f"{where}: the prompt is empty. Fill it in or delete the line.")
    output_tokens = output_len or line.output_tokens
    if output_tokens is None:
        raise WorkloadError(
            f'{where}: no "output_tokens". Add it, or set one number for all with '
            f"{setting_name('--custom-output-len')}."
        )
    if output_tokens < 1:
        raise WorkloadError(
            f'{where}: "output_tokens" is {output_tokens}; it must be at least 1.'
        )
    return line.prompt, output_tokens


def numbered_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that aren't empty, with their numbers. A list would take memory for each empty one."""
    number, end = 1, 0
    for match in re.finditer(rb"[^\r\n]+", data):
        number += data.count(b"\n", end, match.start())
        end = match.end()
        if match[0].strip():
            yield number, match[0]


def read(path: str) -> bytes:
    """Return the contents of a dataset's file, decompressed."""
    try:
        data = files.read(Path(path).expanduser(), files.DATA, pipes=True)
        if data[:2] == b"\x1f\x8b":
            most = min(files.DATA, max(_SMALL, _RATIO * len(data)))
            data = files.taken(
                io.BufferedReader(gzip.GzipFile(fileobj=io.BytesIO(data))), most, path
            )
    except FileNotFoundError:
        raise WorkloadError(
            f"There is no file {path}. Check {setting_name('--dataset-path')}."
        ) from None
    except IsADirectoryError:
        raise WorkloadError(
            f"{path} is a folder. Give the file in it with {setting_name('--dataset-path')}."
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise WorkloadError(
            f"{path} can't be decompressed: {e}. Was its download cut off?"
        ) from None
    except OSError as e:
        raise WorkloadError(
            f"{path} can't be read: {e.strerror}. Check {setting_name('--dataset-path')}."
        ) from None
    # the mark that some Windows editors put first
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data or data.isspace():
        raise WorkloadError(f"{path} is empty. Was its download cut off?")
    return data


# ---- rows of a file, whatever its kind ----


def table_rows(path: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield number, place and columns of each row. The kind of the file is known by its first bytes."""
    data = read(path)
    if data[:4] == b"PAR1":
        for number, row in enumerate(_parquet(data, path), 1):
            yield number, f"row {number}", row
        return
    text = data.removeprefix(b"\xef\xbb\xbf")
    if text.lstrip()[:1] == b"[":
        for number, row in enumerate(_json(text, list[dict[str, Any]], path), 1):
            yield number, f"entry {number}", row
    elif text.lstrip()[:1] == b"{":
        for number, line in numbered_lines(text):
            yield (
                number,
                f"line {number}",
                _json(line, dict[str, Any], f"{path}, line {number}"),
            )
    else:
        lines = csv.DictReader(io.StringIO(text.decode("utf-8", "replace")))
        try:
            for row in lines:
                yield (
                    lines.line_num,
                    f"line {lines.line_num}",
                    {k: v for k, v in row.items() if isinstance(k, str)},
                )
        except csv.Error as e:
            raise WorkloadError(
                f"{path}, line {lines.line_num}: {e}. Is it a CSV file?"
            ) from None


def _json(data: bytes, kind: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except files.BROKEN as e:
        raise WorkloadError(
            f"{where}: {e}. A trace in JSON has one object a line."
        ) from None


def _parquet(data: bytes, path: str) -> Iterator[dict[str, Any]]:
    import duckdb  # here and not above: it costs `dyno --help` a tenth of a second

    with scratch() as folder:
        file = folder / "trace.parquet"
        file.write_bytes(data)
        try:
            table = duckdb.connect()
            table.execute("SET threads = 1; SET memory_limit = '2GB'")
            (count,) = table.execute(
                "SELECT count(*) FROM read_parquet(?)", [str(file)]
            ).fetchone() or (0,)
            if count > _MOST_ROWS:
                raise WorkloadError(
                    f"{path} has {count:,} rows, more than dyno reads ({_MOST_ROWS:,})."
                )
            kinds = table.execute(
                "DESCRIBE SELECT * FROM read_parquet(?)", [str(file)]
            ).fetchall()
            quoted = [
                ('"' + name.replace('"', '""') + '"', kind) for name, kind, *_ in kinds
            ]
            columns = [
                f"epoch_us({c}) / 1e6" if kind.startswith("TIMESTAMP") else c
                for c, kind in quoted
            ]
            table.execute(f"SELECT {', '.join(columns)} FROM read_parquet(?)", [str(file)])
            while row := table.fetchone():
                yield dict(zip((name for name, *_ in kinds), row, strict=True))
        except duckdb.Error as e:
            raise WorkloadError(
                f"{path} is not readable Parquet: {str(e).splitlines()[0]}."
            ) from None
