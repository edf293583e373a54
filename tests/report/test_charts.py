"""Charts as they are made and drawn: what a reader must see is in the specification, or in the picture's text."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import vl_convert

from dyno.facts.entry import Bar, Cost, Entry, Memory, Moment, Number, Position
from dyno.facts.finding import Verdict
from dyno.facts.load import Load
from dyno.facts.report import DATA, PER, Chart, Report, Words
from dyno.facts.rig import Peaks
from dyno.report import picture
from dyno.report.charts import charts
from dyno.report.look import FAILURE, PALETTE

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

PEAKS = Peaks(
    name="H100", count=1, bandwidth=3.35e12, flops={"bf16": 989e12}, source="maker"
)


def serve(
    id: str, series: str, concurrency: float, speed: float, ms: float, **more: Any
) -> Entry:
    n = {
        "output_throughput": Number(speed, low=speed * 0.9, high=speed * 1.1),
        "request_throughput": Number(speed / 128),
    }
    n |= {f"{s}_{stem}_ms": Number(ms * f, definition=f"dyno.{stem}") for s, f in (("median", 1), ("p99", 3.0))
          for stem in ("ttft", "tpot")}  # fmt: skip
    load = {
        "concurrency": concurrency,
        "num_prompts": concurrency * 10,
        "dataset": "random",
        "input_len": 512,
    }
    fields: dict[str, Any] = {
        "verdict": "sound",
        "completed": 100,
        "failed": 0,
        "tool": "dyno",
        "figures": n,
        "load": Load(load),
    }
    return Entry(id=id, series=series, kind="serve", **(fields | more))


def full(
    id: str, series: str, concurrency: float, speed: float, ms: float, **more: Any
) -> Entry:
    """With everything that an entry may have."""
    return serve(
        id, series, concurrency, speed, ms, accelerators=1, machine=8, power_w=400, memory=Memory(2e10, 7e10),
        joules_per_token=400 / speed, peaks=PEAKS, precision="bf16", positions=[Position("decode", 4.0, 2e13, 0.5, 0)],
        cost=Cost("USD", 2.0, per_million_output=2e6 / 3600 / speed), quantiles={"ttft": [(0.0, ms), (1.0, ms * 9)]},
        bars=[Bar(0.0, 0.1, 1.0), Bar(0.1, None, 0.4, "reset")], bars_of=100,
        moments=[Moment(0.5, 300.0, None, None), Moment(1.5, 400.0, speed, 0.4)], **more,
    )  # fmt: skip


def micro(id: str, series: str, depth: int, verdict: Verdict) -> Entry:
    load = {"test": "pp512", "depth": depth}
    return Entry(
        id, series, "micro", Load(load), verdict, figures={"speed": Number(3000.0 - depth)}
    )


def some(a: str = "a", b: str = "b") -> list[Entry]:
    return [
        full("t1", a, 1, 100, 10),
        full("t2", a, 8, 400, 20, verdict="doubtful"),
        full("t3", a, 64, 900, 1500, completed=93, failed=7),
        full("t4", b, 1, 120, 12),
        full("t5", b, 8, 500, 22, verdict="void"),
        serve(
            "t6",
            b,
            64,
            0,
            0,
            figures={},
            verdict="void",
            failure="CUDA out of memory",
            completed=None,
            failed=None,
        ),
        msgspec.structs.replace(
            micro("t7", a, 0, "sound"), figures={"speed": Number(3000.0)}
        ),
        msgspec.structs.replace(
            micro("t8", a, 9, "doubtful"), figures={"speed": Number(9.0)}
        ),
        Entry(
            "t9",
            a,
            "quality",
            Load({"task": "mmlu"}),
            "void",
            figures={"score": Number(0.7)},
        ),
    ]


def by_name(entries: list[Entry]) -> dict[str, Chart]:
    words = Words("", "", [], [], [])
    report = Report("T", "2026-01-01", "0", "sound", words, entries, [])
    return {chart.name: chart for chart in charts(report)}


@pytest.fixture(scope="module")
def all_charts() -> dict[str, Chart]:
    return by_name(some())


def units(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for layer in spec.get("layer", []):
        yield from units(layer)
    if "mark" in spec:
        yield spec


_SEEN: dict[tuple[int, str], tuple[Chart, str]] = {}  # a picture takes a tenth of a second


def drawn(chart: Chart, **values: Any) -> str:
    key = (id(chart), json.dumps(values))
    if key not in _SEEN:
        _SEEN[key] = (chart, picture.svg(chart, values=values))
    return _SEEN[key][1]


def words(chart: Chart, **values: Any) -> list[str]:
    """Of the picture, as they are drawn."""
    return re.findall(r">([^<]+)</t(?:ext|span)>", drawn(chart, **values))


def scene(chart: Chart, **values: Any) -> list[dict[str, Any]]:
    """Items of all marks that are drawn."""
    graph = vl_convert.vegalite_to_scenegraph(
        json.dumps(picture.complete(chart, width=720, dark=False, values=values))
    )
    items = []

    def walk(item: dict[str, Any]) -> None:
        for inner in item.get("items", []):
            items.append({**inner, "mark": item.get("marktype"), "role": item.get("role")})
            walk(inner)

    walk(graph["scenegraph"])
    return items


def test_each_family_of_charts_is_made_where_its_data_is_there(
    all_charts: dict[str, Chart],
) -> None:
    assert set(all_charts) == {
        "throughput-concurrency", "speed-context", "micro", "ttft-concurrency", "tpot-concurrency", "distribution",
        "tradeoff-concurrency", "requests-concurrency", "timeline", "cost-concurrency", "cheapest-concurrency",
        "memory", "power-time", "energy-concurrency", "roofline", "quality", "side-by-side",
    }  # fmt: skip
    assert by_name([]) == {}
    assert set(by_name(some()[:1])) == {
        "distribution",
        "timeline",
        "memory",
        "power-time",
        "roofline",
        "side-by-side",
    }


def test_every_chart_has_axis_titles_and_a_place_for_the_page_to_hide_series(
    all_charts: dict[str, Chart],
) -> None:
    for chart in all_charts.values():
        titles: dict[str, set[str]] = {"x": set(), "y": set()}
        for unit in units(chart.spec):
            for channel in titles:
                axis = unit["encoding"].get(channel, {}).get("axis") or {}
                titles[channel].add(json.dumps(axis.get("title")))
        horizontal = chart.name in (
            "micro",
            "memory",
            "quality",
            "cheapest-concurrency",
            "side-by-side",
        )  # names need no title
        assert titles["x"] - {"null"}, chart.name
        assert horizontal or titles["y"] - {"null"}, chart.name
        assert chart.spec["data"] == {"name": DATA}
        params = {p["name"]: p for p in chart.spec["params"]}
        assert params["hidden"]["value"] == []
        assert ("per" in params) == bool(chart.per)
        assert all("series" in row for row in chart.rows), chart.name
        assert all(set(row) - {"series"} for row in chart.rows)


@pytest.mark.real
def test_pictures_are_png_and_svg_with_legend_units_and_what_is_shown(
    all_charts: dict[str, Chart],
) -> None:
    chart = all_charts["ttft-concurrency"]
    assert picture.png(chart, width=360, dark=True).startswith(b"\x89PNG")
    shown = words(chart)
    assert {"a", "b", "TTFT, p50 (ms)", "Concurrency (requests in flight)"} <= set(shown)
    assert "p50 · 512 in · 7 requests failed (ringed)" in shown
    assert "TTFT, p99 (ms)" in words(chart, statistic="p99")
    with pytest.raises(ValueError, match="no parameter 'nonsense'"):
        picture.svg(chart, values={"nonsense": 1})


def test_a_page_gets_the_specification_with_its_data_and_the_page_own_colours(
    all_charts: dict[str, Chart],
) -> None:
    spec = picture.complete(all_charts["memory"])
    assert spec["width"] == "container"
    assert spec["datasets"][DATA] == all_charts["memory"].rows
    assert spec["config"]["axis"]["labelColor"] == "currentColor"


def test_a_trial_without_a_result_is_a_cross_at_its_load(
    all_charts: dict[str, Chart],
) -> None:
    for name in (
        "throughput-concurrency",
        "ttft-concurrency",
        "cost-concurrency",
        "tradeoff-concurrency",
    ):
        failed = [row for row in all_charts[name].rows if row.get("why")]
        assert [(r["entry"], r["why"]) for r in failed] == [("t6", "CUDA out of memory")], (
            name
        )
        crosses = [
            i
            for i in scene(all_charts[name])
            if i["mark"] == "symbol" and i.get("stroke") == FAILURE
        ]
        assert any("M-1,-1" in str(i.get("shape")) for i in crosses), name
    assert "✕" in words(all_charts["requests-concurrency"])


def test_failed_requests_are_counted_below_the_title(all_charts: dict[str, Chart]) -> None:
    for name in (
        "throughput-concurrency",
        "tpot-concurrency",
        "tradeoff-concurrency",
        "energy-concurrency",
    ):
        assert "7 requests failed (ringed)" in " ".join(words(all_charts[name])), name
    assert "7" in words(all_charts["requests-concurrency"])


def test_the_verdict_is_a_shape_with_a_legend_only_where_one_is_needed(
    all_charts: dict[str, Chart],
) -> None:
    shapes = {
        str(i.get("shape"))
        for i in scene(all_charts["ttft-concurrency"])
        if i["mark"] == "symbol"
    }
    assert {"circle", "triangle-up"} <= shapes
    assert "Verdict" in words(all_charts["ttft-concurrency"])
    sound = by_name([serve("t1", "a", 1, 10, 5), serve("t2", "a", 2, 20, 6)])
    assert "Verdict" not in words(sound["ttft-concurrency"])
    assert any(text.endswith("✕") for text in words(all_charts["quality"]))
    assert any(text.endswith("?") for text in words(all_charts["micro"]))


def test_bars_begin_at_zero(all_charts: dict[str, Chart]) -> None:
    for name in (
        "requests-concurrency",
        "memory",
        "quality",
        "micro",
        "cheapest-concurrency",
    ):
        scales = [
            unit["encoding"][channel]["scale"]
            for unit in units(all_charts[name].spec) if unit["mark"]["type"] == "bar"
            for channel in ("x", "y") if unit["encoding"][channel].get("type") == "quantitative"
        ]  # fmt: skip
        assert scales, name
        assert all(
            s.get("zero") is True and s.get("type") in (None, "linear") for s in scales
        ), name


def test_a_series_has_one_colour_in_all_charts(all_charts: dict[str, Chart]) -> None:
    colours: dict[str, set[str]] = {}
    for chart in all_charts.values():
        for unit in units(chart.spec):
            color = unit["encoding"].get("color")
            if color and color["field"] == "series":
                for name, shade in zip(
                    color["scale"]["domain"], color["scale"]["range"], strict=True
                ):
                    colours.setdefault(name, set()).add(shade)
    assert colours == {"a": {PALETTE[0]}, "b": {PALETTE[1]}}
    assert FAILURE not in PALETTE


def test_more_series_than_colours_differ_by_their_line() -> None:
    many = [serve(f"t{i}{c}", f"s{i}", c, 10 + i, 5) for i in range(9) for c in (1, 2)]
    lines = next(units(by_name(many)["throughput-concurrency"].spec))["encoding"]
    pairs = list(
        zip(
            lines["color"]["scale"]["range"],
            map(str, lines["strokeDash"]["scale"]["range"]),
            strict=True,
        )
    )
    assert len(set(pairs)) == 9


@pytest.mark.real  # it takes seconds
def test_every_chart_is_drawn_with_its_title_and_names_of_strangers_stay_data() -> None:
    name = "<script>alert(1)</script>\"'\\[0].x\u2028${1}" + "y" * 300
    for chart in by_name(some(name, "b'\u2029")).values():
        assert chart.title in words(chart), chart.name
        assert "<script" not in drawn(chart), chart.name
        vega = vl_convert.vegalite_to_vega(json.dumps(picture.complete(chart)))
        leaks = [
            s
            for s in expressions(vega)
            if "alert(1)" in s and not s.startswith("vlSelectionTuples")
        ]
        assert leaks == [], chart.name


def expressions(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for k, v in value.items():
            yield from expressions(v, k)
    elif isinstance(value, list):
        for v in value:
            yield from expressions(v, key)
    elif isinstance(value, str) and key in ("expr", "signal", "update", "test"):
        yield value


def test_a_machine_of_which_a_part_was_measured_is_dashed_and_called_an_estimate(
    all_charts: dict[str, Chart],
) -> None:
    for name in ("throughput-concurrency", "tradeoff-concurrency"):
        chart = all_charts[name]
        assert chart.per == list(PER)
        text = " ".join(words(chart, per="machine"))
        assert "estimate" in text
        assert "per machine" in text
        assert "stroke-dasharray" in drawn(chart, per="machine")
        assert "stroke-dasharray" not in drawn(chart)
    assert "per dollar per hour" in " ".join(
        words(all_charts["throughput-concurrency"], per="dollar")
    )


def test_only_what_the_data_has_can_be_switched_to() -> None:
    bare = [serve("t1", "a", 1, 10, 5), serve("t2", "a", 2, 20, 6)]
    assert by_name(bare)["throughput-concurrency"].per == ["measured"]
    known = [msgspec.structs.replace(e, accelerators=2) for e in bare]
    assert by_name(known)["throughput-concurrency"].per == ["measured", "accelerator"]


def test_axes_are_logarithmic_where_the_range_asks_for_it(
    all_charts: dict[str, Chart],
) -> None:
    first = next(units(all_charts["ttft-concurrency"].spec))["encoding"]
    assert first["x"]["scale"]["type"] == "log"
    assert first["x"]["axis"]["values"] == [1, 8, 64]
    assert first["y"]["scale"]["type"] == "log"
    near = by_name([serve("t1", "a", 1, 10, 5), serve("t2", "a", 2, 20, 6)])
    first = next(units(near["ttft-concurrency"].spec))["encoding"]
    assert first["x"]["scale"]["type"] == "linear"
    assert first["y"]["scale"] == {"zero": True, "nice": True}


def test_workloads_are_never_on_one_line() -> None:
    short = [serve("t1", "a", c, 10 * c, 5) for c in (1, 2, 4)]
    long = [
        serve("t2", "a", c, 5 * c, 9, load=Load({"concurrency": c, "dataset": "sharegpt"}))
        for c in (1, 2)
    ]
    chart = by_name(short + long)["throughput-concurrency"]
    select = next(p for p in chart.spec["params"] if p["name"] == "workload")
    assert select["bind"]["labels"] == ["512 in", "sharegpt"]
    assert select["value"] == 0
    assert {row["workload"] for row in chart.rows} == {0, 1}
    assert "output tokens/s · sharegpt" in words(chart, workload="sharegpt")


def test_figures_of_two_definitions_are_shown_one_at_a_time() -> None:
    def one(id: str, series: str, c: float, key: str) -> Entry:
        return serve(
            id, series, c, 10, 5, figures={"mean_tpot_ms": Number(5.0 * c, definition=key)}
        )

    chart = by_name([one("t1", "a", 1, "vllm.tpot"), one("t2", "a", 2, "dyno.tpot"), one("t3", "b", 1, "guidellm.tpot"),
                  one("t4", "b", 2, "guidellm.tpot")])["tpot-concurrency"]  # fmt: skip
    assert [row["meaning"] for row in chart.rows] == [0, 0, 1, 1]
    select = next(p for p in chart.spec["params"] if p["name"] == "meaning")
    assert select["bind"]["labels"][0].startswith("vllm, dyno: ")


@pytest.mark.parametrize(
    ("points", "front"),
    [
        # milliseconds, tokens/s, verdict → on the front, from the left
        (
            [(10, 100, "sound"), (20, 90, "sound"), (30, 300, "sound"), (40, 300, "sound")],
            [(30, 100), (90, 300)],
        ),
        ([(10, 100, "sound"), (10, 200, "doubtful"), (5, 999, "void")], [(30, 200)]),
    ],
)
def test_the_pareto_front_is_what_nothing_else_beats(
    points: list[tuple[float, float, Verdict]], front: object
) -> None:
    entries = [
        serve(f"t{i}", f"s{i % 2}", i + 1, speed, ms, verdict=v)
        for i, (ms, speed, v) in enumerate(points)
    ]
    chart = by_name(entries)["tradeoff-concurrency"]
    vega = vl_convert.vegalite_to_vega(json.dumps(picture.complete(chart, width=720)))
    line = next(
        m
        for m in vega["marks"]
        if m["encode"]["update"].get("interpolate", {}).get("value") == "step-after"
    )
    # The same steps in Python that the view takes: what it filters by is in the specification.
    steps = next(d for d in vega["data"] if d["name"] == line["from"]["data"])["transform"]
    assert [s.get("expr") for s in steps if s["type"] == "filter"] == [
        "datum.verdict != 'void' && isValid(datum.y)",
        "!isValid(datum.before) || datum.y > datum.before",
    ]
    assert drawn_front(chart) == front


def drawn_front(chart: Chart) -> list[tuple[float, float]]:
    """What the view draws, read back from where it stands: the steps' corners as pixels, matched to rows."""
    items = scene(chart)
    corners = [
        (round(i["x"], 1), round(i["y"], 1))
        for i in items
        if i["mark"] == "line" and i.get("strokeWidth") == 5
    ]
    dots = {
        (round(i["x"], 1), round(i["y"], 1))
        for i in items
        if i["mark"] == "symbol" and i.get("size") == 60
    }
    assert set(corners) <= dots
    pairs = sorted({(row["p99_ttft_0"], row["output_throughput"]) for row in chart.rows})
    xs = sorted({x for x, _ in dots})
    ys = sorted({y for _, y in dots}, reverse=True)
    assert (len(xs), len(ys)) == (len({x for x, _ in pairs}), len({y for _, y in pairs}))
    x_of = dict(zip(xs, sorted({x for x, _ in pairs}), strict=True))
    y_of = dict(zip(ys, sorted({y for _, y in pairs}), strict=True))
    return [(x_of[x], y_of[y]) for x, y in corners]


def test_printed_figures_stay_as_printed_and_own_ones_are_short() -> None:
    entries = [
        serve(
            "t1",
            "a",
            1,
            10,
            5,
            figures={"output_throughput": Number(1234.5678, half=0.00005)},
        ),
        serve("t2", "a", 2, 10, 5, figures={"output_throughput": Number(1234.5678)}),
    ]
    assert [
        row["output_throughput"] for row in by_name(entries)["throughput-concurrency"].rows
    ] == [1234.5678, 1234.6]


def test_a_timeline_says_how_many_requests_it_shows(all_charts: dict[str, Chart]) -> None:
    assert any("2 of 100 requests" in text for text in words(all_charts["timeline"]))


def test_a_thousand_entries_stay_within_bounds() -> None:
    bars = [
        Bar(i * 0.1, i * 0.1 + 0.05, i * 0.1 + 1, "reset" if i == 7 else "")
        for i in range(200)
    ]
    points = [(i / 100, 10.0 + i) for i in range(101)]
    many = [
        full(
            f"t{i}",
            f"s{i % 9}",
            2 ** (i % 10),
            100.0 + i,
            10.0 + i,
            load=Load({"concurrency": 2 ** (i % 10), "run": i // 90}),
        )
        for i in range(1000)
    ]
    drawn_charts = by_name(
        [
            msgspec.structs.replace(
                e, bars=bars, quantiles={"ttft": points, "tpot": points}
            )
            for e in many
        ]
    )
    assert sum(len(row["sent"]) for row in drawn_charts["timeline"].rows) <= 12_000
    assert sum(len(row["ms"]) for row in drawn_charts["distribution"].rows) <= 12_000
    assert "400 of 1000 trials" in drawn_charts["timeline"].about
    # what failed isn't left out
    assert all(any(row["error"]) for row in drawn_charts["timeline"].rows)


def test_a_rate_has_a_line_of_what_was_offered() -> None:
    entries = [
        serve(f"t{r}", "a", r, 128 * r, 5, load=Load({"rate": r, "input_len": 512}))
        for r in (1.0, 2.0, 4.0)
    ]
    drawn_charts = by_name(entries)
    assert "served = offered" in words(drawn_charts["served-rate"])
    assert "Offered rate (requests/s)" in words(drawn_charts["throughput-rate"])


def test_a_result_without_a_figure_that_is_shown_is_not_drawn_as_failed() -> None:
    other = serve("t3", "b", 1, 0, 0, figures={"total_input_tokens": Number(9.0)})
    rows = by_name([serve("t1", "a", 1, 10, 5), other])["side-by-side"].rows
    assert [(row["series"], "why" in row) for row in rows] == [("a", False)]
