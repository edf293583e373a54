"""Reports for tests: made up, but with all that a real one has."""

from itertools import product
from typing import Any

import msgspec

from dyno.facts.entry import Cost, Entry, Memory, Number
from dyno.facts.finding import Finding, Verdict, verdict, worst_first
from dyno.facts.imported import DocumentCell, DocumentTable
from dyno.facts.load import Load
from dyno.facts.metric import DEFINITIONS
from dyno.facts.report import (
    AuthorsTable,
    Best,
    Chart,
    CommandText,
    Contender,
    Report,
    Sheet,
    Standing,
    Words,
)

ENGINES = {"vLLM 0.11.0": 1.0, "SGLang 0.5.2": 1.08, "TGI 3.3.4": 0.74}
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"]
WORKLOADS = ((512, 128), (4096, 512))
LATE = Finding(
    "client.late", "doubt", "p99 of requests were sent 41 ms after they were due.",
    "Give the client a core of its own, or fewer streams.",
)  # fmt: skip
SHORT = Finding(
    "load.short",
    "note",
    "Fewer than 300 requests: the p99 rests on three of them.",
    "Send 1,000 requests or more.",
)
FAILED = Finding(
    "requests.failed",
    "void",
    "38 of 512 requests failed (HTTP 503).",
    "Lower the concurrency, or raise the queue.",
)


def own(value: float, spread: float = 0.03, definition: str = "") -> Number:
    return Number(
        value, value * (1 - spread), value * (1 + spread), "repeats", definition=definition
    )


def figures(
    speed: float, streams: float, lengths: tuple[int, int], tool: str = "dyno"
) -> dict[str, Number]:
    """A made-up engine that saturates."""
    prompt, answer = lengths
    rate = speed * 40 * streams / (streams + 24) * 128 / answer
    tpot = 8 / speed * (1 + streams / 48)
    reported = {"request_throughput": own(rate), "output_throughput": own(rate * answer),
            "total_token_throughput": own(rate * (prompt + answer))}  # fmt: skip
    for stem, middle in {"ttft": 20 + prompt / 20 * (1 + streams / 16), "tpot": tpot, "itl": tpot * 0.97,
                         "e2el": 20 + tpot * answer}.items():  # fmt: skip
        for stat, times in (
            ("mean", 1.1),
            ("median", 1.0),
            ("p90", 1.7),
            ("p99", 2.6),
            ("std", 0.4),
        ):
            reported[f"{stat}_{stem}_ms"] = own(middle * times, 0.05, f"{tool}.{stem}")
    return reported


def entry(
    number: int, series: str, streams: int, lengths: tuple[int, int], found: list[Finding]
) -> Entry:
    reported = figures(ENGINES.get(series, 1.0), streams, lengths)
    per_hour, out, requests = (
        8 * 2.5,
        reported["output_throughput"].value,
        reported["request_throughput"].value,
    )
    failed = 38 if FAILED in found else 0
    return Entry(
        f"t{number}", series, "serve",
        Load({"concurrency": streams, "num_prompts": 512, "dataset": "random", "input_len": lengths[0],
              "output_len": lengths[1]}),
        verdict(found), f"{series} × {lengths[0]}/{lengths[1]} × {streams} streams", "dyno", reported,
        512.0 * 3 - failed, failed, found,
        {"engine": series.split()[0], "model": "meta-llama/Llama-3.1-70B-Instruct", "dtype": "bfloat16",
         "tensor_parallel": 4, "prefix_caching": False, "memory_fraction": 0.9},
        3, locations=[f"runs/2025-11-14-{number:04}-{i}" for i in range(3)],
        accelerator="NVIDIA H100 80GB HBM3", accelerators=4, machine=8,
        cost=Cost("USD", per_hour, per_hour / 3.6 / (requests * lengths[0]) * 1000, per_hour / 3.6 / out * 1000,
                  per_hour / 3.6 / (requests * sum(lengths)) * 1000, per_hour / 3.6 / requests, 0.031,
                  "$2.50 an accelerator-hour, list price of 2025-11"),
        memory=Memory(4 * 71e9, 4 * 74e9), power_w=2310.0, joules_per_token=2310 / out,
    )  # fmt: skip


def broken(number: int, series: str, streams: int, lengths: tuple[int, int]) -> Entry:
    why = "the engine exited with code 1 after 14 s: \x1b[31mCUDA out of memory\x1b[0m. Lower --gpu-memory-utilization."
    found = [
        Finding("trial.failed", "void", "The trial has no result.", "Read its engine log.")
    ]
    whole = entry(number, series, streams, lengths, found)
    return msgspec.structs.replace(
        whole,
        figures={},
        failure=why,
        completed=None,
        failed=None,
        cost=None,
        power_w=None,
        joules_per_token=None,
    )


def report(
    streams: tuple[int, ...] = (1, 16, 64, 256), engines: tuple[str, ...] = tuple(ENGINES)
) -> Report:
    """Engines × loads × two workloads, with a trial that has no result, doubtful and void ones."""
    entries: list[Entry] = []
    for number, (lengths, name, load) in enumerate(product(WORKLOADS, engines, streams), 1):
        found = [LATE] if name == engines[0] and load == streams[-1] else []
        found += (
            [FAILED]
            if name == engines[-1] and load == streams[-1] and lengths[0] == 512
            else []
        )
        found += [SHORT] if load == streams[0] else []
        none = name == engines[-1] and load == streams[-1] and lengths[0] != 512
        entries.append(
            (broken(number, name, load, lengths))
            if none
            else entry(number, name, load, lengths, found)
        )
    made = of(entries)
    at = [
        e
        for e in entries
        if e.axes["concurrency"] == streams[len(streams) // 2] and e.axes["context"] == 512
    ]
    rows = [
        Contender(e.id, *((0.08, 0.05, 0.11, "real") if i else ()))
        for i, e in enumerate(at)
    ]
    standing = Standing("output_throughput", entries[0].load.workload.words, rows)
    return msgspec.structs.replace(
        made, words=msgspec.structs.replace(made.words, standing=standing)
    )


def of(entries: list[Entry], **fields: Any) -> Report:
    found = worst_first({f.code: f for e in entries for f in e.findings}.values())
    worst: Verdict = verdict(found)
    first = entries[0].series if entries else ""
    reported: dict[str, Any] = {
        "title": "Llama 3.1 70B on 4 × H100: vLLM, SGLang and TGI",
        "created": "2025-11-15T14:03:22Z",
        "dyno": "0.1.0",
        "verdict": worst,
        "words": Words(
            "3 engines serving meta-llama/Llama-3.1-70B-Instruct in bfloat16, at 4 concurrencies and 2 workloads.",
            "4 of 8 NVIDIA H100 80GB HBM3 of one machine, driver 570.86, CUDA 12.8.",
            ["SGLang 0.5.2 makes the most output tokens at every load: 8 % more than vLLM 0.11.0 at 256 streams.",
             "With p99 TTFT ≤ 500 ms, vLLM 0.11.0 is best at 64 streams (3723 output tok/s, $1.49 a million)."],
            ["The difference between SGLang and vLLM holds at 3 of 4 loads (95 % intervals of 3 repeats)."],
            ["TGI 3.3.4 at 256 streams is void: 38 of 512 requests failed.", "At 256 streams the client was late."],
        ),
        "entries": entries,
        "findings": found,
        "about": "Made for the tests of this page. Nobody measured this.",
        "sources": ["studies/engines.toml", "https://example.org/a-report?x=1&y=2"],
        "target": {"p99_ttft_ms": 500.0},
        "best": [Best(first, "512 in, 128 out", entries[1].id if len(entries) > 1 else None),
                 Best(first, "4096 in, 512 out", None, "lowest p99 TTFT was 588 ms, at 1 stream")],
        "prices": ["NVIDIA H100: $2.50 an accelerator-hour (list price of 2025-11)", "electricity: $0.12 a kWh"],
        "tables": [AuthorsTable("README.md", DocumentTable(41, ["engine", "TTFT (ms)", "tok/s"], [
            [DocumentCell("vLLM"), DocumentCell("123.40"), DocumentCell("2,310.0", True)],
            [DocumentCell("TGI"), DocumentCell("98.05", True), DocumentCell("1790")]],
            [43, 44], "Results"))],
        "rigs": [Sheet("h100-a", [("accelerators", "8 × NVIDIA H100 80GB HBM3"), ("driver", "570.86.15"),
                                  ("processor", "2 × Xeon 8480C, 112 cores"), ("memory", "2.0 TiB")],
                       [e.id for e in entries])],
        "engines": [Sheet(name, [("version", name.split()[-1]), ("weights", "bfloat16"), ("start", "vllm serve …")],
                          [e.id for e in entries if e.series == name])
                    for name in dict.fromkeys(e.series for e in entries)],
        "commands": [
            CommandText("server", "vllm serve meta-llama/Llama-3.1-70B-Instruct \\\n  --tensor-parallel-size 4"),
            CommandText("client", "dyno serve --concurrency 64 --input-len 512", [e.id for e in entries[:3]])],
        "definitions": {k: v for k, v in DEFINITIONS.items() if k.startswith("dyno.")},
        "again": "dyno report runs/2025-11-14 -o report.html",
    }  # fmt: skip
    return Report(**(reported | fields))


def charts(made: Report) -> list[Chart]:
    """Two by hand, with the switches that the page counts on."""
    names = list(dict.fromkeys(e.series for e in made.entries))
    rows = [_row(e) for e in made.entries if e.figures]
    modes = ["measured", "accelerator", "machine", "dollar"]
    return [
        Chart("throughput-concurrency", "Throughput", "Output throughput against concurrency",
              "Higher is better. A hollow point is doubtful, a cross void.",
              _spec(names, "concurrency", "datum[per]", "output tok/s", per=True), rows, modes),
        Chart("ttft-concurrency", "Latency", "p99 TTFT against concurrency", "Lower is better; its scale is linear.",
              _spec(names, "concurrency", "datum.ttft", "p99 TTFT, ms"), rows),
    ]  # fmt: skip


def _row(e: Entry) -> dict[str, Any]:
    speed, hour = e.figures["output_throughput"].value, e.cost.hour if e.cost else None
    return {
        "entry": e.id, "series": e.series, "concurrency": e.axes["concurrency"], "verdict": e.verdict,
        "workload": f"{e.load.get('input_len')} in", "measured": speed, "accelerator": speed / 4, "machine": speed * 2,
        "dollar": speed / hour if hour else None, "ttft": e.value("p99_ttft_ms"),
    }  # fmt: skip


def _spec(
    names: list[str], x: str, y: str, title: str, per: bool = False
) -> dict[str, Any]:
    params = [
        {"name": "hidden", "value": []},
        *([{"name": "per", "value": "measured"}] if per else []),
    ]
    colour = {"field": "series", "type": "nominal", "legend": None,
              "scale": {"domain": names, "range": [COLOURS[i % 7] for i in range(len(names))]}}  # fmt: skip
    points = {
        "mark": {
            "type": "point",
            "filled": True,
            "size": 60,
            "cursor": "pointer",
            "tooltip": {"content": "data"},
        },
        "encoding": {"shape": {"field": "verdict", "type": "nominal"}},
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "data": {"name": "rows"},
        "width": "container",
        "height": 280,
        "background": None,
        "config": {"axis": {"labelColor": "currentColor", "titleColor": "currentColor", "gridOpacity": 0.3},
                   "legend": {"labelColor": "currentColor", "titleColor": "currentColor"}, "view": {"stroke": None}},
        "params": params,
        "transform": [{"filter": "indexof(hidden, datum.series) < 0"}, {"calculate": y, "as": "y"}],
        "encoding": {
            "x": {"field": x, "type": "quantitative", "scale": {"type": "log"}, "title": x},
            "y": {"field": "y", "type": "quantitative", "title": title},
            "color": colour,
            "detail": {"field": "workload"},
        },
        "layer": [{"mark": "line"}, points],
    }  # fmt: skip
