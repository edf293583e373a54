"""A browser, where there is one."""

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]
HOW = {
    "playwright": "Playwright for Python is missing: it is one of the dev dependencies, which make installs.",
    "chromium": "No Chromium was found ($CHROMIUM, chromium, google-chrome): apt-get install chromium.",
}


def chromium() -> str | None:
    """$CHROMIUM, else the first of its names on the path."""
    if reported := os.environ.get("CHROMIUM"):
        return shutil.which(reported)
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
        None,
    )


def missing() -> str:
    """Why no page can be opened here, and what to do; '' where one can."""
    if importlib.util.find_spec("playwright") is None:
        return HOW["playwright"]
    return "" if chromium() else HOW["chromium"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, files: dict[str, Path]) -> Iterator[Open]:
    """`opened("plain", width=390)`: the page with its charts drawn, all sections open. Complaints and requests fail the
    test."""
    wrong: list[str] = []
    contexts = []

    def open_(
        name: str = "plain",
        width: int = 1280,
        height: int = 900,
        unfold: bool = True,
        **options: Any,
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, **options
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        tab.on("pageerror", lambda e: wrong.append(str(e)))
        tab.on("dialog", lambda d: (wrong.append(f"dialog: {d.message}"), d.dismiss()))
        tab.on(
            "request",
            lambda r: (
                wrong.append(r.url)
                if not r.url.startswith(("file:", "data:", "blob:"))
                else None
            ),
        )
        tab.goto(files[name].as_uri())
        if options.get("java_script_enabled", True):
            tab.locator(".chart.drawn").nth(tab.locator(".chart").count() - 1).wait_for(
                state="attached", timeout=30_000
            )
            if unfold:
                tab.locator("#unfold").click()
        return tab

    yield open_
    for context in contexts:
        context.close()
    assert wrong == []


def until(tab: Any, expression: str, within_s: float = 15.0) -> None:
    """Asked again and again from here: inside the page, its own policy allows no waiting on words."""
    ends = time.monotonic() + within_s
    while not tab.evaluate(expression):
        assert time.monotonic() < ends, f"never: {expression}"
        time.sleep(0.05)


def settle(tab: Any) -> None:
    """All charts are drawn as they were last given."""
    until(tab, "!document.documentElement.dataset.drawing")


OVERLAPS = """() => [...document.querySelectorAll('.chart')].flatMap((chart) => {
  const seen = (text) => text.textContent.trim() && text.getAttribute('opacity') !== '0';
  const texts = [...chart.querySelectorAll('svg.marks text')].filter(seen);
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]).filter(([, box]) => box.width);
  const both = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  return boxes.flatMap(([words, a], i) => boxes.slice(0, i).filter(([, b]) => both(a, b))
    .map(([other]) => `${chart.id}: ${other} | ${words}`));
})"""
