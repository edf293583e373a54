"""`--class 'chat: request_rate_rps=2 input_len=512'`: a class of traffic, in the keys of a study."""

from difflib import get_close_matches
from typing import Any

import msgspec

from dyno.cli import flags, vocabulary
from dyno.errors import UsageError
from dyno.facts import rules
from dyno.option import fields, problems
from dyno.workload.datasets import DATASETS, DEFAULT
from dyno.workload.spec import TrafficClass

EXAMPLE = "'chat: request_rate_rps=2 input_len=512 priority=0 goodput=ttft:500,tpot:30'"
_KEYS = [
    name
    for name in fields(TrafficClass)
    if name not in ("classes", "num_prompts", "num_sessions", "num_warmups")
]


def classes(texts: list[str]) -> dict[str, TrafficClass]:
    parts = {}
    for text in texts:
        name, colon, rest = (part.strip() for part in text.partition(":"))
        if not colon or not name or "=" in name or name in parts:
            why = f"names {name} twice" if name in parts else "has no name"
            raise UsageError(f"--class {text!r} {why}. Write --class {EXAMPLE}.")
        parts[name] = _class(
            name, flags.pairs(flags.shell_words([rest], "--class"), "--class")
        )
    return parts


def _class(name: str, given: dict[str, str]) -> TrafficClass:
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key == "goodput":
            values["goodput_ms"] = flags.goodput(text.split(","))
        elif key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            hint = (
                f"Did you mean {near[0]}?"
                if near
                else f"It has {', '.join(_KEYS)}, goodput."
            )
            raise UsageError(f"--class {name}: a class of traffic has no {key}. {hint}")
        else:
            values[key] = text.split(",") if key == "lora_modules" else text
    try:
        part = msgspec.convert(values, TrafficClass, strict=False)
    except msgspec.ValidationError as e:
        raise UsageError(f"--class {name}: {e}.") from None
    limits = rules.GivenSettings({"goodput_ms": part.goodput_ms}, DATASETS[DEFAULT])
    for mistake in rules.mistakes(rules.TRIAL, limits, "flags"):
        raise UsageError(f"--class {name}: {vocabulary.sentence(mistake)}")
    for why in problems(part):
        raise UsageError(f"--class {name}: {why}.")
    return part
