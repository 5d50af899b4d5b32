"""Rows of a snapshot as plain values: from the dictionaries, and from the tables."""

from __future__ import annotations

import io

from stepscope.memory.load import load_snapshot

AWAITING = {"active_awaiting_free": "active_pending_free"}
NAMELESS = ("", "N/A", None)


def loaded(data, **more):
    return load_snapshot(io.BytesIO(data), **more)


def stack_of(frames):
    """A stack as tuples; None where there is none."""
    return tuple((f["name"], f["filename"], f["line"]) for f in frames or ()) or None


def expected_events(snapshot):
    """The events of a snapshot's dictionaries."""
    rows = []
    traces = [] if isinstance(snapshot, list) else snapshot["device_traces"]
    for device, trace in enumerate(traces):
        for event in trace:
            time_us, pool = event.get("time_us"), event.get("pool_id")
            metadata = event.get("user_metadata")
            rows.append(
                {
                    "device": device,
                    "action": event["action"],
                    "address": event.get("addr"),
                    "size_bytes": event["size"],
                    "stream": event["stream"],
                    "time_ns": None if time_us is None else time_us * 1000,
                    "device_free_bytes": event.get("device_free"),
                    "pool": None if pool is None else tuple(pool),
                    "stack": stack_of(event.get("frames")),
                    "metadata": None if metadata in NAMELESS else metadata,
                }
            )
    return rows


def expected_segments(snapshot):
    """The segments of a snapshot's dictionaries, each with its blocks."""
    rows = []
    for segment in snapshot if isinstance(snapshot, list) else snapshot["segments"]:
        address = segment["address"]
        blocks = []
        for block in segment["blocks"]:
            first = (block.get("history") or [{}])[0]
            asked = block.get("requested_size", first.get("real_size"))
            blocks.append(
                {
                    "address": address,
                    "size_bytes": block["size"],
                    "requested_bytes": asked,
                    "state": AWAITING.get(block["state"], block["state"]),
                    "stack": stack_of(block.get("frames", first.get("frames"))),
                }
            )
            address += block["size"]
        rows.append(
            {
                "device": segment["device"],
                "address": segment["address"],
                "size_bytes": segment["total_size"],
                "stream": segment["stream"],
                "is_large": segment["segment_type"] == "large",
                "pool": tuple(segment.get("segment_pool_id", (0, 0))),
                "is_expandable": segment.get("is_expandable", False),
                "stack": stack_of(segment.get("frames")),
                "blocks": blocks,
            }
        )
    return rows


class Found:
    """The same rows from the tables of a snapshot."""

    def __init__(self, snapshot):
        self.snapshot = snapshot
        frames = [row[1:4] for row in snapshot.frames.iter_rows()]
        self._stacks = [
            tuple(frames[frame] for frame in row) for row in snapshot.stacks["frames"].to_list()
        ]
        self._pools = [row[1:] for row in snapshot.pools.iter_rows()]
        self._texts = snapshot.texts["value"].to_list()

    def _plain(self, row, *dropped):
        row = {key: value for key, value in row.items() if key not in dropped}
        for key, known in (
            ("stack", self._stacks),
            ("pool", self._pools),
            ("metadata", self._texts),
        ):
            if row.get(key) is not None:
                row[key] = known[row[key]]
        return row

    def events(self):
        rows = self.snapshot.events.collect().iter_rows(named=True)
        return [self._plain(row, "event", "category") for row in rows]

    def segments(self):
        blocks = self.snapshot.blocks.partition_by("segment", as_dict=True)
        rows = []
        for row in self.snapshot.segments.iter_rows(named=True):
            mine = blocks.get((row["segment"],))
            listed = [] if mine is None else mine.iter_rows(named=True)
            row["blocks"] = [self._plain(block, "block", "segment") for block in listed]
            rows.append(self._plain(row, "segment"))
        return rows
