"""Custom artifacts that another process can import."""

from __future__ import annotations

import json


def count_events(window):
    """Writes how many events the window's trace holds, and its steps' durations."""
    events = json.loads(window.trace_path.read_bytes())["traceEvents"]
    durations = [record.dur_ns for record in window.steps]
    text = json.dumps({"events": len(events), "steps": window.step_numbers, "ns": durations})
    (window.directory / "events_count.json").write_text(text)


class TwoFiles:
    """A class works like a function: it is made and called."""

    def __call__(self, window):
        """Writes two files."""
        for name in ("one.txt", "two.txt"):
            (window.directory / name).write_text(f"{window.rank} {window.index}")


def broken(window):
    """Raises."""
    raise ValueError(f"no luck with window {window.index}")
