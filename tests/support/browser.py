"""Headless Chromium for the tests of pages; they skip, with the reason, where it is missing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 90
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str:
    """Where Chromium is (`STEPSCOPE_CHROMIUM` overrides it); skips the test where it is not."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = os.environ.get("STEPSCOPE_CHROMIUM") or next(filter(None, map(shutil.which, names)), "")
    if not found:
        pytest.skip("no Chromium on PATH; set STEPSCOPE_CHROMIUM")
    return found


class Page:
    """A page with what went wrong on it, and what it asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", self._console)

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def until(self, script: str, argument: Any = None) -> Any:
        """Wait until an expression of the page is true; returns its value."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = self.page.evaluate(script, argument)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}; errors: {self.errors}")

    def when(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition holds; returns its value."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"never came to hold; errors: {self.errors}")

    def text(self, selector: str) -> str:
        """The text of the first element that fits."""
        found: str = self.page.evaluate(
            "selector => document.querySelector(selector)?.textContent ?? ''", selector
        )
        return found


@contextmanager
def browsing(folder: Path, width: int = 1280, height: int = 800) -> Iterator[Callable[[], Page]]:
    """A browser with a profile of its own; gives a function that opens pages."""
    executable = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(folder),
            executable_path=executable,
            headless=True,
            args=ARGUMENTS,
            viewport={"width": width, "height": height},
        )
        try:
            yield lambda: Page(context.new_page())
        finally:
            context.close()
