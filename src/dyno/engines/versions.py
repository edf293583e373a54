"""Engines by version, from versions.toml: the image that has one, and the packages that an old one needs."""

import functools
import re
import tomllib
from pathlib import Path

import msgspec

from dyno.engines.kinds import KINDS
from dyno.engines.kinds.recipe import KnownImage
from dyno.errors import UsageError
from dyno.facts.engine import accepted, before, numbers


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


def known_images() -> list[KnownImage]:
    """Return the images of the table, and those that engines' files name."""
    return [*table().image, *(image for kind in KINDS.values() for image in kind.images)]


# AMD's names of cards, as drivers and people write them.
_ARCHITECTURES = {
    r"\bmi2\d\d": "gfx90a", r"\bmi3(?!5)": "gfx942", r"\bmi35": "gfx950", r"strix halo|80[56]0s|ai max": "gfx1151",
    r"\brx 79": "gfx1100", r"\brx 90": "gfx1201",
}  # fmt: skip


def architecture_of(name: str) -> str | None:
    """Return the architecture of an AMD card by its name. None: the name doesn't say."""
    return next(
        (
            gfx
            for pattern, gfx in _ARCHITECTURES.items()
            if re.search(pattern, name.lower())
        ),
        None,
    )


def image_of(
    engine: str,
    variant: str,
    version: str | None,
    architecture: str | None = None,
    accepts: str | None = None,
) -> tuple[str, str | None]:
    """Return the image and its version; without a version, the newest image, whose version only it knows.

    `architecture`: that it must be built for. `accepts`: versions that serve as well, where this one has no image."""
    rows = _rows(engine, variant, architecture)
    if version is None:
        newest = next((row for row in reversed(rows) if row.latest), rows[-1])
        return newest.latest or newest.image, newest.version or None
    plain = version.removeprefix("v").removeprefix("b")
    row = _covering(rows, plain)
    if row is not None and not row.gone:
        return row.image.replace("{version}", plain), row.version or plain
    other = _accepted(rows, plain, accepts) if accepts else None
    if other:
        return other
    why = f"{row.image} had it, but {row.gone}. " if row is not None else ""
    card = f" on {architecture}" if architecture else ""
    raise UsageError(
        f"No image of {engine} {version} for {variant}{card} is known. {why}Nearest: {_nearest(rows, plain)}. "
        "Or name one with --by container --from IMAGE."
    )


def _covering(rows: list[KnownImage], version: str) -> KnownImage | None:
    """Return the line for a version: the exact one, else the last, which is the newest. One that is gone only where
    there is no other."""
    matches = [row for row in rows if row.covers(version)]
    return max(
        reversed(matches),
        key=lambda row: (not row.gone, row.version in ("", version)),
        default=None,
    )


def _rows(engine: str, variant: str, architecture: str | None) -> list[KnownImage]:
    """Return the lines of the table for an engine, a variant and a card. Raise where there are none."""
    every = [
        row for row in known_images() if (row.engine, row.variant) == (engine, variant)
    ]
    rows = [row for row in every if row.fits(architecture)]
    if rows:
        return rows
    advice = "Name one with --by container --from IMAGE."
    if every:
        raise UsageError(
            f"No image of {engine} for {variant} is known that was built for {architecture}. {advice}"
        )
    known = ", ".join(
        dict.fromkeys(row.variant for row in known_images() if row.engine == engine)
    )
    others = f" It knows {known}." if known else ""
    raise UsageError(f"dyno knows no image of {engine} for {variant}.{others} {advice}")


def _accepted(rows: list[KnownImage], version: str, accepts: str) -> tuple[str, str] | None:
    """Return the image of the nearest version within the range, a later one before an earlier one."""
    within = []
    for row in rows:
        known = row.version or row.since
        if not row.gone and accepted(known, accepts):
            within.append((numbers(known), known, row.image))
    if not within:
        return None
    within.sort()
    later = [each for each in within if each[0] >= numbers(version)]
    _, nearest, image = later[0] if later else within[-1]
    return image.replace("{version}", nearest), nearest


def _nearest(rows: list[KnownImage], version: str) -> str:
    """Return the closest version on either side."""
    bounds = set()
    for row in rows:
        if not row.gone:
            bounds |= {row.version or row.since, row.until}
    known = [v for v in bounds if v]
    below = max((v for v in known if before(v, version)), key=numbers, default="")
    above = min((v for v in known if before(version, v)), key=numbers, default="")
    return " or ".join(filter(None, [below, above]))


def version_of(image: str) -> str | None:
    """Return an image's version by the table, or by its tag: v0.6.3, 2.4.0-rocm, server-cuda-b6327, vllm_0.6.4."""
    for row in known_images():
        if row.version and row.image == image and not row.gone:
            return row.version
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    in_tags = "|".join(
        kind.version_in_tag for kind in KINDS.values() if kind.version_in_tag
    )
    match = re.match(r"v?(\d+(?:\.\d+)+)", tag) or re.search(in_tags, tag)
    return next(filter(None, match.groups())) if match else None


def pins(engine: str, version: str | None) -> list[str]:
    """Return constraints for pip: packages that came after this version broke it."""
    if not version:
        return []
    for row in table().pins:
        if (
            row.engine == engine
            and before(version, row.until)
            and not before(version, row.since)
        ):
            return row.packages
    return []
