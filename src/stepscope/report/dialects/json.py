"""Option names of other frameworks, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepscope.report.outputs import Layout, Sink

if TYPE_CHECKING:
    from stepscope.adapters.options.dialect import Dialect

FORMAT_VERSION = 1


def write(dialects: Sequence[Dialect], sink: Sink, _layout: Layout) -> None:
    """Write the dialects."""
    document = {
        "format": "stepscope-dialects",
        "version": FORMAT_VERSION,
        "dialects": [_dialect(dialect) for dialect in dialects],
    }
    sink.write(json.dumps(document, indent=2) + "\n")


def _dialect(dialect: Dialect) -> dict[str, Any]:
    return {
        "name": dialect.name,
        "about": dialect.about,
        "step_unit": dialect.step_unit,
        "ranks": dialect.ranks,
        "flags": [
            {
                "names": list(flag.names),
                "option": flag.option,
                "default": dialect.default(flag.option),
                "form": flag.style,
            }
            for flag in dialect.flags
        ],
        "defaults": dict(dialect.defaults),
        "rules": [
            {
                "option": rule.option,
                "unless": rule.unless,
                "sets": dict(rule.sets),
                "reason": rule.reason,
            }
            for rule in dialect.rules
        ],
        "needs": list(dialect.needs),
        "files": list(dialect.files),
    }
