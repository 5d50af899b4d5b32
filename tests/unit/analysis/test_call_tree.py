"""The merged call tree against paths collected event by event."""

from __future__ import annotations

import random

import pytest
from tests.support.gpu_trace import GpuTrace, us

from stepscope.analysis.call_tree import OPERATORS_ONLY, build_call_tree
from stepscope.analysis.selection.scope import Scope


def _random_programme(seed: int) -> GpuTrace:
    chance = random.Random(seed)
    t = GpuTrace()

    def body(depth: int) -> None:
        for _ in range(chance.randrange(1, 4)):
            pick = chance.random()
            if pick < 0.4 and depth < 4:
                with t.op(chance.choice("ab")):
                    body(depth + 1)
            elif pick < 0.6 and depth < 4:
                with t.frame(f"{chance.choice('fg')}.py(1): forward"):
                    body(depth + 1)
            elif pick < 0.7 and depth < 3:
                with t.thread():
                    body(depth + 1)
            else:
                t.launch("k", chance.randrange(1, 9000), linked=chance.random() < 0.9)

    for _ in range(2):
        with t.step():
            body(0)
    return t


def _paths(table):
    rows = table.to_dicts()
    found = {}
    for row in rows:
        path, at = (), row
        while at is not None:
            path = (at["name"], *path)
            at = None if at["parent"] is None else rows[at["parent"]]
        found[(row["lane_id"], path)] = (
            row["count"],
            row["host_total_ns"],
            row["host_self_ns"],
            row["device_self_ns"],
        )
    assert len(found) == len(rows)
    return found


@pytest.mark.sampled(7)
@pytest.mark.parametrize("only_operators", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_against_brute_force(seed, only_operators):
    trace = _random_programme(seed).load()
    names = trace.names.collect()["name"].to_list()
    events = trace.events.collect().to_dicts()
    derived = trace.derived.collect().to_dicts()

    def in_tree(number):
        event = events[number]
        allowed = {"cpu_op"} if only_operators else {"cpu_op", "python_function", "runtime"}
        return event["category"] in allowed and "ProfilerStep" not in names[event["name_id"]]

    def chain(number):
        path = []
        while number is not None:
            if in_tree(number):
                path.append(number)
            number = derived[number]["parent"]
        return path

    expected = {}

    def add(number, values):
        path = chain(number)
        if path:
            key = (
                events[path[0]]["lane_id"],
                tuple(names[events[n]["name_id"]] for n in reversed(path)),
            )
            row = expected.setdefault(key, [0, 0, 0, 0])
            for place, value in values.items():
                row[place] += value
        return bool(path)

    lost = 0
    for number, (event, more) in enumerate(zip(events, derived, strict=True)):
        if in_tree(number):
            add(number, {0: 1, 1: event["dur_ns"]})
        if event["device"] is None:
            add(number, {2: more["self_ns"]})
        if more["kind"] != "none":
            places = [place for place in (more["launch"], more["op"]) if place is not None]
            if not any(add(place, {3: event["dur_ns"]}) for place in places):
                lost += event["dur_ns"]
    categories = OPERATORS_ONLY if only_operators else None
    tree = build_call_tree(trace, **({"categories": categories} if categories else {}))
    assert _paths(tree.nodes) == {key: tuple(row) for key, row in expected.items()}
    assert tree.unattributed_ns == lost
    roots = tree.nodes.filter(tree.nodes["parent"].is_null())
    assert roots["device_total_ns"].sum() + lost == tree.device_ns
    assert roots["host_total_ns"].sum() == tree.nodes["host_self_ns"].sum() or only_operators


def test_nodes_stand_as_a_tree_is_read():
    trace = _random_programme(5).load()
    nodes = build_call_tree(trace).nodes.to_dicts()
    assert [node["node"] for node in nodes] == list(range(len(nodes)))
    open_nodes = []
    for node in nodes:
        del open_nodes[node["depth"] :]
        assert node["parent"] == (open_nodes[-1] if open_nodes else None)
        open_nodes.append(node["node"])


def test_threads_can_be_merged_and_steps_chosen():
    t = GpuTrace()
    for length in (10, 20):
        with t.step():
            t.op("aten::mm").launch("k", us(length))
            with t.thread():
                t.op("aten::mm").launch("k", us(length))
    trace = t.load()
    apart = build_call_tree(trace, categories=OPERATORS_ONLY).nodes
    assert apart["count"].to_list() == [2, 2]
    merged = build_call_tree(trace, categories=OPERATORS_ONLY, merge_threads=True).nodes
    assert merged.select("count", "device_total_ns").rows() == [(4, us(60))]
    one = build_call_tree(trace, Scope(steps=(1,)), categories=OPERATORS_ONLY, merge_threads=True)
    assert one.nodes.select("count", "device_total_ns").rows() == [(2, us(40))]


def test_events_that_cross_hang_under_what_holds_them_whole():
    t = GpuTrace()
    with t.step(), t.op("outer"):
        t.python(us(10))
    document = t.document()
    main = {"ph": "X", "cat": "cpu_op", "pid": 100, "tid": 1000}
    start = next(e["ts"] for e in document["traceEvents"] if e.get("name") == "outer")
    document["traceEvents"] += [
        {**main, "name": "first", "ts": start + 1, "dur": 5},
        {**main, "name": "second", "ts": start + 4, "dur": 6},
    ]
    import io
    import json

    import stepscope

    trace = stepscope.load(io.BytesIO(json.dumps(document).encode()))
    rows = {row["name"]: row for row in build_call_tree(trace).nodes.to_dicts()}
    assert rows["first"]["parent"] == rows["second"]["parent"] == rows["outer"]["node"]
    assert rows["outer"]["host_self_ns"] == rows["outer"]["host_total_ns"] - us(9)


def test_a_trace_without_host_events_gives_an_empty_tree():
    t = GpuTrace(annotate_steps=False)
    t.launch("k", us(5), linked=False)
    tree = build_call_tree(t.load())
    assert tree.nodes.is_empty()
    assert tree.unattributed_ns == tree.device_ns == us(5)
