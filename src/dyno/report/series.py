"""Under which load each result of a report was measured, and the name of its series: made of what differs among all
results but for the load.

Two results with one name and one load are repeats of each other. Any other result gets a name of its own.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from dyno.facts.imported import Row, Scalar
from dyno.facts.load import LOAD, ONE_WORKLOAD, Load, near, plain
from dyno.facts.study import Place, short
from dyno.measure.pairs import passes
from dyno.measure.points import (
    ASIDE,
    ENGINE,
    ModelName,
    input_each,
    load_of,
    named,
    subject,
)

_WORDS = {
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "max_num_seqs": "slots",
    "kv_cache_dtype": "KV",
}
_BARE = {
    "study",
    "rig",
    "engine",
    "series",
    "model",
    "quantization",
    "accelerator",
    "file",
    "engine_version",
    "dtype",
}
_WORDY = 40  # characters; a longer value is a sentence
_BY_SILENCE = {"quantization", "kv_cache_dtype", "speculative"}
# follows from others
_ALOUD = {"verdict", "model_bytes", "parameters", "filename", "task_version", "n_kv"}
# Of a file's name, what is of one run alone: run2, seed7, a date; a bare number only after such a word.
_RUNS = "run|rep|repeat|iter|iteration|trial|try|seed|r"
_ONE_RUN = re.compile(rf"(?:{_RUNS})\d+|\d{{6,}}|copy|final|{_RUNS}", re.I)
# a study of flags calls a server by it where it has no label
_ADDRESS = re.compile(r"\S+:\d+")
_PLAIN = {"FP16", "F16", "FLOAT16", "BF16", "BFLOAT16", "NONE", "AUTO"}  # same as not given
# Of a load: c8, bs64, 16qps.
_LOAD_WORD = re.compile(
    r"(?:c|bs|b|n|p|in|out|isl|osl|qps|rps|conc|batch|rate)?(\d+(?:\.\d+)?)(?:qps|rps|in|out|k)?",
    re.I,
)


class Loads:
    """The loads of all results together: where a file has neither dataset nor lengths, only the others say whether
    79.5 and 82.1 tokens a prompt are one workload."""

    def __init__(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        lengths = [row.number("input_len") for row in rows if row.form != "run"]
        asked = sorted({length for length in lengths if length is not None})
        means = {length for row in rows if (length := _mean_length(row)) is not None}
        # A mean near a length that another result has is of that workload.
        self._asked = {
            m: length for m in means for length in asked if near(m, length, ONE_WORKLOAD)
        }
        self._lengths = _alike(means - self._asked.keys())

    def load(self, row: Row) -> Load:
        """Return the load, with the length of prompts where that is all that is known of them."""
        load = load_of(row)
        asked = self._asked.get(_mean_length(row) or -1.0)
        if asked is not None:
            return replace(load, settings={**load.settings, "input_len": plain(asked) or 0})
        length = self._length(row)
        if length is not None:
            return replace(load, settings={**load.settings, "context": length})
        return load

    def _length(self, row: Row) -> float | None:
        # Where all prompts are alike, their length says nothing of the load.
        if len({*self._lengths.values(), *self._asked.values()}) < 2:
            return None
        return self._lengths.get(_mean_length(row) or -1.0)

    def key(self, row: Row) -> tuple[object, ...]:
        """Return a key that results of one kind, tool and load share."""
        return row.kind, row.tool, self.load(row)


def _mean_length(row: Row) -> float | None:
    """Return the mean length of prompts, where the dataset is unknown."""
    if row.form == "run" or row.kind not in ("serve", "throughput"):
        return None
    if row.setting("dataset") is not None or row.number("input_len") is not None:
        return None
    each = input_each(row)
    return each if each is not None and each > 0 else None


def _alike(lengths: set[float]) -> dict[float, float]:
    """Return the rounded length of the workload of each length."""
    clusters: list[list[float]] = []
    for length in sorted(lengths):
        if clusters and near(length, clusters[-1][0], ONE_WORKLOAD):
            clusters[-1].append(length)
        else:
            clusters.append([length])
    out = {}
    for cluster in clusters:
        mean = float(f"{sum(cluster) / len(cluster):.3g}")
        out.update(dict.fromkeys(cluster, mean))
    return out


# ---- names ----


def names(rows: Sequence[Row], loads: Loads) -> list[str]:
    """Return the name of each result; results that differ by their load alone have the same one."""
    facts = _identities(rows)
    differing = _naming(facts)
    out = [_named(f, differing) for f in facts]
    ways: tuple[Callable[[Sequence[Row]], list[str]], ...] = (
        lambda some: _by_settings(some, loads),
        lambda some: _by_words(
            some, ["" if _unnamed(row) else row.label for row in some], loads
        ),
        lambda some: _by_words(some, [row.section for row in some], loads),
        lambda some: _by_turn(some, loads),
        lambda some: _by_words(some, [_file_name(row) for row in some], loads),
        _by_line,
    )
    for way in ways:
        for indices in _mixed(rows, out, loads):
            for i, words in zip(indices, way([rows[i] for i in indices]), strict=True):
                out[i] = f"{out[i]} {words}".strip()
    return out


def _mixed(rows: Sequence[Row], names: Sequence[str], loads: Loads) -> list[list[int]]:
    """Return the results that share a name under one load without being repeats."""
    by_load: dict[tuple[object, ...], list[Row]] = {}
    for row, name in zip(rows, names, strict=True):
        by_load.setdefault((name, *loads.key(row)), []).append(row)
    twice = set()
    for key, some in by_load.items():
        if len(some) > 1 and not _repeats(some, loads):
            twice.add(str(key[0]))
    return [[i for i, n in enumerate(names) if n == name] for name in sorted(twice)]


def _repeats(rows: Sequence[Row], loads: Loads) -> bool:
    """Return whether rows are repeats: by a run number, or by files that differ in nothing else. dyno's own repeats are
    joined before."""
    if rows[0].form == "run":
        return False
    settings, stems, runs = set(), set(), set()
    for row in rows:
        values = {name: str(setting.value) for name, setting in row.settings.items()}
        passing = {
            name: value
            for name, value in values.items()
            if passes(name, row.tool == "dyno")
        }
        lasting = {
            name: value
            for name, value in values.items()
            if name not in passing and name not in _ALOUD
        }
        settings.add(tuple(sorted(lasting.items())))
        stems.add(tuple(_parts(row, _file_name(row), loads)))
        runs.add((row.file, *sorted(passing.items())))
    return len(settings) == len(stems) == 1 and len(runs) == len(rows)


def _file_name(row: Row) -> str:
    return row.file.rpartition("/")[2]


def _parts(row: Row, words: str, loads: Loads) -> list[str]:
    """Return words without those of one run alone and without the load's own numbers: h100-c8-run2.json → h100."""
    load = loads.load(row)
    numbers = {f"{v:g}" for name in load.settings if (v := load.number(name)) is not None}
    numbers |= {f"{v:g}" for v in load.axes.values()}
    stem = re.sub(r"(?:\.(?:json|jsonl|csv|txt|log|md))+$", "", words)
    out = []
    before = ""
    for part in re.split(r"[^A-Za-z0-9.+]+", stem):
        if part and not _is_load(part, numbers) and not _is_run(part, before):
            out.append(part)
        before = part
    return out


def _is_run(word: str, before: str) -> bool:
    """Return whether a word is of one run alone: run2, or the 2 of run-2."""
    if _ONE_RUN.fullmatch(word):
        return True
    return word.isdigit() and re.fullmatch(_RUNS, before, re.I) is not None


def _is_load(word: str, numbers: set[str]) -> bool:
    match = _LOAD_WORD.fullmatch(word)
    times = (1000, 1024) if word.lower().endswith("k") else (1,)
    return match is not None and any(f"{float(match[1]) * t:g}" in numbers for t in times)


# ---- how results with the same name are distinguished ----


def _by_settings(rows: Sequence[Row], loads: Loads) -> list[str]:
    """Distinguish by the fewest settings: those with few values first, and none that has another for every row."""
    besides = [_besides(row) for row in rows]
    keys_of_loads = [loads.key(row) for row in rows]

    def distinct(keys: Sequence[str]) -> int:
        """Count those that differ from all others under their load."""
        each = zip(keys_of_loads, besides, strict=True)
        return len({(*load, *(str(b.get(k, "")) for k in keys)) for load, b in each})

    values = {k: {str(b.get(k, "")) for b in besides} for k in _differing(besides)}
    one_load = len(set(keys_of_loads)) == 1

    def usable(key: str) -> bool:
        longest = max(map(len, values[key]))
        return longest <= _WORDY and (one_load or len(values[key]) < len(rows))

    taken: list[str] = []
    for key in sorted(
        filter(usable, values), key=lambda k: (k not in ENGINE, len(values[k]))
    ):
        if distinct([*taken, key]) > distinct(taken):
            taken.append(key)
    return [_setting_words(b, taken) for b in besides]


def _setting_words(settings: Mapping[str, Scalar], keys: Sequence[str]) -> str:
    return " ".join(
        _word(key, settings[key]) for key in keys if settings.get(key) not in (None, "")
    )


def _by_words(rows: Sequence[Row], texts: Sequence[str], loads: Loads) -> list[str]:
    """Distinguish by the words of a label or of a file's name in which they differ."""
    parts = [_parts(row, text, loads) for row, text in zip(rows, texts, strict=True)]
    common = set.intersection(*map(set, parts)) if parts else set()
    return [" ".join(p for p in words if p not in common) for words in parts]


def _by_turn(rows: Sequence[Row], loads: Loads) -> list[str]:
    """Distinguish dyno's own runs of a server: the first ones of each load are one series, the second ones another."""
    if any(row.form != "run" or (row.place and not _unnamed(row)) for row in rows):
        return [""] * len(rows)
    out = [""] * len(rows)
    counted: Counter[tuple[object, ...]] = Counter()
    for i in sorted(range(len(rows)), key=lambda i: _file_name(rows[i])):
        key = loads.key(rows[i])
        counted[key] += 1
        if counted[key] > 1:
            out[i] = f"(run {counted[key]})"
    return out


def _by_line(rows: Sequence[Row]) -> list[str]:
    """Return the location: for rows of a table, its first line."""
    if any(row.form == "run" for row in rows):
        return [f"({_file_name(row)})" for row in rows]
    first: dict[tuple[str, object], int] = {}
    for row in rows:
        table = (row.file, row.table)
        first[table] = min(row.line, first.get(table, row.line))
    if len(set(first.values())) > 1:
        return [f"(line {first[row.file, row.table]})" for row in rows]
    return [f"(line {row.line})" for row in rows]


# ---- what a result is called ----


def _identities(rows: Sequence[Row]) -> list[dict[str, Scalar]]:
    """Return the facts by which each is named."""
    identities = _Identities(rows)
    return [identities.facts(row) for row in rows]


class _Identities:
    """The facts that name a result depend on what all results have. Where some have their author's name, one that
    hasn't is called by all it is."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._any_alone = any(row.form == "run" and row.place is None for row in rows)
        self._any_called = any(row.series and row.place is None for row in rows)
        self._any_silent = any(row.setting("quantization") is None for row in rows)
        accelerators = {str(row.setting("accelerator") or "").lower() for row in rows}
        self._one_card = len(accelerators) == 1
        self._other_models = _other_models(rows)

    def facts(self, row: Row) -> dict[str, Scalar]:
        facts = self._all_facts(row)
        if (
            self._any_silent
            and len(facts) > 1
            and str(facts.get("quantization", "")).upper() in _PLAIN
        ):
            # where some say nothing of it, to say that there is none is the same
            del facts["quantization"]
        return facts

    def _all_facts(self, row: Row) -> dict[str, Scalar]:
        if row.place is not None and not (self._any_alone and _unnamed(row)):
            return self._in_study(row, row.place)
        if row.series and row.place is None:
            return {"series": row.series.strip()}
        if self._any_called and row.form != "run":
            return {"series": subject(row, accelerator=not self._one_card)}
        return _series_settings(row) or {"file": row.label or _file_name(row)}

    def _in_study(self, row: Row, place: Place) -> dict[str, Scalar]:
        facts: dict[str, Scalar] = {
            "study": place.study,
            "rig": place.rig or str(row.setting("accelerator") or ""),
            "engine": place.engine,
        }
        # An engine's name in one study is not enough beside another's model.
        if self._other_models and (model := _model(row).name):
            facts["model"] = model
        for part in ("engine", "trial"):
            facts |= {name: short(value) for name, value in place.varying(part).items()}
        return facts


def _model(row: Row) -> ModelName:
    return named(str(row.setting("model") or ""))


def _other_models(rows: Sequence[Row]) -> bool:
    """Return whether results of several sources, a study or none, have several models."""
    sources = {row.place.study if row.place else "" for row in rows}
    if len(sources) < 2:
        return False
    models = [_model(row) for row in rows]
    return len({model.base for model in models if model.name}) > 1


def _unnamed(row: Row) -> bool:
    """Return whether a study of flags named it by its address."""
    return row.place is not None and _ADDRESS.fullmatch(row.place.engine) is not None


def _series_settings(row: Row) -> dict[str, Scalar]:
    """Return settings of the engine and the machine."""
    settings = {name: value for name in ENGINE if (value := row.setting(name)) is not None}
    if "model" in settings:
        settings["model"] = named(str(settings["model"])).name
    if "quantization" in settings and len(str(settings["quantization"])) <= 5:
        # fp8 and FP8 are one
        settings["quantization"] = str(settings["quantization"]).upper()
    if settings.get("accelerators") == settings.get("tensor_parallel"):
        settings.pop("accelerators", None)
    first = [
        name
        for name in ("engine", "model", "quantization", "accelerator")
        if name in settings
    ]
    return {name: settings[name] for name in (*first, *settings)}


def _besides(row: Row) -> dict[str, Scalar]:
    """Return all settings that are neither the load nor of one run alone."""
    out = _series_settings(row)
    own = row.tool == "dyno"
    for name, setting in row.settings.items():
        if (
            name not in LOAD
            and name not in ASIDE
            and name not in _ALOUD
            and not passes(name, own)
        ):
            out[name] = setting.value
    return out


def _naming(facts: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """Return keys that differ. A missing value doesn't count, except that no quantization means none."""

    def values(key: str) -> set[str]:
        return {str(f[key]) for f in facts if f.get(key) not in (None, "")}

    return [key for key in _differing(facts) if key in _BY_SILENCE or len(values(key)) > 1]


def _differing(facts: Sequence[Mapping[str, Scalar]]) -> list[str]:
    keys = dict.fromkeys(key for f in facts for key in f)
    return [key for key in keys if len({str(f.get(key, "")) for f in facts}) > 1]


def _named(facts: Mapping[str, Scalar], differing: Sequence[str]) -> str:
    """Return the differing facts as a name; where nothing differs, the engine or the first fact."""
    parts = [
        _word(key, facts[key]) for key in differing if facts.get(key) not in (None, "")
    ]
    if not parts:
        key = next(
            (k for k in ("engine", "series", "model") if k in facts), next(iter(facts))
        )
        parts = [_word(key, facts[key])]
    return " ".join(dict.fromkeys(parts))


def _word(key: str, value: Scalar) -> str:
    text = value.strip() if isinstance(value, str) else short(value)
    if key in _BARE:
        return text
    if key == "accelerators":
        return f"×{text}"
    if key in _WORDS:
        return f"{_WORDS[key]} {text}"
    return f"{key}={text}"
