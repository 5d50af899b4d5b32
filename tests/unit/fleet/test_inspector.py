"""NCCL Inspector: each documented form, transfers against planted ones, and hostile files."""

from __future__ import annotations

import gzip
import json

import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.gpu_trace import GpuTrace, ms
from tests.support.inspector_files import (
    VERSIONS,
    collective,
    header,
    metadata,
    write_inspector,
)

from stepscope.commands.info import command as info
from stepscope.commands.report import command as report
from stepscope.commands.show import command as show
from stepscope.errors import UnreadableInputError, UsageError
from stepscope.fleet.inspector.bandwidths import bandwidths_of
from stepscope.fleet.inspector.records import inspector_files, read_inspector
from stepscope.fleet.link_speed import link_speeds

RANKS = 4


def job(folder, *, late=2, version="v4.0", transfer_us=1000, wait_us=500, **more):
    """Each rank waits for one that is late: six reductions of 1 MiB."""
    folder.mkdir(exist_ok=True)
    for rank in range(RANKS):
        duration = transfer_us + (0 if rank == late else wait_us)
        made = [
            collective("AllReduce", number, 1 << 20, duration, ranks=RANKS) for number in range(6)
        ]
        write_inspector(folder / f"n-pid{rank}.log", rank, RANKS, made, version=version, **more)
    return folder


def read(path):
    return read_inspector(inspector_files(str(path)))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_gives_the_same_transfers(tmp_path, version):
    inspected = read(job(tmp_path / "logs", version=version))
    assert (inspected.versions, inspected.files, inspected.skipped) == ((version,), RANKS, 0)
    found = bandwidths_of(inspected)
    assert (found.communicators, found.processes, found.records) == (1, RANKS, 24)
    assert found.collectives == 6
    (row,) = found.kinds.iter_rows(named=True)
    assert (row["kind"], row["ranks"], row["message_bytes"]) == ("all_reduce", RANKS, 1 << 20)
    assert (row["median_transfer_ns"], row["count"], row["records"]) == (1_000_000, 6, 24)
    # Of a millisecond the bus moves 1.5 MiB; with the waits the plugin counts a third less.
    assert row["median_bus_bandwidth_gb_per_s"] == pytest.approx(1.5 * 1.048576)
    assert row["median_stated_bus_bandwidth_gb_per_s"] == pytest.approx(1.048576, rel=1e-5)
    assert row["wait_share"] == pytest.approx(1500 / 5500)
    first = found.members.row(0, named=True)
    assert (first["rank"], first["last_arrivals"], first["total_wait_ns"]) == (2, 6, 0)
    assert found.members["total_wait_ns"].sum() == 3 * 6 * 500_000


@pytest.mark.parametrize(
    ("kind", "size", "duration_us", "bus_gb_per_s"),
    [
        ("AllReduce", 17179869184, 61974, 485.119099),
        ("ReduceScatter", 2147483648, 41057, 366.134533),
    ],
)
def test_bandwidths_are_those_that_the_plugin_documents(
    tmp_path, kind, size, duration_us, bus_gb_per_s
):
    for rank in range(8):
        made = [collective(kind, 1407, size, duration_us, ranks=8, verbose=True)]
        write_inspector(tmp_path / f"{rank}.log", rank, 8, made)
    (row,) = bandwidths_of(read(tmp_path)).kinds.iter_rows(named=True)
    assert row["best_bus_bandwidth_gb_per_s"] == pytest.approx(bus_gb_per_s, rel=1e-5)
    assert row["median_stated_bus_bandwidth_gb_per_s"] == pytest.approx(bus_gb_per_s, rel=1e-5)


def test_what_the_plugin_lost_and_what_is_no_collective(tmp_path):
    found = bandwidths_of(read(job(tmp_path / "logs", version="v4.1", dropped=3, p2p=2)))
    assert found.collectives == 6
    notes = " ".join(found.notes)
    assert "lost 12 records" in notes
    assert "8 sends and receives are left out" in notes


def test_only_collectives_with_all_ranks_timed_on_the_gpu_have_a_transfer(tmp_path):
    folder = job(tmp_path / "logs")
    (folder / "n-pid3.log").unlink()
    found = bandwidths_of(read(folder))
    assert (found.collectives, found.records) == (0, 18)
    (row,) = found.kinds.iter_rows(named=True)
    assert (row["count"], row["median_transfer_ns"]) == (0, None)
    assert any("18 of 18 records have no transfer" in note for note in found.notes)
    made = [
        collective("AllReduce", n, 1 << 20, 900, ranks=4, timing="kernel_cpu") for n in range(6)
    ]
    write_inspector(folder / "n-pid3.log", 3, RANKS, made)
    found = bandwidths_of(read(folder))
    assert found.collectives == 0
    assert any("6 of them timed on the CPU" in note for note in found.notes)


def test_lines_of_a_dump_beyond_its_count_are_not_guessed(tmp_path):
    path = job(tmp_path / "logs", version="v4.3") / "n-pid0.log"
    stray = {"coll_perf": collective("AllReduce", 99, 1 << 20, 1.0, ranks=RANKS)}
    path.write_text(path.read_text() + json.dumps(stray) + "\n")
    inspected = read(tmp_path / "logs")
    assert inspected.skipped == 1
    assert inspected.table["number"].max() == 5


@pytest.mark.parametrize("name", ["n-pid0.log.gz", "n-pid0.jsonl.gz"])
def test_compressed_files_are_read(tmp_path, name):
    folder = job(tmp_path / "logs")
    plain = read(folder)
    path = folder / "n-pid0.log"
    packed = gzip.compress(path.read_bytes())
    (folder / name).write_bytes(packed)
    path.unlink()
    assert read(folder).table.sort(pl.all()).equals(plain.table.sort(pl.all()))
    (folder / name).write_bytes(packed[: len(packed) // 2])
    cut = read(folder)
    assert cut.skipped >= 1
    assert len(cut.table) < len(plain.table)


LINES = st.one_of(
    st.binary(max_size=40),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["header", "metadata", "coll_perf", "dump_stats", "id", "rank", "coll",
                             "n_ranks", "coll_sn", "coll_msg_size_bytes", "coll_exec_time_us"]),
            inner,
            max_size=4,
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode()),
)  # fmt: skip


@settings(max_examples=30)
@given(st.lists(LINES, max_size=8))
def test_strange_lines_are_skipped_and_the_others_read(tmp_path_factory, strange):
    folder = tmp_path_factory.mktemp("logs")
    job(folder)
    path = folder / "n-pid0.log"
    good = path.read_bytes()
    odd = b"".join(line.replace(b"\n", b" ") + b"\n" for line in strange)
    path.write_bytes(good + odd)
    inspected = read(folder)
    assert len(inspected.table) == 24
    assert inspected.skipped == sum(1 for line in odd.split(b"\n") if line.strip())


def test_limits_on_lines_and_records(tmp_path, monkeypatch):
    folder = job(tmp_path / "logs")
    with monkeypatch.context() as limited:
        limited.setattr("stepscope.fleet.inspector.records.MOST_RECORDS", 10)
        few = read(folder)
    assert (few.cut, len(few.table)) == (True, 10)
    assert any("only the first 10 records" in note for note in bandwidths_of(few).notes)
    monkeypatch.setattr("stepscope.fleet.inspector.records._LONGEST_LINE", 700)
    path = folder / "n-pid0.log"
    path.write_bytes(path.read_bytes() + b"{" * 5000 + b"\n" + path.read_bytes())
    inspected = read(folder)
    assert (inspected.skipped, len(inspected.table)) == (1, 30)


@pytest.mark.parametrize(
    "change",
    [{"rank": 9}, {"rank": -1}, {"n_ranks": 0}, {"id": 7}, {"rank": True}, {"n_ranks": 10**30}],
)
def test_impossible_headers_are_skipped(tmp_path, change):
    line = {"header": header(0, 2) | change, "metadata": metadata("v4.0")}
    line["coll_perf"] = collective("AllReduce", 1, 8, 5, ranks=2)
    (tmp_path / "a.log").write_text(json.dumps(line) + "\n")
    with pytest.raises(UnreadableInputError, match="recorded no collective"):
        read(tmp_path)


def test_text_of_a_file_cannot_control_a_terminal(tmp_path):
    line = {"header": header(0, 2, "\x1b[31mred"), "metadata": metadata("v4.0", host="a\x07b")}
    line["coll_perf"] = collective("AllReduce", 1, 8, 5, ranks=2)
    (tmp_path / "a.log").write_text(json.dumps(line) + "\n")
    row = read(tmp_path).table.row(0, named=True)
    assert (row["communicator"], row["host"]) == ("[31mred", "ab")


def invoke(command, *words):
    return CliRunner().invoke(command, list(map(str, words)), catch_exceptions=False)


def test_show_and_info_recognise_the_files(tmp_path):
    folder = job(tmp_path / "logs")
    shown = json.loads(
        invoke(show, "collectives", folder, "--link-speed", "16Gbps", "--format", "json").output
    )
    assert shown["collectives"] == 6
    assert shown["kinds"][0]["bandwidth_of_link_share"] == pytest.approx(1.5 * 1.048576 / 2)
    one = json.loads(invoke(info, folder / "n-pid1.log", "--format", "json").output)
    assert (one["records"], one["collectives"]) == (6, 0)
    text = invoke(info, folder).output
    assert "all_reduce" in text
    assert "Communicators and their ranks" in text
    with pytest.raises(UnreadableInputError, match="NCCL Inspector, not a trace.*show collectives"):
        invoke(report, folder / "n-pid1.log")
    with pytest.raises(UsageError, match="state one link speed"):
        bandwidths_of(read(folder), link_speeds(["tensor=1GB/s"]))


def test_beside_the_traces_of_the_same_job(tmp_path):
    run, logs = tmp_path / "run", job(tmp_path / "logs", transfer_us=1250)
    run.mkdir()
    for rank in range(RANKS):
        t = GpuTrace(rank=rank, world_size=RANKS, device=rank)
        for _ in range(3):
            with t.step():
                t.op("aten::mm").launch("ampere_bf16_s16816gemm", ms(2))
                t.collective("all_reduce", 1 << 20, ms(1))
                t.collective("all_gather", 1 << 20, ms(1))
                t.sync()
        (run / f"rank{rank}.json").write_bytes(t.json())
    shown = json.loads(invoke(show, "collectives", run, logs, "--format", "json").output)
    (row,) = shown["inspector"]
    assert (row["kind"], row["count"], row["inspector_count"]) == ("all_reduce", 3, 6)
    # The plugin's kernels took a quarter longer.
    assert row["ratio"] == pytest.approx(0.8, rel=0.01)
    assert any(note.startswith("NCCL Inspector: format v4.0") for note in shown["notes"])


def test_its_files_are_looked_for_once(tmp_path, monkeypatch):
    looked = []

    def counted(path):
        looked.append(path)
        return inspector_files(path)

    monkeypatch.setattr("stepscope.fleet.inspector.records.inspector_files", counted)
    folder = str(job(tmp_path))
    invoke(show, "collectives", folder, "--format", "json")
    assert looked == [folder]
