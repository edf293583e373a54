"""The meaning of a column's title or a key (a figure with its scale, or a setting), and of the cells below it.

A wrong reading raises a false alarm, a missing one only loses a column: so an uncertain title means nothing. A latency
has a unit, in the title or in its cells, and a throughput states of what: 'Latency', 'Throughput' and 'Score' are not
figures. Tokens/s that may count prompts ('tok/s', 'Throughput (tok/s)') are `speed`, never `output_throughput`; those
of prompts alone or of decoding alone ('Prefill tok/s', 'Gen t/s') are a `speed` with its test, pp or tg.
A latency without a statistic is taken as the mean. `acceptance_rate` is a share of 1.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Final

import msgspec

from dyno.engines.kinds import names
from dyno.facts.imported import DocumentCell, Figure, Scalar, Setting
from dyno.facts.metric import METRICS, SPEEDS, definition, latency, stem_named
from dyno.facts.setting import TITLES
from dyno.results.printed import Printed, printed
from dyno.secrets import shown


class Meaning(msgspec.Struct, frozen=True):
    name: str  # of a figure or a setting, as facts/imported.py has them
    figure: bool = True
    # To the figure's unit: milliseconds, seconds, bytes. None: the title names none, so a cell has to.
    scale: float | None = 1.0
    # pp or tg: a speed of reading prompts, or of making tokens, as llama-bench calls them
    test: str = ""
    # words behind each number of the column that define it: '256.1 output tok/s'
    behind: str = ""
    load: tuple[tuple[str, int], ...] = ()  # that the title names: 'Output tok/s (c32)'


TO_MS: Final = {
    "ms": 1.0, "msec": 1.0, "msecs": 1.0, "millisecond": 1.0, "milliseconds": 1.0,
    "s": 1e3, "sec": 1e3, "secs": 1e3, "second": 1e3, "seconds": 1e3,
    "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "microseconds": 1e-3, "ns": 1e-6, "nanoseconds": 1e-6,
}  # fmt: skip
TO_BYTES: Final = {
    "b": 1.0, "bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
}  # fmt: skip
TO_ONE: Final = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}  # of parameters

_STATISTICS: Final = {
    "mean": "mean", "avg": "mean", "average": "mean", "median": "median", "med": "median", "std": "std",
    "stdev": "std", "stddev": "std", "std dev": "std", "standard deviation": "std", "min": "min", "minimum": "min",
    "max": "max", "maximum": "max",
}  # fmt: skip
# Keys that tools write, whose unit isn't in the name.
_KEYS: Final = {key: Meaning(m.name) for m in METRICS.values() for key in m.keys} | {
    "end_to_end_latency": Meaning("mean_e2el_ms", scale=1e3),
    "avg_latency": Meaning("mean_latency_ms", scale=1e3),
    "spec_decode_acceptance_rate": Meaning("acceptance_rate", scale=0.01),
    # LLMPerf's
    "results_num_completed_requests_per_min": Meaning("request_throughput", scale=1 / 60),
    "request_rate": Meaning("rate", figure=False),
    "model_id": Meaning("model", figure=False),
    "tokenizer_id": Meaning("tokenizer", figure=False),
    "gpu_name": Meaning("accelerator", figure=False),
}
_LLMPERF: Final = re.compile(
    r"results_(ttft|end_to_end_latency|inter_token_latency)_s_(?:(mean|min|max|stddev)|quantiles_(p\d{1,2}))"
)
_COUNTS: Final = {
    title: m.name
    for m in METRICS.values()
    for title in (*m.labels, *m.titles)
    if "(" not in title
}
_SETTING_UNITS: Final = {
    "rate": ("req/s", "rps", "qps"),
    "input_len": ("tokens",),
    "output_len": ("tokens",),
}
_SECONDS: Final = (
    "duration",
    "benchmark duration",
    "elapsed time",
    "elapsed",
    "test duration",
    "run duration",
)
_COST: Final = re.compile(
    r"(?:cost |price |usd )*(?:per |usd ?/ ?)?(?:usd ?/ ?)?(?:1 ?m|1 million|million|m) ?"
    r"(?:output |total )?tok(?:en)?s?(?: usd)?"
)
# Units that are words of their own in the middle of a title.
_RATES: Final = (
    (
        re.compile(r"\b(?:tok|toks|token|tokens|t)\s*(?:/|per)\s*(?:s|sec|secs|second)\b"),
        " tok/s ",
    ),
    (
        re.compile(
            r"\b(?:req|reqs|request|requests)\s*(?:/|per)\s*(?:s|sec|secs|second)\b"
        ),
        " req/s ",
    ),
    (re.compile(r"\btps\b"), " tok/s "),
    (re.compile(r"\btoks?[ ]s(?:ec)?\b"), " tok/s "),  # out_tok_s
    (re.compile(r"\breqs?[ ]s(?:ec)?\b"), " req/s "),
)
_LOADED: Final = re.compile(
    r"\s*(?:[(\[]\s*(?:(c|conc|concurrency)|(bs|batch|batch size|b))\s*[=:]?\s*(\d{1,5})\s*[)\]])\s*$",
    re.I,
)
_PROMPTS: Final = ("prompt", "prefill", "pp", "prompt processing", "prompt eval", "prompt eval rate", "prefill rate",
                   "prefill speed", "prompt speed", "pp speed", "prompt processing speed")  # fmt: skip
_TOKENS: Final = ("decode", "decoding", "generation", "gen", "tg", "token generation", "text generation", "eval",
                  "eval rate", "decode rate", "decode speed", "gen speed", "generation speed", "tg speed",
                  "token generation speed", "generation rate")  # fmt: skip
# Words of Chinese reports, the longer ones first.
_CHINESE: Final = (
    ("首token延迟", " ttft "), ("首字延迟", " ttft "), ("首token时间", " ttft "), ("端到端延迟", " e2e latency "),
    ("成功请求数", " successful requests "), ("失败请求数", " failed requests "), ("成功请求", " successful requests "),
    ("失败请求", " failed requests "), ("总输入token数", " total input tokens "),
    ("总输出token数", " total output tokens "), ("总生成token数", " total generated tokens "),
    ("总输入tokens", " total input tokens "), ("总生成tokens", " total generated tokens "),
    ("总输出tokens", " total output tokens "), ("吞吐量", " throughput "), ("吞吐", " throughput "),
    ("最大并发数", " max concurrency "), ("并发数", " concurrency "), ("并发", " concurrency "), ("平均", " mean "),
    ("中位数", " median "), ("中位", " median "), ("输入", " input "), ("输出", " output "), ("请求", " request "),
    ("总", " total "), ("模型", " model "),
)  # fmt: skip
_BETTER_NOTE: Final = re.compile(
    r"[(\[]?\b(?:lower|higher|smaller|larger|less|more) is better\b[)\]]?|[↑↓⬆⬇▲▼]"
)
_PERCENTILE: Final = re.compile(
    r"\b(?:p ?(\d{1,2}(?:\.\d+)?)|(\d{1,2}(?:\.\d+)?)(?:st|nd|rd|th|%)(?: ?percentile)?)(?![\w.])"
)
_UNIT: Final = re.compile(r"[(\[]\s*([^()\[\]]*?)\s*[)\]]")


@lru_cache(maxsize=4096)
def meaning(title: str) -> Meaning | None:
    """Read the title of a column, or of a row in a transposed table, or a key of a JSON or CSV file."""
    if len(title) > 120:
        return None
    key = title.strip().strip("`*").strip()
    if key in _KEYS:
        return _KEYS[key]
    if match := _LLMPERF.fullmatch(key):
        how = (match[2] or match[3]).replace("stddev", "std")
        return Meaning(f"{how}_{stem_named(match[1])}_ms", scale=1e3)
    if match := _LOADED.search(key):
        column = meaning(key[: match.start()])
        load = ("concurrency" if match[1] else "batch_size", int(match[3]))
        return (
            None
            if column is None or not column.figure
            else msgspec.structs.replace(column, load=(load,))
        )
    words, unit = _split(title)
    for read in (_setting, _throughput, _latency, _count, _amount):
        if (column := read(words, unit)) is not None:
            return column
    return None


def statistic(title: str) -> str | None:
    """Return mean, median, std, min, max, p99, … where a title is that and nothing else."""
    words, unit = _split(title)
    if unit:
        return None
    how, rest = _take_statistic(words)
    return how if not rest else None


def stem_of(name: str) -> str:
    """Return the stem of a latency: mean_ttft_ms → ttft; '': not a latency."""
    parts = latency(name)
    return "" if parts is None else parts[1]


def _split(title: str) -> tuple[str, str]:
    """Split a title into words and unit: 'Mean TTFT (ms)' → 'mean ttft', 'ms'; 'output_tok/s' → 'output', 'tok/s'."""
    text = _normalized(title)
    units = _UNIT.findall(text)
    if len(units) > 1:
        return text, ""  # 'TPOT (ms) (excl. 1st)': not a plain unit
    unit = ""
    if (
        units
        and _is_word(units[0])
        and re.search(r"(?:tok|req)/s", text.replace(f"({units[0]})", ""))
    ):
        text = _UNIT.sub(f" {units[0]} ", text)  # 'tok/s (decode)', 'tok/s (avg)'
    elif units:
        unit, text = units[0], _UNIT.sub(" ", text)
        if "," in unit:  # (p99, ms)
            said, _, unit = unit.rpartition(",")
            text, unit = f"{text} {said}", unit.strip()
    text = re.sub(r"(?<!\d)-|-(?!\d)|(?<=[a-z])/(?=[a-z]{2})|[:;#]", " ", text)
    text = " ".join(text.split()).strip(" ,.")
    if unit:
        return text, " ".join(unit.split())
    return _unit_in_words(text)


def _normalized(title: str) -> str:
    """Return a title in lower case and English, with one spelling of rates."""
    text = (
        unicodedata.normalize("NFKC", title).lower().replace("μ", "µ").replace("$", " usd ")
    )
    if not text.isascii():
        for chinese, english in _CHINESE:
            text = text.replace(chinese, english)
    text = _BETTER_NOTE.sub(" ", text)
    text = re.sub(r"\s*/\s*", "/", re.sub(r"[`*]", "", text).replace("_", " "))
    for pattern, unit in _RATES:
        text = pattern.sub(unit, text)
    return text


def _unit_in_words(text: str) -> tuple[str, str]:
    """Split words from a unit without brackets: a rate anywhere, a time or a size at the end."""
    for unit in ("tok/s", "req/s"):
        if f" {unit} " in f" {text} ":
            return " ".join(text.replace(unit, " ").split()), unit
    head, _, tail = text.rpartition(" ")
    if head and (tail in TO_MS or tail in ("gb", "gib", "mib", "mb")):
        return head.strip(" ,"), tail
    return text, ""


def _is_word(text: str) -> bool:
    return (
        text in _STATISTICS
        or text in _PROMPTS
        or text in _TOKENS
        or bool(_PERCENTILE.fullmatch(text))
    )


def _take_statistic(words: str) -> tuple[str | None, str]:
    """Return the statistic and the rest: ('p99', 'ttft') of 'ttft p99'. Two statistics are none."""
    statistics = [f"p{match[1] or match[2]}" for match in _PERCENTILE.finditer(words)]
    rest = _PERCENTILE.sub(" ", words)
    for word, name in sorted(_STATISTICS.items(), key=lambda pair: -len(pair[0])):
        rest, count = re.subn(rf"(?<![\w/]){re.escape(word)}(?![\w/])", " ", rest)
        statistics += [name] * count
    if len(statistics) > 1:
        return None, words
    rest = " ".join(re.sub(r"\bpercentile\b|\bof\b", " ", rest).split())
    return (statistics[0] if statistics else None), rest


def _latency(words: str, unit: str) -> Meaning | None:
    how, rest = _take_statistic(words)
    stem = stem_named(rest)
    if stem is None or (unit and unit not in TO_MS) or (not unit and rest == "latency"):
        return None
    return Meaning(f"{how or 'mean'}_{stem}_ms", scale=TO_MS[unit] if unit else None)


def _throughput(words: str, unit: str) -> Meaning | None:
    """Return the throughput that a title names."""
    if unit == "req/s":
        if words in ("goodput", "request goodput"):
            return Meaning("request_goodput")
        return (
            Meaning("request_throughput")
            if words in ("", "throughput", "request throughput")
            else None
        )
    if unit != "tok/s":
        return None
    how, counted = _take_statistic(words)
    if counted in _PROMPTS or counted in _TOKENS:
        test = "pp" if counted in _PROMPTS else "tg"
        return Meaning("speed", test=test) if how in (None, "mean", "median") else None
    return _token_throughput(set(words.split()))


def _token_throughput(words: set[str]) -> Meaning | None:
    """Return whose tokens a rate counts, by the words beside it."""
    peak = bool(words & {"peak", "max", "maximum"})
    plain = words - {
        "throughput",
        "token",
        "tokens",
        "tok",
        "mean",
        "avg",
        "average",
        "peak",
        "max",
        "maximum",
    }
    if plain and plain <= {"output", "generated", "out"}:
        return Meaning("peak_output_throughput" if peak else "output_throughput")
    if peak:
        return None
    if plain == {"input"}:  # 'Prompt tok/s' may be of a single request
        return Meaning("input_throughput")
    if plain == {"total"}:
        return Meaning("total_token_throughput")
    # of which tokens is unknown
    return Meaning("speed") if plain <= {"aggregate", "aggregated"} else None


def _count(words: str, unit: str) -> Meaning | None:
    if unit in ("", "tokens", "requests", "count") and words in _COUNTS:
        return Meaning(_COUNTS[words])
    minutes = dict.fromkeys(("min", "mins", "minutes"), 60e3)
    scale = (TO_MS | minutes).get(unit) if words in _SECONDS else None
    return Meaning("duration_s", scale=scale / 1e3) if scale else None


def _amount(words: str, unit: str) -> Meaning | None:
    if words in ("acceptance rate", "draft acceptance rate", "mean acceptance rate"):
        return Meaning("acceptance_rate", scale=0.01 if unit in ("%", "percent") else None)
    if words in ("power", "average power", "avg power", "mean power") and unit in (
        "w",
        "watt",
        "watts",
    ):
        return Meaning("power_w")
    if (
        words in ("vram", "gpu memory", "peak memory", "peak vram", "peak gpu memory")
        and unit in TO_BYTES
    ):
        return Meaning("memory_bytes", scale=TO_BYTES[unit])
    whole = re.sub(r"per ?1m", "per 1m", f"{words} {unit}".strip())
    is_cost = (
        ("usd" in whole or "cost" in whole) and "tok" in whole and _COST.fullmatch(whole)
    )
    return Meaning("cost_per_million_tokens") if is_cost else None


def _setting(words: str, unit: str) -> Meaning | None:
    whole = f"{words} {unit}".strip()
    titles = {**TITLES, **names.version_titles()}
    name = titles.get(words) or titles.get(whole)
    if name is None or (
        unit and whole not in titles and unit not in _SETTING_UNITS.get(name, ())
    ):
        return None
    return Meaning(name, figure=False)


# ---- cells ----

# Whole numbers of these are counted, not rounded.
_COUNTED: Final = (
    "completed", "failed", "incomplete", "total_input_tokens", "total_output_tokens", "total_tokens",
    "peak_concurrency", "cached_input_tokens",
)  # fmt: skip
# 8xH100, 4 x MI300X, 2× RTX 4090
_DEVICES: Final = re.compile(
    r"\b(\d{1,3})\s?[x×*]\s?("
    r"(?:RTX\s?|RX\s?)?(?:[ABHLTV]\d{2,3}|GH200|GB[23]00|MI\d{3}|[345]0[5-9]0|[79][09][07]0|Gaudi\s?\d|TPU|W\d{4}|R9700)"
    r"(?:\s?(?:X|XL|S|SXM|NVL|Ti|Super|XTX|XT|A)\b)?)",
    re.I,
)
_TOKENS_PER_S: Final = re.compile(r"(?:tok|toks|token|tokens|t)/(?:s|sec|second)|tps")
_REQUESTS_PER_S: Final = re.compile(
    r"(?:req|reqs|request|requests|r)/(?:s|sec|second)|rps|qps"
)
_MOST_DEVICES: Final = 64
_WIDEST_SETTING: Final = 200  # characters of a cell that may still be a setting


def figure(cell: DocumentCell, column: Meaning, line: int, tool: str) -> Figure | None:
    number = printed(cell.text.strip().removesuffix(column.behind))
    scale = None if number is None else _scale(column, number)
    if number is None or scale is None:
        return None
    exact = column.name in _COUNTED and number.value == int(number.value)
    return Figure(
        value=number.value * scale,
        line=line,
        half=0.0 if exact else number.half * scale,
        definition=definition(tool, stem_of(column.name)),
        deviation=None if number.deviation is None else number.deviation * scale,
        bold=cell.bold,
    )


def _scale(column: Meaning, number: Printed) -> float | None:
    """Return the factor to the figure's unit. A unit in the cell takes precedence over the title's; one that can't be
    is not a figure."""
    if not number.unit:
        return column.scale
    if stem_of(column.name):
        return TO_MS.get(number.unit)
    if column.name == "duration_s" and number.unit in TO_MS:
        return TO_MS[number.unit] / 1e3
    if column.name == "memory_bytes":
        return TO_BYTES.get(number.unit)
    if column.name == "acceptance_rate":
        return 0.01 if number.unit == "%" else None
    if column.name in SPEEDS:
        unit = "req/s" if column.name.startswith("request") else "tok/s"
        return column.scale if rate(number.unit) == unit else None
    return column.scale if number.unit in {"w", "usd", "tokens", "requests"} else None


def rate(unit: str) -> str:
    """Return tok/s or req/s, however a cell writes them; '' for another unit."""
    if _TOKENS_PER_S.fullmatch(unit):
        return "tok/s"
    return "req/s" if _REQUESTS_PER_S.fullmatch(unit) else ""


def plain(text: str) -> str:
    return " ".join(text.split())[:_WIDEST_SETTING] if not _blank(text) else ""


def _blank(text: str) -> bool:
    return text.strip().lower() in (
        "",
        "-",
        "—",
        "–",
        "n/a",
        "na",
        "nan",
        "none",
        "null",
        "tbd",
        "?",
    )


def settings_of(name: str, text: str, line: int) -> dict[str, Setting]:
    """Return the setting of a cell, or two."""
    text = text.strip()
    if _blank(text) or len(text) > _WIDEST_SETTING:
        return {}
    # 'GPUs'; '3060' is a name
    if name == "accelerator" and text.isdecimal() and 0 < int(text[:6]) <= _MOST_DEVICES:
        return {"accelerators": Setting(int(text), line, "column")}
    if name == "accelerator":
        return {
            "accelerator": Setting(shown(name, text), line, "column"),
            **devices(text, line),
        }
    if name == "backend" and names.pattern().search(text):
        name = "engine"
    # one name, however it is written
    if name == "engine" and (known := names.spellings().get(text.lower())):
        return {name: Setting(known, line, "column")}
    if name == "model_bytes":
        number = printed(text)
        size = None if number is None else TO_BYTES.get(number.unit)
        if number is None or size is None:
            return {"size": Setting(shown("size", text), line, "column")}
        return {"model_bytes": Setting(number.value * size, line, "column")}
    return {name: Setting(_scalar(name, text), line, "column")}


def _scalar(name: str, text: str) -> Scalar:
    if name == "concurrency":
        text = re.sub(r"^(?:c|conc|concurrency)\s*[=:]\s*", "", text, flags=re.I)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if name in ("input_len", "output_len"):
        text = re.sub(r"\s*tok(?:en)?s$", "", text)
    number = printed(text)
    if (
        number is None
        or number.unit
        or number.deviation is not None
        or re.search(r"[^\d.,eE+-]", text)
    ):
        return shown(name, text)
    return (
        int(number.value)
        if number.value == int(number.value) and abs(number.value) < 1e15
        else number.value
    )


def devices(text: str, line: int) -> dict[str, Setting]:
    match = _DEVICES.search(text)
    if match is None:
        return {}
    return {
        "accelerator": Setting(match[2], line, "column"),
        "accelerators": Setting(int(match[1]), line, "column"),
    }
