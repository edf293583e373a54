"""What is compared in a report: a name for each result, made of what differs among them. The load is no part of it.

Two results with one name and one load are repeats of each other. What can't be told to be that gets a name of its own.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from dyno.facts.imported import Row, Scalar
from dyno.facts.load import LOAD, identity
from dyno.facts.measured import Measured
from dyno.facts.study import short
from dyno.measure.model_name import named
from dyno.measure.pairs import passes
from dyno.measure.points import ASIDE, ENGINE, subject
from dyno.report.loads import Loads

_WORDS = {"tensor_parallel": "tp", "pipeline_parallel": "pp", "max_num_seqs": "slots", "kv_cache_dtype": "KV"}
_BARE = {"study", "rig", "engine", "series", "model", "quantization", "accelerator", "file", "engine_version", "dtype"}
_WORDY = 40  # characters; a longer value is a sentence
_BY_SILENCE = {"quantization", "kv_cache_dtype", "speculative"}
_ALOUD = {"verdict", "model_bytes", "parameters", "filename", "task_version", "n_kv"}  # follows from others
# Of a file's name, what is of one run alone: run2, seed7, a date; a bare number only after such a word.
_RUNS = "run|rep|repeat|iter|iteration|trial|try|seed|r"
_OF_A_RUN = re.compile(rf"(?:{_RUNS})\d+|\d{{6,}}|copy|final|{_RUNS}", re.I)
_PLAIN = {"FP16", "F16", "FLOAT16", "BF16", "BFLOAT16", "NONE", "AUTO"}  # as good as nothing said
# Of a load: c8, bs64, 16qps.
_LOAD_WORD = re.compile(
    r"(?:c|bs|b|n|p|in|out|isl|osl|qps|rps|conc|batch|rate)?(\d+(?:\.\d+)?)(?:qps|rps|in|out|k)?", re.I
)


def names(of: Sequence[Measured], loads: Loads) -> list[str]:
    """One for each; results that differ by their load alone have the same one."""
    called = any(m.row.series and m.place is None for m in of)
    cards = {str(m.row.setting("accelerator") or "").lower() for m in of}
    silent = any(m.row.setting("quantization") is None for m in of)
    facts = [_without_plain(_identity(m, called, len(cards) > 1)) if silent else _identity(m, called, len(cards) > 1)
             for m in of]  # fmt: skip
    apart = _telling(facts)
    told = [_named(f, apart) for f in facts]
    ways: tuple[Callable[[Sequence[Row]], list[str]], ...] = (
        lambda rows: _by_settings(rows, loads),
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
    there: dict[tuple[object, ...], list[Row]] = {}
    for m, name in zip(of, told, strict=True):
        there.setdefault((name, *_load(m.row, loads)), []).append(m.row)
    twice = {str(key[0]) for key, rows in there.items() if len(rows) > 1 and not _repeats(rows, loads)}
    return [[i for i, n in enumerate(told) if n == name] for name in sorted(twice)]


def _load(row: Row, loads: Loads) -> tuple[object, ...]:
    return (row.kind, row.tool, *identity(loads.load(row)))


def _repeats(rows: Sequence[Row], loads: Loads) -> bool:
    """Told to be so: by a number of the run, or by files that differ in nothing else. Of dyno's own, those that are
    have been put together before."""
    if rows[0].form == "run":
        return False
    settings = {tuple(sorted((k, str(s.value)) for k, s in row.settings.items() if not _passing(k))) for row in rows}
    stems = {tuple(_parts(row, row.file.rpartition("/")[2], loads)) for row in rows}
    runs = {(row.file, *sorted((k, str(s.value)) for k, s in row.settings.items() if passes(k))) for row in rows}
    return len(settings) == len(stems) == 1 and len(runs) == len(rows)


def _passing(name: str) -> bool:
    return passes(name) or name in _ALOUD


def _parts(row: Row, words: str, loads: Loads) -> list[str]:
    """Words without what is of one run alone, and without the load's own numbers: h100-c8-run2.json → h100."""
    numbers = {f"{v:g}" for v in (*loads.axes(row).values(), *_numbers(loads.load(row)))}
    parts = re.split(r"[^A-Za-z0-9.+]+", re.sub(r"(?:\.(?:json|jsonl|csv|txt|log|md))+$", "", words))
    after = ["", *parts]
    return [
        p
        for before, p in zip(after, parts, strict=False)
        if p and not _is_load(p, numbers) and not _OF_A_RUN.fullmatch(p)
        and not (p.isdigit() and re.fullmatch(_RUNS, before, re.I))
    ]  # fmt: skip


def _numbers(load: Mapping[str, Scalar]) -> Iterable[float]:
    return (v for v in load.values() if isinstance(v, int | float) and not isinstance(v, bool))


def _is_load(word: str, numbers: set[str]) -> bool:
    found = _LOAD_WORD.fullmatch(word)
    if found is None:
        return False
    times = (1000, 1024) if word.lower().endswith("k") else (1,)
    return any(f"{float(found[1]) * t:g}" in numbers for t in times)


# ---- what tells apart those that have one name ----


def _by_settings(rows: Sequence[Row], loads: Loads) -> list[str]:
    """The fewest that do: those with few values first, and none that has another for every row."""
    besides = [_besides(row) for row in rows]
    values = {k: {str(b.get(k, "")) for b in besides} for k in _differing(besides)}
    levels = len({_load(row, loads) for row in rows})
    keys = [k for k, v in values.items() if max(map(len, v)) <= _WORDY and (len(v) < len(rows) or levels == 1)]
    taken: list[str] = []
    for key in sorted(keys, key=lambda k: (k not in ENGINE, len(values[k]))):
        before = _apart(rows, besides, taken, loads)
        if _apart(rows, besides, [*taken, key], loads) > before:
            taken.append(key)
    return [" ".join(_word(k, b[k]) for k in taken if b.get(k) not in (None, "")) for b in besides]


def _apart(rows: Sequence[Row], besides: Sequence[Mapping[str, Scalar]], keys: Sequence[str], loads: Loads) -> int:
    """How many can be told from all others under their load."""
    return len({(*_load(row, loads), *(str(b.get(k, "")) for k in keys)) for row, b in zip(rows, besides, strict=True)})


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
        facts: dict[str, Scalar] = {"study": place.study, "rig": place.rig or str(row.setting("accelerator") or "")}
        facts["engine"] = place.engine
        return facts | {k: short(v) for k, v in place.varying("engine").items()}
    if row.series:
        return {"series": row.series.strip()}
    if called and row.form != "run":
        bare = row if cards else msgspec.structs.replace(
            row, settings={k: s for k, s in row.settings.items() if k != "accelerator"})  # fmt: skip
        return {"series": subject(bare)}
    facts = _settings(row)
    return facts or {"file": row.label or row.file.rpartition("/")[2]}


def _without_plain(facts: dict[str, Scalar]) -> dict[str, Scalar]:
    """Where some say nothing of a quantization, to say that there is none is the same."""
    return {k: v for k, v in facts.items() if k != "quantization" or str(v).upper() not in _PLAIN} or facts


def _settings(row: Row) -> dict[str, Scalar]:
    """Of the engine and the machine."""
    found = {name: value for name in ENGINE if (value := row.setting(name)) is not None}
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
