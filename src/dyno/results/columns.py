"""What a column's title or a key means: a figure with its scale, or a setting. What isn't certain means nothing.

A wrong reading raises a false alarm, a missing one only loses a column. So a latency has a unit, in the title or in its
cells, and a throughput says of what: 'Latency', 'Throughput' and 'Score' are no figures. Tokens each second of which
nobody says whether prompts are counted ('tok/s', 'Throughput (tok/s)') are `speed`, never `output_throughput`; those
of prompts alone or of decoding alone ('Prefill tok/s', 'Gen t/s') are a `speed` with its test, pp or tg.
A latency without a statistic is taken as the mean. `acceptance_rate` is a share of 1.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Final

import msgspec

from dyno.facts.metric import METRICS, latency, stem_named
from dyno.facts.setting import TITLES


class Column(msgspec.Struct, frozen=True):
    name: str  # of a figure or a setting, as facts/imported.py has them
    figure: bool = True
    # To the figure's unit: milliseconds, seconds, bytes. None: the title names none, so a cell has to.
    scale: float | None = 1.0
    test: str = ""  # pp or tg: a speed of reading prompts, or of making tokens, as llama-bench calls them
    behind: str = ""  # words behind each number of the column that say what it is: '256.1 output tok/s'
    told: tuple[tuple[str, int], ...] = ()  # settings that the title names: 'Output tok/s (c32)'


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
_KEYS: Final = {key: Column(m.name) for m in METRICS.values() for key in m.keys} | {
    "end_to_end_latency": Column("mean_e2el_ms", scale=1e3),
    "avg_latency": Column("mean_latency_ms", scale=1e3),
    "spec_decode_acceptance_rate": Column("acceptance_rate", scale=0.01),
    "results_num_completed_requests_per_min": Column("request_throughput", scale=1 / 60),  # LLMPerf's
    "request_rate": Column("rate", figure=False),
    "model_id": Column("model", figure=False),
    "tokenizer_id": Column("tokenizer", figure=False),
    "gpu_name": Column("accelerator", figure=False),
}
_LLMPERF: Final = re.compile(
    r"results_(ttft|end_to_end_latency|inter_token_latency)_s_(?:(mean|min|max|stddev)|quantiles_(p\d{1,2}))"
)
_COUNTS: Final = {title: m.name for m in METRICS.values() for title in (*m.labels, *m.titles) if "(" not in title}
_SECONDS: Final = ("duration", "benchmark duration", "elapsed time", "elapsed", "test duration", "run duration")
_COST: Final = re.compile(
    r"(?:cost |price |usd )*(?:per |usd ?/ ?)?(?:usd ?/ ?)?(?:1 ?m|1 million|million|m) ?"
    r"(?:output |total )?tok(?:en)?s?(?: usd)?"
)
# Units that are words of their own in the middle of a title.
_RATES: Final = (
    (re.compile(r"\b(?:tok|toks|token|tokens|t)\s*(?:/|per)\s*(?:s|sec|secs|second)\b"), " tok/s "),
    (re.compile(r"\b(?:req|reqs|request|requests)\s*(?:/|per)\s*(?:s|sec|secs|second)\b"), " req/s "),
    (re.compile(r"\btps\b"), " tok/s "),
    (re.compile(r"\btoks?[ ]s(?:ec)?\b"), " tok/s "),  # out_tok_s
    (re.compile(r"\breqs?[ ]s(?:ec)?\b"), " req/s "),
)
_LOADED: Final = re.compile(
    r"\s*(?:[(\[]\s*(?:(c|conc|concurrency)|(bs|batch|batch size|b))\s*[=:]?\s*(\d{1,5})\s*[)\]])\s*$", re.I
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
_BETTER_NOTE: Final = re.compile(r"[(\[]?\b(?:lower|higher|smaller|larger|less|more) is better\b[)\]]?|[↑↓⬆⬇▲▼]")
_PERCENTILE: Final = re.compile(
    r"\b(?:p ?(\d{1,2}(?:\.\d+)?)|(\d{1,2}(?:\.\d+)?)(?:st|nd|rd|th|%)(?: ?percentile)?)(?![\w.])"
)
_UNIT: Final = re.compile(r"[(\[]\s*([^()\[\]]*?)\s*[)\]]")


@lru_cache(maxsize=4096)
def meaning(title: str) -> Column | None:
    """Of a column's title, a row's in a transposed table, or a key of a JSON or CSV file."""
    if len(title) > 120:
        return None
    key = title.strip().strip("`*").strip()
    if key in _KEYS:
        return _KEYS[key]
    if match := _LLMPERF.fullmatch(key):
        how = (match[2] or match[3]).replace("stddev", "std")
        return Column(f"{how}_{stem_named(match[1])}_ms", scale=1e3)
    if match := _LOADED.search(key):
        column = meaning(key[: match.start()])
        told = ("concurrency" if match[1] else "batch_size", int(match[3]))
        return None if column is None or not column.figure else msgspec.structs.replace(column, told=(told,))
    words, unit = _split(title)
    for read in (_setting, _throughput, _latency, _count, _amount):
        if (column := read(words, unit)) is not None:
            return column
    return None


def statistic(title: str) -> str | None:
    """mean, median, std, min, max, p99, … where a title is that and nothing else."""
    words, unit = _split(title)
    if unit:
        return None
    found, rest = _take_statistic(words)
    return found if not rest else None


def stem_of(name: str) -> str:
    """mean_ttft_ms → ttft; '' of a figure that is no latency."""
    parts = latency(name)
    return "" if parts is None else parts[1]


def with_statistic(name: str, statistic: str) -> str:
    """The same latency by another statistic."""
    return f"{statistic}_{stem_of(name)}_ms"


def _split(title: str) -> tuple[str, str]:
    """'Mean TTFT (ms)' → 'mean ttft', 'ms'; 'output_tok/s' → 'output', 'tok/s'."""
    text = unicodedata.normalize("NFKC", title).lower().replace("μ", "µ").replace("$", " usd ")
    for chinese, english in _CHINESE if not text.isascii() else ():
        text = text.replace(chinese, english)
    text = _BETTER_NOTE.sub(" ", text)
    text = re.sub(r"\s*/\s*", "/", re.sub(r"[`*]", "", text).replace("_", " "))
    for pattern, unit in _RATES:
        text = pattern.sub(unit, text)
    found = _UNIT.findall(text)
    unit = ""
    if len(found) == 1 and re.search(r"(?:tok|req)/s", text.replace(f"({found[0]})", "")) and _is_word(found[0]):
        text = _UNIT.sub(f" {found[0]} ", text)  # 'tok/s (decode)', 'tok/s (avg)'
    elif len(found) == 1:
        unit, text = found[0], _UNIT.sub(" ", text)
        if "," in unit:  # (p99, ms)
            said, _, unit = unit.rpartition(",")
            text, unit = f"{text} {said}", unit.strip()
    elif len(found) > 1:
        return text, ""  # 'TPOT (ms) (excl. 1st)': said in words that nobody promised
    text = re.sub(r"(?<!\d)-|-(?!\d)|(?<=[a-z])/(?=[a-z]{2})|[:;#]", " ", text)
    text = " ".join(text.split()).strip(" ,.")
    if not unit:
        for last in ("tok/s", "req/s"):
            if f" {last} " in f" {text} ":
                return " ".join(text.replace(last, " ").split()), last
        head, _, tail = text.rpartition(" ")
        if head and (tail in TO_MS or tail in ("gb", "gib", "mib", "mb")):
            return head.strip(" ,"), tail
    return text, " ".join(unit.split())


def _is_word(text: str) -> bool:
    return text in _STATISTICS or text in _PROMPTS or text in _TOKENS or bool(_PERCENTILE.fullmatch(text))


def _take_statistic(words: str) -> tuple[str | None, str]:
    """('p99', 'ttft') of 'ttft p99'. Two statistics are none."""
    found: list[str] = []
    rest = words
    for match in _PERCENTILE.finditer(words):
        found.append(f"p{match[1] or match[2]}")
    rest = _PERCENTILE.sub(" ", rest)
    for word, name in sorted(_STATISTICS.items(), key=lambda pair: -len(pair[0])):
        rest, count = re.subn(rf"(?<![\w/]){re.escape(word)}(?![\w/])", " ", rest)
        found += [name] * count
    rest = " ".join(re.sub(r"\bpercentile\b|\bof\b", " ", rest).split())
    return (found[0] if len(found) == 1 else None), rest if len(found) <= 1 else words


def _latency(words: str, unit: str) -> Column | None:
    found, rest = _take_statistic(words)
    stem = stem_named(rest)
    if stem is None or (unit and unit not in TO_MS):
        return None
    if not unit and rest == "latency":
        return None
    return Column(f"{found or 'mean'}_{stem}_ms", scale=TO_MS[unit] if unit else None)


def _throughput(words: str, unit: str) -> Column | None:
    if unit == "req/s":
        if words in ("goodput", "request goodput"):
            return Column("request_goodput")
        return Column("request_throughput") if words in ("", "throughput", "request throughput") else None
    if unit != "tok/s":
        return None
    found, of = _take_statistic(words)
    if of in _PROMPTS or of in _TOKENS:
        return Column("speed", test="pp" if of in _PROMPTS else "tg") if found in (None, "mean", "median") else None
    rest = set(words.split())
    peak = bool(rest & {"peak", "max", "maximum"})
    plain = rest - {"throughput", "token", "tokens", "tok", "mean", "avg", "average", "peak", "max", "maximum"}
    if plain <= {"output", "generated", "out"} and plain:
        return Column("peak_output_throughput" if peak else "output_throughput")
    if peak:
        return None
    if plain and plain <= {"input"}:  # 'Prompt tok/s' may be of a single request
        return Column("input_throughput")
    if plain == {"total"}:
        return Column("total_token_throughput")
    return Column("speed") if plain <= {"aggregate", "aggregated"} else None  # of what, nobody says


def _count(words: str, unit: str) -> Column | None:
    if unit in ("", "tokens", "requests", "count") and words in _COUNTS:
        return Column(_COUNTS[words])
    if words in _SECONDS and unit in TO_MS:
        return Column("duration_s", scale=TO_MS[unit] / 1e3)
    if words in _SECONDS and unit in ("min", "mins", "minutes"):
        return Column("duration_s", scale=60.0)
    return None


def _amount(words: str, unit: str) -> Column | None:
    if words in ("acceptance rate", "draft acceptance rate", "mean acceptance rate"):
        return Column("acceptance_rate", scale=0.01 if unit in ("%", "percent") else None)
    if words in ("power", "average power", "avg power", "mean power") and unit in ("w", "watt", "watts"):
        return Column("power_w")
    if words in ("vram", "gpu memory", "peak memory", "peak vram", "peak gpu memory") and unit in TO_BYTES:
        return Column("memory_bytes", scale=TO_BYTES[unit])
    whole = f"{words} {unit}".strip()
    if "usd" in whole or "cost" in whole:
        squeezed = re.sub(r"per ?1m", "per 1m", whole)
        if _COST.fullmatch(squeezed) and ("tok" in squeezed):
            return Column("cost_per_million_tokens")
    return None


def _setting(words: str, unit: str) -> Column | None:
    name = TITLES.get(words) or TITLES.get(f"{words} {unit}".strip() if unit else words)
    if name is None:
        return None
    allowed = {"rate": ("req/s", "rps", "qps"), "input_len": ("tokens",), "output_len": ("tokens",)}
    if unit and f"{words} {unit}".strip() not in TITLES and unit not in allowed.get(name, ()):
        return None
    return Column(name, figure=False)
