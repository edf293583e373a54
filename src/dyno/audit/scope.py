"""How far something holds that is told before a result: a command, a dump of arguments, a line on a model.

In a listing with results it holds to the listing's end; else under its heading, until another of its kind is told.
"""

import msgspec

from dyno.facts.imported import RowKind, Setting

# By whom a row of a kind is told about; a later one stands above an earlier.
_ROLES: dict[RowKind, tuple[str, ...]] = {
    "serve": ("server", "client", "namespace"), "throughput": ("offline", "namespace"),
    "latency": ("offline", "namespace"), "quality": ("quality",), "micro": ("micro",),
}  # fmt: skip
# A client's command takes the place of what an earlier one has printed.
_REPLACES = {"client": {"client", "namespace"}}


class Told(msgspec.Struct, frozen=True):
    settings: dict[str, Setting]
    role: str
    tool: str  # whose command it is
    level: int  # of the heading under which it stands
    listing: int  # 0: outside


class Scope:
    def __init__(self) -> None:
        self._told: list[Told] = []

    def tell(self, settings: dict[str, Setting], role: str, tool: str, level: int, listing: int) -> None:
        gone = _REPLACES.get(role, {role})
        self._told = [t for t in self._told if t.role not in gone]
        self._told.append(Told(settings, role, tool, level, listing))

    def end_listing(self, listing: int) -> None:
        """One with results is closed in itself."""
        self._told = [t for t in self._told if t.listing != listing]

    def end_sections(self, level: int) -> None:
        """A heading ends those of its level and below."""
        self._told = [t for t in self._told if t.level < level]

    def of(self, kind: RowKind) -> dict[str, Setting]:
        out: dict[str, Setting] = {}
        for told in self._told:
            if told.role in _ROLES[kind]:
                out |= told.settings
        return out

    def client(self) -> str | None:
        """The tool that measured, where its command is told."""
        return next((t.tool for t in reversed(self._told) if t.role == "client"), None)
