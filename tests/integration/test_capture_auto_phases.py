"""Phases without a word in the loop: what torch is seen to do, and nothing else is changed."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
import time

import pytest
import torch
from tests.support.ranks import torchrun
from tests.support.runs import trace_document
from torch import distributed
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset, dataloader

import stepscope
from stepscope import open_run

OPTIONS = {"activities": "cpu", "wait": 10**6, "auto_phases": True, "triggers": False}


def training(steps, *, loader=None, step_ends=None, inside=lambda: None):
    """A few steps of a small training; returns the losses."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for (batch,) in loader if loader is not None else data(steps):
        loss = model(batch).square().mean()
        inside()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step_ends is not None:
            step_ends()
    return losses


def data(steps):
    generator = torch.Generator().manual_seed(5)
    return DataLoader(TensorDataset(torch.randn(4 * steps, 8, generator=generator)), batch_size=4)


def steps_of(folder):
    (rank,) = open_run(folder).ranks
    return [record for record in rank.steps if not record.is_partial]


def top(record):
    return {name for name in record.phases if "/" not in name}


def test_a_plain_loop_with_a_data_loader_has_all_phases(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        training(6, step_ends=profiler.step)
    records = steps_of(tmp_path)
    assert len(records) == 6
    for record in records:
        assert top(record) == {"forward", "backward", "optimizer"}
        assert record.data_wait_ns > 0
        assert record.data_wait_ns + sum(record.phases.values()) <= record.dur_ns


def test_forward_is_what_lies_between_the_batch_and_backward(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        training(4, step_ends=profiler.step, inside=lambda: time.sleep(0.02))
    for record in steps_of(tmp_path):
        assert record.phases["forward"] >= 20_000_000
        assert record.dur_ns - record.phases["forward"] < record.dur_ns


@pytest.mark.parametrize("is_loader", [True, False])
def test_watch_counts_a_wait_once_whatever_it_iterates_over(tmp_path, is_loader):
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            time.sleep(0.02)
            return (torch.ones(8),)

    def slow():
        for _ in range(5):
            time.sleep(0.02)
            yield (torch.ones(1, 8),)

    source = DataLoader(Slow(), batch_size=1) if is_loader else slow()
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        training(5, loader=profiler.watch(source))
    records = steps_of(tmp_path)
    assert len(records) == 5
    for record in records:
        assert record.data_wait_ns >= 20_000_000
        assert record.data_wait_ns + sum(record.phases.values()) <= record.dur_ns
        assert top(record) == {"forward", "backward", "optimizer"}


@pytest.mark.parametrize("name", ["data", "fetch"])
def test_a_wait_within_a_phase_of_the_loops_own_counts_once(tmp_path, name):
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            time.sleep(0.05)
            return torch.ones(8)

    weight = torch.ones(8, 1, requires_grad=True)
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        batches = iter(DataLoader(Slow(), batch_size=1))
        for _ in range(3):
            with profiler.phase(name):
                batch = next(batches)
                time.sleep(0.01)
            batch.matmul(weight).sum().backward()
            profiler.step()
    for record in steps_of(tmp_path):
        assert record.data_wait_ns >= 50_000_000
        assert 10_000_000 <= record.phases[name] <= record.dur_ns - record.data_wait_ns
        assert record.data_wait_ns + sum(record.phases.values()) <= record.dur_ns


def test_a_loop_without_batches_has_no_forward_rather_than_a_wrong_one(tmp_path):
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        for _ in range(3):
            weight.sum().backward()
            optimizer.step()
            profiler.step()
    assert [top(record) for record in steps_of(tmp_path)] == [{"backward", "optimizer"}] * 3


def test_phases_of_the_loops_own_come_first_and_nothing_counts_twice(tmp_path):
    weight = torch.ones(8, 1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        for (batch,) in profiler.watch(data(3)):
            with profiler.phase("augment"):
                time.sleep(0.01)
                with profiler.phase("crop"):
                    pass
            loss = batch.matmul(weight).square().mean()
            with profiler.phase("backward"):
                loss.backward()
            with profiler.phase("update"):
                optimizer.step()
    for record in steps_of(tmp_path):
        assert set(record.phases) == {"forward", "augment", "augment/crop", "backward", "update"}
        assert record.phases["augment"] >= 10_000_000
        assert record.phases["forward"] < record.dur_ns - record.phases["augment"]
        tops = sum(ns for name, ns in record.phases.items() if "/" not in name)
        assert record.data_wait_ns + tops <= record.dur_ns


def test_gradient_accumulation_sums_its_parts(tmp_path):
    weight = torch.ones(8, 1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        for number, (batch,) in enumerate(profiler.watch(data(8), batches_per_step=4)):
            batch.matmul(weight).mean().backward()
            time.sleep(0.005)
            if number % 4 == 3:
                optimizer.step()
    records = steps_of(tmp_path)
    assert len(records) == 2
    for record in records:
        assert top(record) == {"forward", "backward", "optimizer"}
        # What follows backward is no phase of torch's.
        assert record.dur_ns - sum(record.phases.values()) >= 4 * 5_000_000


def test_an_evaluation_leaves_no_phase_open(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        training(2, step_ends=profiler.step)
        for _ in data(3):
            profiler.mark("evaluation")
            profiler.step()
        training(2, step_ends=profiler.step)
    records = steps_of(tmp_path)
    assert len(records) == 7
    assert [record.kind for record in records][2:5] == ["evaluation"] * 3
    assert [top(record) for record in records][2:5] == [set()] * 3  # no module was called
    for record in records:
        assert record.data_wait_ns + sum(record.phases.values()) <= record.dur_ns


def test_the_losses_are_the_same_and_torch_is_left_as_it_was(tmp_path):
    names = ("all_reduce", "barrier", "broadcast_object_list")
    before = [
        dataloader._BaseDataLoaderIter.__next__,
        torch.autograd.backward,
        torch.save,
        torch.serialization.save,
        torch.nn.Module.eval,
        *(getattr(distributed, name) for name in names),
        *(getattr(distributed.distributed_c10d, name) for name in names),
    ]
    bare = training(10)
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        assert training(10, step_ends=profiler.step) == bare
        assert torch.autograd.backward is not before[1]
    after = [
        dataloader._BaseDataLoaderIter.__next__,
        torch.autograd.backward,
        torch.save,
        torch.serialization.save,
        torch.nn.Module.eval,
        *(getattr(distributed, name) for name in names),
        *(getattr(distributed.distributed_c10d, name) for name in names),
    ]
    assert after == before
    assert not optimizers._global_optimizer_pre_hooks
    assert not optimizers._global_optimizer_post_hooks


def test_another_wrapper_is_not_taken_away(tmp_path):
    original = torch.autograd.backward
    profiler = stepscope.Profiler(output_dir=tmp_path, **OPTIONS)
    profiler.start()
    ours = torch.autograd.backward

    def theirs(*arguments, **keywords):
        return ours(*arguments, **keywords)

    try:
        torch.autograd.backward = theirs
        training(2, step_ends=profiler.step)
        profiler.stop()
        assert torch.autograd.backward is theirs
        assert training(2) == training(2)
        assert "__call__" not in vars(torch.nn.Linear)  # ours, inside theirs, does nothing
    finally:
        torch.autograd.backward = original


def test_an_evaluation_within_a_step_is_a_phase_and_no_wait_for_input(tmp_path):
    model = torch.nn.Linear(8, 1)

    def evaluate():
        with torch.no_grad():
            for (batch,) in DataLoader(Slow(4), batch_size=1):
                model(batch)

    class Slow(torch.utils.data.Dataset):
        def __init__(self, length):
            self.length = length

        def __len__(self):
            return self.length

        def __getitem__(self, index):
            time.sleep(0.02)
            return (torch.ones(8),)

    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        for number, (batch,) in enumerate(profiler.watch(list(data(6)))):
            if number == 3:
                evaluate()
            model(batch).sum().backward()
            if number == 4:
                evaluate()
    for number, record in enumerate(steps_of(tmp_path)):
        assert record.data_wait_ns < 40_000_000
        assert ("evaluation" in record.phases) is (number in {3, 4})
        assert sum(record.phases.values()) <= record.dur_ns
        if number in {3, 4}:
            assert record.phases["evaluation"] >= 80_000_000
            assert "backward" in record.phases


def test_saving_is_a_phase_of_its_own_wherever_it_is_called(tmp_path):
    state = {"weights": torch.zeros(2_000_000)}
    saved = []

    def save():
        began = time.perf_counter_ns()
        torch.save(state, tmp_path / "checkpoint.pt")
        saved.append(time.perf_counter_ns() - began)

    with stepscope.Profiler(output_dir=tmp_path / "out", **OPTIONS) as profiler:
        training(4, step_ends=profiler.step, inside=save)  # while forward is open
        with profiler.phase("mine"):
            save()
        profiler.step()
    *records, last = steps_of(tmp_path / "out")
    for record, saving in zip(records, saved, strict=False):
        assert top(record) == {"forward", "saving", "backward", "optimizer"}
        assert 0.5 * saving <= record.phases["saving"] <= saving
        assert sum(record.phases.values()) <= record.dur_ns
    assert "mine" in last.phases
    assert not [name for name in last.phases if "saving" in name]
    assert torch.equal(torch.load(tmp_path / "checkpoint.pt")["weights"], state["weights"])


class Slow(torch.nn.Module):
    """Takes 30 ms in training, and 20 ms without gradients."""

    def forward(self, batch):
        time.sleep(0.03 if torch.is_grad_enabled() else 0.02)
        return batch


@pytest.mark.parametrize("source", ["watched", "loader", "none"])
@pytest.mark.parametrize("sets_mode", [True, False])
def test_the_forward_after_an_evaluation_is_no_part_of_it(tmp_path, source, sets_mode):
    """It comes before the forward of steps 2 and 4, and each forward takes 30 ms."""
    model = torch.nn.Sequential(Slow(), torch.nn.Linear(8, 1))
    took_ms = {}

    def evaluate(number):
        began = time.perf_counter_ns()
        if sets_mode:
            model.eval()
        with torch.no_grad():
            for (batch,) in data(2):
                time.sleep(0.02)
                model(batch)
        if sets_mode:
            time.sleep(0.02)  # what it computes of the results
            model.train()
        took_ms[number] = (time.perf_counter_ns() - began) / 1e6

    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        if source == "watched":
            batches = profiler.watch([(torch.ones(4, 8),)] * 6)
        else:
            batches = data(6) if source == "loader" else [(torch.ones(4, 8),)] * 6
        for number, (batch,) in enumerate(batches):
            if number in {2, 4}:
                evaluate(number)
            model(batch).sum().backward()
            if source != "watched":
                profiler.step()
    records = steps_of(tmp_path)
    assert len(records) == 6
    for number, record in enumerate(records):
        phases = {name: ns / 1e6 for name, ns in record.phases.items()}
        assert ("evaluation" in phases) is (number in {2, 4})
        if number in {2, 4}:
            assert (60 if sets_mode else 40) <= phases["evaluation"] <= took_ms[number]
        if number or source != "none":  # the first backward pass shows which model is called
            assert phases["forward"] >= 30


def test_a_part_of_a_model_that_is_set_back_ends_no_evaluation(tmp_path):
    """As for dropout that is sampled."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        for number, (batch,) in enumerate(profiler.watch([(torch.ones(4, 8),)] * 3)):
            if number == 1:
                model.eval()
                with torch.no_grad():
                    for (validated,) in data(2):
                        model[1].train()
                        time.sleep(0.02)
                        model(validated)
                model.train()
            model(batch).sum().backward()
    evaluated = steps_of(tmp_path)[1]
    assert evaluated.phases["evaluation"] >= 40_000_000


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_is_saving(tmp_path):
    """It saves the files with torch.save, which counts once."""
    # Takes seconds: not for every worker that collects this module.
    from torch.distributed import checkpoint

    state = {"weights": torch.zeros(1_000_000)}
    saved = []

    def save():
        began = time.perf_counter_ns()
        checkpoint.save(state, checkpoint_id=tmp_path / f"checkpoint{len(saved)}")
        saved.append(time.perf_counter_ns() - began)

    before = (checkpoint.save, checkpoint.async_save, checkpoint.state_dict_saver.save)
    with stepscope.Profiler(output_dir=tmp_path / "out", **OPTIONS) as profiler:
        training(3, step_ends=profiler.step, inside=save)
    for record, saving in zip(steps_of(tmp_path / "out"), saved, strict=True):
        assert top(record) == {"forward", "saving", "backward", "optimizer"}
        assert 0.5 * saving <= record.phases["saving"] <= saving
    assert before == (checkpoint.save, checkpoint.async_save, checkpoint.state_dict_saver.save)
    loaded = {"weights": torch.ones(1_000_000)}
    checkpoint.load(loaded, checkpoint_id=tmp_path / "checkpoint1")
    assert torch.equal(loaded["weights"], state["weights"])


@pytest.mark.parametrize("is_early", [True, False])
def test_saving_with_safetensors_counts_whenever_it_is_imported(tmp_path, monkeypatch, is_early):
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "torch.py").write_text(
        "import time\n"
        "def save_file(tensors, filename, metadata=None):\n"
        "    time.sleep(0.02)\n"
        "    if not tensors:\n"
        "        raise ValueError('nothing to save')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if is_early:
        original = importlib.import_module("safetensors.torch").save_file
    before = list(sys.meta_path)

    def save():
        from safetensors.torch import save_file

        save_file({"weights": torch.zeros(4)}, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match="nothing to save"):
            save_file({}, tmp_path / "model.safetensors")

    with stepscope.Profiler(output_dir=tmp_path / "out", **OPTIONS) as profiler:
        training(3, step_ends=profiler.step, inside=save)
    for record in steps_of(tmp_path / "out"):
        assert record.phases["saving"] >= 40_000_000
    assert sys.meta_path == before
    if is_early:
        assert sys.modules["safetensors.torch"].save_file is original


def test_nothing_looks_for_modules_that_save_after_the_end(tmp_path, monkeypatch):
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = list(sys.meta_path)
    with stepscope.Profiler(output_dir=tmp_path / "out", **OPTIONS) as profiler:
        training(2, step_ends=profiler.step)
        assert "safetensors" not in sys.modules
    assert sys.meta_path == before


def test_models_can_still_be_copied_and_saved(tmp_path):
    model = torch.nn.Linear(8, 1)
    with stepscope.Profiler(output_dir=tmp_path / "out", **OPTIONS) as profiler:
        training(2, step_ends=profiler.step)
        copied = copy.deepcopy(model)
        torch.save(model, tmp_path / "model.pt")
        assert pickle.loads(pickle.dumps(torch.save)) is torch.save
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    batch = torch.ones(2, 8)
    assert torch.equal(copied(batch), model(batch))
    assert torch.equal(loaded(batch), model(batch))


def test_the_trace_has_the_phases_as_ranges(tmp_path):
    options = {**OPTIONS, "wait": 1, "warmup": 1, "active": 2}
    with stepscope.Profiler(output_dir=tmp_path, **options) as profiler:
        training(6, step_ends=profiler.step)
    (window,) = open_run(tmp_path).windows
    events = trace_document(window.trace_path)["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    # zero_grad, between the loss and backward, is part of the optimizer.
    ranges = {"forward": 4, "backward": 2, "optimizer": 4, "stepscope.data_wait": 2}
    assert {name: names.count(name) for name in ranges} == ranges


def test_without_the_option_nothing_of_torch_is_touched(tmp_path):
    before = torch.autograd.backward
    with stepscope.Profiler(output_dir=tmp_path, **{**OPTIONS, "auto_phases": False}) as profiler:
        assert torch.autograd.backward is before
        training(2, step_ends=profiler.step)
    assert [record.phases for record in steps_of(tmp_path)] == [{}, {}]


def test_a_compiled_function_with_a_collective_in_it_is_compiled_as_before(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:

            def reduced(value):
                distributed.all_reduce(value)
                return value * 2

            compiled = torch.compile(reduced, backend="eager", fullgraph=True)
            assert compiled(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
            profiler.step()
        assert compiled(torch.ones(4)).tolist() == [2.0] * 4
    finally:
        distributed.destroy_process_group()


def test_a_compiled_optimizer_step_is_timed_and_warns_of_nothing(tmp_path, recwarn):
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    update = torch.compile(optimizer.step, backend="eager")
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        for _ in range(4):
            (weight * weight).sum().backward()
            update()
            optimizer.zero_grad()
            profiler.step()
    bare = torch.ones(4)
    for _ in range(4):
        bare = bare - 0.1 * 2 * bare
    assert torch.allclose(weight, bare)
    assert [str(one.message) for one in recwarn if "Dynamo" in str(one.message)] == []
    (rank,) = open_run(tmp_path).ranks
    assert ["optimizer" in step.phases for step in rank.steps] == [True] * 4


COLLECTIVES = """
weight = torch.ones(8, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.01)
with stepscope.Profiler(
    output_dir=output, activities="cpu", wait=10**6, auto_phases=True
) as profiler:
    for batch in profiler.watch([torch.ones(8)] * 8):
        loss = (batch * weight).sum()
        loss.backward()
        if rank == 0:
            time.sleep(0.05)
        begun_ns = time.perf_counter_ns()
        distributed.all_reduce(weight.grad)
        took_ns = time.perf_counter_ns() - begun_ns
        os.write(1, f"RANK {rank} {took_ns}\\n".encode())  # in one piece, or ranks mix theirs
        optimizer.step()
"""


@pytest.mark.slow
def test_collectives_that_hold_the_thread_are_communication(tmp_path):
    result = torchrun(tmp_path, COLLECTIVES, 2, output=tmp_path / "out")
    assert result.returncode == 0, result.stderr
    told = [line.split()[1:] for line in result.stdout.splitlines() if line.startswith("RANK")]
    for rank in open_run(tmp_path / "out").ranks:
        measured = [int(took_ns) for number, took_ns in told if int(number) == rank.rank]
        found = [record.phases["communication"] for record in rank.steps]
        assert len(found) == len(measured) == 8
        assert all(ours <= theirs for ours, theirs in zip(found, measured, strict=True))
        # What lies between the two clocks is microseconds, and a rank that waits waits for long.
        assert rank.rank == 0 or sum(found) > 0.5 * sum(measured)
