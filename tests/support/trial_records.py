"""A record of trials with one of everything."""

from __future__ import annotations

from stepscope.opening.trials import (
    CHANGED,
    CRASHED,
    HELPS,
    NOT_APPLIED,
    SAME,
    LossRecord,
    TrialRecord,
    TrialsRecord,
    UntriedRecord,
)

BASELINE = TrialRecord(
    "as it is",
    (),
    ratio=1.0,
    ratio_low=1.0,
    ratio_high=1.0,
    step_ns=20_000_000,
    processes=3,
    steps=96,
    peak_resident_bytes=300 << 20,
    runs=("as-it-is-1", "as-it-is-2"),
)
WORKERS = TrialRecord(
    "loader-workers",
    ("loader-workers",),
    findings=("input-bound",),
    changes="num_workers 0 → 2",
    verdict=HELPS,
    promised_ratio=0.5,
    promise_basis="input-bound",
    ratio=0.52,
    ratio_low=0.51,
    ratio_high=0.53,
    step_ns=10_400_000,
    processes=3,
    steps=96,
    losses=LossRecord(SAME, 0.0, 0.0, 40),
    peak_resident_bytes=312 << 20,
    lines=("DataLoader(..., num_workers=2, persistent_workers=True)",),
    applied=("train.py:12: num_workers=2, persistent_workers=True",),
    overrides=("train.py:12: num_workers=0",),
    risks="more memory on the host",
    runs=("loader-workers-1", "loader-workers-2"),
)
CHANGES_LOSSES = TrialRecord(
    "rare-gc",
    ("rare-gc",),
    verdict=HELPS,
    ratio=0.9,
    ratio_low=0.88,
    ratio_high=0.92,
    step_ns=18_000_000,
    losses=LossRecord(CHANGED, 0.25, 0.0, 40),
)
CRASHES = TrialRecord("threads", ("threads",), verdict=CRASHED, reason="exit code 1: a | pipe")
NEVER_RAN = TrialRecord("tf32", ("tf32",), verdict=NOT_APPLIED, reason="no GPU is in use")


def trials_record(**more):
    """The record; `more` replaces its fields."""
    values = {
        "command": ("python", "train.py"),
        "verdict": "loader-workers helps: 1.92× as fast, 48% off the step",
        "baseline": BASELINE,
        "trials": (WORKERS, CHANGES_LOSSES, CRASHES, NEVER_RAN),
        "together": None,
        "best": "loader-workers",
        "untried": (UntriedRecord("cpu-bound-python", "Move that Python out. Or not.", 0.75),),
        "warnings": ("the script wrote files of its own",),
        "folder": "stepscope-try/T",
        "steps": 40,
        "warm_up": 8,
        "budget_s": 600.0,
        "total_s": 63.0,
        "processes_s": 60.0,
        "load": 0.4,
    }
    return TrialsRecord(**{**values, **more})
