"""One browser for all tests of pages that a worker runs one after the other."""

from __future__ import annotations

import pytest

from tests.support.browser import browsing, chromium
from tests.support.viewer import COMPLETE, SETTLED, check, training, viewing


@pytest.fixture(scope="package")
def browser(tmp_path_factory):
    """Opens pages.

    It ends before other tests begin: playwright keeps a loop of asyncio running in this thread.
    """
    with browsing(tmp_path_factory.mktemp("profile")) as new_page:
        yield new_page


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    chromium()
    path = tmp_path_factory.mktemp("traces") / "trace.json"
    path.write_bytes(training().json())
    with viewing([path]) as client:
        yield client


@pytest.fixture
def page(browser, viewer):
    found = browser()
    found.page.goto(viewer.link)
    found.until(SETTLED)
    found.until(COMPLETE)
    yield found
    check(found, viewer)
    found.close()
