"""Recording options, their values and origins, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from stepscope.report.outputs import Layout, Sink

if TYPE_CHECKING:
    from stepscope.adapters.options.sheets import SettingSheet

FORMAT_VERSION = 1


def write(sheet: SettingSheet, sink: Sink, _layout: Layout) -> None:
    """Write the options."""
    document = {
        "format": "stepscope-config",
        "version": FORMAT_VERSION,
        "dialect": sheet.dialect,
        "options": [
            {"name": line.name, "value": line.value, "origin": line.origin} for line in sheet.lines
        ],
    }
    sink.write(json.dumps(document, indent=2, default=str) + "\n")
