"""One vocabulary of the host: idle time and the critical path name every moment alike."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, us

from stepscope.analysis.critical_path import path_of
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.host.causes import CAUSES, NOT_RECORDED, HostCause, cause_names
from stepscope.analysis.host.idle_gaps import IDLE_CAUSES, OF_THE_HOST
from stepscope.analysis.idle import idle_causes
from stepscope.analysis.selection.partition import IDLE_LABELS
from stepscope.analysis.what_if import what_if_table
from stepscope.trace.model import Trace


def test_every_cause_has_one_word_and_one_cause_of_idle_time():
    assert len(set(cause_names(has_gpu=True))) == len(CAUSES)
    assert set(cause_names(has_gpu=True)) ^ set(cause_names(has_gpu=False)) == {
        "dispatch",
        "operators",
    }
    assert set(OF_THE_HOST) == set(CAUSES)
    without_stacks = set(cause_names(has_gpu=True, has_stacks=False))
    assert set(cause_names(has_gpu=True)) ^ without_stacks == {"python", NOT_RECORDED}
    of_devices = {"device_wait", "graph_gap", "not_recorded", "unknown"}
    assert set(OF_THE_HOST.values()) | of_devices == set(IDLE_CAUSES)
    assert set(IDLE_LABELS) == set(IDLE_CAUSES)


def _programme(seed: int) -> GpuTrace:
    """Everything that a single thread can do, in any order and inside one another."""
    chance = random.Random(seed)
    t = GpuTrace()

    def within(context, *actions):
        with context:
            for action in actions:
                action()

    plain = [
        lambda: t.op("aten::mm").launch("sgemm", us(chance.randint(1, 60))),
        lambda: t.op("aten::view").python(us(chance.randint(1, 20))),
        lambda: t.op("aten::normal_").python(us(chance.choice([60, 700]))),
        lambda: t.python(us(chance.choice([3, 30, 300]))),
        lambda: t.data_wait(us(chance.randint(1, 400))),
        t.sync,
        t.item,
        lambda: t.malloc(1 << 20, us(40)),
        lambda: t.copy("HtoD", 1 << 20, us(20), pinned=False),
        lambda: t.copy("DtoH", 1 << 20, us(20), pinned=False),
        lambda: t.gc_pause(us(50)),
    ]
    around = [
        lambda: t.annotate("save_checkpoint"),
        lambda: t.annotate("bookkeeping"),
        lambda: t.annotate("data"),
        lambda: t.annotate("inductor_compile"),
        lambda: t.op("aten::outer"),
        lambda: t.frame("torch/_inductor/compile_fx.py(1): compile"),
        lambda: t.frame("<built-in method collect of module object>"),
    ]
    for _ in range(3):
        with t.step():
            for _ in range(chance.randint(3, 15)):
                if chance.random() < 0.4:
                    within(chance.choice(around)(), *chance.choices(plain, k=chance.randint(1, 3)))
                else:
                    chance.choice(plain)()
            t.launch("last", us(1))
    return t


def _named_differently(trace: Trace) -> list[tuple[int, str, str]]:
    """Moments of the host that idle time and the critical path name differently.

    Idle time that refills the queue after a blocking call counts for that call, as it says: there
    the note tells.
    """
    graph = build_step_graph(trace)
    path = path_of(graph, trace).segments.filter(
        pl.col("lane_id").is_not_null(), pl.col("event").is_null()
    )
    idle = idle_causes(trace).segments.filter(~_is_of_the_device()).rows(named=True)
    wrong = []
    for lane, first, last in path.select("lane_id", "start_ns", "end_ns").iter_rows():
        for row in idle:
            begin, end = max(first, row["start_ns"]), min(last, row["end_ns"])
            if begin >= end or row["note"] == "refilling":
                continue
            spent = graph.host.divide(lane, np.array([begin]), np.array([end]))[:, 0]
            wrong += [
                (begin, row["cause"], HostCause(code).word)
                for code in np.nonzero(spent)[0].tolist()
                if OF_THE_HOST[HostCause(code)] != row["cause"]
            ]
    return wrong


def _is_of_the_device():
    return pl.col("cause").cast(pl.String).is_in(["device_wait", "unknown"])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("seed", range(25))
def test_idle_time_and_critical_path_name_every_moment_alike(seed):
    trace = _programme(seed).load()
    assert _named_differently(trace) == []


def test_the_programmes_hold_every_cause_of_a_single_thread():
    seen: set[str] = set()
    for seed in range(25):
        seen |= set(what_if_table(_programme(seed).load()).causes["without"])
    elsewhere = {"waiting for communication", "profiler", "one-off call"}
    expected = {cause.word for cause in CAUSES} - {*elsewhere, HostCause.BACKWARD.word}
    assert expected <= seen


def test_an_operator_that_computes_on_the_cpu_is_told_from_one_that_hands_work_on():
    def on_cpu(around: str, inside: str, *, launches: bool = False, has_work: bool = True) -> int:
        t = GpuTrace()
        with t.step():
            if has_work:
                t.op("aten::mm").launch("sgemm", us(10))
            with t.op(around):
                t.op(inside).python(us(800))
                t.op("aten::view").python(us(20))
                if launches:
                    t.launch("sgemm", us(10))
            with t.op("aten::many"):
                for _ in range(100):
                    t.op("aten::view").python(us(10))
            if has_work:
                t.op("aten::mm").launch("sgemm", us(10))
        trace = t.load()
        return build_step_graph(trace).host.of(HostCause.CPU_OPERATOR).total_ns

    assert us(800) <= on_cpu("aten::randn", "aten::normal_") < us(820)
    # What launches nothing itself is no less on the CPU for the launch beside it.
    assert us(800) <= on_cpu("aten::to", "aten::copy_", launches=True) < us(820)
    assert on_cpu("aten::randn", "aten::split") == 0
    assert on_cpu("c10d::barrier", "c10d::barrier") == 0
    assert on_cpu("aten::randn", "aten::normal_", has_work=False) == 0


def test_a_copy_that_blocks_is_a_wait_and_no_launch():
    """The call of a copy to pageable memory lasts as long as all the work before it."""
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").launch("sgemm", us(5000))
        with t.op("aten::item"):
            t.copy("DtoH", 8, us(1), pinned=False)
        t.op("aten::mm").launch("sgemm", us(10))
    trace = t.load()
    host = build_step_graph(trace).host
    lane = int(trace.steps["lane_id"][0])
    assert host.claims(lane)[HostCause.SYNCHRONISATION].total_ns > us(4900)


def test_a_named_phase_has_everything_inside_it_but_compiling_and_collecting():
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").launch("sgemm", us(10))
        with t.annotate("save_checkpoint"):
            t.python(us(100))
            t.op("aten::clone").launch("copy", us(10))
            t.sync()
            t.gc_pause(us(70))
        t.op("aten::mm").launch("sgemm", us(10))
    path = path_of(build_step_graph(t.load()), t.load())
    causes = dict(path.causes.select("cause", "total_ns").iter_rows())
    assert causes["garbage collection"] == us(70)
    assert causes["annotated phase"] >= us(100)
    assert "synchronisation" not in causes


def test_without_gpu_work_an_annotation_with_operators_in_it_explains_nothing():
    t = GpuTrace()
    for _ in range(3):
        with t.step():
            with t.annotate("train_batch"):
                t.op("aten::mm", before=us(500)).python(us(100))
                t.python(us(300))
            with t.annotate("tokenise"):
                t.python(us(200))
    path = path_of(build_step_graph(t.load()), t.load())
    causes = dict(path.causes.select("cause", "total_ns").iter_rows())
    assert causes["annotation"] == 3 * us(200)
    assert causes[NOT_RECORDED] >= 3 * us(300)
