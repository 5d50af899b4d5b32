"""Errors in words."""

from __future__ import annotations

import errno
import os

import pytest

from stepscope.artifacts.raw import RawTraceError
from stepscope.errors import UnreadableInputError
from stepscope.run.error_words import error_in_words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "/x/y"), "Read-only file system: /x/y"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (OSError("no route to host"), "OSError: no route to host"),
        (RawTraceError("torch wrote no trace file"), "torch wrote no trace file"),
        (UnreadableInputError("x: no such file"), "x: no such file"),
        (ValueError("3 is odd"), "ValueError: 3 is odd"),
        (AssertionError(), "AssertionError"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_classes_and_numbers_are_left_out_where_they_tell_nothing(error, words):
    assert error_in_words(error) == words
