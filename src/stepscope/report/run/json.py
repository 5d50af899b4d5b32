"""What a run directory holds, as JSON."""

from __future__ import annotations

import json

from stepscope.analysis.record.listing import RunListing
from stepscope.report.metrics.json import metrics_to_dict
from stepscope.report.outputs import Layout, Sink


def write(listing: RunListing, sink: Sink, _layout: Layout) -> None:
    """Write the listing."""
    sink.write(json.dumps(listing_to_dict(listing), ensure_ascii=False, indent=2) + "\n")


def listing_to_dict(listing: RunListing) -> dict[str, object]:
    """The run as plain values."""
    return {
        "path": str(listing.path),
        "ranks": [
            {
                "rank": rank.rank,
                "directory": str(rank.directory),
                "steps": rank.steps,
                "metrics": None if rank.metrics is None else metrics_to_dict(rank.metrics),
                "windows": [
                    {
                        "window": window.index,
                        "trace": None if window.trace is None else str(window.trace),
                        "size_bytes": window.size_bytes,
                    }
                    for window in rank.windows
                ],
            }
            for rank in listing.ranks
        ],
        "external": [
            {
                "tool": recording.tool,
                "directory": str(recording.directory),
                "files": [
                    {"path": str(path), "size_bytes": size} for path, size in recording.files
                ],
                "problems": list(recording.problems),
            }
            for recording in listing.external
        ],
        "problems": list(listing.problems),
        "unrelated": listing.unrelated,
    }
