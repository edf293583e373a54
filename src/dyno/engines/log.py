"""An engine's log: its lines about a failure, what to do about each, its remarks, and no secrets in it."""

import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import cast

from dyno import secrets
from dyno.engines.kinds import KINDS
from dyno.engines.kinds.base import Remarks
from dyno.facts.engine import About, Remark
from dyno.numbers import human_bytes
from dyno.option import with_names
from dyno.visible import one_line

_PIECE_BYTES = 1 << 20  # a log may have gigabytes
_PART_BYTES = 8 << 20
_TROUBLE = re.compile(
    r"error|fail|exception|abort|terminate|killed|out of memory|unable|cannot|not found|no such",
    re.I,
)
# by level: an engine that starts well has many
_MERE_WARNING = re.compile(r"\b(?:WARNING|INFO|DEBUG)\b|^\S+ [WID] ")
_NAMED = re.compile(r"\b\w*(?:Error|Exception)\b: \S")  # as Python ends a traceback

# Patterns of a failure, and what to do about it; {a setting} is named as the user gives it.
# The first match counts: causes come before consequences.
_ADVICE = {
    r"gated repo|access to model .{1,200} is restricted|401 client error|you need to be authenticated|"
    r"cannot access gated":
        "The model is gated. Request access on its page, and set HF_TOKEN in dyno's environment.",
    r"no available memory for the cache blocks|can be stored in (?:the )?kv cache|kv cache is needed, which is":
        "Weights and KV cache exceed its share of the memory. Raise {--gpu-memory-utilization}, lower "
        "{--max-model-len}, or use a smaller {--quantization} or more {--devices}.",
    r"out of memory|outofmemoryerror|memoryerror|failed to allocate|unable to allocate|cudamalloc failed|"
    r"less than desired (?:gpu|device) memory utilization|std::bad_alloc|not enough (?:gpu )?memory":
        "It ran out of memory. Lower {--max-model-len}, {--max-num-seqs} or {--gpu-memory-utilization}, use a smaller "
        "{--quantization} or more {--devices}, and stop other programs that use the memory.",
    r"address already in use|couldn't bind|could not bind|failed to bind|errno 98|port \d+ is (?:already )?in use":
        "Another program took the port. Run the command again.",
    r"unknown quantization|quantization method .{0,80}(?:not supported|does not match|is not)|"
    r"not supported for the current gpu|minimum capability|unsupported quantization|invalid quantization|"
    r"unknown (?:file )?type|unsupported kv cache type|does not support .{0,40}quant":
        "This engine or device doesn't support that quantization. Choose another quantization or build.",
    r"no cuda gpus are available|failed to infer device type|no (?:hip|rocm|cuda)[- ]capable device|"
    r"driver version is insufficient|invalid device ordinal|not compiled with cuda|libcuda\.so|no gpu was found|"
    r"invalid device: |hipErrorNoDevice|/dev/kfd":
        "It found no usable device. Check `dyno doctor`, the driver and {--devices}; a container needs the "
        "device options.",
    r"first request for one token.{0,60}\b40[13]\b": "It requires a key: set OPENAI_API_KEY to it.",
    r"no space left on device": "The disk is full. Free some space, or move HF_HOME and the engine's cache.",
    r"insufficient shared memory|bus error":
        "Shared memory is too small. A container needs --ipc=host or a larger --shm-size.",
    r"unrecognized arguments|unexpected argument|invalid choice|error: argument|error: invalid argument|"
    r"unknown argument|no such option|error while handling argument":
        "This version doesn't know one of the arguments. Check {--engine-args} against its flags.",
    r"unknown (?:model )?architecture|not supported for now|unsupported architecture|model type .{1,60} but":
        "This version doesn't support the model's architecture. Use a newer one.",
    r"corrupted or incomplete|not within the file bounds|incomplete metadata|failed to read (?:header|magic)|"
    r"invalid magic|safetensorerror":
        "The model's files are damaged or incomplete. Download them again.",
    r"is not a local folder|repository not found|repo id must|does not appear to have|no such file|"
    r"failed to open gguf|localentrynotfound|can't load the configuration|"
    r"couldn't connect to|not a valid model identifier|filenotfounderror|invalid repository id":
        "The model was not found. Check its path or name; without access to the hub, give a folder.",
    r"no module named|cannot import name|undefined symbol|libtorch|image not found":
        "Its installation is broken. Reinstall it with `dyno engines install`.",
    r"cannot execute|exec format error|permission denied|no such command":
        "The program can't be executed. Check {--engine-binary} or {--engine-python}, and its permissions.",
}  # fmt: skip


# pydantic's reason is in the line below.
_VALIDATION = re.compile(r"(validation errors? for \w+)\n\s+(.+?)(?: \[type=.*)?$", re.M)


def advice(lines: Iterable[str]) -> str | None:
    text = "\n".join(lines)
    fitting = (
        advice for pattern, advice in _ADVICE.items() if re.search(pattern, text, re.I)
    )
    return next(map(with_names, fitting), None)


def last_lines(log: Path, start: int, count: int) -> list[str]:
    """Return the lines after `start` that name a failure, or else the last ones."""
    text = _VALIDATION.sub(r"\1: \2", tail(log, start, 65_536))
    # not a row of progress dots
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    trouble = [line for line in lines if _is_trouble(line)]
    named = [line for line in trouble if _NAMED.search(line)]
    if named:  # the first are the cause; later ones say that something below them failed
        return list(dict.fromkeys([trouble[0], *named[:2], named[-1]]))
    if not trouble:
        return lines[-count:]
    if len(trouble) <= count:
        return trouble
    # the cause comes first, its consequences last
    return trouble[:2] + trouble[2 - count :]


def _is_trouble(line: str) -> bool:
    return bool(_TROUBLE.search(line)) and not _MERE_WARNING.search(line)


def last_line(log: Path, start: int) -> str:
    lines = tail(log, start, 4096).replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def tail(log: Path, start: int, most: int) -> str:
    with log.open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - most))
        return file.read().decode("utf-8", "replace")


def private(path: str, flags: int) -> int:
    """Open a log for its owner alone."""
    return os.open(path, flags, 0o600)


def excerpt(log: Path, start: int = 0, end: int | None = None) -> str:
    """Return the log from `start` to `end`: only the first and the last part of a very long one."""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END) if end is None else end
        file.seek(start)
        if (left_out := end - start - 2 * _PART_BYTES) <= 0:
            return file.read(max(end - start, 0)).decode("utf-8", "replace")
        first = file.read(_PART_BYTES).decode("utf-8", "replace")
        file.seek(end - _PART_BYTES)
        return f"{first}\n… {human_bytes(left_out)} omitted …\n{file.read(_PART_BYTES).decode('utf-8', 'replace')}"


def scrub(log: Path, secrets: Sequence[str]) -> None:
    """Overwrite secrets with as many stars, in place: the engine may still be writing behind them."""
    if not secrets or not log.exists():
        return
    overlap = max(len(secret.encode(errors="surrogateescape")) for secret in secrets)
    with log.open("r+b") as file:
        start = 0
        while data := os.pread(file.fileno(), _PIECE_BYTES + overlap, start):
            for secret in (s.encode(errors="surrogateescape") for s in secrets):
                for hit in re.finditer(re.escape(secret), data):
                    os.pwrite(file.fileno(), b"*" * len(secret), start + hit.start())
            start += _PIECE_BYTES


# ---- remarks: lines that say that it doesn't run as the setting or its reader would think ----
# Each engine's file has its own (`remarks`); here are those that several write.

_LONG = 2000  # characters: a line with a prompt in it, whose words are not the engine's
_SHOWN = 240
_REQUEST = re.compile(r"[Rr]eceived request|[Pp]rompt: ")
# Time, process and place in the source come before the words. An engine's own head is tried between the two.
_IN_SOURCE = r".{0,120}?\[[\w./]+:\d+\] "
_HEADS = (r"\[[^]]*\] ", r".{0,60}?\b(?:WARN(?:ING)?|INFO)\b:? ", r"[^:]{0,60}: ")
# Only lines with one of these are looked at more closely: a log may have 16 MB.
_WORDS = (
    "deprecat", "ignor", "no effect", "fall", "disabl", "disabled", "sub-optimal", "not fully optimized", "preempt",
    "retract", "scal", "eager", "unknown", "cannot use", "overrid", "reset to", "reduced", "forcing", "offloaded",
    "swap space", "slow", "native", "emulation", "precluded", "enabled by default", "failed to", "deactivating",
    "capping", "import", "casting",
)  # fmt: skip

_ANY: Remarks = {
    "deprecated": r"argument '[^']+' is deprecated|DEPRECATED: |--[\w-]+`?(?: option| flag)? (?:is|are|has been) "
    r"deprecated|\b(?!PYTORCH_)[A-Z][A-Z0-9_]{4,}(?: environment variable| on ROCm)? is deprecated"
    r"|quantization method \S+ is deprecated",
    "ignored": r"--[\w-]+\W[^\n]{0,80}?(?:will be|is|are) ignored|\w is currently not supported and will be ignored"
    r"|[Ii]gnoring (?:`?--|option ')|(?:--[\w-]+|parameter)`? (?:will have|has) no effect",
    "untuned": r"Performance might be sub-?optimal|quantization is not fully optimized yet",
    "kv_scales": r"KV cache scaling factors? (?:= )?1\.0|Defaulting to scaling factors of 1\.0|uncalibrated q_scale",
}


def remarks(kind: str, text: str) -> list[Remark]:
    """Return the engine's remarks in the order of the log, each once."""
    counted: dict[tuple[About, str], int] = {}
    known = KINDS.get(kind)
    own_heads, own_words = (known.log_heads, known.remark_words) if known else ((), ())
    pattern, heads = _pattern(kind), (_IN_SOURCE, *own_heads, *_HEADS)
    wanted = (*_WORDS, *own_words)
    for line in text.split("\n"):
        low = line[: _LONG + 1].lower()
        if (
            len(low) > _LONG
            or not any(word in low for word in wanted)
            or _REQUEST.search(line)
        ):
            continue
        line = one_line(line)
        match = pattern.search(line)
        if match is None or match.lastgroup is None:
            continue
        about, words = cast(About, match.lastgroup), _message(line, match.start(), heads)
        counted[about, words] = counted.get((about, words), 0) + 1
    return [Remark(about, line, count) for (about, line), count in counted.items()]


@cache
def _pattern(kind: str) -> re.Pattern[str]:
    own: Remarks = KINDS[kind].remarks if kind in KINDS else {}
    every = {name: [t[name] for t in (own, _ANY) if name in t] for name in (*own, *_ANY)}
    return re.compile(
        "|".join(f"(?P<{name}>{'|'.join(parts)})" for name, parts in every.items())
    )


def _message(line: str, start: int, heads: Sequence[str]) -> str:
    """Return the line without its head, which differs from copy to copy."""
    ends = (head.end() for pattern in heads if (head := re.match(pattern, line)))
    message = line[next((end for end in ends if end <= start), 0) :]
    return secrets.clean(secrets.without_looks(message))[:_SHOWN]
