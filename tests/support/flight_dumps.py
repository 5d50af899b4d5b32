"""Flight recorder dumps in every form that torch has written, from one description."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Sequence
from typing import Any

FRAMES = [
    {"name": "all_reduce", "filename": "/opt/lib/torch/distributed/c10d.py", "line": 30},
    {"name": "train", "filename": "/home/me/train.py", "line": 12},
]


def entry(
    number: int, operation: str = "all_reduce", *, group=("0", "default_pg"), **more: Any
) -> dict:
    """An operation of a rank, as version 2.10 records it; by default completed."""
    state = more.pop("state", "completed")
    called = 1_700_000_000_000_000_000 + number * 1_000_000
    is_p2p = more.get("is_p2p", False)
    return {
        "record_id": max(number - 1, 0),
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": 0 if is_p2p else number,
        "p2p_seq_id": number if is_p2p else 0,
        "op_id": number,
        "profiling_name": f"{more.pop('backend', 'nccl')}:{operation}",
        "time_created_ns": more.pop("created_ns", called),
        "input_sizes": more.pop("sizes", [[4, 8]]),
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 8]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": called + 1 if state != "scheduled" else None,
        "time_discovered_completed_ns": called + 2 if state == "completed" else None,
        "retired": more.pop("retired", state == "completed"),
        "timeout_ms": 600_000,
        "is_p2p": is_p2p,
        "frames": FRAMES,
        **more,
    }


def document(entries: Sequence[dict], groups: dict[str, Sequence[int]], **more: Any) -> dict:
    """A dump: groups are name -> ranks."""
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": "default_pg" if name == "0" else "undefined",
                   "ranks": str(list(ranks))}
            for name, ranks in groups.items()
        },
        "pg_status": {},
        "entries": list(entries),
        **more,
    }  # fmt: skip


def as_python(found: Any) -> bytes:
    """As Python pickles it."""
    return pickle.dumps(found)


def as_old_python(found: Any) -> bytes:
    """As Python pickles it by the first protocol with bytes."""
    return pickle.dumps(found, protocol=0)


def as_json(found: Any) -> bytes:
    """As torch's JSON writer does: 0 for none, no frames, no `entries` where there are none."""
    rows = []
    for row in found["entries"]:
        row = {name: 0 if value is None else value for name, value in row.items()}
        row.pop("frames", None)
        rows.append(row)
    whole = {**found, "entries": rows}
    if not rows:
        whole.pop("entries")
    status = {
        group: {name: str(value) for name, value in values.items()}
        for group, values in whole["pg_status"].items()
    }
    return json.dumps({**whole, "pg_status": status}).encode()


def as_cpp(found: Any) -> bytes:
    """As torch's C++ writer pickles it: protocol 2, a memo for texts, no frames of the protocol."""
    out, memo = bytearray(b"\x80\x02"), {}

    def write(value: Any) -> None:
        if value is None:
            out.extend(b"N")
        elif isinstance(value, bool):
            out.extend(b"\x88" if value else b"\x89")
        elif isinstance(value, int) and 0 <= value < 256:
            out.extend(b"K" + bytes([value]))
        elif isinstance(value, int) and abs(value) < 2**31:
            out.extend(b"J" + struct.pack("<i", value))
        elif isinstance(value, int):
            out.extend(b"\x8a\x08" + struct.pack("<q", value))
        elif isinstance(value, str) and value in memo:
            out.extend(b"h" + bytes([memo[value]]))
        elif isinstance(value, str):
            out.extend(b"X" + struct.pack("<I", len(value.encode())) + value.encode())
            if len(memo) < 256:
                memo[value] = len(memo)
                out.extend(b"q" + bytes([memo[value]]))
        elif isinstance(value, tuple) and len(value) == 2:
            write(value[0])
            write(value[1])
            out.extend(b"\x86")
        elif isinstance(value, (list, tuple)):
            out.extend(b"](")
            for item in value:
                write(item)
            out.extend(b"e")
        elif isinstance(value, dict):
            out.extend(b"}(")
            for key, item in value.items():
                write(key)
                write(item)
            out.extend(b"u")
        else:
            raise TypeError(type(value))

    write(found)
    return bytes(out + b".")


FORMS = {"python": as_python, "protocol 0": as_old_python, "c++": as_cpp, "json": as_json}
