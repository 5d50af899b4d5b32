"""The doctor's checks as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from stepscope.doctor.check import Check, count_by_state, worst
from stepscope.report.outputs import Layout, Sink

FORMAT_VERSION = 1


def write(checks: Sequence[Check], sink: Sink, _layout: Layout) -> None:
    """Write the checks."""
    sink.write(json.dumps(checks_to_dict(checks), indent=2, ensure_ascii=False) + "\n")


def checks_to_dict(checks: Sequence[Check]) -> dict[str, Any]:
    """Plain values, as `stepscope doctor --format json` prints them."""
    return {
        "format": "stepscope-doctor",
        "version": FORMAT_VERSION,
        "worst": worst(checks).value,
        "counts": count_by_state(checks),
        "checks": [{**dataclasses.asdict(check), "state": check.state.value} for check in checks],
    }
