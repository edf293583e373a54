"""What stands after a flag, read and checked: pairs, lists, ratios, JSON."""

import argparse
import json
import re
from typing import Any

from dyno.errors import UsageError
from dyno.facts.metric import GOODPUT

METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue")


def check_headers(headers: dict[str, str]) -> None:
    for name, value in headers.items():
        if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.A):
            # It isn't repeated: of 'Authorization: Bearer abc==' it is the key.
            raise UsageError("A header's name is one word. Write it with '=': --header 'Authorization=Bearer …'.")
        if not re.fullmatch(r"[ -~]*", value):
            raise UsageError(
                f"The header {name!r} holds characters that HTTP doesn't allow. Check it for line ends and for letters "
                "beyond ASCII."
            )


def sized(text: str) -> int:
    """For argparse: 500M, 20G, or bytes."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    try:
        size = int(float(number) * 1024 ** ("", "K", "M", "G", "T").index(unit))
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write bytes, or 500M, 20G.")
    return size


def metrics(text: str) -> list[str]:
    asked = [m.strip() for m in text.split(",") if m.strip()]
    for name in asked:
        if name not in METRICS:
            raise UsageError(f"--percentile-metrics: there is no {name!r}. Known: {', '.join(METRICS)}.")
    return [m for m in METRICS if m in asked]


def percentiles(text: str) -> list[float]:
    try:
        values = [float(p) for p in text.split(",")]
    except ValueError:
        raise UsageError(f"--metric-percentiles {text!r}: write numbers with commas, such as 50,90,99.") from None
    if not all(0 < p < 100 for p in values):
        raise UsageError(f"--metric-percentiles {text}: a percentile lies between 0 and 100.")
    return sorted(set(values))


def goodput(pairs: list[str]) -> dict[str, float]:
    targets = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        try:
            limit = float(value)
        except ValueError:
            raise UsageError(f"--goodput {pair!r}: write NAME:MILLISECONDS, such as ttft:500.") from None
        if name not in GOODPUT:
            raise UsageError(f"--goodput {pair!r}: there is no {name!r}. Known: {', '.join(GOODPUT)}.")
        if limit < 0:
            raise UsageError(f"--goodput {pair!r}: a latency limit can't be negative.")
        targets[name] = limit
    return targets


def pairs(texts: list[str], flag: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # The text itself may be a key: it isn't repeated here.
            raise UsageError(f"{flag} takes KEY=VALUE; one of the words given has no '='.")
        pairs[name.strip()] = value.strip()
    return pairs


def json_object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as e:
        raise UsageError(f"--extra-body is no JSON: {e}. Quote it as '{{\"key\": 1}}'.") from None
    if not isinstance(value, dict):
        raise UsageError("--extra-body must be a JSON object, such as '{\"min_tokens\": 1}'.")
    return value


def range_ratio(text: str) -> tuple[float, float]:
    try:
        value = json.loads(text)
        ratios = (float(value["input"]), float(value["output"])) if isinstance(value, dict) else (float(value),) * 2
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f'--random-range-ratio {text!r}: write a number from 0 to below 1, or {{"input": R, "output": R}}.'
        ) from None
    if not all(0 <= r < 1 for r in ratios):
        raise UsageError(f"--random-range-ratio {text}: it must be from 0 to below 1.")
    return ratios
