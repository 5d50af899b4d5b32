"""For the tests of trials."""

from __future__ import annotations

import pytest
from tests.support.trial_records import trials_record as make


@pytest.fixture
def trials_record():
    return make()
