"""A browser, where there is one."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
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
    """Why no page can be opened here, and what to do; '' where one can."""
    if importlib.util.find_spec("playwright") is None:
        return HOW["playwright"]
    return "" if chromium() else HOW["chromium"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()
