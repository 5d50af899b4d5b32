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
    # Fewer processes, which hand less around: a sixth of the time of opening a page.
    "--in-process-gpu",
    "--enable-features=NetworkServiceInProcess,NetworkServiceInProcess2",
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

    def __init__(self, page: Any, give_back: Callable[[Any], None]) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._give_back = give_back
        self._listeners: dict[str, Callable[[Any], None]] = {
            "pageerror": lambda error: self.errors.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
            "console": self._console,
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)

    def close(self) -> None:
        """Leave the page, and give back its tab."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self._give_back(self.page)

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

    @property
    def url(self) -> str:
        """Where the page is now; Playwright's own hears of it only while it is asked something."""
        found: str = self.page.evaluate("() => location.href")
        return found

    def text(self, selector: str) -> str:
        """The text of the first element that fits."""
        found: str = self.page.evaluate(
            "selector => document.querySelector(selector)?.textContent ?? ''", selector
        )
        return found


@contextmanager
def browsing(folder: Path, width: int = 1280, height: int = 800) -> Iterator[Callable[[], Page]]:
    """A browser with a profile of its own; gives a function that opens pages.

    A page begins in the tab of one that was closed, if there is one: a new tab takes three times as
    long. Nothing of the page before is left in it but what the profile keeps, too.
    """
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
        free: list[Any] = []

        def give_back(page: Any) -> None:
            page.goto("about:blank")
            page.mouse.move(-1, -1)  # over nothing, as in a new tab
            page.emulate_media(media="screen", color_scheme="light")
            page.set_viewport_size({"width": width, "height": height})
            context.set_offline(False)
            free.append(page)

        def new_page() -> Page:
            page = free.pop() if free else context.new_page()
            page.bring_to_front()  # those behind are not drawn
            return Page(page, give_back)

        try:
            yield new_page
        finally:
            context.close()
