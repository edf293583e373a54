"""A row's load, subject and model: rows under one load can be compared."""

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dyno.facts.imported import Figure, Row, Scalar, place
from dyno.facts.load import COUNTED, LEVELS, LOAD, SELDOM, Load, plain
from dyno.facts.setting import SETTINGS

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4}(?:\.\d{1,2})?)\s?[bB](?![A-Za-z0-9])")
_EXPERTS = re.compile(
    r"(?<![A-Za-z0-9])\d{1,3}x\d{1,3}(?:\.\d)?[bB]|(?<![A-Za-z0-9])A\d{1,3}(?:\.\d)?[bB](?![A-Za-z0-9])|moe",
    re.I,
)
# Without a word in the name that says so.
_MIXTURES = re.compile(
    r"gpt-?oss|mixtral|deepseek-?(?:v[23]|r1(?!-distill)|coder-v2|llm-moe)|llama-?4|glm-?4\.[56]|kimi|grok|dbrx|arctic"
    r"|minimax|ernie-4\.5|hunyuan|qwen3-next|qwen3\.5|jamba|phi-?3\.5-moe|olmoe|granite-4|step-?3|longcat|ling-",
    re.I,
)
_DENSE = re.compile(
    r"llama-?(?:[23](?!\.?\d*-?4-)|3\.[123])|llama-[0-9]+b|qwen(?:1\.5|2|2\.5)(?!.*moe)"
    r"|qwen3-(?:0\.6|1\.7|4|8|14|32)b|mistral-?(?:7b|nemo|small|large)|gemma-?[23]?|phi-?[234](?!\.5-moe)"
    r"|falcon-?(?:7|40|180)b|opt-|pythia|yi-|codellama|tinyllama|vicuna|starcoder",
    re.I,
)
_TAUGHT = re.compile(r"(?<![a-z])(instruct|chat|it|sft|dpo|assistant)(?![a-z])", re.I)
_NO_NAME = {
    "hf", "gguf", "ggml", "kv", "fp8", "fp16", "bf16", "f16", "f32", "int8", "int4", "awq", "gptq", "w8a8", "w4a16",
    "quantized", "dynamic", "nvfp4", "mxfp4", "fp4", "marlin", "meta", "instruct", "chat", "it", "ud", "model", "bnb",
    "4bit", "8bit", "quark", "ptpc", "block", "imatrix", "nm", "testing",
}  # fmt: skip
# Q4_K_M, IQ2_XXS, Q8_0, 'Q4_K - Medium': llama.cpp's quantizations.
_QUANTIZED = re.compile(
    r"(?<![a-z0-9])i?q\d(?:_(?:\d|k|xxs|xs|s|m|l|xl|nl))*(?: - (?:small|medium|large))?(?![a-z0-9])"
)
_WEIGHTS_FILE = re.compile(r"\.(gguf|bin|safetensors)$", re.I)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
# A dot inside a number is part of a version (GLM-5.1); any other dot separates words. Llama-3_1 is Llama-3.1.
_UNDERSCORED = re.compile(r"(?<=\d)_(?=\d(?![\da-z]))")
_SEPARATOR = re.compile(r"[-_ :,()]+|\.(?!\d)|(?<!\d)\.")
_FAMILY = re.compile(r"([a-z]{3,})(\d+(?:\.\d+)?b?)")  # qwen2.5 is qwen 2.5
_WEIGHTS = {  # bytes of a parameter, at least
    "fp32": 4.0, "f32": 4.0, "float32": 4.0, "fp16": 2.0, "f16": 2.0, "bf16": 2.0, "float16": 2.0, "bfloat16": 2.0,
    "fp8": 1.0, "int8": 1.0, "w8a8": 1.0, "q8_0": 1.06, "q6_k": 0.8, "q5_k_m": 0.68, "q5_k": 0.66, "q4_k_m": 0.56,
    "q4_k": 0.54, "q4_0": 0.56, "awq": 0.5, "gptq": 0.5, "int4": 0.5, "w4a16": 0.5, "fp4": 0.5,
    "nvfp4": 0.5, "mxfp4": 0.5,
}  # fmt: skip
LEAST = 0.25  # of a parameter whose quantization is unknown


class ModelName(msgspec.Struct, frozen=True):
    name: str  # without organisation, folder and ending
    # its words without quantization and tuning: equal for all variants of a model
    base: tuple[str, ...]
    taught: bool  # to answer: instruct, chat
    billions: float | None
    dense: bool | None  # all parameters are read for each token; None: not known


def named(text: str) -> ModelName:
    # of the Hub's cache
    path = re.sub(r"models--[\w.-]+--", "", str(text)).split("/snapshots/")[0]
    name = path.rstrip("/").rpartition("/")[2]
    name = _WEIGHTS_FILE.sub("", name)
    low = name.lower()
    sizes = [float(s) for s in _SIZE.findall(name.replace("_", "-"))]
    dense = None
    if _EXPERTS.search(name) or _MIXTURES.search(name):
        dense = False
    elif _DENSE.search(name.replace(" ", "-")):
        dense = True
    return ModelName(
        name=name,
        base=tuple(_name_parts(low)),
        taught=bool(_TAUGHT.search(low)),
        billions=max(sizes) if sizes else None,
        dense=dense,
    )


def names_base(text: str) -> bool:
    """Return whether a name says that a model is not instruction-tuned: a Hub name or a weights file, with its size,
    without a word for tuning. A served name ('llama3') or a tag ('llama3:8b') may stand for any variant."""
    model = named(text)
    last = text.rstrip("/").rpartition("/")[2]
    if model.taught or model.billions is None or ":" in last:
        return False
    return (
        "/" in text
        or _WEIGHTS_FILE.search(text) is not None
        or _QUANTIZED.search(last.lower()) is not None
    )


def _name_parts(name: str) -> Iterator[str]:
    """Return the words of a name, with each version whole: 'glm-5.1' → 'glm', '5.1'."""
    name = _UNDERSCORED.sub(".", _QUANTIZED.sub(" ", _SHARD.sub("", name)))
    for word in _SEPARATOR.split(name):
        if not word or word in _NO_NAME:
            continue
        family = _FAMILY.fullmatch(word)
        yield from family.groups() if family else (word.removesuffix(".0"),)


def related(a: ModelName, b: ModelName) -> bool:
    """Return whether two names are of variants of one model, or one says less than the other."""
    one, other = set(a.base), set(b.base)
    return not one or not other or one <= other or other <= one


def same_model(a: Row, b: Row) -> bool:
    """Return whether two results may be of one model, by what they say of it."""
    return related(*(named(str(row.setting("model") or "")) for row in (a, b)))


def bytes_each(quantization: object, dtype: object, name: str) -> float:
    """Return the bytes of a parameter, at least: by the settings, else by the name, else by the smallest that there
    is."""
    for name_of_type in (quantization, dtype):
        low = str(name_of_type or "").lower()
        if low in _WEIGHTS:
            return _WEIGHTS[low]
    low = name.lower()
    for word in sorted(_WEIGHTS, key=len, reverse=True):
        if re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", low):
            return _WEIGHTS[word]
    return LEAST


# Settings of the client or of the file: neither the load nor what bears it.
ASIDE = {
    "backend", "endpoint", "tokenizer", "seed", "percentiles", "ignore_eos", "tool_version", "date", "price_per_hour",
    "samples", "repeat",
}  # fmt: skip
# Settings of the engine and the machine.
ENGINE = tuple(
    n
    for n in SETTINGS[SETTINGS.index("model") :]
    if n not in ASIDE and n not in ("model_bytes", "parameters")
)
# Settings that only number the runs of one thing, by their whole name.
_COUNTER = re.compile(
    r"(?:run|rep|repeat|repetition|replicate|iter|iteration|trial|attempt|round)"
    r"(?:[ _-]?(?:id|no|nr|num|number|index|idx|#))?",
    re.I,
)
# A run that only prepares the measured one, by its whole name: 'Warm-up', 'warmup run 1', 'phase: warmup'.
_WARM_UP = re.compile(
    r"\W*(?:\d+\W+)?(?:phase\W*)?warm[-_ ]?(?:up|ing up)"
    r"(?:[-_ ]*(?:run|phase|round|pass|requests?|iterations?|only|\d+))*\W*",
    re.I,
)
AT_ONCE = 10_000.0  # requests/s: some write a large number for infinity
_SOURCES = {  # of a number of requests
    "progress": "the progress bar shows",
    "command": "the command asked for",
    "namespace": "the command asked for",
}


def load_of(row: Row) -> Load:
    """Return the load as far as it is known. Where nothing paces requests, their number is the load."""
    rate = plain(finite_rate(row))
    values = {name: plain(row.setting(name)) for name in (*LOAD, *SELDOM)}
    values["burstiness"] = _burstiness(row)
    values["rate"] = rate
    paced = any(values[n] for n in LEVELS)
    if values[COUNTED] is None and row.kind in ("serve", "throughput") and not paced:
        values[COUNTED] = plain(requests_of(row))
    known = {name: value for name, value in values.items() if value is not None}
    seldom = (
        {}
        if row.complete
        else {name: value for name, value in known.items() if name in SELDOM}
    )
    return Load(
        settings={name: value for name, value in known.items() if name not in seldom},
        seldom=seldom,
        tool=row.tool,
        complete=row.complete,
        unlimited=rate is None and row.setting("rate") is not None,
        input_tokens=input_each(row),
        output_tokens=output_each(row),
    )


def _burstiness(row: Row) -> Scalar | None:
    """Return None also for 1, which is every tool's default."""
    given = row.setting("burstiness")
    value = plain(given)
    if given is not None and value is None:
        return "inf"
    return None if value == 1 else value


def requests_of(row: Row) -> float | None:
    """Return how many requests were asked for; where that is unknown, how many there were."""
    if (asked := row.number(COUNTED)) is not None:
        return asked
    completed = row.get("completed")
    return None if completed is None else completed + (row.get("failed") or 0)


def finite_rate(row: Row) -> float | None:
    """Return the requests offered each second; None where all were sent at once, or it is unknown."""
    rate = row.number("rate")
    return rate if rate is not None and 0 < rate < AT_ONCE else None


def subject(row: Row, accelerator: bool = True) -> str:
    """Say what was measured: what its author calls it, else its engine, model and settings."""
    if row.series:
        return row.series.strip()
    names = ["engine", "model", "quantization"]
    if accelerator:
        names.append("accelerator")
    settings = {
        name: str(value) for name in names if (value := row.setting(name)) is not None
    }
    if "model" in settings:
        settings["model"] = named(settings["model"]).name
        if settings.get("quantization", "").lower() in settings["model"].lower():
            settings.pop("quantization", None)
    parts = list(settings.values())
    tensor_parallel = row.setting("tensor_parallel")
    if tensor_parallel is not None:
        parts.append(f"tp {tensor_parallel}")
    if parts:
        return " ".join(parts)
    without_concurrency = re.sub(r"\s*[-,(]?\s*\bc\s?=\s?\d+\)?", "", row.label).strip()
    return without_concurrency or row.file


def distinct(one: str, other: str) -> tuple[str, str]:
    """Return two subjects in quotes, without the words that both have."""
    words, other_words = one.split(), other.split()
    short = " ".join(word for word in words if word not in other_words)
    other_short = " ".join(word for word in other_words if word not in words)
    if short and other_short:
        return repr(short), repr(other_short)
    return repr(one), repr(other)


def settings(row: Row) -> dict[str, Scalar]:
    """Return what was measured, setting by setting."""
    out = {}
    for name, setting in row.settings.items():
        if name not in LOAD and name not in ASIDE and not name.startswith("-"):
            out[name] = setting.value
    if row.series:
        out["series"] = row.series.strip()
    return out


def key(row: Row) -> tuple[object, ...]:
    """Return a key. Rows with the same one differ by their load alone, as far as it is known."""
    section = row.section if row.form == "block" else ""
    return (
        row.file,
        row.kind,
        row.tool,
        row.form,
        row.table,
        frozenset(settings(row).items()),
        section,
    )


def counters(row: Row) -> set[str]:
    """Return the settings that number repeats: they say nothing about what was measured. A run's name is not one."""
    return {
        name
        for name in row.settings
        if _COUNTER.fullmatch(name.strip()) and row.number(name) is not None
    }


def identified(row: Row) -> bool:
    """Return whether it is known what was measured, or which repeat of it. Others may be of any model."""
    return bool(counters(row)) or any(
        row.setting(name) is not None for name in ("model", "engine")
    )


def is_warm_up(row: Row) -> bool:
    values = (s.value for s in row.settings.values())
    names = [row.label, row.section, *(value for value in values if isinstance(value, str))]
    return any(_WARM_UP.fullmatch(name) for name in names)


def sweeps(rows: Iterable[Row]) -> list[list[Row]]:
    """Return rows of the same thing under rising load."""
    out: dict[tuple[object, ...], dict[float, Row]] = {}
    for row in rows:
        load = load_of(row)
        if load.level is not None:
            axis, amount = load.level
            out.setdefault((*key(row), axis, load.workload), {}).setdefault(amount, row)
    return [
        [by_level[v] for v in sorted(by_level)]
        for by_level in out.values()
        if len(by_level) > 1
    ]


def together(rows: Iterable[Row]) -> list[list[Row]]:
    """Return rows under the same load, as far as it is known."""
    groups: dict[tuple[str, Load], list[tuple[Load, Row]]] = {}
    for row in rows:
        load = load_of(row)
        if load:
            groups.setdefault((row.kind, load), []).append((load, row))
    out = []
    for group in groups.values():
        parts = _with_same_prompts(group) if group[0][0].lengths_unknown else [group]
        out += [[row for _, row in part] for part in parts if len(part) > 1]
    return out


def _with_same_prompts(group: Sequence[tuple[Load, Row]]) -> list[list[tuple[Load, Row]]]:
    """Split a group by the length of its prompts."""
    parts: list[list[tuple[Load, Row]]] = []
    for load, row in sorted(group, key=lambda pair: pair[0].input_tokens or 0.0):
        if not parts or not parts[-1][0][0].same_prompts(load):
            parts.append([])
        parts[-1].append((load, row))
    return parts


# ---- figures with their rounding ----


def bounds(figure: Figure) -> tuple[float, float]:
    return figure.value - figure.half, figure.value + figure.half


def duration(row: Row) -> Figure | None:
    figure = row.figures.get("duration_s")
    return figure if figure is not None and figure.value > 0 else None


def requests_per_s(row: Row) -> float | None:
    """Return the rate by count and duration, where both are known: the printed figure is often rounded to one digit."""
    done, took = row.get("completed"), duration(row)
    return done / took.value if done and took else row.get("request_throughput")


def output_each(row: Row) -> float | None:
    """Return the tokens generated for a request, on average."""
    return _each(row, "total_output_tokens")


def input_each(row: Row) -> float | None:
    return _each(row, "total_input_tokens")


def _each(row: Row, name: str) -> float | None:
    done, total = row.get("completed"), row.get(name)
    return total / done if done and total is not None else None


def sent(row: Row) -> tuple[float, str] | None:
    """Return the number of requests sent, and its source in words."""
    done, failed = row.get("completed"), row.get("failed")
    if done is not None and failed:
        return done + failed, ""
    asked = row.number(COUNTED)
    if asked is None:
        return None
    asked -= (row.get("cancelled") or 0.0) + (row.get("skipped") or 0.0)
    by = row.settings["num_prompts"].by
    if by == "user":
        return asked, f"{asked:,.0f} was given with `dyno import --set`"
    return asked, f"{_SOURCES.get(by, 'the file asks for')} {asked:,.0f}"


def in_flight(row: Row, pace: str) -> float | None:
    """Return requests in flight on average, by Little's law: from the mean E2EL, else from TTFT and a time for each
    token (mean_itl_ms, mean_tpot_ms)."""
    rps, e2el, each = requests_per_s(row), row.get("mean_e2el_ms"), output_each(row)
    first, gap = row.get("mean_ttft_ms"), row.get(pace)
    if not rps:
        return None
    if e2el:
        return rps * e2el / 1000
    if first is None or not gap or not each or each <= 1:
        return None
    return rps * (first + (each - 1) * gap) / 1000


def speed_tests(rows: Iterable[Row], test: str) -> list[Row]:
    """Return micro results with a speed: `pp` of prompts, `tg` of generation."""
    tests = [
        r
        for r in rows
        if r.kind == "micro" and str(r.setting("test") or "").startswith(test)
    ]
    return [r for r in tests if r.get("speed")]


def locations(rows: Sequence[Row], *names: str) -> list[str]:
    """Return the lines of the figures that are named, else of the rows."""
    out: list[str] = []
    for row in rows:
        lines = [row.figures[n].line for n in names if n in row.figures] or [row.line]
        out += [place(row.file, line) for line in sorted(set(lines))]
    return list(dict.fromkeys(out))
