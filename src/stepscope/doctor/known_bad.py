"""Combinations of versions that are known to fail, and what a capture does about them.

Each entry says what was observed, in which versions, with its source. What can be tried at once is
tried in `recording.py`; this is for failures that occur only later, in a real training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepscope.doctor.check import Check, State

AREA = "known combinations"


@dataclass(frozen=True)
class Versions:
    """The versions to check.

    Attributes:
        python: Version of Python.
        torch: Version of torch.
    """

    python: tuple[int, ...]
    torch: tuple[int, ...]


@dataclass(frozen=True)
class _Entry:
    name: str
    applies: Callable[[Versions], bool]
    state: State
    detail: str
    remedy: str


_ENTRIES = (
    # pytorch#148273, #144094: the tracer took an object of Python 3.13 for a dictionary. The fix
    # (#153848) is in 2.7.1 and not in 2.7.0, by the symbols that the two packages import.
    _Entry(
        "stacks on Python 3.13",
        lambda versions: versions.python >= (3, 13) and versions.torch < (2, 7, 1),
        State.WARNING,
        "with_stack=True can crash the training (segmentation fault) with torch before 2.7.1 on "
        "Python 3.13 and later",
        "leave with_stack off, or upgrade torch to 2.7.1 or later",
    ),
    # pytorch#113564, #136040: names of functions whose code objects are gone are arbitrary bytes.
    # torch before 2.6 copied its file in text mode to compress it (#139062), which raised.
    _Entry(
        "stacks and compressed export",
        lambda versions: versions.torch < (2, 6),
        State.WARNING,
        "torch before 2.6 raises UnicodeDecodeError when it compresses a trace with stacks whose "
        "names are damaged (pytorch#113564). This affects torch's own tensorboard_trace_handler "
        "and export_chrome_trace('….gz'), but not stepscope, which lets torch write plain JSON and "
        "compresses that itself",
        "upgrade torch to 2.6 or later if you use those functions",
    ),
)

_DAMAGED_NAMES = (
    "a window with stacks over code that is being imported can have damaged function names, in "
    "every torch up to 2.13 at least (pytorch#113564). The trace stays readable, but "
    "key_averages.txt can be missing; the manifest says so. Let the first steps pass before such "
    "a window"
)


def check_known_bad(versions: Versions) -> list[Check]:
    """The entries that apply, and the note for all versions."""
    checks = [
        Check(AREA, entry.name, entry.state, entry.detail, entry.remedy)
        for entry in _ENTRIES
        if entry.applies(versions)
    ]
    return [*checks, Check(AREA, "stacks at the start", State.OK, _DAMAGED_NAMES)]
