"""Flags of other tools that dyno knows by name and doesn't do: refused with the reason, not as a slip of the pen."""

import argparse
from collections.abc import Mapping
from typing import Any

from dyno.errors import UsageError


class _Kept(argparse.Action):
    """With whatever follows it, so that its value isn't taken for something else."""

    def __init__(self, option_strings: list[str], dest: str, reason: str, **rest: Any) -> None:
        super().__init__(option_strings, dest, nargs="*", default=[], help=argparse.SUPPRESS, **rest)
        self.reason = reason

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.refused = [*namespace.refused, f"{option_string}: {self.reason}"]


def add(p: argparse.ArgumentParser, reasons: Mapping[str, str]) -> None:
    """`reasons`: the flag, or several names of one with spaces between."""
    for flags, reason in reasons.items():
        p.add_argument(*flags.split(), action=_Kept, dest="refused", reason=reason)


def check(options: argparse.Namespace) -> None:
    if options.refused:
        raise UsageError(" ".join(options.refused))
