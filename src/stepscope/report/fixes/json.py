"""The fixes that can be tried, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import json_text

if TYPE_CHECKING:
    from stepscope.trial.fixes import Fix


def write(fixes: Sequence[Fix], sink: Sink, _layout: Layout) -> None:
    """Write each fix with the findings that it answers."""
    document = [
        {
            "name": fix.name,
            "title": fix.title,
            "answers": list(fix.answers),
            "applies_to": fix.applies_to,
            "risks": fix.risks,
            "group": fix.group,
            "only_if_asked": fix.only_if_asked,
        }
        for fix in fixes
    ]
    sink.write(json_text(document))
