"""The view of a run while it is written: speed, phase shares, a rank that stands still."""

from __future__ import annotations

import dataclasses
import io
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.support.nvml import compile_stub, stepscope
from tests.support.rendered import print_blocks
from tests.support.step_records import MS, step_records

from stepscope.analysis.record.live import LiveSample, LiveState, look_at, progress_of
from stepscope.analysis.record.metrics import summarise_metrics
from stepscope.monitor.columns import DEFAULT_COLUMNS
from stepscope.monitor.recorder import MetricsFile, row_of
from stepscope.report.live import blocks_of
from stepscope.report.metrics import metrics_blocks
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import JobRecord, RankManifest, write_record
from stepscope.run.metrics import last_sample
from stepscope.run.step_record import encode_step, read_last_steps, read_steps


def now_records(count=20, ago_ns=0, **options):
    """Steps of 100 ms, the last of which ended so long ago."""
    records = step_records([100.0] * count, **options)
    shift = time.time_ns() - ago_ns - (records[-1].start_ns + records[-1].dur_ns)
    return [dataclasses.replace(one, start_ns=one.start_ns + shift) for one in records]


def write_rank(root, rank, records, state="running", gpus=()):
    layout = RunLayout(root).rank(rank)
    layout.root.mkdir(parents=True, exist_ok=True)
    write_record(layout.manifest, RankManifest(rank=rank, state=state, host="node-a"))
    layout.steps.write_bytes(b"".join(map(encode_step, records)))
    if gpus:
        write_metrics(layout, gpus, time.time_ns())
    return layout


def write_metrics(layout, gpus, time_ns):
    file = MetricsFile(layout.metrics, DEFAULT_COLUMNS)
    common = {"timestamp": "t", "time_ns": time_ns, "host.cpu.utilization": 37.0}
    file.write([row_of(DEFAULT_COLUMNS, {**gpu, **common}, with_units=True) for gpu in gpus])
    file.close()


def write_run(root, ranks):
    write_record(RunLayout(root).run_file, JobRecord(name="r", created_ns=1, world_size=ranks))


def text_of(blocks, width=140):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_blocks(blocks, console)
    return console.file.getvalue()


def test_steps_per_second_count_what_lies_between_steps():
    records = step_records([100.0] * 10, phases_ms={"forward": 60.0, "backward": 30.0})
    steady = progress_of(records)
    assert steady.steps_per_second == pytest.approx(10.0)
    assert (steady.last_step, steady.steps, steady.step_ns) == (9, 10, 100 * MS)
    shares = {part.name: steady.partition.share(part) for part in steady.partition.parts}
    assert shares["forward"] == pytest.approx(0.6)
    assert shares["backward"] == pytest.approx(0.3)
    assert shares["other"] == pytest.approx(0.1)
    # An evaluation of a second between two steps slows the training, and is part of no step.
    late = [
        dataclasses.replace(one, start_ns=one.start_ns + (1000 * MS if one.step >= 5 else 0))
        for one in records
    ]
    assert progress_of(late).steps_per_second == pytest.approx(10 / 2.0)


@given(st.lists(st.integers(1, 30_000), min_size=1, max_size=80))
def test_speed_is_steps_by_time_of_the_latest_steps(durations_ms):
    records = step_records([float(one) for one in durations_ms])
    found = progress_of(records)
    latest = records[-50:]
    latest = [one for one in latest if latest[-1].start_ns - one.start_ns <= 60 * 10**9]
    seconds = sum(one.dur_ns for one in latest) / 1e9  # they lie back to back
    assert found.steps == len(latest)
    assert found.steps_per_second == pytest.approx(len(latest) / seconds)
    assert sum(part.total_ns for part in found.partition.parts) == sum(o.dur_ns for o in latest)


def test_without_a_complete_step_there_is_no_speed():
    assert progress_of([]) is None
    (record,) = step_records([100.0])
    assert progress_of([dataclasses.replace(record, is_partial=True)]) is None
    assert progress_of([dataclasses.replace(record, kind="evaluation")]) is None


def test_tokens_count_where_every_step_has_them():
    records = [dataclasses.replace(one, tokens=50) for one in step_records([100.0] * 4)]
    assert progress_of(records).tokens_per_second == pytest.approx(500.0)
    records[1] = dataclasses.replace(records[1], tokens=None)
    assert progress_of(records).tokens_per_second is None


@given(st.integers(1, 50))
def test_the_end_of_a_record_is_its_last_whole_lines(tmp_path_factory, most):
    path = tmp_path_factory.mktemp("steps") / "steps.jsonl"
    path.write_bytes(b"".join(map(encode_step, step_records([1.0] * 40))) + b'{"step": 40, "sta')
    everything, _ = read_steps(path)
    tail = read_last_steps(path, most)
    assert most - 1 <= len(tail) <= most or len(tail) == 40
    assert tail == everything[len(everything) - len(tail) :]
    assert read_last_steps(path, 10**6) == everything
    assert read_last_steps(path.with_name("missing")) == []


def test_a_run_is_seen_as_it_stands(tmp_path):
    write_run(tmp_path, 3)
    phases = {"forward": 50.0, "backward": 40.0}
    gpu = {"index": 0, "name": "NVIDIA H100", "uuid": "GPU-a", "utilization.gpu": 97,
           "memory.used": 61440, "memory.total": 81920, "power.draw": 612.5,
           "temperature.gpu": 66, "clocks_event_reasons.active": "0x24"}  # fmt: skip
    write_rank(tmp_path, 0, now_records(waits_ms=6.0, phases_ms=phases), gpus=[gpu])
    write_rank(tmp_path, 1, now_records(ago_ns=90 * 10**9, waits_ms=6.0, phases_ms=phases))
    write_rank(tmp_path, 2, [], state="running")
    view = look_at(tmp_path)
    assert [rank.rank for rank in view.ranks] == [0, 1, 2]
    assert view.ranks[0].sample[0]["utilization.gpu"] == "97 %"
    assert view.ranks[1].sample == ()
    samples = [LiveSample("rank 0", "node-a", view.ranks[0].sample)]
    lines = text_of(blocks_of(LiveState(view, tuple(samples), "here"))).splitlines()
    first, second, third = (line.split() for line in lines[2:5])
    assert first[:6] == ["0", "running", "19", "10", "100", "ms"]
    # In the order of a step, whatever takes longest.
    assert first[6:] == ["6.0%", "50%", "40%", "4.0%"]
    assert lines[1].split()[-4:] == ["input", "forward", "backward", "other"]
    assert second[1:5] == ["no", "step", "for", "1.50"]
    assert third[1:] == ["no", "step", "yet", *["–"] * 7]
    hardware = " ".join(text_of(blocks_of(LiveState(view, tuple(samples), "here"))).split())
    assert "0 H100 97% – 60.0 GiB of 80.0 GiB 612 W 66 power, heat" in hardware
    assert "node-a CPUs 37.0%" in hardware


def test_old_samples_are_not_shown_as_the_present(tmp_path):
    layout = write_rank(tmp_path, 0, now_records())
    file = MetricsFile(layout.metrics, DEFAULT_COLUMNS)
    old = {"timestamp": "t", "time_ns": time.time_ns() - 60 * 10**9, "index": 0}
    file.write([row_of(DEFAULT_COLUMNS, old, with_units=True)])
    file.close()
    assert look_at(tmp_path).ranks[0].sample == ()


def test_a_gpu_that_two_ranks_report_is_shown_once():
    row = {"index": "0", "name": "A", "uuid": "GPU-1", "utilization.gpu": "5 %"}
    samples = [LiveSample(f"rank {rank}", "h", [row]) for rank in range(2)]
    assert text_of(blocks_of(LiveState(None, tuple(samples), "x"))).count("5%") == 1


def test_names_cannot_speak_to_the_terminal(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(
        "timestamp, index, name, uuid, utilization.gpu [%]\nt, 0, [bold]A[/bold]\x1b[31mB, u, 5 %\n"
    )
    shown = text_of(blocks_of(LiveState(None, (LiveSample("", "[red]h", last_sample(path)),), "x")))
    assert "[bold]A[/bold] [31mB" in shown
    assert "\x1b" not in shown
    console = Console(file=io.StringIO(), width=140, color_system=None)
    print_blocks(metrics_blocks([("", summarise_metrics(path))]), console)
    assert "[bold]A[/bold] [31mB" in console.file.getvalue()
    assert "\x1b" not in console.file.getvalue()


@pytest.mark.slow
def test_one_table_where_nobody_watches(tmp_path):
    root = tmp_path / "profiles" / "run"
    write_run(root, 1)
    write_rank(root, 0, now_records(phases_ms={"forward": 70.0}), state="finished")
    library = compile_stub(tmp_path / "nvml")
    for arguments in (["--live", root], [root], ["--output-dir", tmp_path / "profiles"], []):
        ended = stepscope("monitor", "-lms", 50, *arguments, library=library, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert "finished" in ended.stdout
        assert "forward" in ended.stdout
        assert "Stub 80GB" in ended.stdout
        assert "\x1b" not in ended.stdout
    nothing = stepscope("monitor", cwd=tmp_path / "nvml", library=library)
    assert "no run is being written in profiles" in nothing.stdout
    assert "Stub 80GB" in nothing.stdout
    wrong = stepscope("monitor", "--live", tmp_path / "no")
    assert (wrong.returncode, "no such file or directory" in wrong.stderr) == (3, True)
