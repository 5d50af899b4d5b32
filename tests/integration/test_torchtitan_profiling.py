"""torchtitan's profiling section: its options, folders and calls, and its own classes."""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.support.runs import steps_in_trace
from tests.support.training import SmallTraining, bare_losses, batches

from stepscope import open_run
from stepscope.adapters.options.settings import values_of
from stepscope.adapters.torchtitan import Profiler, take_over
from stepscope.capture.options.option import ConfigError
from stepscope.run.manifest import ArtifactRecord, RankManifest, write_record

THIRD_PARTY = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)


@dataclass
class Profiling:
    """The section as versions of 2025 have it."""

    enable_profiling: bool = True
    save_traces_folder: str = "profile_traces"
    profile_freq: int = 5
    profiler_active: int = 1
    profiler_warmup: int = 1
    enable_memory_snapshot: bool = False
    save_memory_snapshot_folder: str = "memory_snapshot"
    with_stack: bool = False
    with_modules: bool = False


def train(profiler, steps, *more):
    training = SmallTraining()
    for batch in batches(steps):
        training.step(batch)
        for one in (profiler, *more):
            if one is not None:
                one.step()
    return training.losses


def files_below(folder):
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "rank0000" not in path.as_posix() and path.name != "run.json"
    )


def test_a_trace_every_so_many_steps_under_torchtitans_names(tmp_path):
    with Profiler(Profiling(), base_folder=str(tmp_path), leaf_folder="r0") as one:
        assert train(one, 12) == bare_losses(12)
    traces = tmp_path / "profile_traces"
    names = ["iteration_10/r0/rank0_trace.json.gz", "iteration_5/r0/rank0_trace.json.gz"]
    assert files_below(traces) == names
    (rank,) = open_run(traces).ranks
    assert [window.record.first_step for window in rank.windows] == [4, 9]
    options = open_run(traces).job.options
    assert (options["record_shapes"], options["repeat"]) == (True, 0)
    assert rank.manifest.step_unit == "optimizer step"


def test_a_resumed_training_is_named_by_its_own_steps(tmp_path):
    with Profiler(Profiling(), global_step=100, base_folder=str(tmp_path)) as profiler:
        train(profiler, 6)
    assert files_below(tmp_path / "profile_traces") == ["iteration_105/rank0_trace.json.gz"]


def test_the_schedules_further_options(tmp_path):
    section = {
        **vars(Profiling()),
        "profiler_repeat": 2,
        "profiler_skip_first": 2,
        "profiler_skip_first_wait": 1,
    }
    with Profiler(section, base_folder=str(tmp_path)) as profiler:
        train(profiler, 20)
    (rank,) = open_run(tmp_path / "profile_traces").ranks
    # Two are left out, then comes the warm-up at once; the second cycle waits.
    assert [window.record.first_step for window in rank.windows] == [3, 8]


def test_nothing_is_done_where_nothing_is_asked_for(tmp_path):
    off = Profiling(enable_profiling=False)
    with Profiler(off, base_folder=str(tmp_path)) as profiler:
        train(profiler, 2)
    assert list(tmp_path.iterdir()) == []


def test_options_that_cannot_work_together():
    with pytest.raises(ConfigError, match="profile_freq=3 is too small"):
        Profiler(Profiling(profile_freq=3, profiler_warmup=3))
    with (
        pytest.raises(ConfigError, match="memory snapshot every 0 steps"),
        Profiler({"enable_memory_snapshot": True, "memory_snapshot_freq": 0}),
    ):
        pass


def test_each_trace_is_given_to_the_post_processor(tmp_path):
    seen = []
    section = {**vars(Profiling()), "trace_post_processor": seen.append}
    with Profiler(section, base_folder=str(tmp_path)) as profiler:
        train(profiler, 10)
    folder = tmp_path / "profile_traces"
    wanted = [str(folder / f"iteration_{step}/rank0_trace.json.gz") for step in (10, 5)]
    assert sorted(seen) == wanted


# -- memory snapshots -----------------------------------------------------------------------------


def test_without_cuda_there_are_no_snapshots_and_one_line_says_so(tmp_path, caplog):
    both = Profiling(enable_memory_snapshot=True)
    with Profiler(both, base_folder=str(tmp_path)) as profiler:
        assert train(profiler, 11) == bare_losses(11)
    lines = [line for line in caplog.messages if "memory_history" in line]
    assert len(lines) == 1
    assert "no CUDA device" in lines[0]
    assert not (tmp_path / "memory_snapshot").exists()


def test_snapshots_alone_make_a_run_without_windows(tmp_path):
    alone = Profiling(enable_profiling=False, enable_memory_snapshot=True)
    with Profiler(alone, base_folder=str(tmp_path)) as profiler:
        train(profiler, 11)
    (rank,) = open_run(tmp_path / "profile_traces").ranks
    assert rank.windows == ()


class Snapshots:
    """A capture that can take snapshots, as one with CUDA can."""

    def __init__(self, folder):
        self.session = self
        self.rank_path = folder
        self.reasons = []

    def step(self):
        pass

    def finish(self, error):
        pass

    def snapshot(self, reason):
        self.reasons.append(reason)
        path = self.rank_path / f"{len(self.reasons)}.pickle"
        path.write_bytes(pickle.dumps(reason, protocol=4))
        return path


def test_snapshots_lie_under_torchtitans_names(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    rank = tmp_path / "rank"
    rank.mkdir()
    capture = Snapshots(rank)
    section = {
        "enable_memory_snapshot": True,
        "memory_snapshot_freq": 4,
        "save_memory_snapshot_folder": "memory",
    }
    folders = {"base_folder": str(tmp_path), "leaf_folder": "leaf"}
    titan = Profiler(section, global_step=101, **folders)
    titan.profiler = capture
    name = "step_000000000104/leaf/000000_step_104.pickle"
    last = "step_000000000105_exit/leaf/000000_step_105.pickle"
    for _ in range(4):
        titan.step()
    assert files_below(tmp_path / "memory") == [name]
    assert capture.reasons == ["torchtitan, step 104"]
    record = ArtifactRecord("snapshot", "1.pickle", 5, "d", cause="out of memory on GPU 0")
    write_record(rank / "manifest.json", RankManifest(0, snapshots=(record,)))
    titan.__exit__(None, None, None)
    assert files_below(tmp_path / "memory") == sorted([name, last])


# -- the real package -----------------------------------------------------------------------------


@pytest.fixture
def torchtitan():
    """The package, or a skip. What imported half of it would keep the next attempt from saying so:
    its modules stay after the package itself is gone."""
    return pytest.importorskip(
        "torchtitan", reason="torchtitan is not installed", exc_type=ImportError
    )


@pytest.fixture
def own_profiler(torchtitan):
    return pytest.importorskip(
        "torchtitan.tools.profiler", reason="this torchtitan has none", exc_type=ImportError
    )


@THIRD_PARTY
def test_torchtitans_own_configuration_builds_ours(own_profiler, tmp_path):
    config = own_profiler.Profiler.Config(enable_profiling=True, profile_freq=4, profiler_warmup=1)
    undo = take_over()
    with contextlib.ExitStack() as stack:
        stack.callback(undo)
        # As its trainer does.
        profiler = config.build(global_step=0, base_folder=str(tmp_path))
        assert isinstance(profiler, Profiler)
        with profiler as active:
            assert train(active, 8) == bare_losses(8)
    traces = tmp_path / config.save_traces_folder
    names = ["iteration_4/rank0_trace.json.gz", "iteration_8/rank0_trace.json.gz"]
    assert files_below(traces) == names
    assert steps_in_trace(traces / names[0]) == [3]
    assert isinstance(config.build(), own_profiler.Profiler)


@THIRD_PARTY
def test_every_option_of_torchtitans_configuration_is_understood(own_profiler):
    source = (Path(__file__).parents[2] / "src/stepscope/adapters/torchtitan.py").read_text()
    names = values_of(own_profiler.Profiler.Config())
    assert {name for name in names if f'"{name}"' not in source} == set()


@THIRD_PARTY
def test_the_same_files_for_the_same_steps_as_torchtitans_own_profiler(own_profiler, tmp_path):
    config = own_profiler.Profiler.Config(
        enable_profiling=True,
        profile_freq=5,
        profiler_warmup=1,
        profiler_skip_first=1,
        profiler_skip_first_wait=1,
    )
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        for folder, kind in (("theirs", own_profiler.Profiler), ("ours", Profiler)):
            with kind(config, base_folder=str(tmp_path / folder), leaf_folder="leaf") as profiler:
                train(profiler, 10)
    finally:
        torch.distributed.destroy_process_group()
    names = files_below(tmp_path / "theirs")
    assert len(names) == 2
    assert files_below(tmp_path / "ours") == names
    for name in names:
        steps = steps_in_trace(tmp_path / "ours" / name)
        assert steps == steps_in_trace(tmp_path / "theirs" / name)
