"""Real traces: both readers against each other, and against a plain count with `json`."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from tests.support.chrome_traces import assert_same_tables, read_compiled, read_tolerantly
from tests.support.real_traces import load_real

_default = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
ROOT = Path(os.environ.get("STEPSCOPE_TRACES", _default))
FILES = sorted(ROOT.glob("*/*.json.gz")) if ROOT.is_dir() else []

pytestmark = pytest.mark.skipif(not FILES, reason=f"no real traces in {ROOT}")


def _cases() -> Iterator[object]:
    """One small file of each folder; the others where slow tests run too."""
    seen = set()
    for path in FILES:
        quick = path.parent not in seen and path.stat().st_size < 1_500_000
        seen |= {path.parent} if quick else set()
        marks = () if quick else (pytest.mark.slow,)
        yield pytest.param(path, id=f"{path.parent.name}-{path.stem[:20]}", marks=marks)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", list(_cases()))
def test_counts_names_and_durations(path: Path) -> None:
    data = gzip.decompress(path.read_bytes())
    tables = read_tolerantly(data)
    assert_same_tables(tables, read_compiled(data, 1 << 20))

    document = json.loads(data, parse_float=Decimal)
    listed = document["traceEvents"]
    complete = [event for event in listed if event["ph"] == "X"]
    events = tables.events.join(
        tables.names.select("name_id", "name", "raw_category"), on="name_id"
    )
    assert len(events) == len(complete)
    assert events["start_ns"].to_list() == [int(event["ts"] * 1000) for event in complete]
    assert events["dur_ns"].sum() == sum(int(event["dur"] * 1000) for event in complete)
    assert Counter(events["name"]) == Counter(event["name"] for event in complete)
    assert Counter(events["raw_category"]) == Counter(event.get("cat") for event in complete)

    lanes = tables.lanes.select("lane_id", "pid", "tid")
    placed = events.join(lanes, on="lane_id", maintain_order="left")
    assert placed["pid"].to_list() == [str(event["pid"]) for event in complete]
    assert placed["tid"].to_list() == [str(event["tid"]) for event in complete]
    args = [event.get("args", {}) for event in complete]
    kept = [json.loads(text, parse_float=Decimal) for text in tables.args["args"]]
    assert kept == args
    assert events["correlation"].to_list() == [found.get("correlation") for found in args]
    external = [found.get("External id", found.get("external id")) for found in args]
    assert events["external_id"].to_list() == external

    phases = Counter(event["ph"] for event in listed)
    assert len(tables.instants) == phases["i"]
    assert Counter(tables.flows["phase"]) == {p: phases[p] for p in "sf" if phases[p]}
    assert not len(tables.problems)
    header = dict(tables.metadata.iter_rows())
    for key, value in document.items():
        if key != "traceEvents":
            assert json.loads(header[key], parse_float=Decimal) == value


def test_gpu_events_are_on_devices_and_streams() -> None:
    for path in FILES:
        events = read_compiled(gzip.decompress(path.read_bytes())).events
        gpu = events.filter(pl.col("category").is_in(["kernel", "gpu_memcpy", "gpu_memset"]))
        assert len(gpu), path
        assert gpu.select(pl.col("device", "stream").null_count()).row(0) == (0, 0), path


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("a100_nccl_train/trace", 3), ("v100_train_5steps/trace", 5), ("hta_trace_diff/test", 6),
        ("mi300x_resnet_train/trace", 3), ("amd_resnet_ddp_4rank/rank0.pt.trace", 3),
    ],
)  # fmt: skip
def test_steps(name: str, steps: int) -> None:
    found = load_real(f"{name}.json.gz").steps
    assert len(found) == steps
    assert found["start_ns"][1:].to_list() == found["end_ns"][:-1].to_list()
