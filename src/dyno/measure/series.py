"""What is compared in a report: a name for each result, made of what differs among them. The load is no part of it.

Two results with one name and one load are repeats of each other. What can't be told to be that gets a name of its own.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from dyno.facts.imported import Row, Scalar
from dyno.facts.measured import Measured
from dyno.facts.study import short
from dyno.measure.loads import Loads
from dyno.measure.model_name import named
from dyno.measure.pairs import passes
from dyno.measure.points import ASIDE, ENGINE, LOAD, subject

_WORDS = {"tensor_parallel": "tp", "pipeline_parallel": "pp", "max_num_seqs": "slots", "kv_cache_dtype": "KV"}
_BARE = {"study", "rig", "engine", "series", "model", "quantization", "accelerator", "file", "engine_version", "dtype"}
_BY_SILENCE = {"quantization", "kv_cache_dtype", "speculative"}
_ALOUD = {"verdict", "model_bytes", "parameters", "filename", "task_version", "n_kv"}  # follows from others
# Of a file's name, what is of one run alone: a number, a date, run2, seed7.
_OF_A_RUN = re.compile(r"(?:run|rep|repeat|iter|iteration|trial|try|seed|r)?\d+(?:st|nd|rd|th)?|copy|final", re.I)
# Of a load: c8, bs64, 16qps.
_LOAD_WORD = re.compile(
    r"(?:c|bs|b|n|p|in|out|isl|osl|qps|rps|conc|batch|rate)?(\d+(?:\.\d+)?)(?:qps|rps|in|out|k)?", re.I
)


def names(of: Sequence[Measured], loads: Loads) -> list[str]:
    """One for each; results that differ by their load alone have the same one."""
    called = any(m.row.series and m.place is None for m in of)
    cards = {str(m.row.told("accelerator") or "").lower() for m in of}
    facts = [_identity(m, called, len(cards) > 1) for m in of]
    apart = _telling(facts)
    told = [_named(f, apart) for f in facts]
    ways: tuple[Callable[[Sequence[Row]], list[str]], ...] = (
        _by_settings,
        lambda rows: _by_words([(row, row.label) for row in rows], loads),
        lambda rows: _by_words([(row, row.section) for row in rows], loads),
        lambda rows: _by_words([(row, row.file.rpartition("/")[2]) for row in rows], loads),
        _by_line,
    )
    for way in ways:
        for those in _mixed(of, told, loads):
            more = way([of[i].row for i in those])
            for i, words in zip(those, more, strict=True):
                told[i] = f"{told[i]} {words}".strip()
    return told


def _mixed(of: Sequence[Measured], told: Sequence[str], loads: Loads) -> list[list[int]]:
    """Of each name under which one load stands several times, and not as repeats: all that have it."""
    seen: dict[tuple[object, ...], list[Row]] = {}
    twice: set[str] = set()
    for m, name in zip(of, told, strict=True):
        key = (name, m.row.kind, m.row.tool, *sorted((k, str(v)) for k, v in loads.load(m.row).items()))
        if any(not _repeats(row, m.row, loads) for row in seen.get(key, [])):
            twice.add(name)
        seen.setdefault(key, []).append(m.row)
    return [[i for i, n in enumerate(told) if n == name] for name in sorted(twice)]


def _repeats(a: Row, b: Row, loads: Loads) -> bool:
    """Told to be so: by a number of the run, or by files that differ in nothing else. Of dyno's own, those that are
    have been put together before."""
    if a.form == "run":
        return False
    one, other = ({k: str(s.value) for k, s in row.settings.items()} for row in (a, b))
    differ = {k for k in one.keys() | other.keys() if one.get(k) != other.get(k)}
    if any(not passes(k) and k not in _ALOUD for k in differ):
        return False
    if a.file == b.file:
        return bool(differ - {"verdict", "percentiles"})
    return _stem(a, loads) == _stem(b, loads)


def _stem(row: Row, loads: Loads) -> list[str]:
    return _parts(row, row.file.rpartition("/")[2], loads)


def _parts(row: Row, words: str, loads: Loads) -> list[str]:
    """Words without what is of one run alone, and without the load's own numbers: h100-c8-run2.json → h100."""
    numbers = {f"{v:g}" for v in (*loads.axes(row).values(), *_numbers(loads.load(row)))}
    parts = re.split(r"[^A-Za-z0-9.+]+", re.sub(r"(?:\.(?:json|jsonl|csv|txt|log|md))+$", "", words))
    return [p for p in parts if p and not _OF_A_RUN.fullmatch(p) and not _is_load(p, numbers)]


def _numbers(load: Mapping[str, Scalar]) -> Iterable[float]:
    return (v for v in load.values() if isinstance(v, int | float) and not isinstance(v, bool))


def _is_load(word: str, numbers: set[str]) -> bool:
    found = _LOAD_WORD.fullmatch(word)
    return found is not None and f"{float(found[1]):g}" in numbers


# ---- what tells apart those that have one name ----


def _by_settings(rows: Sequence[Row]) -> list[str]:
    besides = [_besides(row) for row in rows]
    keys = _differing(besides)
    return [" ".join(_word(k, b[k]) for k in keys if b.get(k) not in (None, "")) for b in besides]


def _by_words(of: Sequence[tuple[Row, str]], loads: Loads) -> list[str]:
    """Those words of a label or of a file's name in which they differ."""
    parts = [_parts(row, words, loads) for row, words in of]
    common = set.intersection(*map(set, parts)) if parts else set()
    return [" ".join(p for p in words if p not in common) for words in parts]


def _by_line(rows: Sequence[Row]) -> list[str]:
    """Of a table its first line, which its other rows share; else each one's own."""
    first: dict[tuple[str, object], int] = {}
    for row in rows:
        place = (row.file, row.table)
        first[place] = min(row.line, first.get(place, row.line))
    if any(row.form == "run" for row in rows):
        return [f"({row.file.rpartition('/')[2]})" for row in rows]
    if len(first) > 1 and len(set(first.values())) > 1:
        return [f"(line {first[row.file, row.table]})" for row in rows]
    return [f"(line {row.line})" for row in rows]


# ---- names ----


def _identity(m: Measured, called: bool, cards: bool) -> dict[str, Scalar]:
    """`called`: some have a name of their author's. One that hasn't is then called by all it is. `cards`: accelerators
    differ."""
    row, place = m.row, m.place
    if place is not None:
        facts: dict[str, Scalar] = {"study": place.study, "rig": place.rig or str(row.told("accelerator") or "")}
        facts["engine"] = place.engine
        return facts | {k: short(v) for k, v in place.of("engine").items()}
    if row.series:
        return {"series": row.series.strip()}
    if called and row.form != "run":
        bare = row if cards else msgspec.structs.replace(
            row, settings={k: s for k, s in row.settings.items() if k != "accelerator"})  # fmt: skip
        return {"series": subject(bare)}
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
        key = next((k for k in ("engine", "series", "model") if k in facts), next(iter(facts)))
        parts = [_word(key, facts[key])]
    return " ".join(dict.fromkeys(parts))


def _word(key: str, value: Scalar) -> str:
    told = short(value) if not isinstance(value, str) else value.strip()
    if key in _BARE:
        return told
    if key == "accelerators":
        return f"×{told}"
    return f"{_WORDS[key]} {told}" if key in _WORDS else f"{key}={told}"
