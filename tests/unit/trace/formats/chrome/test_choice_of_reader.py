"""Small traces are read in Python until so many were read that loading machine code pays."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.chrome_traces import assert_same_tables, kernel, operator, write

from stepscope.trace.formats.chrome import event_list, scan
from stepscope.trace.formats.chrome import format as chrome
from stepscope.trace.load import load

CONTENT = write([make(start=str(number)) for number in range(50) for make in (operator, kernel)])


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which reader read each trace, in order; nothing was read before."""
    used = []

    def noted(name, read):
        def reader(*given):
            used.append(name)
            return read(*given)

        return reader

    monkeypatch.setattr(chrome, "_READ", chrome.BytesRead())
    for module, name in (
        (event_list, "read_events_tolerantly"),
        (scan, "read_events_compiled"),
    ):
        monkeypatch.setattr(
            module, name, noted(module.__name__.split(".")[-1], getattr(module, name))
        )
    return used


def test_many_small_traces_are_read_with_the_scanner(
    readers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome, "COMPILED_ABOVE_BYTES", 3 * len(CONTENT))
    path = tmp_path / "trace.json"
    path.write_bytes(CONTENT)
    traces = [load(path) for _ in range(5)]
    # The bytes before the list of events and after it count, too: the fourth is one too many.
    assert readers == ["event_list"] * 3 + ["scan"] * 2
    for trace in traces[1:]:
        assert_same_tables(trace.tables(), traces[0].tables())


def test_one_large_trace_is_read_with_the_scanner(
    readers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(CONTENT)
    monkeypatch.setattr(chrome, "COMPILED_ABOVE_BYTES", len(CONTENT))
    load(path)
    monkeypatch.setattr(chrome, "COMPILED_ABOVE_BYTES", len(CONTENT) - 1)
    monkeypatch.setattr(chrome, "_READ", chrome.BytesRead())
    load(path)
    assert readers == ["event_list", "scan"]
