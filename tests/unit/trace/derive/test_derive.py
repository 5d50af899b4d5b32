"""Derived columns: hand-made cases with known answers, and brute force over random traces."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tables import TableBuilder

from stepscope.trace.derive.columns import derive
from stepscope.trace.schema import DERIVED, DEVICE_STEPS, HOST_STEPS

WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def column(derived, name):
    return derived[name].to_list()


def test_shape_and_types_follow_the_schema():
    build = TableBuilder()
    empty = derive(build.build())
    assert dict(empty.columns.collect().schema) == {
        k: v() if isinstance(v, type) else v for k, v in DERIVED.items()
    }
    assert empty.columns.collect().is_empty()
    assert empty.problems.is_empty()
    build.step(1, 0, 10)
    build.launch(2, 1, 5, 2)
    full = derive(build.build())
    assert full.columns.collect().schema == empty.columns.collect().schema
    assert full.narrow is not None
    assert ["event", *full.narrow.columns] == list(DERIVED)
    types = {name: DERIVED[name] for name in full.narrow.columns}
    assert full.narrow.cast(pl.Schema(types)).equals(full.columns.drop("event").collect())
    assert full.narrow.schema["parent"] == pl.Int32
    assert list(full.host_steps.schema) == list(HOST_STEPS)
    assert list(full.device_steps.schema) == list(DEVICE_STEPS)
    assert full.columns.collect()["event"].to_list() == [0, 1, 2]


@pytest.mark.parametrize(
    ("longest", "dtype"), [(2**31 - 1, pl.Int32), (2**31, pl.Int64)], ids=["fits", "too long"]
)
def test_self_times_are_narrow_where_they_fit(longest, dtype):
    build = TableBuilder()
    build.host("aten::mm", 10, longest + 5)
    build.host("aten::mm", 12, 5)
    found = derive(build.build())
    assert found.narrow is not None
    assert found.narrow.schema["self_ns"] == dtype
    assert column(found.columns.collect(), "self_ns") == [longest, 5]


def test_launches_operators_and_steps_when_the_host_runs_ahead():
    build = TableBuilder()
    build.step(4, 0, 100)
    op = build.host("aten::mm", 10, 20)
    call, kernel = build.launch(12, 2, 50, 100)
    build.step(5, 101, 99)
    call_2, kernel_2 = build.launch(110, 2, 160, 30)
    memcpy = build.gpu("Memcpy DtoD (Device -> Device)", 155, 3, category="gpu_memcpy")
    late = build.gpu("late", 195, 3)
    found = derive(build.build())
    rows = found.columns.collect().to_dicts()
    assert rows[kernel]["launch"] == call
    assert rows[kernel]["op"] == op
    assert rows[call]["op"] == op
    assert rows[call]["parent"] == op
    assert rows[kernel_2]["launch"] == call_2
    assert rows[kernel_2]["op"] is None, "a step is no operator"
    assert rows[kernel]["step"] == 4
    assert rows[kernel_2]["step"] == 5
    assert rows[memcpy]["step"] == 5, "unlinked: the device's step 5 runs from 150 to 190"
    assert rows[late]["step"] is None
    assert found.device_steps.rows() == [
        (0, 4, 0, 150, True, True),
        (0, 5, 150, 190, True, True),
    ]
    assert found.host_steps["end_ns"].to_list() == [101, 200]
    assert found.host_steps["annotation_end_ns"].to_list() == [100, 200]
    assert rows[0]["self_ns"] == 100 - 20
    problems = {row["problem"]: row for row in found.problems.to_dicts()}
    assert problems["unlinked_gpu_work"]["count"] == 2
    assert problems["unlinked_gpu_work"]["place"] == f"event {memcpy}"


def test_one_graph_launch_has_many_kernels():
    build = TableBuilder()
    call = build.host("cudaGraphLaunch", 0, 5, category="runtime", correlation=9)
    kernels = [build.gpu("volta_sgemm", 10 + i, 1, correlation=9) for i in range(5)]
    launches = derive(build.build()).columns.collect()["launch"].to_list()
    assert [launches[k] for k in kernels] == [call] * 5


def test_colliding_correlations_go_to_the_likeliest_call():
    build = TableBuilder()
    early = build.host("cudaLaunchKernel", 0, 1, category="runtime", thread=1, correlation=5)
    late = build.host("cudaLaunchKernel", 20, 1, category="runtime", thread=2, correlation=5)
    other = build.host(
        "cudaLaunchKernel", 30, 1, category="runtime", thread=3, correlation=5, external_id=77
    )
    first = build.gpu("a", 10, 1, correlation=5)
    second = build.gpu("b", 25, 1, correlation=5)
    named = build.gpu("c", 26, 1, correlation=5, external_id=77)
    before = build.gpu("d", -5, 1, correlation=5)
    found = derive(build.build())
    launches = found.columns.collect()["launch"].to_list()
    assert [launches[k] for k in (first, second, named, before)] == [early, late, other, early]
    assert found.problems.filter(pl.col("problem") == "ambiguous_correlation")["count"].item() == 4


def test_external_id_stands_in_for_a_missing_correlation():
    build = TableBuilder()
    build.step(1, 0, 100)
    op = build.host("aten::add", 10, 5, external_id=3)
    kernel = build.gpu("k", 200, 5, external_id=3)
    stale = build.gpu("k", 210, 5, external_id=3, correlation=3)
    found = derive(build.build()).columns.collect().to_dicts()
    assert (found[kernel]["op"], found[kernel]["launch"], found[kernel]["step"]) == (op, None, 1)
    assert found[stale]["op"] is None, "an External id that repeats the correlation names nothing"


def test_python_frames_between_operator_and_launch_are_passed_over():
    build = TableBuilder()
    op = build.host("aten::linear", 0, 50)
    frame = build.host("model.py(3): forward", 5, 40, category="python_function")
    call, kernel = build.launch(10, 5, 60, 5)
    found = derive(build.build()).columns.collect().to_dicts()
    assert found[call]["parent"] == frame
    assert found[call]["op"] == found[kernel]["op"] == op
    assert found[call]["depth"] == 2


def test_metadata_then_name_then_operator_decide_on_kind_and_group():
    build = TableBuilder()
    build.host("nccl:all_gather", 0, 30, category="user_annotation")
    build.host("record_param_comms", 1, 28)
    _, unnamed = build.launch(5, 2, 50, 9, name="ncclDevKernel_Generic(x)")
    _, named = build.launch(
        40, 2, 60, 9, name="ncclDevKernel_Generic(x)", args={"Collective name": "reduce_scatter"}
    )
    _, strange = build.launch(
        44, 2, 70, 9, name="my_transport", args={"Collective name": "allreduce"}
    )
    _, alone = build.launch(48, 2, 80, 9, name="ncclDevKernel_Generic(x)")
    _, gemm = build.launch(50, 2, 90, 9)
    found = derive(build.build()).columns.collect().to_dicts()
    got = [(found[e]["kind"], found[e]["group"]) for e in (unnamed, named, strange, alone, gemm)]
    assert got == [
        ("communication", "all_gather"),
        ("communication", "reduce_scatter"),
        ("communication", "all_reduce"),
        ("communication", "collective"),
        ("compute", "gemm"),
    ]
    assert found[0]["kind"] == "none"
    assert found[0]["group"] == "all_gather"


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        (("aten::mm",), ("compute", "gemm")),
        (("aten::linear", "vendor::linear_impl"), ("compute", "gemm")),
        (("aten::linear", "aten::add"), ("compute", "elementwise")),
        (("c10d::allreduce_",), ("communication", "all_reduce")),
        (("c10d::allreduce_", "record_param_comms"), ("communication", "all_reduce")),
        (("vendor::fused_thing",), ("compute", "other")),
        ((), ("compute", "other")),
    ],
)
def test_an_unknown_kernel_takes_its_operators_kind(operators, expected):
    build = TableBuilder()
    build.host("attention", 0, 100, category="user_annotation")
    for depth, name in enumerate(operators, start=1):
        build.host(name, depth, 100 - 2 * depth)
    _, unknown = build.launch(10, 2, 50, 9, name="vendor_job_17")
    _, known = build.launch(20, 2, 60, 9, name="volta_sgemm_128x64_nn")
    found = derive(build.build()).columns.collect().to_dicts()
    assert (found[unknown]["kind"], found[unknown]["group"]) == expected
    assert (found[known]["kind"], found[known]["group"]) == ("compute", "gemm")


def test_forward_operators_are_found_by_thread_and_sequence():
    build = TableBuilder()
    outer = build.host(
        "aten::linear", 0, 20, thread=1, args={"Sequence number": 8, "Fwd thread id": 0}
    )
    inner = build.host(
        "aten::addmm", 2, 10, thread=1, args={"Sequence number": 8, "Fwd thread id": 0}
    )
    next_one = build.host(
        "aten::relu", 30, 5, thread=1, args={"Sequence number": 9, "Fwd thread id": 0}
    )
    elsewhere = build.host(
        "aten::mul", 3, 5, thread=2, args={"Sequence number": 8, "Fwd thread id": 0}
    )
    first = build.host(
        "ReluBackward0", 50, 5, thread=3, args={"Sequence number": 9, "Fwd thread id": 1}
    )
    second = build.host(
        "AddmmBackward0", 60, 5, thread=3, args={"Fwd thread id": 1, "Sequence number": 8}
    )
    third = build.host(
        "MulBackward0", 70, 5, thread=4, args={"Sequence number": 8, "Fwd thread id": 2}
    )
    forward = column(derive(build.build()).columns.collect(), "forward")
    assert forward[first] == next_one
    assert forward[second] == inner, "the innermost of those with one number made the node"
    assert forward[outer] is None
    assert forward[third] == elsewhere, "the first thread has taken the other lane"


def test_forward_operators_are_found_by_flows_without_arguments():
    build = TableBuilder()
    op = build.host("aten::relu", 0, 5)
    back = build.host("ReluBackward0", 20, 5, thread=2)
    build.flow(1, "fwdbwd", 0, "s", thread=1)
    build.flow(1, "fwdbwd", 20, "f", thread=2)
    forward = column(derive(build.build()).columns.collect(), "forward")
    assert forward[back] == op
    assert forward[op] is None


def test_a_phantom_last_step_is_marked():
    build = TableBuilder()
    build.step(1, 0, 100)
    build.launch(10, 5, 20, 100)
    build.step(2, 101, 3)
    found = derive(build.build())
    assert found.host_steps["is_empty"].to_list() == [False, True]
    assert found.host_steps["is_complete"].to_list() == [True, False]
    assert "empty_step" in found.problems["problem"].to_list()


def test_the_last_step_of_a_cut_file_is_not_complete():
    build = TableBuilder()
    for number in (1, 2):
        build.step(number, 100 * number, 99)
        build.host("aten::add", 100 * number + 5, 5)
    build.problem("truncated")
    assert derive(build.build()).host_steps["is_complete"].to_list() == [True, False]


def test_without_annotated_steps_there_are_none_and_it_is_said():
    build = TableBuilder()
    build.launch(0, 1, 5, 5)
    found = derive(build.build())
    assert found.host_steps.is_empty()
    assert found.device_steps.is_empty()
    assert found.columns.collect()["step"].null_count() == 2
    assert "no_steps" in found.problems["problem"].to_list()


def test_steps_may_be_annotated_in_other_words():
    build = TableBuilder()
    for number in (7, 8):
        build.host(f"iteration {number}", number * 10, 9, category="user_annotation")
        build.host("aten::add", number * 10 + 2, 1)
    assert derive(build.build()).host_steps["step"].to_list() == [7, 8]


def test_marks_may_cross_and_calls_that_cross_are_told():
    build = TableBuilder()
    build.step(1, 0, 100)
    build.host("Optimizer.step#SGD.step", 80, 22, category="user_annotation")
    build.step(2, 101, 99)
    # A frame of the training may end a step, or a phase.
    build.host("trainer.py(2051): training_step", 195, 10, category="python_function")
    assert "events_cross" not in derive(build.build()).problems["problem"].to_list()
    build.host("aten::mm", 110, 20)
    crossing = build.host("aten::add", 120, 20)
    problems = {row["problem"]: row for row in derive(build.build()).problems.to_dicts()}
    assert problems["events_cross"]["count"] == 1
    assert "times of steps are not affected" in problems["events_cross"]["message"]
    assert problems["events_cross"]["place"] == f"event {crossing}"


def test_steps_of_a_second_thread_and_repeated_ones_do_not_count_twice():
    build = TableBuilder()
    for number in (1, 2, 3):
        build.step(number, number * 100, 90)
    build.step(2, 203, 5)
    build.step(2, 5, 5, thread=9)
    steps = derive(build.build()).host_steps
    assert steps["step"].to_list() == [1, 2, 3]
    assert steps["start_ns"].to_list() == [100, 200, 300]


def test_steps_that_overlap_partly_still_divide_the_clock():
    build = TableBuilder()
    build.step(1, 0, 120)
    build.step(2, 100, 50)
    steps = derive(build.build()).host_steps
    assert steps.select("start_ns", "end_ns").rows() == [(0, 100), (100, 150)]


def test_a_device_without_any_link_takes_the_host_steps():
    build = TableBuilder()
    build.step(1, 0, 100)
    build.host("aten::add", 1, 1)
    build.gpu("k", 50, 5, device=3)
    found = derive(build.build())
    assert found.device_steps.rows() == [(3, 1, 0, 100, False, True)]
    assert found.columns.collect()["step"].to_list() == [1, 1, 1]


def test_what_is_done_between_two_steps_belongs_to_none():
    build = TableBuilder()
    build.step(4, 0, 100)
    build.launch(10, 2, 50, 70)
    build.host("stepscope.no_step#5", 100, 1, category="user_annotation")
    _, of_evaluation = build.launch(150, 2, 160, 700)
    build.step(5, 1000, 100)
    build.launch(1010, 2, 1050, 100)
    found = derive(build.build())
    assert found.host_steps["step"].to_list() == [4, 5]
    assert found.host_steps["end_ns"].to_list() == [100, 1100]
    assert found.device_steps.rows() == [
        (0, 4, 0, 120, True, True),
        (0, 5, 1000, 1150, True, True),
    ]
    assert found.columns.collect()["step"][of_evaluation] is None


@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from((0, 0, 30))), min_size=1, max_size=4),
    st.lists(
        st.tuples(
            st.integers(0, 160),
            st.integers(0, 60),
            st.integers(0, 40),
            st.integers(0, 1),
            st.integers(7, 8),
            st.booleans(),
        ),
        max_size=10,
    ),
    st.sampled_from((0, -1000)),
)
def test_device_steps_follow_the_definition(lengths, work, origin):
    build = TableBuilder()
    bounds, clock = [], origin
    for number, (length, pause) in enumerate(lengths):
        build.step(number, clock, length)
        bounds.append((clock, clock + length))
        if pause:
            build.host("stepscope.no_step#9", clock + length, 0, category="user_annotation")
        clock += length + pause
    events = []
    for offset, delay, dur, device, stream, linked in work:
        start = origin + offset
        begun = start + delay
        if linked:
            call, kernel = build.launch(start, 1, begun, dur, device=device, stream=stream)
            events.append((call, kernel, start, begun, dur, device, stream))
        else:
            kernel = build.gpu("k", begun, dur, device=device, stream=stream)
            events.append((None, kernel, None, begun, dur, device, stream))

    def host_step(time):
        return next((n for n, (first, last) in enumerate(bounds) if first <= time < last), None)

    def precedes_on_stream(stream, others, own):
        starts = [o[3] for o in own if o[6] == stream]
        return bool(starts) and max(o[3] for o in others if o[6] == stream) < min(starts)

    found = derive(build.build())
    step = found.columns.collect()["step"].to_list()
    for device in sorted({e[5] for e in events}):
        mine = [e for e in events if e[5] == device]
        in_steps = [e for e in mine if e[0] is not None and host_step(e[2]) is not None]
        others = [e for e in mine if e not in in_steps]
        spans, begin = [], origin
        for number in range(len(lengths)):
            if number == 0 or lengths[number - 1][1]:
                own = [e for e in in_steps if host_step(e[2]) == number]
                backlog = [
                    e[3] + e[4]
                    for e in others
                    if own
                    and (e[3] < min(o[3] for o in own) or precedes_on_stream(e[6], others, own))
                    and e[3] + e[4] <= max(o[3] + o[4] for o in own)
                ]
                begin = max([begin, bounds[number][0], *backlog])
            end = max([begin, *(e[3] + e[4] for e in in_steps if host_step(e[2]) == number)])
            spans.append((begin, end) if in_steps else bounds[number])
            begin = end
        rows = found.device_steps.filter(pl.col("device") == device)
        assert rows.select("start_ns", "end_ns").rows() == spans
        for call, kernel, call_start, start, *_ in mine:
            if call is not None:
                assert step[kernel] == host_step(call_start)
            else:
                holding = [n for n, (first, last) in enumerate(spans) if first <= start < last]
                assert step[kernel] == (holding[0] if holding else None)


def test_what_the_device_had_left_to_do_is_no_part_of_the_first_step():
    """28 ms of earlier work, then 10 ms of the step's own: the step takes 10 ms, not 38."""
    build = TableBuilder()
    build.step(7, 0, 100)
    left = build.gpu("k", 5, 275)
    _, kernel = build.launch(10, 1, 280, 100)
    found = derive(build.build())
    assert found.device_steps.select("start_ns", "end_ns").rows() == [(280, 380)]
    step = found.columns.collect()["step"].to_list()
    assert (step[left], step[kernel]) == (None, 7)


def test_the_profilers_own_python_fills_no_last_step():
    for has_operators in (True, False):
        build = TableBuilder()
        for number, start in ((4, 1_000), (5, 2_000)):
            build.step(number, start, 990)
            if has_operators and number == 4:
                build.host("aten::mm", start + 10, 500)
            build.host("loop.py(3): next", start + 600, 200, category="python_function")
        found = derive(build.build())
        # Where nothing but Python was recorded, Python is what steps are made of.
        assert found.host_steps["is_empty"].to_list() == [False, has_operators]


def first_step_of_two_streams(late_unlinked):
    """A copy of the step's own at once, while another stream has earlier work until 280."""
    build = TableBuilder()
    build.step(7, 0, 100)
    build.step(8, 100, 100)
    left = build.gpu("k", 5, 275, stream=7)
    build.launch(1, 1, 3, 20, stream=16)
    build.launch(10, 1, 280, 100, stream=7)
    build.launch(110, 1, 380, 100, stream=7)
    if late_unlinked:
        build.gpu("k", 500, 10, stream=7)
    return derive(build.build()), left


def test_earlier_work_of_one_stream_is_no_part_of_a_step_that_begins_on_another():
    found, left = first_step_of_two_streams(late_unlinked=False)
    assert found.device_steps.select("start_ns", "end_ns").rows() == [(280, 380), (380, 480)]
    assert found.columns.collect()["step"][left] is None


def test_work_without_a_launch_may_be_the_steps_own_where_launches_are_missing():
    """A stream with such work later on, too: who knows which step launched it."""
    found, left = first_step_of_two_streams(late_unlinked=True)
    assert found.device_steps.select("start_ns", "end_ns").rows() == [(0, 380), (380, 480)]
    assert found.columns.collect()["step"][left] == 7
