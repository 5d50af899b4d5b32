"""Recording options, their values and origins, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from stepscope.report.outputs import Layout, Sink

if TYPE_CHECKING:
    from stepscope.adapters.options.settings import Settings

FORMAT_VERSION = 1


def write(settings: Settings, sink: Sink, _layout: Layout) -> None:
    """Write the options."""
    document = {
        "format": "stepscope-config",
        "version": FORMAT_VERSION,
        "dialect": settings.dialect.name,
        "options": [
            {"name": name, "value": setting.value, "origin": setting.origin}
            for name, setting in settings.settings.items()
        ],
    }
    sink.write(json.dumps(document, indent=2, default=str) + "\n")
