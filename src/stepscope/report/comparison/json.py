"""A comparison as JSON: all rows, integer nanoseconds."""

from __future__ import annotations

from typing import Any

from stepscope.analysis.comparison.side import Side
from stepscope.report.comparison.result import CheckedComparison
from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import json_text, plain, scope_to_dict

FORMAT_VERSION = 1


def write(checked: CheckedComparison, sink: Sink, _layout: Layout) -> None:
    """Write the comparison."""
    document = comparison_to_dict(checked)
    if checked.scaling is not None:
        document["scaling"] = {
            **plain(checked.scaling),
            "scope": scope_to_dict(checked.scaling.scope),
        }
    sink.write(json_text(document))


def comparison_to_dict(checked: CheckedComparison) -> dict[str, Any]:
    """Plain values: both sides, the step, every change, and everything said about them."""
    comparison = checked.comparison
    return {
        "format": "stepscope-compare",
        "version": FORMAT_VERSION,
        "a": _side(comparison.a),
        "b": _side(comparison.b),
        "step": plain(comparison.step),
        "changes": plain(comparison.changes),
        "differences": list(comparison.differences),
        "notes": list(comparison.notes),
        "runs": plain(comparison.runs),
        "checks": [plain(check) for check in checked.checks],
        "failed": checked.failed,
        "unclear": checked.unclear,
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "path": side.path,
        "basis": side.basis,
        "steps": list(side.steps),
        # Of parts, kernels and operators; without a trace, of the step record.
        "scope": {"steps": list(side.steps)} if side.scope is None else scope_to_dict(side.scope),
        "step_ns": side.step_ns.tolist(),
        "parts_basis": side.parts_basis,
        "operators_basis": side.operators_basis,
    }
