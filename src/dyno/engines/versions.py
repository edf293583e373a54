"""Engines by version, from versions.toml: the image that has one, and the packages that an old one needs."""

import functools
import re
import tomllib
from pathlib import Path

import msgspec

from dyno.errors import UsageError
from dyno.facts.engine import before, is_of, numbers


class KnownImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the table: one version, or all from `since` to before `until`."""

    engine: str
    variant: str
    image: str
    document: str
    version: str = ""
    since: str = ""
    until: str = ""
    latest: str = ""
    gone: str = ""

    def covers(self, version: str) -> bool:
        if self.version:
            return is_of(self.version, version)
        return not before(version, self.since) and (not self.until or before(version, self.until))


class Pins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engine: str
    since: str
    until: str
    packages: list[str]
    document: str


class VersionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    image: list[KnownImage]
    pins: list[Pins]


@functools.cache
def table() -> VersionTable:
    text = Path(__file__).with_suffix(".toml").read_text()
    return msgspec.convert(tomllib.loads(text), type=VersionTable)


def image_of(engine: str, variant: str, version: str | None) -> tuple[str, str | None]:
    """Return the image and its version; without a version, the newest image, whose version only it knows."""
    rows = [row for row in table().image if (row.engine, row.variant) == (engine, variant)]
    if not rows:
        known = ", ".join(dict.fromkeys(row.variant for row in table().image if row.engine == engine))
        others = f" It knows {known}." if known else ""
        raise UsageError(
            f"dyno knows no image of {engine} for {variant}.{others} Name one with --by container --from IMAGE."
        )
    if version is None:
        newest = next((row for row in reversed(rows) if row.latest), rows[-1])
        return newest.latest or newest.image, newest.version or None
    plain = version.removeprefix("v").removeprefix("b")
    # The exact one; else the last, which is the newest. One that is gone only where there is no other.
    matches = sorted((r for r in rows if r.covers(plain)), key=lambda r: (not r.gone, r.version in ("", plain)))
    if matches and not matches[-1].gone:
        row = matches[-1]
        return row.image.replace("{version}", plain), row.version or plain
    why = f"{matches[-1].image} had it, but {matches[-1].gone}. " if matches else ""
    raise UsageError(
        f"No image of {engine} {version} for {variant} is known. {why}Nearest: {_nearest(rows, plain)}. "
        "Or name one with --by container --from IMAGE."
    )


def _nearest(rows: list[KnownImage], version: str) -> str:
    """Return the closest version on either side."""
    bounds = {v for row in rows if not row.gone for v in (row.version or row.since, row.until) if v}
    below = [v for v in bounds if before(v, version)]
    above = [v for v in bounds if before(version, v)]
    return " or ".join([max(below, key=numbers)] * bool(below) + [min(above, key=numbers)] * bool(above))


def version_of(image: str) -> str | None:
    """Return an image's version by the table, or by its tag: v0.6.3, 2.4.0-rocm, server-cuda-b6327, vllm_0.6.4."""
    if row := next((row for row in table().image if row.version and row.image == image and not row.gone), None):
        return row.version
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    match = re.match(r"v?(\d+(?:\.\d+)+)", tag) or re.search(r"vllm_?(\d+(?:\.\d+)+)|\bb(\d{4,})", tag)
    return next(filter(None, match.groups())) if match else None


def pins(engine: str, version: str | None) -> list[str]:
    """Return constraints for pip: packages that came after this version broke it."""
    rows = [row for row in table().pins if row.engine == engine and version]
    return next((r.packages for r in rows if not before(version or "", r.since) and before(version or "", r.until)), [])
