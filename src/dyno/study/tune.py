"""Read a study's [tune]: which settings of an engine may change, within what, and what is best."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec
from dyno.facts.recipe import ModelRecipe
from dyno.facts.tune import OBJECTIVES, TuneAxis, TuneSpec
from dyno.study.cells import CELLS, converted, hints
from dyno.study.document import Path, TomlDocument, near

_TOP = hints(TuneSpec, "settings", "weights", "target")
# They say which program runs where, not how it is set.
_FIXED = {"kind", "served_name", "weights", "host", "port", "before", "after", "ready_timeout_s", "ready_stall_s",
          "version", "accepts"}  # fmt: skip
KEYS = [key for key in hints(EngineSpec) if key not in _FIXED]
_RANGE = {"from": float, "to": float, "log": bool}
_WHERE: Path = ("tune", "settings")


def read(
    doc: TomlDocument, engines: list[str], models: Mapping[str, ModelRecipe | None]
) -> TuneSpec | None:
    table = doc.tree.get("tune")
    if table is None:
        return None
    if not isinstance(table, dict):
        doc.mistake(("tune",), "must be a table.")
        return None
    for key in table:
        if key not in _TOP and key not in ("settings", "target"):
            doc.unknown_key(("tune", key), [*_TOP, "settings", "target"])
    top = {
        k: converted(doc, ("tune", k), hint, table[k])
        for k, hint in _TOP.items()
        if k in table
    }
    spec = TuneSpec(
        _settings(doc, table.get("settings")),
        **{k: v for k, v in top.items() if v is not None},
        target=_target(doc, table.get("target", [])),
    )
    if spec.engine is not None and spec.engine not in engines:
        doc.unknown(("tune", "engine"), spec.engine, engines, "engine")
    elif spec.engine is None and len(engines) > 1:
        doc.mistake(("tune",), f"engine is missing: this study has {', '.join(engines)}.")
    _check_objective(doc, spec)
    return msgspec.structs.replace(spec, weights=_weights(spec, models))


def _weights(
    spec: TuneSpec, models: Mapping[str, ModelRecipe | None]
) -> dict[str, ModelRecipe]:
    """Return the recipes of the models that the search may choose."""
    names: set[str] = set()
    for key in ("model", "draft_model"):
        if key in spec.settings:
            names |= {str(value) for value in spec.settings[key].values}
    recipes = {}
    for name in sorted(names):
        recipe = models.get(name)
        if recipe:
            recipes[name] = recipe
    return recipes


def _target(doc: TomlDocument, value: Any) -> list[str]:
    if isinstance(value, str):
        value = value.split()
    return converted(doc, ("tune", "target"), list[str], value) or []


def _check_objective(doc: TomlDocument, spec: TuneSpec) -> None:
    try:
        limits = spec.limits
    except UsageError as e:
        doc.mistake(("tune", "target"), str(e).removeprefix("target "))
        return
    if spec.objective == "load" and not limits:
        doc.mistake(
            ("tune", "objective"), 'load needs a target, such as target = ["ttft_p99:500"].'
        )
    try:
        known = spec.latency is None or not spec.latency.is_share
    except UsageError:
        known = False
    if not known:
        meant = near(
            spec.objective, [*OBJECTIVES, "ttft_p99", "tpot_mean", "itl_p99", "e2el_p99"]
        )
        hint = f" Did you mean {meant}?" if meant else ""
        names = f"{', '.join(OBJECTIVES)}, or a latency such as ttft_p99"
        doc.mistake(
            ("tune", "objective"),
            f"there is no objective {spec.objective!r}.{hint} Known: {names}.",
        )


def own_argument(key: str) -> bool:
    """Return whether it is an argument in the engine's own words: --threads, or slots= of the fake engine."""
    return key.startswith("-") or key.endswith("=")


def _settings(doc: TomlDocument, table: Any) -> dict[str, TuneAxis]:
    if not isinstance(table, dict) or not table:
        doc.mistake(
            ("tune",),
            "settings is missing: write settings.KEY = [values] for each setting that may change.",
        )
        return {}
    out = {}
    for key, value in table.items():
        if not own_argument(key) and key not in KEYS:
            doc.unknown_key((*_WHERE, key), KEYS)
        elif (axis := _axis(doc, key, value)) is not None:
            out[key] = axis
    return out


def _axis(doc: TomlDocument, key: str, value: Any) -> TuneAxis | None:
    path = (*_WHERE, key)
    hint = str | int | float | bool if own_argument(key) else CELLS["engine"][key]
    if isinstance(value, dict) and (
        value.keys() & {"from", "to"} or key not in ("env", "container")
    ):
        return _range(doc, path, hint, value)
    if not isinstance(value, list) or not value:
        doc.mistake(path, "must be a list of values, or a range: { from = 1, to = 64 }.")
        return None
    each = [converted(doc, path, hint, v) for v in value]
    distinct = [v for i, v in enumerate(each) if v is not None and v not in each[:i]]
    return TuneAxis(distinct)


def _range(
    doc: TomlDocument, path: Path, hint: Any, table: dict[str, Any]
) -> TuneAxis | None:
    for key in table.keys() - _RANGE.keys():
        doc.unknown_key((*path, key), list(_RANGE))
    ends = [table.get("from"), table.get("to")]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in ends):
        doc.mistake(path, "a range needs two numbers: { from = 1, to = 64 }.")
        return None
    low, high = (converted(doc, path, hint, n) for n in ends)
    if low is None or high is None:
        return None
    low, high = float(low), float(high)
    if low >= high:
        doc.mistake(path, f"from {low:g} must be below to {high:g}.")
        return None
    log = table.get("log", False)
    if not isinstance(log, bool) or (log and low <= 0):
        doc.mistake(
            path, "log must be true or false; with log = true, from must be above 0."
        )
        return None
    return TuneAxis(
        least=low, most=high, log=log, whole=all(isinstance(n, int) for n in ends)
    )
