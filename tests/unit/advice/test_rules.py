"""Each rule of the step record: when it speaks, when it is silent, and what it promises."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.step_records import MS, step_records

from stepscope.advice.evidence.replayed import saved_together
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Severity
from stepscope.advice.rules.communication.abnormal_collective import find_abnormal_collective
from stepscope.advice.rules.communication.exposed import find_many_small_collectives
from stepscope.advice.rules.host.cpu_bound_python import find_cpu_bound_python
from stepscope.advice.rules.host.interruptions import find_busy_cpus, find_garbage_collector
from stepscope.advice.rules.input import input_bound
from stepscope.advice.rules.input.input_bound import find_input_bound
from stepscope.advice.rules.steps.compilation import find_recompilation
from stepscope.advice.rules.steps.first_steps import find_slow_first_steps
from stepscope.advice.rules.steps.slow_phase import find_slow_phase
from stepscope.advice.rules.steps.uneven import find_stalled_step, find_uneven_steps
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.record.summary import summarise_steps
from stepscope.run.manifest import LoaderRecord


def subject(durations_ms, thresholds=None, **columns):
    summary = summarise_steps(step_records(durations_ms, **columns))
    return Subject(0, summary, thresholds=thresholds or Thresholds())


def test_input_bound_promises_the_step_without_its_wait():
    (finding,) = find_input_bound(subject([100] * 20, waits_ms=60))
    assert finding.severity is Severity.HIGH
    assert finding.saving_ns == 60 * MS
    assert finding.predicted_step_ns == 40 * MS
    workers = next(e for e in finding.evidence if e.label == input_bound.WORKERS_LABEL)
    assert workers.value == 3  # 60 ms of loading fit into 40 ms of work twice, and one to spare


def test_waits_for_a_cpu_are_part_of_other_waits_in_what_both_save():
    """A step of 360 ms, 327 of them input, in a fifth of which no CPU was free: some is left."""
    both = subject([360] * 20, waits_ms=327, cpu_ms=20, queued_ms=75)
    found = [*find_input_bound(both), *find_busy_cpus(both)]
    assert [one.saving_ns for one in found] == [327 * MS, 75 * MS]
    left_ns = 360 * MS - saved_together(found, None, 360 * MS)
    assert left_ns == pytest.approx(33 * MS * (1 - 75 / 360), abs=1)


def test_input_bound_severity_follows_the_share():
    for wait_ms, severity in ((6, Severity.LOW), (20, Severity.MEDIUM), (40, Severity.HIGH)):
        (finding,) = find_input_bound(subject([100] * 20, waits_ms=wait_ms))
        assert finding.severity is severity


def test_input_bound_is_silent_below_its_threshold_and_without_waits():
    assert find_input_bound(subject([100] * 20, waits_ms=4)) == []
    assert find_input_bound(subject([100] * 20)) == []
    assert find_input_bound(Subject(0)) == []


def test_thresholds_can_be_set():
    limits = Thresholds(input_bound_low=0.7)
    assert find_input_bound(subject([100] * 20, limits, waits_ms=60)) == []


def test_slow_first_steps_states_the_loss_and_why_nothing_is_saved_per_step():
    (finding,) = find_slow_first_steps(subject([900, 500] + [100] * 20))
    assert finding.steps == (0, 1)
    assert finding.saving_ns is None
    assert finding.saving_reason
    assert finding.evidence[0].value == (800 + 400) * MS


def test_what_stepscope_searches_in_the_first_step_is_not_the_scripts():
    """60 of 70 ms are its own: the step itself takes little longer than the others."""
    records = step_records([70, *[5] * 20], cpu_ms=5)
    for own_ms, dur_ns in ((0, 70 * MS), (50, 20 * MS)):
        own = [replace(records[0], own_ns=own_ms * MS), *records[1:]]
        (finding,) = find_slow_first_steps(Subject(0, steps=summarise_steps(own)))
        seen = {one.label: one.value for one in finding.evidence}
        assert seen["slowest of them"] == dur_ns
        assert seen["time lost at the start"] == dur_ns - 5 * MS
        assert seen.get("Stepscope's own, not counted") == (own_ms * MS or None)
    own = [replace(records[0], own_ns=60 * MS), *records[1:]]
    assert find_slow_first_steps(Subject(0, steps=summarise_steps(own))) == []


def test_slow_first_steps_is_silent_where_little_was_lost():
    assert find_slow_first_steps(subject([250] + [100] * 20)) == []
    assert find_slow_first_steps(subject([100] * 20)) == []


def test_a_dominating_phase_is_found_unless_it_is_the_models_work():
    phases = {"forward": 40, "logging": 30}
    (finding,) = find_slow_phase(subject([100] * 20, phases_ms=phases))
    assert "logging" in finding.title
    assert finding.saving_ns == 30 * MS
    assert finding.predicted_step_ns == 70 * MS


def test_a_spiking_phase_is_found_with_its_steps_even_in_the_models_work():
    forward = [20.0] * 20
    durations = [60.0] * 20
    for step in (9, 14):
        forward[step] = 220
        durations[step] = 260
    (finding,) = find_slow_phase(subject(durations, phases_ms={"forward": forward}))
    assert finding.steps == (9, 14)
    assert finding.saving_ns == 2 * 200 * MS // 20
    assert finding.predicted_step_ns == (18 * 60 + 2 * 260) * MS // 20 - finding.saving_ns


def test_phases_inside_others_and_input_phases_are_left_to_others():
    phases = {"forward": 90, "forward/logging": 50, "data": 5}
    assert find_slow_phase(subject([100] * 20, phases_ms=phases)) == []


def test_steps_that_are_slow_in_every_phase_are_uneven_and_no_phase_is_blamed():
    durations = [60.0] * 20
    forward, backward = [20.0] * 20, [30.0] * 20
    for step in (9, 14):
        durations[step], forward[step], backward[step] = 600, 200, 300
    disturbed = subject(durations, phases_ms={"forward": forward, "backward": backward})
    assert find_slow_phase(disturbed) == []
    (finding,) = find_uneven_steps(disturbed)
    assert finding.steps == (9, 14)
    assert finding.saving_ns is None
    assert finding.saving_reason
    assert finding.evidence[0].value == 2 * 540 * MS


def test_steps_that_a_slow_phase_explains_are_not_uneven_as_well():
    forward, durations = [20.0] * 20, [60.0] * 20
    for step in (9, 14):
        forward[step], durations[step] = 220, 260
    explained = subject(durations, phases_ms={"forward": forward})
    assert find_slow_phase(explained)
    assert find_uneven_steps(explained) == []
    assert find_uneven_steps(subject([100] * 20)) == []


def test_steps_that_wait_for_their_input_are_not_uneven():
    durations, waits = [60.0] * 40, [1.0] * 40
    for step in (10, 20, 30):
        durations[step], waits[step] = 260, 151
    waiting = subject(durations, waits_ms=waits)
    assert find_uneven_steps(waiting) == []
    assert find_input_bound(waiting)
    durations[15] = durations[25] = 360  # for another reason
    (finding,) = find_uneven_steps(subject(durations, waits_ms=waits))
    assert finding.steps == (15, 25)


def test_steps_that_wait_for_a_cpu_are_no_slow_phase():
    forward, durations, queued = [40.0] * 40, [60.0] * 40, [0.5] * 40
    for step in (10, 20, 30):
        forward[step], durations[step], queued[step] = 240, 260, 180
    columns = {"phases_ms": {"forward": forward}, "cpu_ms": 20}
    assert find_slow_phase(subject(durations, **columns))
    busy = subject(durations, queued_ms=queued, **columns)
    assert find_slow_phase(busy) == []
    (everywhere,) = find_busy_cpus(busy)
    assert everywhere.saving_ns == pytest.approx((3 * 180 + 37 * 0.5) / 40 * MS, abs=1)
    assert find_uneven_steps(busy) == []


def test_steps_that_do_more_are_uneven_on_a_busy_machine_too():
    """A rollout before each eighth update waits for a CPU as often as what it does needs one."""
    durations, queued = [2.4] * 64, [0.4] * 64
    for step in range(8, 64, 8):
        durations[step], queued[step] = 110, 75
    busy = subject(durations, queued_ms=queued)
    assert find_busy_cpus(busy)
    (finding,) = find_uneven_steps(busy)
    assert finding.title.startswith("1 step in 8 takes")


def test_steps_that_are_slow_from_one_on_have_that_step_named():
    (finding,) = find_uneven_steps(subject([50.0] * 70 + [150.0] * 30))
    assert finding.title == "steps take 3 times as long from step 70 on"
    assert finding.steps == tuple(range(70, 100))
    (finding,) = find_uneven_steps(subject([60.0] * 5 + [180.0] * 30 + [60.0] * 65))
    assert "times as long" not in finding.title


def test_few_steps_that_wait_for_a_cpu_have_their_reason_told():
    durations, queued = [60.0] * 60, [0.5] * 60
    for step in (10, 20):
        durations[step], queued[step] = 260, 120
    busy = subject(durations, queued_ms=queued, cpu_ms=20)
    assert find_busy_cpus(busy) == []
    (finding,) = find_uneven_steps(busy)
    assert finding.title == "2 of 60 steps wait for a CPU that others have"
    assert finding.steps == (10, 20)
    assert finding.saving_ns == round(2 * 119.5 / 60 * MS)
    queued[10] = queued[20] = 80  # less than half of what they take longer
    (finding,) = find_uneven_steps(subject(durations, queued_ms=queued, cpu_ms=20))
    assert finding.saving_ns is None


def test_steps_that_are_slow_at_one_distance_promise_the_others():
    """Every tenth step saves for 150 ms; two others were disturbed, and one was recorded."""
    durations = [10.0] * 80
    for step in range(9, 80, 10):
        durations[step] = 160
    durations[27] = durations[61] = 40
    (finding,) = find_uneven_steps(subject(durations))
    assert finding.title == "1 step in 10 takes 16 times as long as the others"
    assert finding.severity is Severity.HIGH
    assert finding.steps == tuple(range(9, 80, 10))
    assert finding.saving_ns == 8 * 150 * MS // 80
    assert "every 10 steps" in finding.advice


@pytest.mark.parametrize("slow", [(9, 14, 15, 31, 38, 57), (9, 19), tuple(range(30, 40))])
def test_steps_that_are_slow_at_no_distance_promise_nothing(slow):
    durations = [160.0 if step in slow else 10.0 for step in range(80)]
    (finding,) = find_uneven_steps(subject(durations))
    assert finding.saving_ns is None


def test_busy_cpus_promises_the_step_without_the_queue():
    busy = subject([69] * 20, cpu_ms=24, queued_ms=44)
    (finding,) = find_busy_cpus(busy)
    assert finding.severity is Severity.HIGH
    assert finding.saving_ns == 44 * MS
    assert finding.predicted_step_ns == 25 * MS
    assert "64%" in finding.title


def test_busy_cpus_never_promises_more_than_the_step_has_beside_its_work():
    (finding,) = find_busy_cpus(subject([40] * 20, cpu_ms=24, queued_ms=52))
    assert finding.saving_ns == 16_000_000
    assert "40%" in finding.title


def test_busy_cpus_is_silent_on_a_free_machine_and_where_nothing_is_known():
    assert find_busy_cpus(subject([25] * 20, cpu_ms=24, queued_ms=0.5)) == []
    assert find_busy_cpus(subject([25] * 20)) == []
    assert find_busy_cpus(Subject(0)) == []


def test_pauses_of_the_collector_are_found_in_the_record():
    (finding,) = find_garbage_collector(subject([50] * 20, gc_ms=10))
    assert finding.saving_ns == 10 * MS
    assert finding.predicted_step_ns == 40 * MS
    assert find_garbage_collector(subject([50] * 20, gc_ms=0.5)) == []


def compiled(usual_ms, compiling, **columns):
    """Steps of which some compile; by number, how long."""
    count = columns.pop("count", 20)
    extra = [compiling.get(step, 0) for step in range(count)]
    return subject([usual_ms + one for one in extra], compile_ms=extra, **columns)


def test_steps_that_go_on_compiling_save_what_they_compile():
    again = compiled(10, {4: 900, 8: 1100, 16: 1000})
    (finding,) = find_recompilation(again)
    assert finding.title == "3 of 20 steps compile code again"
    assert finding.steps == (4, 8, 16)
    assert finding.saving_ns == 150 * MS
    assert finding.predicted_step_ns == 10 * MS
    assert finding.severity is Severity.HIGH
    assert find_uneven_steps(again) == []


def test_what_is_compiled_beside_other_work_is_not_promised():
    """Of 50 ms spent compiling in each of five steps of 40 ms, only 30 lengthened the step."""
    extra = [50 if step % 4 == 3 else 0 for step in range(20)]
    lengths = [40 if one else 10 for one in extra]
    beside = subject(lengths, compile_ms=[min(one, 40) for one in extra])
    (finding,) = find_recompilation(beside)
    assert finding.saving_ns == 5 * 30 * MS // 20


@pytest.mark.parametrize("compiling", [{14: 900}, {9: 700, 14: 900}, {2: 700, 3: 800, 5: 900}])
def test_code_that_is_compiled_for_something_new_is_no_part_of_the_step(compiling):
    once = compiled(10, compiling)
    assert once.steps.mean_ns == 10 * MS
    assert once.steps.excluded.compiled == len(compiling)
    assert once.steps.stalled_step is None
    (finding,) = find_recompilation(once)
    assert finding.saving_ns is None
    assert finding.steps == tuple(compiling)
    words = "step 14 compiled code again, for 900 ms"
    if len(compiling) > 1:
        words = f"{len(compiling)} steps compiled code again, each for up to 900 ms"
    assert finding.title == words
    assert {one.label: one.value for one in finding.evidence}["compiling in these steps"] == sum(
        compiling.values()
    ) * MS


def test_first_steps_that_compile_one_after_the_other_are_recompilation():
    """Each of the first steps has a new size: the first compiles the model, the others again."""
    again = compiled(10, {0: 900, 1: 700, 2: 800, 3: 700, 14: 900}, count=40)
    (finding,) = find_recompilation(again)
    assert finding.title == "4 steps compiled code again, each for up to 900 ms"
    assert finding.steps == (1, 2, 3, 14)
    assert finding.severity is Severity.MEDIUM
    assert find_slow_first_steps(again) == []


def test_a_model_that_is_compiled_twice_at_the_start_is_a_slow_start():
    twice = compiled(10, {0: 900, 1: 700, 2: 600}, count=40)
    assert find_recompilation(twice) == []
    (finding,) = find_slow_first_steps(twice)
    assert finding.steps == (0, 1, 2)


def test_a_slow_step_that_hardly_compiles_is_a_stall_like_any_other():
    extra = [0.0] * 20
    extra[14] = 900
    stall = subject([10 + one for one in extra], compile_ms=[one / 3 for one in extra])
    assert stall.steps.stalled_step == 14
    assert stall.steps.excluded.compiled == 0
    assert find_recompilation(stall) == []


def test_phases_that_are_slow_because_their_steps_compile_are_not_blamed():
    extra = [900 if step in {4, 8, 16} else 0 for step in range(20)]
    lengths = [10 + one for one in extra]
    forward = {"forward": [4 + one for one in extra]}
    blamed = subject(lengths, phases_ms=forward)
    assert [one.steps for one in find_slow_phase(blamed)] == [(4, 8, 16)]
    known = subject(lengths, phases_ms=forward, compile_ms=extra)
    assert find_slow_phase(known) == []


def saves(at, saved_ms, more_ms=0, usual_ms=10, count=20):
    """Steps of which some save a checkpoint, with something else beside it."""
    records = step_records(
        [usual_ms + (saved_ms + more_ms if step in at else 0) for step in range(count)],
        phases_ms={"forward": 4},
    )
    own = [
        replace(one, phases={**one.phases, "saving": round(saved_ms * MS)})
        if one.step in at
        else one
        for one in records
    ]
    return Subject(0, summarise_steps(own), thresholds=Thresholds())


def test_saving_in_a_few_steps_is_what_makes_them_slow():
    found = saves({5, 10, 15}, 200, more_ms=100)
    (finding,) = find_slow_phase(found)
    assert finding.title == "saving takes 55% of the time, in 3 of 20 steps"
    assert finding.saving_ns == 30 * MS
    assert finding.predicted_step_ns == 25 * MS
    assert finding.steps == (5, 10, 15)
    assert "async_save" in finding.advice
    assert find_uneven_steps(found) == []


@pytest.mark.parametrize("every", [1, 2])
def test_saving_counts_from_a_twentieth_of_the_step_wherever_it_comes(every):
    """It is no rare phase, and makes no step slow: still nothing in the step needs it."""
    at = {step for step in range(20) if step % every == 0}
    (finding,) = find_slow_phase(saves(at, 2))
    share = {1: "17%", 2: "9.1%"}[every]
    assert finding.title == f"saving takes {share} of the time, in {len(at)} of 20 steps"
    assert finding.saving_ns == 2 * MS // every
    assert "async_save" in finding.advice
    assert find_slow_phase(saves(at, 0.4)) == []


def test_saving_that_is_not_why_steps_are_slow_is_not_blamed():
    assert [one.id for one in find_slow_phase(saves({5, 10, 15}, 2, more_ms=300))] == []
    assert [one.id for one in find_uneven_steps(saves({5, 10, 15}, 2, more_ms=300))]
    assert find_slow_phase(saves({5, 10, 15}, 1)) == []


def test_short_compilations_are_not_worth_a_finding():
    assert find_recompilation(compiled(100, {4: 20, 8: 20, 16: 20})) == []
    assert find_recompilation(compiled(100, {14: 150})) == []


def test_slow_first_steps_say_how_long_they_compiled():
    (finding,) = find_slow_first_steps(compiled(100, {0: 900, 1: 400}))
    assert {one.label: one.value for one in finding.evidence}["compiling in them"] == 1300 * MS


def python_window(stretch, work, steps=6):
    t = GpuTrace(device_name=None)
    for _ in range(steps):
        with t.step():
            for _ in range(4):
                t.op("aten::linear").python(work)
                t.python(stretch)
    return WindowView(t.load())


def test_python_is_not_blamed_where_the_thread_had_no_cpu():
    window = python_window(ms(10), ms(5))
    starved = summarise_steps(step_records([60] * 20, queued_ms=30, recorded=range(6, 12)))
    free = summarise_steps(step_records([60] * 20, queued_ms=1, recorded=range(6, 12)))
    assert find_cpu_bound_python(Subject(0, starved, window=window)) == []
    assert find_cpu_bound_python(Subject(0, free, window=window))


def _planted_under_busy_cpus(planted_ms, function="train.py(12): tokenise"):
    """Operators and Python in a function that take twice as long, because others have the CPU."""
    t = GpuTrace(device_name=None)
    for _ in range(6):
        with t.step():
            for _ in range(4):
                t.op("aten::linear").python(ms(5))
                t.python(us(300))
            with t.frame(function):
                t.python(ms(planted_ms))
            t.op("aten::linear").python(ms(5))
    return WindowView(t.load())


def test_python_in_one_function_is_named_under_busy_cpus():
    window = _planted_under_busy_cpus(40)
    held = {"cpu_ms": 20, "queued_ms": 46, "recorded": range(6, 12)}
    starved = Subject(0, summarise_steps(step_records([66] * 20, **held)), window=window)
    (finding,) = find_cpu_bound_python(starved)
    assert finding.title == "Python in train.py(12): tokenise delays the step"
    # What is saved is the function's time, not that of the stretches between operators.
    assert finding.saving_ns == pytest.approx(66 * MS * 40 / 66.2, rel=0.02)


def test_a_function_that_hardly_runs_is_not_named_under_busy_cpus():
    """A thread loses its CPU anywhere: 4 ms of a step, of which it runs a fiftieth, is nothing."""
    window = _planted_under_busy_cpus(4)
    held = {"cpu_ms": 1, "queued_ms": 29, "recorded": range(6, 12)}
    starved = Subject(0, summarise_steps(step_records([30] * 20, **held)), window=window)
    assert find_cpu_bound_python(starved) == []


def test_eager_overhead_is_told_from_slow_python():
    (finding,) = find_cpu_bound_python(Subject(0, window=python_window(us(200), us(300))))
    assert (
        finding.title == "eager-mode overhead dominates: 40% of the step passes between operators"
    )
    assert finding.severity is Severity.LOW
    (finding,) = find_cpu_bound_python(Subject(0, window=python_window(ms(2), us(300))))
    assert "eager-mode" not in finding.title


def test_eager_overhead_that_a_gpu_waits_for_is_as_severe_as_what_it_saves():
    t = GpuTrace()
    for _ in range(6):
        with t.step():
            for _ in range(4):
                t.python(us(300))
                t.op("aten::mm", before=us(5)).launch("gemm", us(20))
    (finding,) = find_cpu_bound_python(Subject(0, window=WindowView(t.load())))
    assert finding.title.startswith("eager-mode overhead dominates")
    assert finding.severity is Severity.HIGH


def test_one_interruption_does_not_make_a_small_model_slow():
    t = GpuTrace(device_name=None)
    for number in range(6):
        with t.step():
            t.op("aten::linear").python(us(900))
            t.python(us(700))
            t.op("aten::linear").python(us(900))
            t.python(ms(9) if number == 3 else us(300))
    (finding,) = find_cpu_bound_python(Subject(0, window=WindowView(t.load())))
    assert "eager-mode" in finding.title


def test_what_times_the_steps_is_no_python_of_theirs():
    """A thread that loses its CPU while it reads a clock: nobody can move that out of the step."""

    def window(folder, function="steps/host_time.py(64): needed_ns"):
        t = GpuTrace(device_name=None)
        for _ in range(3):
            with t.step():
                t.op("aten::linear").python(ms(5))
                with (
                    t.frame(f"{folder}/{function}"),
                    t.frame("<built-in function thread_time_ns>"),
                ):
                    t.python(ms(9))
                t.op("aten::linear").python(ms(5))
        return WindowView(t.load())

    for own in ("stepscope/capture", "/venv/lib/python3.11/site-packages/stepscope/capture"):
        assert find_cpu_bound_python(Subject(0, window=window(own))) == []
    noting = ("record/journal.py(117): count_step", "triggers.py(154): look")
    for function in (*noting, "shared_store.py(67): _try", "pause.py(40): wait"):
        of_step = window("stepscope/capture", function)
        assert find_cpu_bound_python(Subject(0, window=of_step)) == []
    # What makes files may run a function of the user's.
    handler = window("stepscope/capture", "windows/handlers.py(9): run")
    assert find_cpu_bound_python(Subject(0, window=handler))
    (finding,) = find_cpu_bound_python(Subject(0, window=window("mystepscope/capture")))
    assert "mystepscope" in finding.title
    assert finding.saving_ns == ms(9)


def test_the_function_that_takes_most_of_the_python_is_named():
    def title(*stretches):
        t = GpuTrace(device_name=None)
        for _ in range(3):
            with t.step():
                for name, stretch in stretches:
                    t.op("aten::linear").python(ms(5))
                    with t.frame(f"train.py(7): {name}"):
                        t.python(stretch)
        (finding,) = find_cpu_bound_python(Subject(0, window=WindowView(t.load())))
        return finding.title

    mostly = title(("tokenize", ms(9)), ("log", ms(3)))
    assert mostly == "Python in train.py(7): tokenize delays the step"
    assert title(("tokenize", ms(5)), ("log", ms(5))) == "Python outside operators delays the step"


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (
            ("queue.py(154): get", "threading.py(320): wait", "<built-in method acquire of {}>"),
            "the training thread sleeps or waits in queue.py(154): get",
        ),
        (
            ("train.py(7): load", "<built-in function sleep>"),
            "the training thread sleeps or waits in train.py(7): load",
        ),
        (
            ("train.py(7): load", "<built-in method sort of {}>"),
            "Python in train.py(7): load delays the step",
        ),
        (("<built-in method sort of {}>",), "Python in <built-in method sort of list> delays"),
    ],
)
def test_what_is_built_in_is_named_by_its_caller(frames, said):
    t = GpuTrace(device_name=None)
    for _ in range(3):
        with t.step(), ExitStack() as inside:
            t.op("aten::linear").python(ms(5))
            for frame in frames:
                inside.enter_context(t.frame(frame.format("list object at 0x7f540cabd840")))
                t.python(us(20))
            t.python(ms(9))
    (finding,) = find_cpu_bound_python(Subject(0, window=WindowView(t.load())))
    assert finding.title.startswith(said)


def collectives_with(between, count=80, product_us=2_000):
    """A job that reduces tensors with so many kernels between two of them."""
    t = GpuTrace(world_size=2)
    for _ in range(4):
        with t.step():
            t.op("aten::mm").launch("sgemm", us(product_us))
            for _ in range(count):
                for _ in range(between):
                    t.op("aten::clone", before=us(30)).launch("copy_kernel", us(15))
                t.collective("all_reduce", 4 << 10, us(12), waits_for_compute=False)
    return Subject(0, window=WindowView(t.load()))


def test_collectives_one_after_the_other_are_small_ones():
    (finding,) = find_many_small_collectives(collectives_with(1))
    assert finding.title == "80 small collectives per step, one after the other"
    # Beside a long product, the host's time for them is hidden.
    assert find_many_small_collectives(collectives_with(1, count=40)) == []
    assert find_many_small_collectives(collectives_with(1, count=19, product_us=20)) == []
    assert find_many_small_collectives(collectives_with(1, count=20, product_us=20)) != []


def test_collectives_between_layers_are_not_meant():
    assert find_many_small_collectives(collectives_with(3)) == []


def test_busy_cpus_beside_a_gpu_promise_nothing_and_say_why():
    records = [replace(one, device_ns=60 * MS) for one in step_records([69] * 20, queued_ms=44)]
    (finding,) = find_busy_cpus(Subject(0, summarise_steps(records)))
    assert (finding.saving_ns, finding.predicted_step_ns, finding.assumption) == (None, None, "")
    assert "how much of it the device waited for" in finding.saving_reason
    assert finding.severity is Severity.HIGH
    # The record has no times on a CPU here.
    assert [one.label for one in finding.evidence] == [
        "waiting for a CPU per step", "share of the step", "mean step",
    ]  # fmt: skip


def test_busy_cpus_say_who_shares_them():
    busy = replace(
        subject([69] * 20, cpu_ms=24, queued_ms=44),
        loader=LoaderRecord(workers=6, cpus=2, local_ranks=4),
    )
    (finding,) = find_busy_cpus(busy)
    seen = {one.label: one.value for one in finding.evidence}
    assert seen["CPUs that the process may use"] == 2
    assert seen["ranks that share them"] == 4
    assert seen["loader workers"] == 6
    assert seen["running on a CPU per step"] == 24 * MS
    assert finding.advice.endswith("at or below the number of CPUs (2 here).")


def test_a_rare_phase_is_not_said_to_be_in_every_step():
    """In six of twenty steps it takes 200 ms, and something else there takes 400 more."""
    has_it = [step % 3 == 1 and step > 2 for step in range(20)]
    durations = [700 if there else 100 for there in has_it]
    summary = summarise_steps(
        [
            replace(record, phases={} if not there else {"upload": 200 * MS})
            for record, there in zip(step_records(durations), has_it, strict=True)
        ]
    )
    (phase,) = summary.phases
    assert (phase.is_rare, phase.steps, phase.slow_steps) == (True, 6, ())
    (finding,) = find_slow_phase(Subject(0, summary))
    assert finding.title == "the phase 'upload' takes 21% of the time, in 6 of 20 steps"
    assert "every step" not in finding.advice
    assert finding.saving_ns == 6 * 200 * MS // 20


def test_a_phase_that_most_steps_have_is_not_said_to_be_in_every_step():
    records = step_records([100] * 20)
    records = [replace(r, phases={"logging": 40 * MS} if r.step % 4 else {}) for r in records]
    (finding,) = find_slow_phase(Subject(0, summarise_steps(records)))
    assert finding.advice.startswith("Look at what 'logging' does in the 15 steps that have it:")


def test_collections_that_code_requests_are_not_to_be_disabled():
    called = replace(
        subject([50] * 20, gc_ms=10, gc_called_ms=10), gc_calls=("/home/me/train.py:31",)
    )
    (finding,) = find_garbage_collector(called)
    assert finding.title == "gc.collect() stops the step"
    assert "train.py:31" in finding.advice
    assert "gc.disable() does nothing" in finding.advice
    ours = replace(called, gc_calls=("stepscope option deepspeed_memory",))
    (finding,) = find_garbage_collector(ours)
    assert finding.advice.startswith("Switch off Stepscope's option deepspeed_memory")


@pytest.mark.parametrize("name", ["rollout_and_learn", "fit", "one_batch", "work", "doit", "epoch"])
def test_a_phase_is_judged_by_what_it_contains(name):
    whole = subject([100] * 20, phases_ms={name: 98})
    assert find_slow_phase(replace(whole, training_phases=frozenset({name}))) == []
    elsewhere = subject([100] * 20, phases_ms={name: 60, "forward": 20, "backward": 10})
    (finding,) = find_slow_phase(elsewhere)
    assert finding.saving_ns == 60 * MS
    (finding,) = find_slow_phase(whole)  # nobody looked
    assert finding.saving_ns is None
    assert finding.severity is Severity.LOW


def test_an_option_of_ours_is_named_as_ours():
    (finding,) = find_slow_phase(
        subject([100] * 20, phases_ms={"stepscope option deepspeed_memory": 40, "forward": 20})
    )
    assert finding.title == "Stepscope's option deepspeed_memory takes 40% of the step"


@pytest.mark.parametrize("distance", [3, 4, 8])
def test_what_comes_at_one_distance_is_no_stall(distance):
    durations = [50.0 if step % distance else 400.0 for step in range(48)]
    regular = subject(durations)
    (finding,) = find_uneven_steps(regular)
    assert finding.title.startswith(f"1 step in {distance} ")
    assert finding.is_upper_bound
    t = GpuTrace(device_name=None, first_step=9 * distance - 2)
    for step in range(9 * distance - 2, 9 * distance + 2):
        with t.step():
            t.op("aten::linear").python(ms(50 if step % distance else 400))
    windowed = replace(regular, window=WindowView(t.load()))
    assert find_stalled_step(replace(windowed, steps=None))  # the window alone cannot know better
    assert find_stalled_step(windowed) == []


@pytest.mark.parametrize("every", [2, 4, 8])
@pytest.mark.parametrize(
    "source", ["phase", "engine", "window", "nothing", "elsewhere", "all update"]
)
def test_the_micro_batches_that_end_an_accumulation_are_no_slow_phase(every, source):
    """Of micro-batches in a phase of the script, one in so many reduces gradients and updates."""
    ends = [number % every == every - 1 for number in range(48)]
    phases = {"train_step": [70 if is_end else 9 for is_end in ends]}
    if source == "phase":
        phases["train_step/optimizer"] = [20 if is_end else 0 for is_end in ends]
    elif source == "all update":  # every so many steps, the optimizer does more
        phases["train_step/optimizer"] = [60 if is_end else 1 for is_end in ends]
    elif source == "engine":  # called for each of them, and only counts in most
        phases["train_step/optimizer"] = [20 if is_end else 0.05 for is_end in ends]
    elif source == "elsewhere":  # something in the step is slow, but no update
        phases["train_step/optimizer"] = 1
    window = GpuTrace(device_name=None)
    for is_end in ends[: 2 * every]:
        with window.step(), window.annotate("train_step"):
            window.op("aten::mm").python(ms(9))
            with window.annotate("backward"):
                window.op("autograd::engine::evaluate_function: MmBackward0").python(us(10))
            if (source == "window" and is_end) or source == "all update":
                with window.annotate("Optimizer.step#AdamW.step"):
                    window.op("aten::add_").python(ms(60))
    judged = replace(
        subject([72 if is_end else 11 for is_end in ends], phases_ms=phases),
        window=WindowView(window.load()),
    )
    found = [*find_slow_phase(judged), *find_uneven_steps(judged)]
    if every == 2:  # half of the steps are no exception
        assert found == []
    else:
        assert bool(found) == (source in ("nothing", "elsewhere", "all update"))


def communicating(gigabytes_per_second, *, size=64 << 20, ranks=8, count=3, late_ms=0):
    """Steps that end with an all-reduce at a bus bandwidth, of which the first waits, too."""
    t = GpuTrace(world_size=ranks)
    for step in range(4):
        with t.step():
            t.op("aten::mm").launch("gemm", ms(1))
            for _ in range(count):
                moved_ns = round(size * 2 * (ranks - 1) / ranks / gigabytes_per_second)
                t.collective("all_reduce", size, moved_ns + (ms(late_ms) if step == 0 else 0))
            t.sync()
    return Subject(0, window=WindowView(t.load()))


@pytest.mark.parametrize("speed", [0.02, 0.08])
def test_collectives_below_any_link_need_no_baseline(speed):
    (finding,) = find_abnormal_collective(communicating(speed))
    assert "less than any link gives" in finding.title
    moved_ns = (64 << 20) * 2 * 7 / 8 / speed  # three of these in a step; at 1 GB/s, speed times it
    assert finding.saving_ns == pytest.approx(3 * moved_ns * (1 - speed), rel=0.02)
    told = {evidence.label: evidence.value for evidence in finding.evidence}
    assert told["bus bandwidth of the fastest"] == f"{speed * 1000:.0f} MB/s"


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("has_baseline", [True, False])
def test_collectives_of_500_times_are_compared_with_a_baseline_and_with_memory(full, has_baseline):
    """What a model alone needs 1 ms for takes 500 ms beside another, at 0.1 GB/s or less."""

    def job(length, fill):
        t = GpuTrace(world_size=16, memory_bytes=64 << 30)
        t.memory(int(fill * (64 << 30)))
        for _ in range(5):
            with t.step():
                t.op("aten::mm").launch("gemm", ms(5))
                t.collective("all_reduce", 25 << 20, length)
                t.sync()
        return t.load()

    slow, alone = job(ms(500), 0.98 if full else 0.5), job(ms(1), 0.5)
    window = WindowView(slow, baseline=alone if has_baseline else None)
    (finding,) = find_abnormal_collective(Subject(0, window=window))
    found = "reach only 98.3 MB/s, less than any link gives"
    if has_baseline:
        found = "take 500 times as long as in the baseline"
        assert finding.saving_ns == pytest.approx(ms(499), rel=0.01)
    assert finding.title.partition(", while ")[0].endswith(found)
    seen = {evidence.label: evidence.value for evidence in finding.evidence}
    assert (seen.get("seen at the time") == "memory close to full") == full
    assert finding.title.endswith(", while memory is close to full") == full
    assert finding.advice.startswith("Leave memory free on this rank: a smaller batch") == full


def test_usual_links_small_messages_and_waits_for_late_ranks_are_no_slow_links():
    assert find_abnormal_collective(communicating(5)) == []
    assert find_abnormal_collective(communicating(0.05, size=1 << 14)) == []
    late = find_abnormal_collective(communicating(5, late_ms=5000))
    assert all("any link" not in one.title for one in late)


def test_a_pause_inside_a_call_of_collect_is_a_requested_one():
    t = GpuTrace(device_name=None)
    for _ in range(4):
        with t.step():
            t.op("aten::linear").python(ms(20))
            with (
                t.frame("train.py(31): loop"),
                t.frame("<built-in method collect of module object>"),
            ):
                t.gc_pause(ms(10))
    (finding,) = find_garbage_collector(Subject(0, window=WindowView(t.load())))
    assert finding.title == "gc.collect() stops the step"
    assert "gc.disable() does nothing" in finding.advice
