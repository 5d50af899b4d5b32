"""Collectives of CPU backends: kinds, sizes, and process groups told from threads."""

from __future__ import annotations

import json

import polars as pl

from stepscope.analysis.calls.collectives import COLLECTIVES, read_host_collectives
from stepscope.analysis.ranks.arrivals import UNKNOWN_GROUP, read_arrivals, with_host_groups
from stepscope.analysis.ranks.rank_arrivals import arrivals_of
from stepscope.analysis.selection.scope import Scope
from stepscope.trace.load import load

PAIR = {"pg_name": "1", "pg_desc": "mesh_tp", "backend_config": "cpu:gloo", "ranks": [0, 1]}
WORLD = {
    "pg_name": "0",
    "pg_desc": "default_pg",
    "backend_config": "cpu:gloo,cuda:gloo",
    "ranks": [0, 1, 2, 3],
}


def cpu_trace(tmp_path, collectives, groups=(WORLD, PAIR)):
    """A rank's trace: collectives are (thread, name, start_us, dur_us, type, elements)."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 1, "tid": 1,
         "ts": 0, "dur": 1000}
    ]  # fmt: skip
    for thread, name, start, dur, kind, elements in collectives:
        args = {"External id": start}
        if kind is not None:
            args |= {"Input type": [kind], "Input Dims": [[elements]]}
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": thread,
             "ts": start, "dur": dur, "args": args}
        )  # fmt: skip
    about = {"backend": "gloo", "rank": 0, "world_size": 4, "pg_config": list(groups)}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": about}))
    return load(path)


def read_cpu_collectives(trace):
    return with_host_groups(trace, read_host_collectives(trace))


EVENTS = (
    (10, "gloo:all_reduce", 100, 20, "float", 256),
    (13, "gloo:all_gather", 200, 20, "float", 8),
    (11, "gloo:broadcast", 300, 20, "int", 9),
    (12, "gloo:barrier", 400, 5, None, 0),
)


def test_each_pool_of_two_threads_is_a_group_in_order_of_creation(tmp_path):
    found = read_cpu_collectives(cpu_trace(tmp_path, EVENTS))
    assert dict(found.schema) == COLLECTIVES
    assert found["kind"].to_list() == ["all_reduce", "all_gather", "broadcast", "barrier"]
    assert found["group"].to_list() == ["0", "1", "0", "1"]
    assert found["group_ranks"].to_list() == ["[0, 1, 2, 3]", "[0, 1]"] * 2
    assert found["group_size"].to_list() == [4, 2, 4, 2]
    # What is gathered is the group's inputs together.
    assert found["message_bytes"].to_list() == [1024, 8 * 4 * 2, 36, None]
    assert found["step"].to_list() == [7] * 4


def test_one_thread_of_each_pool_is_enough_where_numbers_leave_no_doubt(tmp_path):
    used = [EVENTS[0], (27, "gloo:all_reduce", 500, 9, "float", 1), EVENTS[2]]
    found = read_cpu_collectives(cpu_trace(tmp_path, used))
    assert found["group"].to_list() == ["0", "0", "1"]


def test_with_one_group_its_threads_do_not_matter(tmp_path):
    assert (
        read_cpu_collectives(cpu_trace(tmp_path, EVENTS, [WORLD]))["group"].to_list() == ["0"] * 4
    )


def test_a_group_that_nothing_tells_is_not_guessed(tmp_path):
    trace = cpu_trace(tmp_path, EVENTS, (WORLD, PAIR, PAIR))
    assert read_cpu_collectives(trace)["group"].null_count() == 4
    read = read_arrivals(0, trace)
    assert arrivals_of([read]).is_empty()
    assert read.answered().excluded == {UNKNOWN_GROUP: 4}


def test_groups_of_the_same_ranks_need_not_be_told_apart(tmp_path):
    other = {**WORLD, "pg_name": "1", "pg_desc": "undefined"}
    for number, threads in enumerate(((10, 10, 10, 10), (10, 12, 12, 10))):
        used = [(at, *event[1:]) for at, event in zip(threads, EVENTS, strict=True)]
        (tmp_path / str(number)).mkdir()
        trace = cpu_trace(tmp_path / str(number), used, (WORLD, other))
        found = read_cpu_collectives(trace)
        assert found["group"].to_list() == ["0/1"] * 4
        assert found["group_ranks"].to_list() == ["[0, 1, 2, 3]"] * 4
        read = read_arrivals(0, trace)
        assert arrivals_of([read])["group"].to_list() == ["0/1 [0, 1, 2, 3]"] * 4
        assert read.answered().excluded == {}
    # With all threads of both pools, nothing is left open.
    assert read_cpu_collectives(cpu_trace(tmp_path, EVENTS, (WORLD, other)))["group"].to_list() == [
        "0", "1", "0", "1"
    ]  # fmt: skip


def test_without_a_list_of_groups_there_is_nothing_to_tell_apart(tmp_path):
    read = read_arrivals(0, cpu_trace(tmp_path, EVENTS, ()))
    assert arrivals_of([read])["group"].to_list() == [""] * 4
    assert read.answered().excluded == {}


def test_arrivals_take_them_where_there_is_no_gpu(tmp_path):
    read = read_arrivals(0, cpu_trace(tmp_path, EVENTS), with_causes=True)
    assert read.described == (("0 [0, 1, 2, 3]", "default_pg"), ("1 [0, 1]", "mesh_tp"))
    table = arrivals_of([read])
    # Nothing else was recorded: the main thread ran Python between the collectives.
    assert read.local == ("local_host_ns",)
    assert table["local_host_ns"].to_list() == [100_000, 80_000, 80_000, 80_000]
    assert read_arrivals(0, cpu_trace(tmp_path, EVENTS), Scope(steps=(7,))).answered().events == 4


def test_ranks_in_words_are_read_and_nothing_is_executed(tmp_path):
    hostile = {**WORLD, "ranks": "__import__('os').abort()"}
    found = read_cpu_collectives(cpu_trace(tmp_path, EVENTS, [hostile]))
    assert found["group_ranks"].to_list() == ["[]"] * 4
    spelled = {**WORLD, "ranks": "[0, 1, 2, 3]"}
    found = read_cpu_collectives(cpu_trace(tmp_path, EVENTS, [spelled]))
    assert found["group_ranks"].to_list() == ["[0, 1, 2, 3]"] * 4
    assert isinstance(found, pl.DataFrame)
