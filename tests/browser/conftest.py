"""One browser for all tests of pages that a worker runs one after the other."""

from __future__ import annotations

import pytest

from tests.support.browser import browsing


@pytest.fixture(scope="package")
def browser(tmp_path_factory):
    """Opens pages.

    It ends before other tests begin: playwright keeps a loop of asyncio running in this thread.
    """
    with browsing(tmp_path_factory.mktemp("profile")) as new_page:
        yield new_page
