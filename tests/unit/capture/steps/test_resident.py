"""The memory of this process: the most so far is never below what it has now."""

from __future__ import annotations

import pytest

from stepscope.capture.steps import resident


def test_the_peak_is_at_least_what_is_resident(monkeypatch):
    usage = pytest.importorskip("resource")
    held = resident.resident_bytes()
    if held is None:
        pytest.skip("the system does not say what is resident")
    assert resident.peak_resident_bytes() >= 0.9 * held
    # Linux notes the peak late: what it noted may be below what is resident now.
    monkeypatch.setattr(usage, "getrusage", lambda _: type("Usage", (), {"ru_maxrss": 1})())
    monkeypatch.setattr(resident, "resident_bytes", lambda: 5 << 30)
    assert resident.peak_resident_bytes() == 5 << 30
    monkeypatch.setattr(resident, "resident_bytes", lambda: None)
    assert resident.peak_resident_bytes() in {1, 1024}
