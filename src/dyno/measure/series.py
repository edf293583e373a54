"""What is compared in a report: a name for each result, made of what differs among them. The load is no part of it."""

from collections.abc import Mapping, Sequence

from dyno.facts.imported import Row, Scalar
from dyno.facts.measured import Measured
from dyno.facts.study import short
from dyno.measure.model_name import named
from dyno.measure.pairs import passes
from dyno.measure.points import ASIDE, ENGINE, LOAD, point, subject

_WORDS = {"tensor_parallel": "tp", "pipeline_parallel": "pp", "max_num_seqs": "slots", "kv_cache_dtype": "KV"}
_BARE = {"study", "rig", "engine", "series", "model", "quantization", "accelerator", "file", "engine_version", "dtype"}
_LONGEST = 60
_BY_SILENCE = {"quantization", "kv_cache_dtype", "speculative"}
_ALOUD = {"verdict", "model_bytes", "parameters", "filename", "task_version"}  # follows from others, or names a file


def names(of: Sequence[Measured]) -> list[str]:
    """One for each; results that differ by their load alone have the same one."""
    called = any(m.row.series and m.place is None for m in of)
    facts = [_identity(m, called) for m in of]
    apart = _telling(facts)
    told = [_named(f, apart) for f in facts]
    # Under one name and one load there may still be several settings: then these tell them apart.
    for those in _mixed(of, told):
        besides = {i: _besides(of[i].row) for i in those}
        keys = _differing(list(besides.values()))
        for i in those:
            told[i] = _named({"name": told[i], **besides[i]}, ["name", *keys])
    # … or nothing does but the table that they stand in.
    for those in _mixed(of, told):
        tables: dict[tuple[str, object], int] = {}
        for i in those:
            row = of[i].row
            tables[row.file, row.table] = min(row.line, tables.get((row.file, row.table), row.line))
        for i in those if len(tables) > 1 else []:
            line = tables[of[i].row.file, of[i].row.table]
            told[i] = f"{told[i]} (line {line})" if line else told[i]
    return told


def _mixed(of: Sequence[Measured], told: Sequence[str]) -> list[list[int]]:
    """All that have a name under which one load stands several times."""
    alike: dict[tuple[object, ...], set[str]] = {}
    twice: set[str] = set()
    for m, name in zip(of, told, strict=True):
        load = (name, m.row.kind, m.row.tool, point(m.row), m.row.get("completed") if m.row.kind == "serve" else None)
        if load in alike and m.row.at not in alike[load]:
            twice.add(name)
        alike.setdefault(load, set()).add(m.row.at)
    return [[i for i, n in enumerate(told) if n == name] for name in sorted(twice)]


def _identity(m: Measured, called: bool) -> dict[str, Scalar]:
    """`called`: some have a name of their author's. One that hasn't is then called by all it is."""
    row, place = m.row, m.place
    if place is not None:
        facts: dict[str, Scalar] = {"study": place.study, "rig": place.rig or str(row.told("accelerator") or "")}
        facts["engine"] = place.engine
        return facts | {k: short(v) for k, v in place.of("engine").items()}
    if row.series:
        return {"series": row.series.strip()}
    if called and row.form != "run":
        return {"series": subject(row)}
    facts = _settings(row)
    return facts or {"file": row.label or row.file.rpartition("/")[2]}


def _settings(row: Row) -> dict[str, Scalar]:
    """Of the engine and the machine."""
    found = {name: value for name in ENGINE if (value := row.told(name)) is not None}
    if "model" in found:
        found["model"] = named(str(found["model"])).name
    if "quantization" in found and len(str(found["quantization"])) <= 5:
        found["quantization"] = str(found["quantization"]).upper()  # fp8 and FP8 are one
    if found.get("accelerators") == found.get("tensor_parallel"):
        found.pop("accelerators", None)
    first = [name for name in ("engine", "model", "quantization", "accelerator") if name in found]
    return {name: found[name] for name in (*first, *found)}


def _besides(row: Row) -> dict[str, Scalar]:
    """Whatever else is told that is neither the load nor of one run alone."""
    rest = {k: s.value for k, s in row.settings.items() if k not in LOAD and k not in ASIDE and not passes(k)}
    return _settings(row) | {k: v for k, v in rest.items() if k not in _ALOUD}


def _telling(facts: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """Where some don't tell, nothing is known to differ; but who says nothing of a quantization has none."""
    return [
        key
        for key in _differing(facts)
        if key in _BY_SILENCE or len({str(f[key]) for f in facts if f.get(key) not in (None, "")}) > 1
    ]


def _differing(facts: Sequence[Mapping[str, Scalar]]) -> list[str]:
    keys = dict.fromkeys(key for f in facts for key in f)
    return [key for key in keys if len({str(f.get(key, "")) for f in facts}) > 1]


def _named(facts: Mapping[str, Scalar], differing: Sequence[str]) -> str:
    """Where nothing differs, the engine or what stands first."""
    parts = [_word(key, facts[key]) for key in differing if facts.get(key) not in (None, "")]
    if not parts:
        key = next((k for k in ("engine", "name", "series", "model") if k in facts), next(iter(facts)))
        parts = [_word(key, facts[key])]
    name = " ".join(dict.fromkeys(parts))
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def _word(key: str, value: Scalar) -> str:
    told = short(value) if not isinstance(value, str) else value.strip()
    if key in _BARE or key == "name":
        return told
    if key == "accelerators":
        return f"×{told}"
    return f"{_WORDS[key]} {told}" if key in _WORDS else f"{key}={told}"
