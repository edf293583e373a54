"""What is compared in a report: a name for each result, made of what differs among them. The load is no part of it."""

from collections.abc import Mapping, Sequence

from dyno.facts.imported import Row, Scalar
from dyno.facts.measured import Measured
from dyno.facts.study import short
from dyno.measure.model_name import named
from dyno.measure.pairs import passes
from dyno.measure.points import ASIDE, ENGINE, LOAD, point

_WORDS = {"tensor_parallel": "tp", "pipeline_parallel": "pp", "max_num_seqs": "slots", "kv_cache_dtype": "KV"}
_BARE = {"study", "rig", "engine", "series", "model", "quantization", "accelerator", "file", "engine_version", "dtype"}
_LONGEST = 60
_BY_SILENCE = {"quantization", "kv_cache_dtype", "speculative"}
_ALOUD = {"verdict", "model_bytes", "parameters", "filename", "task_version"}  # follows from others, or names a file


def names(of: Sequence[Measured]) -> list[str]:
    """One for each; results that differ by their load alone have the same one."""
    facts = [_identity(m) for m in of]
    apart = _telling(facts)
    told = [_named(f, apart) for f in facts]
    # Under one name and one load there may still be several settings: then these tell them apart.
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, (m, name) in enumerate(zip(of, told, strict=True)):
        alike.setdefault((name, m.row.kind, m.row.tool, point(m.row)), []).append(i)
    mixed = {told[i] for same in alike.values() if len(same) > 1 for i in same}
    for name in mixed:
        those = [i for i, n in enumerate(told) if n == name]
        besides = {i: _besides(of[i].row) for i in those}
        keys = _differing(list(besides.values()))
        for i in those:
            told[i] = _named({"name": name, **besides[i]}, ["name", *keys])
    return told


def _identity(m: Measured) -> dict[str, Scalar]:
    row, place = m.row, m.place
    if place is not None:
        facts: dict[str, Scalar] = {"study": place.study, "rig": place.rig or str(row.told("accelerator") or "")}
        facts["engine"] = place.engine
        return facts | {k: short(v) for k, v in place.of("engine").items()}
    if row.series:
        return {"series": row.series.strip()}
    facts = _settings(row)
    return facts or {"file": row.label or row.file.rpartition("/")[2]}


def _settings(row: Row) -> dict[str, Scalar]:
    """Of the engine and the machine."""
    found = {name: value for name in ENGINE if (value := row.told(name)) is not None}
    if "model" in found:
        found["model"] = named(str(found["model"])).name
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
    return f"{_WORDS[key]} {told}" if key in _WORDS else f"{key}={told}"
