"""Errors in words."""

from __future__ import annotations

import errno
import os

import pytest

from stepscope.artifacts.job import RawTraceError
from stepscope.errors import UnreadableInputError
from stepscope.run.figures import describe_error


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
    assert describe_error(error) == words


class Unprintable(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class ReadOnly(OSError):
    @property
    def filename(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize("error", [Unprintable(1), ReadOnly(errno.EROFS, "read-only")])
def test_errors_that_cannot_be_printed_are_told_by_their_class(error):
    assert describe_error(error).startswith(type(error).__name__)
