"""What a finding says fits the trace that it was found in: causes, places, advice, comparisons."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import GEMM, MM, STEPS, dump, job, optimizer, products

import stepscope
from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Finding, Severity
from stepscope.opening.reader import open_run


@pytest.fixture
def judge(tmp_path):
    def judged(t: GpuTrace, *more: GpuTrace) -> Diagnosis:
        for number, trace in enumerate((t, *more)):
            (tmp_path / f"rank{number}.pt.trace.json").write_bytes(dump(trace))
        return diagnose(open_run(str(tmp_path)))

    return judged


def one(diagnosis: Diagnosis, rule: str) -> Finding:
    (finding,) = (found for found in diagnosis.findings if found.id == rule)
    return finding


def seen(finding: Finding) -> dict[str, object]:
    return {item.label: item.value for item in finding.evidence}


def test_work_launched_before_the_recording_is_no_loss(judge):
    def run(annotate_steps: bool) -> GpuTrace:
        t = GpuTrace(annotate_steps=annotate_steps)
        for _ in range(10):
            t.op("aten::mm", **MM).launch(GEMM, us(900), linked=False)
        for _ in range(STEPS):
            with t.step():
                products(t)
        return t

    finding = one(judge(run(annotate_steps=False)), "trace-incomplete")
    assert "before the recording began" in finding.title
    assert finding.advice.startswith("Nothing was lost")
    # It is part of no step, so with steps there is nothing to say.
    diagnosis = judge(run(annotate_steps=True))
    assert not {found.id for found in diagnosis.findings} & {"trace-incomplete"}
    assert diagnosis.shown.step_ns == pytest.approx(10 * us(900), rel=0.05)


def test_launches_missing_in_between_are_a_loss(judge):
    def body(t: GpuTrace, _step: int) -> None:
        for number in range(10):
            t.op("aten::mm", **MM).launch(GEMM, us(900), linked=number % 3 != 0)

    finding = one(judge(job(body)), "trace-incomplete")
    assert "has no launch in the trace" in finding.title
    assert finding.advice.startswith("Record again")


def test_copies_that_explain_an_idle_gpu_leave_nothing_to_say_about_its_utilisation(judge):
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(8):
            t.op("aten::copy_").copy("HtoD", 1 << 30, ms(4), pinned=True)
        products(t, 2)
        t.sync()

    diagnosis = judge(job(body))
    assert "low-gpu-utilisation" not in {finding.id for finding in diagnosis.findings}
    copies = one(diagnosis, "exposed-copies")
    assert copies.severity is Severity.HIGH
    assert seen(copies)["most of them"] == "to the device"
    assert seen(copies)["mostly launched by"] == "aten::copy_"
    assert diagnosis.verdict.startswith("exposed-copies")


def test_a_step_of_copies_is_never_said_to_have_nothing_that_stands_out(judge):
    """Not even where the trace has no launch of a copy; the finding says what that means."""

    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(8):
            t.op("aten::copy_").copy("HtoD", 1 << 30, ms(4), pinned=True)
        products(t, 2)
        t.sync()

    t = job(body)
    t.events = [event for event in t.events if event["name"] != "cudaMemcpyAsync"]
    diagnosis = judge(t)
    finding = one(diagnosis, "exposed-copies")
    assert "100% of their time has no launch in the trace" in finding.assumption
    assert diagnosis.verdict.startswith("exposed-copies")


def test_kernels_that_zero_gradients_are_no_half_of_an_optimizer_step(judge):
    def body(t: GpuTrace, _step: int) -> None:
        products(t, 2)
        with t.annotate("Optimizer.step#SGD.step"):
            for _ in range(90):
                t.op("aten::add_", before=us(20)).launch("add", us(4))
        with t.annotate("Optimizer.zero_grad#SGD.zero_grad"):
            for _ in range(30):
                t.op("aten::zero_", before=us(20)).launch("fill", us(2))

    t = GpuTrace(memory_bytes=80 << 30)
    t.memory(55 << 30)
    for number in range(6):
        with t.step():
            body(t, number)
    t.sync()
    finding = one(judge(t), "unfused-optimizer")
    assert finding.title == "the optimizer launches 90 kernels per step"
    assert seen(finding)["and to zero the gradients"] == 30
    assert "zero_grad(set_to_none=True)" in finding.advice


def test_updates_of_two_optimizers_in_a_step_are_counted_together(judge):
    t = GpuTrace(memory_bytes=80 << 30)
    for _ in range(6):
        with t.step():
            products(t, 2)
            for _ in range(2):
                t.python(us(30))
                with t.annotate("Optimizer.step#SGD.step"):
                    for _ in range(90):
                        t.op("aten::add_", before=us(20)).launch("add", us(4))
    t.sync()
    finding = one(judge(t), "unfused-optimizer")
    assert finding.title == "the optimizer launches 180 kernels per step, in 2 updates"


def test_a_phase_around_zero_grad_alone_is_no_update(judge):
    """The optimizer's phase of `stepscope run` has zeroing and updating in parts of their own."""
    t = GpuTrace(memory_bytes=80 << 30)
    for _ in range(6):
        with t.step():
            with t.annotate("optimizer"), t.annotate("Optimizer.zero_grad#SGD.zero_grad"):
                t.python(us(20))
            products(t, 2)
            with t.annotate("Optimizer.step#SGD.step"), t.annotate("optimizer"):
                for _ in range(90):
                    t.op("aten::add_", before=us(20)).launch("add", us(4))
    t.sync()
    finding = one(judge(t), "unfused-optimizer")
    assert finding.title == "the optimizer launches 90 kernels per step"
    assert seen(finding)["kernels per optimizer step"] == 90
    assert "zero_grad" not in finding.advice  # it writes no zeros


def test_an_update_that_spans_the_end_of_recording_counts_up_to_the_end_of_its_step(judge):
    """`stepscope run` ends a step, and saves the window, within `Optimizer.step`."""
    t = GpuTrace(memory_bytes=80 << 30)
    for number in range(6):
        with contextlib.ExitStack() as stack:
            with t.step():
                products(t, 2)
                stack.enter_context(t.annotate("Optimizer.step#SGD.step"))
                for _ in range(90):
                    t.op("aten::add_", before=us(20)).launch("add", us(4))
                t.sync()
            if number == 5:
                t.python(ms(900))
    figures = seen(one(judge(t), "unfused-optimizer"))
    assert figures["host time in it per step"] < figures["mean step of the window"]


def test_a_saving_from_copies_says_how_many_have_no_launch(judge):
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(8):
            t.op("aten::copy_").copy("HtoD", 1 << 30, ms(4), pinned=True)
        products(t, 2)
        t.sync()

    t = job(body)
    assert "no launch" not in one(judge(t), "exposed-copies").assumption
    assert one(judge(t), "exposed-copies").is_upper_bound
    calls = [event for event in t.events if event["name"] == "cudaMemcpyAsync"]
    t.events = [event for event in t.events if event not in calls[::4]]
    copies = one(judge(t), "exposed-copies")
    assert not copies.is_upper_bound  # there is more to gain than the replay finds
    assert copies.saving_ns is not None
    assert "25% of their time has no launch in the trace" in copies.assumption


def test_copies_whose_replay_saves_nothing_are_told_where_launches_are_missing(judge):
    """The host takes as long as the copies: without them, a step is not notably shorter."""

    def body(t: GpuTrace, _step: int) -> None:
        products(t, 1)
        for _ in range(4):
            t.op("aten::copy_").copy("HtoD", 1 << 30, ms(4), pinned=True)
            t.python(us(4500))

    t = job(body)
    assert "exposed-copies" not in {found.id for found in judge(t).findings}
    calls = [event for event in t.events if event["name"] == "cudaMemcpyAsync"]
    t.events = [event for event in t.events if event not in calls[::2]]
    finding = one(judge(t), "exposed-copies")
    assert finding.saving_ns is None
    assert finding.saving_reason.startswith("too many of the copies have no launch in the trace")
    assert finding.severity is Severity.MEDIUM
    assert seen(finding)["most of them"] == "to the device"
    # The device copies 4 × 4 ms in a step; beside them run one product and the optimizer.
    assert seen(finding)["exposed per step"] == ms(16)
    assert "no single finding saves a tenth of it" in judge(t).verdict


@pytest.mark.parametrize(("size", "word"), [(8, "torch.full"), (64 << 20, "pin_memory")])
def test_the_remedy_for_pageable_copies_depends_on_their_size(judge, size, word):
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(4):
            t.op("aten::to").copy("HtoD", size, us(500), pinned=False)
            for _ in range(25):
                t.op("aten::view", before=us(40)).python(0)
        products(t)

    assert word in one(judge(job(body)), "pageable-copies").advice


def test_the_place_of_python_is_the_innermost_frame_that_spans_it(judge):
    t = GpuTrace()
    # The outer frame began before the recorded steps, and the inner one a little after its work.
    with t.frame("train.py(1): main"):
        t.python(us(10))
        for _ in range(STEPS):
            with t.step():
                t.python(us(200))
                with t.frame("images.py(129): preprocess"):
                    t.python(ms(10))
                    with t.frame("images.py(40): resize"):
                        t.python(ms(4))
                products(t)
                optimizer(t)
    finding = one(judge(t), "cpu-bound-python")
    assert seen(finding)["the longest is"] == "in images.py(129): preprocess"
    assert "Record with stacks" not in finding.advice


def test_without_frames_stacks_are_advised(judge):
    finding = one(judge(job(lambda t, s: (t.python(ms(16)), products(t)))), "cpu-bound-python")
    assert "Record with stacks" in finding.advice


def test_a_launch_bound_step_with_stacks_says_what_stacks_do_to_it(judge):
    def body(t: GpuTrace, _step: int) -> None:
        with t.frame("train.py(7): step"):
            for _ in range(80):
                t.op("aten::mm", **MM, before=us(60), after=us(20)).launch(GEMM, us(40))

    assert "stacks" in one(judge(job(body, steps=8)), "launch-bound").assumption


ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"


def _compiled(t: GpuTrace, form: str) -> Any:
    """A range or an operator that shows compiled code, around what is inside."""
    if form.startswith("Torch-Compiled"):
        return t.annotate(form)
    return t.op(form, before=us(1), after=us(1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "form",
    [
        "Torch-Compiled Region: 0/0",
        "CompiledFunction",
        "CompiledFunctionBackward",
        "## Call CompiledFxGraph fdoyq3xyj3mpdg6lzeaaqa2eqab7h3dm6mw47hbtnp6xmraes3mp ##",
    ],
)
@pytest.mark.parametrize("with_graphs", [False, True])
def test_torch_compile_is_not_advised_where_it_is_in_use(judge, form, with_graphs):
    def body(t: GpuTrace, _step: int) -> None:
        with _compiled(t, form):
            for _ in range(150):
                t.op("aten::add_", before=us(30), after=us(20)).launch(ADD, us(4))
        if with_graphs:
            t.graph_launch([(ADD, us(4))] * 30)

    diagnosis = judge(job(body, steps=8))
    for rule in ("launch-bound", "many-small-kernels"):
        advice = one(diagnosis, rule).advice
        logs = "graph_breaks,recompiles" + (",cudagraphs" if with_graphs else "")
        assert f"torch.compile is in use: TORCH_LOGS={logs} names" in advice
        assert advice.count("torch.compile") == 1
    said = one(diagnosis, "launch-bound").advice
    assert ("more of the step in the CUDA graphs" in said) == with_graphs
    assert ("mode='reduce-overhead'" in said) != with_graphs


@pytest.mark.parametrize("name", ["aten::mm", "is_compiling", "engines_precompiled::kernel"])
def test_torch_compile_is_advised_where_nothing_is_compiled(judge, name):
    def body(t: GpuTrace, _step: int) -> None:
        with t.op(name, before=us(1), after=us(1)):
            for _ in range(150):
                t.op("aten::add_", before=us(30), after=us(20)).launch(ADD, us(4))

    diagnosis = judge(job(body, steps=8))
    assert "torch.compile(mode='reduce-overhead')" in one(diagnosis, "launch-bound").advice
    assert "Fuse them: torch.compile, " in one(diagnosis, "many-small-kernels").advice
    assert "in use" not in one(diagnosis, "launch-bound").advice


@pytest.mark.parametrize(("compiled", "is_in_use"), [(1, False), (8, False), (75, True)])
def test_torch_compile_is_in_use_if_a_notable_share_is_launched_under_it(
    judge, compiled, is_in_use
):
    def body(t: GpuTrace, _step: int) -> None:
        for number in range(150):
            with t.annotate("## Call CompiledFxGraph abc ##" if number < compiled else "eager"):
                t.op("aten::add_", before=us(30), after=us(20)).launch(ADD, us(4))

    advice = one(judge(job(body, steps=8)), "launch-bound").advice
    assert ("torch.compile is in use" in advice) is is_in_use
    assert ("torch.compile(mode='reduce-overhead')" in advice) is not is_in_use


def test_kernels_of_the_compiler_show_its_use_without_its_ranges(judge):
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(150):
            t.op("aten::mul", before=us(30), after=us(20)).launch("triton_poi_fused_add_0", us(4))

    assert "torch.compile is in use" in one(judge(job(body, steps=8)), "launch-bound").advice


@pytest.mark.parametrize("operator", ["aten::mm", "aten::add_"])
def test_small_matrix_products_are_not_to_be_fused(judge, operator):
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(75):
            t.op("aten::mm", before=us(30), after=us(20)).launch("ampere_sgemm_32x32_nn", us(5))
            t.op(operator, before=us(30), after=us(20)).launch(ADD, us(4))
            t.op(operator, before=us(30), after=us(20)).launch(ADD, us(4))

    found = [each for each in judge(job(body)).findings if each.id == "many-small-kernels"]
    if operator == "aten::mm":
        assert not found
    else:
        (finding,) = found
        seen = {item.label: item.value for item in finding.evidence}
        assert seen["small kernels per step"] == 150
        assert seen["share of those that could be fused"] == pytest.approx(150 / 151)


def _late(delay_ns: int, lengths: dict[int, int], **options) -> GpuTrace:
    """Six steps, each with an all-reduce of a given length; Python before that of the fourth."""
    t = GpuTrace(world_size=2, **options)
    for step in range(6):
        with t.step():
            products(t, 4)
            t.sync()
            if step == 3:
                t.python(delay_ns)
            t.wait_collective(t.collective("all_reduce", 64 << 20, lengths.get(step, us(500))))
            t.sync()
    return t


def test_an_abnormal_collective_whose_cause_is_known_is_told_what_to_do_about_it(judge):
    waiting = _late(0, {3: ms(30) + us(500)}, rank=0, device=0)
    late = _late(ms(30), {}, rank=1, device=1)
    finding = next(
        found for found in judge(waiting, late).findings if found.id == "abnormal-collective"
    )
    assert "rank 1 joined it" in str(seen(finding)["seen at the time"])
    assert finding.advice.startswith("See what rank 1 did in that step")


def test_ranks_of_different_jobs_are_not_compared(judge):
    one_of_two = _late(0, {}, rank=0, device=0)
    one_of_eight = _late(0, {}, rank=1, device=1)
    one_of_eight.world_size = 8
    diagnosis = judge(one_of_two, one_of_eight)
    assert diagnosis.between is None
    assert diagnosis.odd_parts.is_empty()
    assert any("no ranks of one run" in note for note in diagnosis.notes)


def test_loose_traces_that_nothing_ties_together_are_not_held_against_each_other(judge):
    quick = job(lambda t, s: products(t))
    slow = job(lambda t, s: products(t, 60))
    assert judge(quick, slow).odd_parts.is_empty()


def test_what_a_recorder_missed_sets_no_rank_apart(judge):
    ranks = [_late(0, {}, rank=rank, device=rank) for rank in range(2)]
    calls = [e for e in ranks[1].events if e["name"] == "cudaLaunchKernel"]
    dropped = {id(event) for event in calls[::2]}
    ranks[1].events = [event for event in ranks[1].events if id(event) not in dropped]
    diagnosis = judge(*ranks)
    assert diagnosis.between is not None
    assert "idle: cause not recorded" not in diagnosis.odd_parts["part"].to_list()


def test_the_report_as_json_has_the_notes(judge):
    from stepscope.report.diagnosis import to_json as diagnosis_to_dict

    diagnosis = dataclasses.replace(judge(job(lambda t, s: products(t))), notes=("a note",))
    assert json.loads(json.dumps(diagnosis_to_dict(diagnosis), default=str))["notes"] == ["a note"]


def test_of_several_windows_the_report_says_which_it_is_about(tmp_path):
    from stepscope.report.diagnosis.sentences import partition_basis

    for number, length in enumerate((us(900), us(500))):
        t = job(lambda t, s, length=length: products(t, length=length), rank=0, world_size=1)
        (tmp_path / f"worker0.{1623143089861 + number}.pt.trace.json").write_bytes(dump(t))
    diagnosis = diagnose(open_run(str(tmp_path)))
    assert diagnosis.shown.windows == 2
    told = partition_basis(diagnosis.shown)
    assert "window 2 of 2: worker0.1623143089862.pt.trace.json" in told


def test_whole_file_and_steps_are_not_left_to_contradict_each_other():
    from stepscope.analysis.idle import idle_causes
    from stepscope.analysis.selection.gpu_work import NOT_THE_STEPS
    from stepscope.analysis.selection.scope import Scope
    from stepscope.analysis.timeline import timeline

    t = GpuTrace()
    for step in range(3):
        with t.step():
            t.python(ms(40) if step == 0 else 0)
            products(t)
    trace = t.load()
    for answer in (timeline(trace), idle_causes(trace)):
        assert NOT_THE_STEPS in answer.notes
    for answer in (timeline(trace, Scope(steps=(0, 1, 2))), idle_causes(trace, Scope(steps=(1,)))):
        assert NOT_THE_STEPS not in answer.notes


def test_collectives_held_against_a_baseline_say_so(tmp_path):
    paths = []
    for name, length in (("slow", ms(20)), ("right", us(500))):
        path = tmp_path / f"{name}.pt.trace.json"
        path.write_bytes(dump(_late(0, dict.fromkeys(range(6), length))))
        paths.append(str(path))
    slow, right = paths
    alone = {finding.id for finding in diagnose(open_run(slow)).findings}
    assert "abnormal-collective" not in alone  # all of a size are slow alike
    finding = one(diagnose(open_run(slow), baseline=stepscope.load(right)), "abnormal-collective")
    assert finding.title == "collectives take 40 times as long as in the baseline"
    assert finding.assumption == "each takes what comparable ones take in the baseline"
    assert seen(finding)["expected from the median of"] == "the baseline"


def test_a_baseline_that_nothing_is_compared_with_is_admitted(tmp_path):
    with_collectives, on_the_cpu = tmp_path / "a.pt.trace.json", tmp_path / "b.pt.trace.json"
    with_collectives.write_bytes(dump(_late(0, dict.fromkeys(range(6), ms(20)))))
    host = GpuTrace()
    for _ in range(4):
        with host.step():
            host.op("aten::mm").python(ms(3))
    on_the_cpu.write_bytes(dump(host))

    def notes(judged, baseline):
        diagnosis = diagnose(open_run(str(judged)), baseline=stepscope.load(str(baseline)))
        return [note for note in diagnosis.notes if "baseline" in note]

    nothing = "nothing was compared with the baseline: {} no collectives on a GPU"
    assert notes(with_collectives, with_collectives) == []
    assert notes(with_collectives, on_the_cpu) == [nothing.format("the baseline has")]
    assert notes(on_the_cpu, with_collectives) == [nothing.format("the recorded steps have")]


def test_a_saving_on_one_of_many_ranks_says_that_collectives_keep_their_length(judge):
    def body(t: GpuTrace, _step: int) -> None:
        t.python(ms(16))
        products(t)
        t.wait_collective(t.collective("all_reduce", 64 << 20, ms(1)))

    assumption = one(judge(job(body, world_size=8)), "cpu-bound-python").assumption
    assert assumption.endswith("; collectives last as long as now")
    assumption = one(judge(job(lambda t, s: (t.python(ms(16)), products(t)))), "cpu-bound-python")
    assert "collectives" not in assumption.assumption


@pytest.mark.parametrize(("dtype", "is_advised"), [("Float", True), ("BFloat16", False)])
def test_what_is_in_half_precision_already_is_not_advised_to_be(judge, dtype, is_advised):
    def body(t: GpuTrace, _step: int) -> None:
        products(t)
        t.wait_collective(t.collective("all_reduce", 512 << 20, ms(4), dtype=dtype))

    finding = one(judge(job(body, world_size=8)), "exposed-communication")
    assert ("BF16" in finding.advice) is is_advised
    # 512 MiB in 4 ms, times 2·7/8.
    assert seen(finding)["its bus bandwidth"] == "235 GB/s"
    assert seen(finding)["most exposed"] == "all_reduce of 512 MiB"


def test_inference_is_not_advised_to_accumulate_less(judge):
    def inference() -> GpuTrace:
        t = GpuTrace(memory_bytes=80 << 30)
        t.memory(2 << 30)
        for _ in range(3):
            with t.step():
                products(t)
        return t

    assert "accumulation" not in one(judge(inference()), "memory-far-below-limit").advice
    training = job(lambda t, s: products(t), memory=2 << 30)
    assert "accumulation" in one(judge(training), "memory-far-below-limit").advice


def test_communication_of_unknown_size_has_no_bandwidth(judge):
    """Recorders before torch 2.2 wrote neither sizes nor groups."""

    def body(t: GpuTrace, _step: int) -> None:
        products(t)
        t.wait_collective(t.collective("all_reduce", 512 << 20, ms(4), metadata=False))

    finding = one(judge(job(body, world_size=8)), "exposed-communication")
    assert not {"most exposed", "between ranks", "its bus bandwidth"} & set(seen(finding))
    assert seen(finding)["exposed per step"] == ms(4)
    assert seen(finding)["collectives per step"] == 1
    assert finding.saving_ns == pytest.approx(ms(4), rel=0.01)
    assert "BF16 gradients" in finding.advice


def test_the_calls_at_each_place_add_up_to_those_that_hold_the_host_up(judge):
    """Each copy is a call that copies and one that waits for it, and there are two places."""

    def body(t: GpuTrace, _step: int) -> None:
        for name in ("aten::to", "aten::index"):
            with t.op(name):
                t.copy("HtoD", 8, us(900), pinned=False)
            for _ in range(25):
                t.op("aten::view", before=us(40)).python(0)
        products(t)

    finding = one(judge(job(body)), "pageable-copies")
    places = [str(item.value) for item in finding.evidence if item.label == "at"]
    assert seen(finding)["such copies per step"] == 2
    assert seen(finding)["blocking calls per step"] == 4
    assert sorted(place.split("×")[0] for place in places) == ["aten::index (2", "aten::to (2"]
