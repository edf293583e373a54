"""The page as a reader sees it: Chromium opens it from disk, with no network."""

import re
from pathlib import Path
from typing import Any

import pytest

import reports
from chromium import Open, browser, missing, opened, settle, until
from dyno.report.page import bundle, page
from test_report_page import hostile

pytestmark = [
    pytest.mark.pages,
    pytest.mark.skipif(bool(missing()), reason=missing() or "it is here"),
]

__all__ = ["browser", "opened"]  # fixtures


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Made once."""
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "plain": reports.report(),
        "hostile": hostile(),
        "large": reports.report(streams=tuple(range(1, 35))),
    }
    for name, report in made.items():
        (folder / f"{name}.html").write_text(
            page(report, reports.charts(report)), encoding="utf-8"
        )
    return {name: folder / f"{name}.html" for name in made}


def shown(tab: Any, table: str = "#table-results-serve") -> Any:
    return tab.locator(f"{table} tbody tr:visible")


def column(tab: Any, number: int, table: str = "#table-results-serve") -> list[str]:
    cells: list[str] = tab.locator(
        f"{table} tbody tr:visible > :nth-child({number})"
    ).all_inner_texts()
    return cells


def figure(text: str) -> float:
    return float(text.split()[0].lstrip("≈").replace(",", ""))


def marks(tab: Any, chart: str) -> int:
    count: int = tab.locator(f"#{chart} svg .mark-symbol.role-mark path").count()
    return count


def width_of_page(tab: Any) -> tuple[int, int]:
    reported: list[int] = tab.evaluate(
        "[document.documentElement.scrollWidth, window.innerWidth]"
    )
    return reported[0], reported[1]


def test_a_page_is_small(files: dict[str, Path]) -> None:
    """The bundle is 0.9 MB of it."""
    assert (
        files["plain"].stat().st_size < 1_400_000
        and files["large"].stat().st_size < 2_300_000
    )
    assert re.search(r"</script|<!--|\r", bundle(), re.IGNORECASE) is None


def test_every_chart_is_drawn(opened: Open) -> None:
    tab = opened()
    assert tab.locator(".chart.broken").count() == 0
    for chart in ("throughput-concurrency", "ttft-concurrency"):
        assert marks(tab, chart) == 23


def test_a_header_sorts_by_number_and_back(opened: Open) -> None:
    tab = opened()
    head = tab.locator("#table-results-serve thead th", has_text="output tok/s")
    number = head.evaluate("th => th.cellIndex") + 1
    before = column(tab, number)
    head.locator("button").click()
    values = [figure(text) for text in column(tab, number) if text != "–"]
    assert values == sorted(values) and head.get_attribute("aria-sort") == "ascending"
    assert column(tab, number)[-1] == "–"
    head.locator("button").click()
    values = [figure(text) for text in column(tab, number) if text != "–"]
    assert values == sorted(values, reverse=True) and column(tab, number)[-1] == "–"
    head.locator("button").click()
    assert column(tab, number) == before and head.get_attribute("aria-sort") == "none"


QUERIES = {
    "": 24, "sglang": 8, "failed>0": 1, "verdict:void": 2, "vllm p99 TTFT<500": 3, "concurrency>=64": 12,
    "ttft p99 < 500 sglang": 3, "concurrency=16 input=512": 3, "nobody": 0, "verdict:doubtful": 2,
}  # fmt: skip


def test_filters(opened: Open) -> None:
    tab = opened()
    for query, count in QUERIES.items():
        tab.locator("#table-results-serve input").fill(query)
        assert shown(tab).count() == count, query
        reported = tab.locator("#table-results-serve output").inner_text()
        assert reported == (f"{count} of 24 rows" if count < 24 else "24 rows")


def test_a_filter_that_names_no_column_says_so(opened: Open) -> None:
    tab = opened()
    tab.locator("#table-results-serve input").fill("nonsense>5")
    assert (
        "no column named “nonsense”"
        in tab.locator("#table-results-serve output").inner_text()
    )
    assert shown(tab).count() == 24


def test_a_chip_hides_a_series_everywhere(opened: Open) -> None:
    tab = opened()
    chip = tab.locator(".chips button", has_text="TGI")
    chip.click()
    settle(tab)
    assert chip.get_attribute("aria-pressed") == "false"
    assert shown(tab).count() == 16 and shown(tab, "#table-cost").count() == 16
    assert marks(tab, "throughput-concurrency") == marks(tab, "ttft-concurrency") == 16
    tab.locator(".chips button", has_text="vLLM").click(modifiers=["Shift"])
    settle(tab)
    assert shown(tab).count() == 8 and marks(tab, "ttft-concurrency") == 8
    tab.get_by_text("show all").click()
    settle(tab)
    assert shown(tab).count() == 24 and marks(tab, "ttft-concurrency") == 23


def test_throughput_is_reported_for_one_machine(opened: Open) -> None:
    tab = opened()
    axis = tab.locator("#throughput-concurrency svg.marks").inner_html()
    number = (
        tab.locator("#table-results-serve thead th", has_text="output tok/s").evaluate(
            "th => th.cellIndex"
        )
        + 1
    )
    before = column(tab, number)[0]
    tab.locator("#per").select_option("machine")
    settle(tab)
    after = column(tab, number)[0]
    assert after.startswith("≈") and figure(after) == pytest.approx(
        2 * figure(before), rel=1e-3
    )
    assert "/ machine" in tab.locator("#table-results-serve thead").inner_text()
    assert tab.locator(".estimate").is_visible()
    assert tab.locator("#throughput-concurrency svg.marks").inner_html() != axis
    tab.locator("#per").select_option("dollar")
    settle(tab)
    assert figure(column(tab, number)[0]) == pytest.approx(figure(before) / 20, rel=1e-3)
    tab.locator("#per").select_option("measured")
    settle(tab)
    assert (
        column(tab, number)[0] == before
        and tab.locator("#throughput-concurrency svg.marks").inner_html() == axis
    )


@pytest.mark.parametrize("clipboard", [True, False])
def test_what_is_shown_is_copied(opened: Open, clipboard: bool) -> None:
    tab = opened()
    tab.evaluate("""(there) => {
        window.copied = [];
        const keep = { writeText: async (text) => { window.copied.push(text); } };
        Object.defineProperty(navigator, 'clipboard', { value: there ? keep : undefined, configurable: true });
        document.execCommand = () => { window.copied.push(document.activeElement.value); return true; };
    }""", clipboard)  # fmt: skip
    tab.locator("#table-results-serve input").fill("concurrency=64 input=512")
    tab.locator("#table-results-serve [data-copy=markdown]").click()
    tab.locator("#table-results-serve [data-copy=csv]").click()
    tab.locator("#commands .copy").first.click()
    until(tab, "window.copied.length === 3")
    as_markdown, as_csv, command = tab.evaluate("window.copied")
    assert len(as_markdown.splitlines()) == 5 and as_markdown.splitlines()[1].startswith(
        "| --- | ---: |"
    )
    assert (
        as_csv.splitlines()[0].startswith("series,concurrency,input tokens,")
        and "vLLM 0.11.0,64,512" in as_csv
    )
    assert command.startswith("vllm serve")
    full = repr(reports.report().entries[2].figures["output_throughput"].value)[:12]
    assert full in as_csv and full not in as_markdown


def test_a_figure_shows_all_its_digits_on_hover_and_copies_them(opened: Open) -> None:
    tab = opened()
    value = reports.report().entries[1].figures["output_throughput"].value
    number = tab.locator("#table-results-serve thead th", has_text="output tok/s").evaluate(
        "th => th.cellIndex"
    )
    cell = tab.locator("#table-results-serve tbody tr").nth(1).locator("> *").nth(number)
    assert float(cell.get_attribute("title")) == pytest.approx(value, rel=1e-14)
    assert (
        figure(cell.inner_text()) == pytest.approx(value, rel=1e-3)
        and len(cell.inner_text().split()[0]) < 8
    )
    copied = cell.evaluate("""cell => {
        getSelection().selectAllChildren(cell);
        const event = new ClipboardEvent('copy', { clipboardData: new DataTransfer(), bubbles: true });
        cell.dispatchEvent(event);
        return event.clipboardData.getData('text/plain');
    }""")
    assert float(copied) == pytest.approx(value, rel=1e-14)
    tab.locator("#per").select_option("accelerator")
    settle(tab)
    assert float(cell.get_attribute("title")) == pytest.approx(value / 4, rel=1e-14)


def test_a_click_on_a_point_opens_its_facts(opened: Open) -> None:
    tab = opened()
    assert not tab.locator("#t16").evaluate("e => e.open")
    point = tab.locator(
        '#ttft-concurrency svg .mark-symbol.role-mark path[aria-label*="doubtful"]'
    ).last
    point.scroll_into_view_if_needed()
    point.click(force=True)
    opened_ids = tab.locator("details.trial[open]").evaluate_all(
        "all => all.map(e => e.id)"
    )
    assert len(opened_ids) == 1 and tab.url.endswith(f"#{opened_ids[0]}")
    assert (
        tab.locator(f"#{opened_ids[0]}").evaluate("e => e.getBoundingClientRect().top")
        < 900
    )


def test_a_name_in_a_table_opens_its_facts(opened: Open) -> None:
    tab = opened("large", unfold=False)
    assert not tab.locator("#t7").is_visible()
    tab.locator("#results > summary").click()
    tab.locator('#table-results-serve a[href="#t7"]').click()
    assert tab.locator("#t7 dl").is_visible()


def test_findings_are_filtered_by_level(opened: Open) -> None:
    tab = opened()
    assert shown(tab, "#findings-table").count() == 4
    tab.locator(".levels [data-level=void]").click()
    assert shown(tab, "#findings-table").count() == 2


def test_light_and_dark(opened: Open) -> None:
    def ground(tab: Any) -> list[int]:
        reported: list[int] = tab.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        )
        return reported

    light, dark = opened(color_scheme="light"), opened(color_scheme="dark")
    assert sum(ground(light)) > 700 and sum(ground(dark)) < 150
    light.locator("#theme").select_option("dark")
    assert sum(ground(light)) < 150
    light.reload()
    assert sum(ground(light)) < 150 and light.locator("#theme").input_value() == "dark"
    light.emulate_media(media="print")
    assert sum(ground(light)) > 700


@pytest.mark.parametrize("name", ["plain", "hostile", "large"])
def test_a_phone_scrolls_down_only(opened: Open, name: str) -> None:
    tab = opened(name, width=390)
    for details in tab.locator("details.trial").all()[:3]:
        details.evaluate("e => { e.open = true; e.parentElement.open = true; }")
    page_width, window_width = width_of_page(tab)
    assert page_width <= window_width
    first = tab.locator("#table-results-serve tbody th").first
    left = first.evaluate("e => e.getBoundingClientRect().left")
    tab.locator("#table-results-serve .scroll").evaluate("e => { e.scrollLeft = 300; }")
    assert abs(first.evaluate("e => e.getBoundingClientRect().left") - left) < 2


def test_hostile_words_never_become_elements(opened: Open) -> None:
    tab = opened("hostile")
    tab.locator("#table-results-serve input").fill("<img src=x onerror=hacked=1>")
    for details in tab.locator("details").all():
        details.evaluate("e => { e.open = true; }")
    tab.locator("#throughput-concurrency svg .mark-symbol.role-mark path").first.hover(
        force=True
    )
    tab.locator("#vg-tooltip-element.visible").wait_for()
    assert tab.evaluate("typeof window.hacked") == "undefined"
    assert tab.locator("img, iframe, object").count() == 0
    assert tab.locator('a[href^="javascript"]').count() == 0


def test_paper_shows_every_row_and_no_button(opened: Open) -> None:
    tab = opened()
    tab.locator("#table-results-serve input").fill("sglang")
    tab.emulate_media(media="print")
    assert shown(tab).count() == 24
    assert tab.locator(".tools:visible, .bar:visible, .copy:visible").count() == 0
    tab.emulate_media(media="screen")
    assert shown(tab).count() == 8
    assert len(tab.pdf(format="A4")) > 50_000


def test_paper_shows_what_is_folded(opened: Open) -> None:
    tab = opened(unfold=False)
    assert (
        not tab.locator("#table-cost").is_visible()
        and not tab.locator("#ttft-concurrency").is_visible()
    )
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert (
        tab.locator("details:not([open])").count() == 0
        and tab.locator("#table-cost").is_visible()
    )
    assert tab.locator("#ttft-concurrency svg.marks").is_visible()
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.locator("details.section[open]").count() == 0


def test_a_link_to_a_section_opens_it(opened: Open) -> None:
    tab = opened(unfold=False)
    tab.locator('.meta a[href="#caveats"]').click()
    assert (
        tab.locator("#caveats li").first.is_visible()
        and not tab.locator("#results .grid").first.is_visible()
    )


def test_without_scripts_all_but_the_charts_is_there(opened: Open) -> None:
    tab = opened(java_script_enabled=False)
    tab.locator("#results > summary").click()
    assert shown(tab).count() == 24
    assert tab.locator("noscript p").count() == 1 or "Scripts are off" in tab.content()
    assert tab.locator(".tools:visible, .bar:visible").count() == 0


def test_charts_follow_the_window(opened: Open) -> None:
    tab = opened()
    wide = tab.locator("#ttft-concurrency svg.marks").evaluate(
        "e => e.getBoundingClientRect().width"
    )
    tab.set_viewport_size({"width": 400, "height": 900})
    now = "document.querySelector('#ttft-concurrency svg.marks').getBoundingClientRect().width"
    until(tab, f"{now} < {wide - 100}")
