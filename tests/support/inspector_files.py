"""Files of NCCL Inspector, in each documented form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VERSIONS = ("v4.0", "v4.1", "v4.3")


def header(rank: int, ranks: int, communicator: str = "0x7f8c496ae9f661") -> dict[str, Any]:
    return {"id": communicator, "rank": rank, "n_ranks": ranks, "nnodes": 1}


def metadata(version: str, process: int = 4711, host: str = "node-1") -> dict[str, Any]:
    return {
        "inspector_output_format_version": version,
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": 1748030377748202,
        "hostname": host,
        "pid": process,
    }


def collective(
    kind: str,
    number: int,
    size: int,
    duration_us: float,
    *,
    ranks: int,
    timing: str | None = "kernel_gpu",
    verbose: bool = False,
) -> dict[str, Any]:
    whole = size * ranks if kind in {"AllGather", "ReduceScatter"} else size
    bandwidth = whole / duration_us / 1000
    factor = 2 * (ranks - 1) / ranks if kind == "AllReduce" else (ranks - 1) / ranks
    found = {
        "coll": kind,
        "coll_sn": number,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": duration_us,
        "coll_algobw_gbs": round(bandwidth, 6),
        "coll_busbw_gbs": round(bandwidth * factor, 6),
    }
    if timing is not None:
        found["coll_timing_source"] = timing
    if verbose:
        kernel = {"channel_id": 0, "kernel_start_ts": 1752867229235181}
        found["event_trace_sn"] = {"coll_start_sn": 1, "kernel_events": [{"channel_id": 0}]}
        found["event_trace_ts"] = {"coll_start_ts": 1752867229235059, "kernel_events": [kernel]}
    return found


def write_inspector(
    path: Path,
    rank: int,
    ranks: int,
    collectives: Sequence[dict[str, Any]],
    *,
    version: str = "v4.0",
    communicator: str = "0x7f8c496ae9f661",
    dropped: int = 0,
    p2p: int = 0,
) -> Path:
    """What a process writes: from 4.1 on with a marker per dump, from 4.3 on with nothing else."""
    about = {
        "header": header(rank, ranks, communicator),
        "metadata": metadata(version, 1000 + rank),
    }
    bodies = [{"coll_perf": one} for one in collectives]
    bodies += [{"p2p_perf": {"p2p": "Send", "p2p_sn": n, "p2p_peer": 1}} for n in range(p2p)]
    lines: list[dict[str, Any]] = []
    if version != "v4.0":
        stats = {"coll_records": len(collectives), "coll_dropped_total": dropped}
        stats |= {"coll_dropped_since_last_dump": dropped, "p2p_records": p2p}
        if version == "v4.3":
            stats["proxy_records"] = 1
            bodies.append({"proxy_trace": {"record_type": "proxy_op", "record_sn": 1}})
        lines.append({**about, "dump_stats": stats})
    lines += bodies if version == "v4.3" else [{**about, **body} for body in bodies]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path
