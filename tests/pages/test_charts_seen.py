"""dyno's own charts in a page, as a reader sees them; and the pages of the published reports."""

import functools
from pathlib import Path
from typing import Any

import msgspec
import pytest

import reports
from chromium import OVERLAPS, Open, browser, missing, opened, settle, until
from dyno.cli.main import main
from dyno.explain.explain import Explained, RunContext, explain
from dyno.facts.entry import Bar, Entry, Memory, Moment
from dyno.report.charts import charts
from dyno.report.page import page
from schedulers import Load, Rules, simulate

pytestmark = [
    pytest.mark.pages,
    pytest.mark.skipif(bool(missing()), reason=missing() or "it is here"),
]

__all__ = ["browser", "opened"]  # fixtures
ROOT = Path(__file__).parent.parent.parent
PUBLISHED = sorted(p.name for p in (ROOT / "published").iterdir() if p.is_dir())
NASTY = "<script>window.hacked=1</script>\\'\"`${x}\u2028[0].y|&amp;"


@functools.cache
def explained() -> Explained:
    load = Load(count=60, concurrency=12, long_every=20, long_prompt=2000)
    run = simulate(Rules(slots=6), load, ("queue", "prefill", "decode"))
    return explain(run.records, RunContext("run"))


def rich(entry: Entry) -> Entry:
    """With all that single requests and telemetry tell."""
    if entry.failure:
        return entry
    return msgspec.structs.replace(
        entry,
        quantiles={"ttft": [(i / 20, 10.0 + i * i) for i in range(21)]},
        bars=[
            Bar(i * 0.1, i * 0.1 + 0.05, i * 0.1 + 0.4, "" if i % 9 else f"reset {NASTY}")
            for i in range(40)
        ],
        bars_of=40,
        moments=[Moment(i * 0.2, 400.0 + i, 1000.0, 0.4) for i in range(30)],
        memory=Memory(60e9, 70e9),
        power_w=500.0,
        joules_per_token=0.5,
        parts=explained().explanation.parts,
        slowest=explained().happenings.neighbourhoods(),
    )


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("seen")
    plain = reports.report()
    plain = msgspec.structs.replace(plain, entries=[rich(e) for e in plain.entries])
    first = plain.entries[0].series
    nasty = [
        msgspec.structs.replace(e, series=NASTY if e.series == first else e.series)
        for e in plain.entries
    ]
    made = {
        "plain": plain,
        "hostile": msgspec.structs.replace(plain, title=NASTY, entries=nasty),
    }
    for name, report in made.items():
        (folder / f"{name}.html").write_text(page(report, charts(report)), encoding="utf-8")
    for name in PUBLISHED:
        prices = str(ROOT / "published/prices.toml")
        command = [
            "report",
            str(ROOT / "published" / name),
            "--prices",
            prices,
            "--allow-void",
        ]
        assert main([*command, "-o", f"{folder}/{name}.html"]) == 0
    return {name: folder / f"{name}.html" for name in (*made, *PUBLISHED)}


def points(tab: Any, chart: str) -> int:
    """Those that a pointer can meet."""
    count: int = tab.locator(
        f"#{chart} svg.marks .mark-symbol.role-mark path[aria-label]:visible"
    ).count()
    return count


def tip_of(tab: Any, chart: str) -> str:
    """Of the first mark that has one: some layers draw nothing and have none."""
    tab.mouse.move(0, 0)
    for mark in tab.locator(
        f"#{chart} svg.marks [class*=role-mark] path[aria-label]"
    ).all()[:40]:
        mark.scroll_into_view_if_needed()
        mark.hover(force=True)
        shown = tab.locator("#vg-tooltip-element.visible")
        if shown.count() and "<script>" in (text := shown.inner_text()):
            return str(text)
    return ""


def words(tab: Any, chart: str) -> str:
    return " ".join(tab.locator(f"#{chart} svg.marks text").all_text_contents())


def test_every_chart_of_a_rich_report_is_drawn_with_its_axes(opened: Open) -> None:
    tab = opened()
    names = tab.locator(".chart").evaluate_all("all => all.map(e => e.id)")
    assert {"throughput-concurrency", "ttft-concurrency", "tradeoff-concurrency", "distribution", "timeline",
            "requests-concurrency", "memory", "power-time", "cost-concurrency"} <= set(names)  # fmt: skip
    assert tab.locator(".chart.broken").count() == 0
    for name in names:
        assert tab.locator(f"#{name} svg.marks [class*=role-axis-title]").count() > 0, name
        assert tab.locator(f"#{name} svg.marks [class*=role-mark] path").count() > 0, name


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_report_is_drawn(opened: Open, name: str) -> None:
    tab = opened(name)
    assert tab.locator(".chart").count() > 0 and tab.locator(".chart.broken").count() == 0
    assert tab.locator("#findings-table tbody tr").count() > 0
    assert tab.locator("#table-cost").count() == (
        0 if name == "mi300x-vllm-fp8-procedure" else 1
    )


@pytest.mark.parametrize("name", ["plain", *PUBLISHED])
def test_no_label_overlaps_another_on_a_phone(opened: Open, name: str) -> None:
    tab = opened(name, width=390)
    assert tab.evaluate(OVERLAPS) == []
    wide = "c => c.querySelector('svg.marks').getBoundingClientRect().width > c.getBoundingClientRect().width + 2"
    assert (
        tab.evaluate(f"[...document.querySelectorAll('.chart')].filter({wide}).length") == 0
    )


@pytest.mark.parametrize("name", ["plain", *PUBLISHED])
def test_the_answer_fits_one_screen(opened: Open, name: str) -> None:
    tab = opened(name, height=800, unfold=False)
    bottom = tab.locator("#answer").evaluate("e => e.getBoundingClientRect().bottom")
    assert bottom <= 800 and 1 <= tab.locator("#answer .words p").count() <= 3
    assert (
        tab.locator("#answer .chart.drawn").count() == 1
        and tab.locator("#table-answer tbody tr").count() <= 6
    )
    assert tab.locator("details.section[open]").count() == 0
    table = tab.locator("#table-answer .scroll")
    assert table.evaluate("e => e.scrollWidth <= e.clientWidth"), "the verdict is in view"
    phone = opened(name, width=390, height=844, unfold=False)
    assert (
        phone.locator("#answer .words p").first.evaluate(
            "e => e.getBoundingClientRect().bottom"
        )
        < 844
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_a_legend_hides_and_shows_its_series(opened: Open, width: int) -> None:
    tab = opened(width=width)
    before = points(tab, "throughput-concurrency")
    label = tab.locator("#throughput-concurrency svg.marks .role-legend-label text").first
    label.scroll_into_view_if_needed()
    label.click(force=True)
    count = (
        "document.querySelectorAll('#throughput-concurrency svg.marks "
        ".mark-symbol.role-mark path[aria-label]').length"
    )
    until(tab, f"{count} < {before}")
    label.click(force=True)
    until(tab, f"{count} === {before}")


def test_a_chip_hides_a_series_in_all_charts(opened: Open) -> None:
    tab = opened()
    charts_with = ("throughput-concurrency", "ttft-concurrency", "cost-concurrency")
    before = [points(tab, name) for name in charts_with]
    tab.locator(".chips button", has_text="TGI").click()
    settle(tab)
    assert all(
        points(tab, name) < then for name, then in zip(charts_with, before, strict=True)
    )


def test_the_switch_changes_figures_and_their_words(opened: Open) -> None:
    tab = opened()
    assert "per accelerator" not in words(tab, "throughput-concurrency")
    tab.locator("#per").select_option("accelerator")
    settle(tab)
    assert "per accelerator" in words(tab, "throughput-concurrency")
    tab.locator("#per").select_option("machine")
    settle(tab)
    assert "estimate" in words(tab, "throughput-concurrency"), (
        "a machine of which a part was measured"
    )


def test_one_switch_sets_the_statistic_of_latencies_everywhere(opened: Open) -> None:
    tab = opened()
    head = "#table-results-serve thead th:visible"
    assert [
        t.split("\n")[0] for t in tab.locator(head).all_inner_texts() if "TTFT" in t
    ] == ["p50 TTFT"]
    for statistic in ("p99", "mean"):
        tab.locator("#statistic").select_option(statistic)
        settle(tab)
        for table in ("#table-results-serve", "#table-answer"):
            titles = tab.locator(f"{table} thead th:visible").all_inner_texts()
            assert [t.split("\n")[0] for t in titles if "TTFT" in t] == [
                f"{statistic} TTFT"
            ], table
        assert f"TTFT, {statistic} (ms)" in words(tab, "ttft-concurrency")
        assert f"{statistic} TTFT" in words(tab, "tradeoff-concurrency")


def test_a_select_shows_another_statistic(opened: Open) -> None:
    tab = opened()
    assert "p99" not in words(tab, "ttft-concurrency")
    tab.locator("#ttft-concurrency select").first.select_option(label="p99")
    until(
        tab,
        "document.querySelector('#ttft-concurrency svg.marks').textContent.includes('p99')",
    )


def test_a_bar_of_parts_is_shown_in_time_or_in_percent(opened: Open) -> None:
    tab = opened()
    assert "milliseconds" in words(tab, "parts") and "queue" in words(tab, "parts")
    tab.locator("#parts select").first.select_option(label="percent of the latency")
    until(
        tab,
        "document.querySelector('#parts svg.marks').textContent.includes('percent of the latency')",
    )


def test_another_slow_request_is_shown_among_its_neighbours(opened: Open) -> None:
    tab = opened()
    first, second = explained().explanation.tail[:2]
    assert f"request {first.index}: " in words(tab, "slow-request")
    assert "▶" in words(tab, "slow-request")
    tab.locator("#slow-request select").last.select_option(label="number 2")
    until(
        tab,
        f"document.querySelector('#slow-request svg.marks').textContent.includes('request {second.index}: ')",
    )


def test_a_point_reports_its_figures_and_leads_to_its_trial(opened: Open) -> None:
    tab = opened()
    point = tab.locator(
        '#ttft-concurrency svg.marks .mark-symbol.role-mark path[aria-label*="doubtful"]'
    ).first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    tip = tab.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert "Verdict" in tip.inner_text() and "completed" in tip.inner_text()
    point.click(force=True)
    assert tab.locator("details.trial[open]").count() == 1


def test_the_wheel_scrolls_the_page_and_with_shift_zooms_the_chart(opened: Open) -> None:
    tab = opened()
    chart = tab.locator("#throughput-concurrency svg.marks")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    at, before = tab.evaluate("scrollY"), words(tab, "throughput-concurrency")
    tab.mouse.wheel(0, 200)
    until(tab, f"scrollY !== {at}")
    assert words(tab, "throughput-concurrency") == before
    box = chart.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.keyboard.down("Shift")
    tab.mouse.wheel(0, -400)
    tab.keyboard.up("Shift")
    text = "[...document.querySelectorAll('#throughput-concurrency svg.marks text')].map(e => e.textContent).join(' ')"
    until(tab, f"{text} !== {before!r}")


def test_names_of_strangers_stay_text_in_every_chart(opened: Open) -> None:
    tab = opened("hostile")
    assert tab.locator(".chart.broken").count() == 0
    assert "<script>" in words(tab, "throughput-concurrency")
    for chart in ("throughput-concurrency", "timeline", "memory"):
        assert "<script>" in tip_of(tab, chart), chart
    assert tab.evaluate("typeof window.hacked") == "undefined"
    assert tab.locator("#vg-tooltip-element script, .chart svg script").count() == 0
