"""A browser, where there is one."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HOW = {
    "playwright": "Playwright for Python is missing: it is one of the dev dependencies, which make installs.",
    "chromium": "No Chromium was found ($CHROMIUM, chromium, google-chrome): apt-get install chromium.",
}


def chromium() -> str | None:
    """$CHROMIUM, else the first of its names on the path."""
    if told := os.environ.get("CHROMIUM"):
        return shutil.which(told)
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing() -> str:
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return HOW["playwright"]
    return "" if chromium() else HOW["chromium"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = missing()
    for item in items if why else []:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()
