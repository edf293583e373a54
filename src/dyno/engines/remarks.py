"""Lines of an engine's log that say: it doesn't run as the setting or its reader would think.

Each engine's file has its own (`remarks`); here are those that several write.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import cast

from dyno import secrets
from dyno.engines.kinds import KINDS
from dyno.engines.kinds.base import Remarks
from dyno.facts.engine import About, Remark
from dyno.visible import one_line

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
