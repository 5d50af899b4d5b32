"""One browser for all tests of pages that a worker runs one after the other."""

from __future__ import annotations

import pytest

from stepscope.viewer import security
from tests.support.browser import browsing, chromium
from tests.support.viewer import COMPLETE, SETTLED, check, to, training, viewing


@pytest.fixture(scope="package")
def browser(tmp_path_factory):
    """Opens pages.

    It ends before other tests begin: playwright keeps a loop of asyncio running in this thread.
    """
    with browsing(tmp_path_factory.mktemp("profile")) as new_page:
        yield new_page


@pytest.fixture(scope="package", autouse=True)
def _modules_are_kept():
    """The browser asks each server once for its modules, and not for each page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(security.CACHING, "cache-control", "max-age=3600")
        yield


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    chromium()
    path = tmp_path_factory.mktemp("traces") / "trace.json"
    path.write_bytes(training().json())
    with viewing([path]) as client:
        yield client


def _opened(browser, viewer):
    found = browser()
    found.page.goto(viewer.link)
    found.until(SETTLED)
    found.until(COMPLETE)
    return found


@pytest.fixture
def page(browser, viewer):
    found = _opened(browser, viewer)
    yield found
    check(found, viewer)
    found.close()


@pytest.fixture(scope="module")
def _kept_page(browser, viewer):
    found = _opened(browser, viewer)
    yield found
    found.close()


@pytest.fixture
def shared_page(_kept_page, viewer):
    """The page that tests share which change nothing in it but the place, the size and the colours.

    To open the viewer takes longer than what most of them look at.
    """
    size = _kept_page.page.viewport_size
    _kept_page.page.bring_to_front()  # those behind are not drawn
    to(_kept_page, "view=timeline")
    _kept_page.until(SETTLED)
    yield _kept_page
    check(_kept_page, viewer)
    _kept_page.page.set_viewport_size(size)
    _kept_page.page.emulate_media(media="screen", color_scheme="light")
