"""Checks a tokenizer.json before it is used: its rules may make a text a million times as long."""

from typing import Any

import msgspec

from dyno import files

_GROWTH = 64.0  # times as long as the text; honest rules replace a space by a letter
_RULES = 200  # of one kind; honest files have a handful
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def growth_problem(data: bytes) -> str | None:
    """Say why a tokenizer could take all memory for a short text. None: it can't, or the library will refuse it."""
    try:
        document: Any = msgspec.json.decode(data)
    except files.BROKEN:
        return None
    if not isinstance(document, dict):
        return None
    for part in _PARTS:
        rules = _rules(document.get(part))
        if len(rules) > _RULES:
            return f"its {part} has {len(rules):,} rules"
        growth = 1.0
        for rule in rules:
            growth *= _factor(rule)
        if growth > _GROWTH:
            return f"its {part} makes a text up to {growth:,.0f} times as long"
    return None


def _rules(node: Any) -> list[dict[str, Any]]:
    """Return the rules of a part, those of its sequences in their order."""
    rules: list[dict[str, Any]] = []
    waiting = [node]
    while waiting and len(rules) <= _RULES:
        rule = waiting.pop()
        if isinstance(rule, list):
            waiting += reversed(rule)
        elif isinstance(rule, dict):
            rules.append(rule)
            waiting += [
                rule[key]
                for key in ("normalizers", "pretokenizers", "decoders", "processors")
                if key in rule
            ]
    return rules


def _factor(rule: dict[str, Any]) -> float:
    """Return by how much a rule can lengthen a text."""
    kind = rule.get("type")
    content: Any = ""
    if kind == "Replace":
        content = rule.get("content")
    elif kind == "Prepend":
        content = rule.get("prepend")
    if not isinstance(content, str):
        return 1.0
    if kind == "Prepend":
        return 1.0 + len(content)
    pattern = rule.get("pattern")
    text = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(text, str) and text:
        return max(1.0, len(content) / len(text))
    return 1.0 + len(content)  # a regex may match between any two letters
