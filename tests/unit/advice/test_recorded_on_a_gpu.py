"""Trainings recorded on an H200, with what their fix brought there: savings come true.

`scripts/gpu_session.py` recorded them with torch 2.11, and timed both without recording. A fix
often removes more than the cause that it is for, so a saving may fall short; it never exceeds what
the fix brought by more than a twentieth of the step.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.advice.diagnosis import Diagnosis, diagnose

RECORDED = Path(__file__).parents[2] / "recorded" / "h200"
MEASURED_MS = {
    "allocator-retries": ("allocator-churn", 3.74, 1.50),
    "cross-entropy": ("fusible-pattern", 7.59, 3.63),
    "fp32-matmuls": ("full-precision-matmuls", 13.98, 2.63),
    "image-layout": ("layout-copies", 15.02, 11.07),
    "input-in-the-step": ("input-bound", 5.03, 2.31),
    "noise-on-the-cpu": ("cpu-operators", 54.06, 1.48),
    "odd-sizes": ("slow-matmuls", 11.29, 2.65),
    "restarted-workers": ("slow-epoch-start", 8.85, 3.73),
    "small-copies": ("pageable-copies", 4.93, 2.37),
    "starved-loader": ("input-bound", 18.05, 2.31),
    "unfused-attention": ("unfused-attention", 6.97, 2.37),
}
"""The finding that must come first, the step as it was, and the step with the fix."""
MOST_TOO_MUCH, MOST_TOO_LITTLE = 0.05, 0.2


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> dict[str, Diagnosis]:
    """The diagnosis of each; nothing is kept beside the recordings."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("STEPSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return {name: diagnose(RECORDED / name) for name in MEASURED_MS}


def test_every_recording_is_judged():
    assert {path.name for path in RECORDED.iterdir()} == set(MEASURED_MS)


@pytest.mark.parametrize("name", MEASURED_MS)
def test_the_first_finding_is_the_planted_cause_and_its_saving_comes_true(judged, name):
    cause, before_ms, fixed_ms = MEASURED_MS[name]
    first = judged[name].findings[0]
    assert first.id == cause
    step_ns = judged[name].ranks[0].step_ns
    error = (first.predicted_step_ns / step_ns * before_ms - fixed_ms) / before_ms
    assert -MOST_TOO_MUCH <= error <= MOST_TOO_LITTLE
