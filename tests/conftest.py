"""For all tests: none of them judges by the clock."""

from __future__ import annotations

from hypothesis import settings

# Examples that take long on a busy machine are no failures.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
