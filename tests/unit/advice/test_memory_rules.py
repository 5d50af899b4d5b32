"""Findings about memory: planted in a snapshot, found with their line, and not found without."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import polars as pl
import pytest
from tests.support.allocator import MIB, Allocator, OutOfMemory, Settings
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import dump
from tests.support.rank_jobs import rank_of_job
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import Frames, plain_training, train

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Severity
from stepscope.advice.rules import OF_THE_RUN, RULES, rules_of_a_rank
from stepscope.advice.rules.communication import abnormal_collective
from stepscope.advice.rules.communication.abnormal_collective import find_abnormal_collective
from stepscope.advice.rules.memory.dominating import (
    find_activations_dominate,
    find_one_tensor_dominates,
    find_optimizer_state_dominates,
)
from stepscope.advice.rules.memory.snapshots import (
    find_memory_fragmented,
    find_memory_leak,
    find_out_of_memory,
    find_reserved_without_bound,
)
from stepscope.advice.rules.memory.windows import (
    find_memory_far_below_limit,
    find_memory_near_limit,
)
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.memory.opening import memory_of_rank
from stepscope.errors import UnreadableInputError
from stepscope.memory.categories.census import SIGHTINGS, Census
from stepscope.memory.questions.oom import out_of_memory as out_of_memory_answer
from stepscope.memory.view import MemoryView, SampledMemory
from stepscope.opening.reader import open_run
from stepscope.run.layout import RunLayout

OF_MEMORY = (
    "reserved-without-bound",
    "memory-leak",
    "out-of-memory",
    "memory-fragmented",
    "optimizer-state-dominates",
    "activations-dominate",
    "one-tensor-dominates",
)


def subject(snapshot, window=None, sampled=(), **limits):
    view = MemoryView(loaded(pickle.dumps(snapshot)), sampled=tuple(sampled))
    return Subject(0, window=window, memory=view, thresholds=Thresholds().changed(limits))


def evidence(finding):
    return {one.label: one.value for one in finding.evidence}


def test_without_a_snapshot_nothing_is_said():
    for rule in OF_MEMORY:
        assert RULES[rule](Subject(0)) == []


def test_a_rank_without_recorded_memory_is_asked_no_rule_about_it():
    asked = [name for name in RULES if name not in OF_THE_RUN]
    assert list(rules_of_a_rank(has_memory=True)) == asked
    about = set(OF_MEMORY)
    assert list(rules_of_a_rank(has_memory=False)) == [one for one in asked if one not in about]


def test_a_report_about_a_trace_does_not_import_what_reads_snapshots(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(dump(rank_of_job(0, [0])))
    code = (
        "import sys; from stepscope.commands.main import main\n"
        f"assert main(['report', {str(path)!r}]) == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {name for name in done.stderr.split() if name.startswith("stepscope.")}
    assert "stepscope.advice.rules.memory.windows" in imported
    of_memory = {name for name in imported if name.startswith("stepscope.memory.")}
    assert of_memory == {"stepscope.memory.recognition"}


@pytest.mark.parametrize("rule", OF_MEMORY)
def test_nothing_is_found_in_an_empty_snapshot(rule):
    assert RULES[rule](subject({"segments": [], "device_traces": [[]]})) == []


def test_a_leak_is_found_with_its_line_and_how_long_it_takes():
    allocator, stack = Allocator(total=400 * MIB), Frames()

    def step(number):
        allocator.range(f"ProfilerStep#{number}", True)
        allocator.free(allocator.malloc(50 * MIB, frames=stack("model.py:4:forward")))
        allocator.malloc(4 * MIB, frames=stack("train.py:9:log"))
        allocator.range(f"ProfilerStep#{number}", False)

    for number in range(8):
        step(number)
    (found,) = find_memory_leak(subject(allocator.snapshot()))
    assert found.severity is Severity.HIGH
    assert "train.py:9 log" in found.title
    assert evidence(found) == {
        "left behind by each step": 4 * MIB,
        "of it at train.py:9 log": 4 * MIB,
        "held from earlier steps at the end": 7 * 4 * MIB,
    }
    assert find_memory_leak(subject(allocator.snapshot(), memory_leak=0.5)) == []
    number = 8
    with pytest.raises(OutOfMemory):
        while True:
            step(number)
            number += 1
    (found,) = find_memory_leak(subject(allocator.snapshot()))
    assert evidence(found)["steps until memory is full"] <= 10


def test_a_steady_training_has_no_leak():
    assert find_memory_leak(subject(train(Allocator(), steps=6).snapshot())) == []


def test_running_out_is_found_with_what_would_have_helped():
    allocator, stack = Allocator(total=200 * MIB), Frames()
    with pytest.raises(OutOfMemory):
        for _ in range(12):
            frames = stack("model.py:4:forward", "torch/nn/modules/module.py:1:_call_impl")
            allocator.malloc(20 * MIB, frames=frames)
    (found,) = find_out_of_memory(subject(allocator.snapshot()))
    assert found.title.endswith("model.py:4 forward: full")
    assert evidence(found)["asked for"] == 20 * MIB
    assert evidence(found)["held: activation"] == 200 * MIB
    assert found.advice.startswith("Would have been enough, by simulation, the cheapest first: ")
    assert "(frees " in found.advice
    assert find_out_of_memory(subject(plain_training())) == []


def test_a_remedy_that_is_not_enough_is_not_said_to_be():
    """Beside weights, which cannot be split, halving what little is left does not help."""
    allocator, stack = Allocator(total=200 * MIB), Frames()
    weight = stack("torch/nn/modules/linear.py:1:__init__", "model.py:4:__init__")
    for _ in range(9):
        allocator.malloc(20 * MIB, frames=weight)
    allocator.malloc(10 * MIB, frames=stack("train.py:2:batch"))
    with pytest.raises(OutOfMemory):
        allocator.malloc(190 * MIB, frames=stack("torch/nn/modules/linear.py:1:__init__"))
    view = subject(allocator.snapshot()).memory
    found = out_of_memory_answer(view)
    enough = dict(found.remedies.select("remedy", "is_enough").iter_rows())
    shard = next(words for words in enough if words.startswith("shard"))
    assert "over 2 GPUs" in shard
    assert enough[shard]
    assert not enough[next(words for words in enough if words.startswith("keep the weights"))]


def test_without_the_memory_there_was_nothing_is_said_to_be_enough():
    allocator, stack = Allocator(total=200 * MIB), Frames()
    allocator.malloc(20 * MIB, frames=stack("model.py:4:forward"))
    with pytest.raises(OutOfMemory):
        allocator.malloc(300 * MIB, frames=stack("model.py:9:attend"))
    snapshot = allocator.snapshot()
    del snapshot["device_traces"][0][-1]["device_free"]
    (found,) = find_out_of_memory(subject(snapshot))
    assert found.advice.startswith("Would have helped")
    assert "enough" not in found.advice


@pytest.mark.parametrize("is_expandable", [True, False])
def test_a_request_larger_than_the_card_is_a_wrong_shape(is_expandable):
    allocator = Allocator(total=200 * MIB, settings=Settings(expandable=is_expandable))
    allocator.malloc(20 * MIB, frames=Frames()("model.py:4:forward"))
    with pytest.raises(OutOfMemory):
        allocator.malloc(3000 * MIB, frames=Frames()("model.py:9:attend"))
    (found,) = find_out_of_memory(subject(allocator.snapshot()))
    assert found.title.endswith("model.py:9 attend: larger than the card")
    assert found.advice.startswith("Check the shape of what model.py:9 attend makes: 2.93 GiB in")
    assert "in 32 pieces" in found.advice
    assert "model.py:4" not in found.advice


def pinned_by_what_stays(settings=None):
    """Eight inputs go, and in the segment of each something stays; then a larger one comes."""
    allocator, stack = Allocator(settings=settings), Frames()
    for block in [allocator.malloc(40 * MIB, frames=stack("data.py:3:load")) for _ in range(8)]:
        allocator.free(block)
    for _ in range(8):
        allocator.malloc(22 * MIB, frames=stack("cache.py:7:store"))
    allocator.malloc(100 * MIB, frames=stack("data.py:3:load"))
    return allocator


def test_fragmentation_is_found_with_the_setting_that_helps():
    allocator = pinned_by_what_stays()
    (found,) = find_memory_fragmented(subject(allocator.snapshot()))
    told = evidence(found)
    assert told["reserved at its peak"] == max(row[3] for row in allocator.curve)
    assert told["free, but pinned by blocks in use"] == 8 * 18 * MIB
    assert told["most of it is pinned by"] == "cache.py:7 store"
    assert "expandable_segments:True" in found.advice
    other = pinned_by_what_stays(Settings(expandable=True))
    saved = told["saved by expandable_segments:True"]
    assert saved == told["reserved at its peak"] - max(row[3] for row in other.curve)
    assert find_memory_fragmented(subject(allocator.snapshot(), memory_unused=0.99)) == []


def test_what_goes_back_when_it_is_needed_is_no_fragmentation():
    """Each input is larger than the last, so that nothing cached serves it; the last is held."""
    allocator = Allocator()
    for number in range(10):
        last = allocator.malloc((100 + 20 * number) * MIB)
        if number < 9:
            allocator.free(last)
    assert find_memory_fragmented(subject(allocator.snapshot())) == []


def test_no_setting_is_named_where_none_helps():
    """What one stream has cached serves no other, however segments grow."""
    allocator = Allocator(settings=Settings(expandable=True))
    blocks = [allocator.malloc(10 * MIB) for _ in range(80)]
    for number, block in enumerate(blocks):
        if number % 2:
            allocator.free(block)
    for _ in range(4):
        allocator.malloc(100 * MIB, stream=7)
    snapshot = allocator.snapshot()
    (found,) = find_memory_fragmented(subject(snapshot))
    told = evidence(found)
    assert (told["reserved at its peak"], told["in use then"]) == (1200 * MIB, 800 * MIB)
    assert told["free, but pinned by blocks in use"] == 400 * MIB
    assert found.title.startswith("33% of the reserved memory is free, but pinned")
    assert found.advice.startswith("No setting of the allocator that was simulated helps")


def test_where_the_model_fails_no_setting_is_said_to_be_useless():
    """The device gave far more than the rules of the allocator ask for."""
    allocator = Allocator()
    allocator.malloc(40 * MIB, frames=Frames()("cache.py:7:store"))
    snapshot = allocator.snapshot()
    (segment,) = snapshot["segments"]
    (event,) = [one for one in snapshot["device_traces"][0] if one["action"] == "segment_alloc"]
    segment["total_size"] = event["size"] = 400 * MIB
    free = {**segment["blocks"][0], "state": "inactive", "size": 360 * MIB, "requested_size": 0}
    segment["blocks"].append({**free, "address": segment["address"] + 40 * MIB, "frames": []})
    (found,) = find_memory_fragmented(subject(snapshot))
    assert "What they would save is not known" in found.advice


def annotated(**parts):
    """A snapshot in which each category holds so many MiB, each in blocks of 2 MiB."""
    allocator, stack = Allocator(), Frames()
    for category, size in parts.items():
        for _ in range(size // 2):
            block = allocator.malloc(2 * MIB, frames=stack("model.py:4:forward"))
            allocator.annotate(block, f"stepscope:{category}:layers.0")
    return allocator.snapshot()


def test_optimizer_state_that_dominates_is_found():
    (found,) = find_optimizer_state_dominates(
        subject(annotated(parameter=20, optimizer_state=40, activation=20))
    )
    assert found.title == "50% of the peak memory is optimizer state"
    assert evidence(found)["freed by 8-bit states"] == 30 * MIB
    few = subject(annotated(parameter=40, optimizer_state=20))
    assert find_optimizer_state_dominates(few) == []


def test_activations_that_dominate_are_found_with_their_modules():
    (found,) = find_activations_dominate(subject(annotated(parameter=10, activation=30)))
    assert found.title == "75% of the peak memory is activations"
    assert evidence(found)["of them in layers.0"] == 30 * MIB
    assert find_activations_dominate(subject(annotated(parameter=30, activation=30))) == []


def test_a_tensor_that_dominates_is_found_with_its_line():
    allocator, stack = Allocator(), Frames()
    for _ in range(6):
        allocator.malloc(10 * MIB, frames=stack("model.py:4:forward"))
    allocator.malloc(40 * MIB, frames=stack("loss.py:8:logits"))
    (found,) = find_one_tensor_dominates(subject(allocator.snapshot()))
    assert found.title == "one tensor is 40% of the peak memory"
    assert evidence(found)["made at"] == "loss.py:8 logits"
    assert found.advice.startswith("Compute it in chunks")
    assert find_one_tensor_dominates(subject(annotated(parameter=60, activation=20))) == []


def test_a_bucket_of_deepspeed_is_made_smaller_by_its_configuration():
    allocator, stack = Allocator(), Frames()
    line = "/lib/deepspeed/runtime/zero/stage_1_and_2.py:3256:setup_buckets"
    allocator.malloc(40 * MIB, frames=stack(line))
    (found,) = find_one_tensor_dominates(subject(allocator.snapshot()))
    assert evidence(found)["made at"] == "zero/stage_1_and_2.py:3256 setup_buckets"
    assert "set reduce_bucket_size" in found.advice
    assert "chunks" not in found.advice


def test_a_family_of_tensors_just_below_the_threshold_is_found():
    """Logits in bfloat16, in float32, their softmax, and the gradient of that."""
    allocator, stack = Allocator(), Frames()
    lines = ("model.py:9:forward", "loss.py:3:upcast", "loss.py:4:log_softmax")
    for size, line in zip((20, 40, 40), lines, strict=True):
        allocator.malloc(size * MIB, frames=stack(line))
    allocator.malloc(40 * MIB, frames=stack("??:0:torch::autograd::LogSoftmaxBackward0::apply"))
    for _ in range(12):
        allocator.malloc(2 * MIB, frames=stack("model.py:4:forward"))
    (found,) = find_one_tensor_dominates(subject(allocator.snapshot(), memory_one_tensor=0.3))
    assert found.title == "4 tensors of one size or line are 85% of the peak memory"
    made_at = [one.value for one in found.evidence if one.label == "made at"]
    assert set(made_at) == {
        "loss.py:3 upcast", "loss.py:4 log_softmax", "model.py:9 forward", "LogSoftmaxBackward0"
    }  # fmt: skip
    assert find_one_tensor_dominates(subject(annotated(activation=200))) == []


def test_a_weight_is_no_tensor_to_be_split():
    allocator = Allocator()
    block = allocator.malloc(60 * MIB)
    allocator.annotate(block, "stepscope:parameter:embedding.weight")
    allocator.malloc(10 * MIB)
    assert find_one_tensor_dominates(subject(allocator.snapshot())) == []


def test_what_was_there_before_and_says_nothing_is_no_tensor_to_be_split():
    """The weights of a model that only computes, whose recording began late."""
    allocator, stack = Allocator(), Frames()
    for _ in range(4):
        allocator.malloc(60 * MIB)
    allocator.events.clear()
    for _ in range(3):
        allocator.free(allocator.malloc(MIB, frames=stack("model.py:4:forward")))
    assert find_one_tensor_dominates(subject(allocator.snapshot())) == []
    fat = allocator.malloc(200 * MIB, frames=stack("loss.py:8:logits"))
    (found,) = find_one_tensor_dominates(subject(allocator.snapshot()))
    assert evidence(found)["made at"] == "loss.py:8 logits"
    allocator.free(fat)


def test_what_no_stack_tells_apart_is_no_family_of_one_line():
    allocator = Allocator()
    for size in (90, 11, 33, 20):
        allocator.malloc(size * MIB)
    (found,) = find_one_tensor_dominates(subject(allocator.snapshot()))
    assert found.title.startswith("one tensor is")


def test_a_rank_is_judged_by_its_newest_snapshot(tmp_path):
    layout = RunLayout(tmp_path / "run").rank(0)
    layout.snapshots.mkdir(parents=True)
    layout.manifest.write_text(json.dumps({"rank": 0}))
    (tmp_path / "run" / "run.json").write_text("{}")
    (rank,) = open_run(tmp_path / "run").ranks
    assert memory_of_rank(rank, None) is None
    (layout.snapshots / "a").write_bytes(pickle.dumps(plain_training()))
    view = memory_of_rank(rank, None)
    assert view is not None
    assert view.peak_bytes(0) == 53868544


def test_a_run_that_ended_in_its_first_step_says_why(tmp_path):
    layout = RunLayout(tmp_path / "run").rank(0)
    layout.snapshots.mkdir(parents=True)
    layout.manifest.write_text(json.dumps({"rank": 0}))
    (tmp_path / "run" / "run.json").write_text("{}")
    allocator, stack = Allocator(total=200 * MIB), Frames()
    with pytest.raises(OutOfMemory):
        for _ in range(12):
            allocator.malloc(20 * MIB, frames=stack("model.py:4:forward"))
    (layout.snapshots / "a").write_bytes(pickle.dumps(allocator.snapshot()))
    with pytest.raises(UnreadableInputError, match="out-of-memory: .*model.py:4 forward"):
        diagnose(open_run(tmp_path / "run"))


def samples(used, total, first_us, last_us):
    """Ten samples within a history, each with so many bytes in use."""
    times = [1000 * (first_us + (last_us - first_us) * k // 11) for k in range(1, 11)]
    table = pl.DataFrame({"time_ns": times, "used_bytes": [used] * 10})
    return SampledMemory("metrics.csv", 0, "GPU 0", total, table)


def held_long(**parts):
    """`annotated`, and then nothing happens for a second."""
    snapshot = annotated(**parts)
    last = dict(snapshot["device_traces"][0][-1])
    first_us = last["time_us"]
    last |= {"action": "snapshot", "addr": 0, "size": 0, "time_us": first_us + 1_000_000}
    snapshot["device_traces"][0].append(last)
    return snapshot, first_us, first_us + 1_000_000


def test_a_gpu_that_is_nearly_full_is_found_with_what_is_left():
    snapshot, first, last = held_long(parameter=60, activation=38)
    sampled = samples(150 * MIB, 160 * MIB, first, last)  # of which 98 + 2 MiB are torch's
    (found,) = find_memory_near_limit(subject(snapshot, sampled=[sampled]))
    told = evidence(found)
    reserved = told["reserved at the peak"]
    assert told["limit of the allocator"] == 160 * MIB - (150 * MIB - reserved)
    assert told["left"] == told["limit of the allocator"] - reserved
    assert "samples" in told["limit known from"]
    assert find_memory_near_limit(subject(snapshot)) == []  # nothing says how large the GPU is
    wide = samples(150 * MIB, 400 * MIB, first, last)
    assert find_memory_near_limit(subject(snapshot, sampled=[wide])) == []


def test_the_size_of_the_gpu_is_taken_from_the_trace_where_nobody_sampled():
    trace = GpuTrace(memory_bytes=110 * MIB)
    with trace.step():
        trace.memory(MIB)
        trace.op("aten::mm").launch("gemm", us(100))
        trace.memory(-MIB)
    window = WindowView(trace.load())
    (found,) = find_memory_near_limit(subject(annotated(parameter=100), window=window))
    assert evidence(found)["limit of the allocator"] == 110 * MIB
    assert evidence(found)["reserved at the peak"] == 100 * MIB


def test_a_request_that_failed_is_said_once():
    allocator = Allocator(total=200 * MIB)
    with pytest.raises(OutOfMemory):
        for _ in range(12):
            allocator.malloc(20 * MIB)
    assert find_memory_near_limit(subject(allocator.snapshot())) == []


def test_room_for_a_larger_batch_is_counted():
    snapshot, first, last = held_long(parameter=30, activation=40, input=10)
    sampled = samples(120 * MIB, 1040 * MIB, first, last)
    (found,) = find_memory_far_below_limit(subject(snapshot, sampled=[sampled]))
    told = evidence(found)
    assert told["limit of the allocator"] == 1040 * MIB - (120 * MIB - 80 * MIB)
    # At nine tenths of 1000 MiB, 80 MiB are reserved, and 50 MiB of them grow with the batch.
    assert told["room for a batch larger by"] == pytest.approx(1 + (900 - 80) / 50)
    assert find_memory_far_below_limit(subject(snapshot)) == []


@pytest.mark.parametrize(("grows", "severity"), [(True, Severity.MEDIUM), (False, Severity.LOW)])
def test_splitting_limits_with_expandable_segments_are_found(grows, severity):
    allocator = Allocator()
    held = [allocator.malloc(20 * MIB) for _ in range(10)]
    for _ in range(10):
        if not grows:
            allocator.free(held.pop())
        held.append(allocator.malloc(20 * MIB))
    snapshot = allocator.snapshot()
    conf = {"expandable_segments": True, "max_split_size": 100 * MIB}
    snapshot["allocator_settings"] |= conf
    (found,) = find_reserved_without_bound(subject(snapshot))
    assert found.severity is severity
    assert evidence(found)["max_split_size_mb"] == 100
    grown = evidence(found)["grown in the second half of the recording"]
    assert grown == (200 * MIB if grows else 0)
    snapshot["allocator_settings"] |= {"expandable_segments": False}
    assert find_reserved_without_bound(subject(snapshot)) == []


BASE_NS = 1_759_252_584_000_000_000


def with_a_slow_collective():
    """A window in which the last all-reduce but one takes 60 ms, and when that began."""
    trace = GpuTrace(world_size=2, header={"baseTimeNanoseconds": BASE_NS})
    slow_ns = 0
    for number in range(5):
        with trace.step():
            trace.op("aten::mm").launch("gemm", us(500))
            is_slow = number == 3
            slow_ns = trace.now if is_slow else slow_ns
            done = trace.collective("all_reduce", 1 << 20, ms(60) if is_slow else us(100))
            trace.wait_collective(done)
            trace.item()
    return WindowView(trace.load()), slow_ns


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("retry", abnormal_collective.RETRIED),
        ("segment", abnormal_collective.DEVICE_CALLS),
        ("nothing", "not known: no memory records (profile_memory=True)"),
    ],
)
def test_an_abnormal_collective_is_joined_with_the_snapshot(cause, words):
    window, slow_ns = with_a_slow_collective()
    at_us = (BASE_NS + slow_ns) // 1000
    allocator = Allocator(total=100 * MIB)
    allocator.time_us = at_us - 900_000
    block = allocator.malloc(60 * MIB)
    allocator.free(block)
    if cause == "retry":  # 80 MiB fit only if the cached 60 MiB go
        allocator.time_us = at_us + 20_000
        allocator.malloc(80 * MIB)
    elif cause == "segment":
        allocator.malloc(50 * MIB)
        allocator.time_us = at_us + 20_000
        allocator.malloc(30 * MIB)
    (found,) = find_abnormal_collective(subject(allocator.snapshot(), window=window))
    assert evidence(found)["seen at the time"] == words
    assert ("Leave memory free on this rank" in found.advice) == (cause != "nothing")


def test_recomputing_activations_is_priced_by_the_trace():
    trace = GpuTrace()
    for _ in range(4):
        with trace.step(), trace.frame("train.py(3): main"):
            with trace.frame("net/model.py(30): forward"), trace.op("aten::mm"):
                trace.launch("gemm", us(700))
            with trace.frame("net/model.py(50): forward"), trace.op("aten::mm"):
                trace.launch("gemm", us(200))
            with trace.op("aten::mm"):
                trace.launch("gemm", us(100))
    window = WindowView(trace.load())
    allocator, stack = Allocator(), Frames()
    for line, size in ((40, 20), (55, 30)):
        block = allocator.malloc(size * MIB, frames=stack(f"/home/net/model.py:{line}:forward"))
        allocator.annotate(block, "stepscope:activation")
    (found,) = find_activations_dominate(subject(allocator.snapshot(), window=window))
    told = evidence(found)
    assert told["recomputing net/model.py:40 forward takes at most, per step"] == us(700)
    assert told["recomputing net/model.py:55 forward takes at most, per step"] == us(200)


def test_a_module_of_the_census_is_priced_by_its_calls_at_that_moment():
    """Modules have other names in the trace: those that run when the census sees them save."""
    trace, saved = GpuTrace(header={"baseTimeNanoseconds": BASE_NS}), []
    for _ in range(4):
        with trace.step(), trace.frame("nn.Module: Net_0"):
            for module, frame, time_ns in (
                ("layers.0", "nn.Module: Block_0", us(700)),
                ("layers.1", "nn.Module: Block_1", us(200)),
            ):
                with trace.frame(frame), trace.op("aten::mm"):
                    trace.launch("gemm", time_ns)
                    saved.append((module, trace.now))
    window = WindowView(trace.load())
    base_ns = window.trace.base_time_ns
    sightings = pl.DataFrame(
        [
            ("activation", 0, base_ns + at_ns, number // 2, 4096, 512, module)
            for number, (module, at_ns) in enumerate(saved)
        ],
        schema=SIGHTINGS,
        orient="row",
    )
    allocator = Allocator()
    for module, size in (("layers.0", 20), ("layers.1", 30), ("head", 5)):
        allocator.annotate(allocator.malloc(size * MIB), f"stepscope:activation:{module}")
    view = MemoryView(loaded(pickle.dumps(allocator.snapshot())), census=Census(sightings, 0))
    (found,) = find_activations_dominate(Subject(0, window=window, memory=view))
    told = evidence(found)
    assert told["recomputing layers.0 takes, per step"] == us(700)
    assert told["recomputing layers.1 takes, per step"] == us(200)
    assert not [label for label in told if "recomputing head" in label]
