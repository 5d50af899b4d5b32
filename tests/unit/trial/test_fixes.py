"""Each fix: what it needs to be planned, what it changes, and that it can be undone."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import time
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402

from stepscope.trial.fixes import FIXES, Facts, Plan  # noqa: E402
from stepscope.trial.inside.companion import WorkerWatch  # noqa: E402
from stepscope.trial.patches import Patches  # noqa: E402

DATA = TensorDataset(torch.zeros(8, 2))


@pytest.fixture
def patches():
    made = Patches()
    yield made
    made.undo()
    assert made.problems == []


def apply(patches, name, facts):
    plan = FIXES[name].plan(facts)
    assert isinstance(plan, Plan), plan
    FIXES[name].apply(patches, plan.value)
    return plan


def test_every_fix_describes_itself():
    for name, fix in FIXES.items():
        assert fix.name == name
        assert fix.answers
        for text in (fix.title, fix.applies_to, fix.risks):
            assert text
            assert not text.endswith(".")


def test_every_fix_answers_findings_that_exist():
    from stepscope.advice.rules import RULES

    assert {answer for fix in FIXES.values() for answer in fix.answers} <= set(RULES)


@pytest.mark.parametrize("name", FIXES)
def test_what_does_not_apply_says_why(name):
    plan = FIXES[name].plan(Facts())
    assert isinstance(plan, Plan) or plan


def test_workers_are_added_and_what_the_script_says_is_overridden(patches):
    facts = Facts(loader_workers=0, workers_advised=2, cpus=4)
    plan = apply(patches, "loader-workers", facts)
    assert plan.changes == "num_workers 0 → 2"
    loader = DataLoader(DATA, 4, num_workers=0)
    assert (loader.num_workers, loader.persistent_workers) == (2, True)
    assert loader.batch_size == 4
    assert len(patches.applied) == 1
    (overridden,) = patches.overrode
    assert overridden.startswith("test_fixes.py:")
    assert overridden.endswith("num_workers=0")
    patches.undo()
    assert DataLoader(DATA).num_workers == 0


def test_an_iterable_data_set_gets_no_workers(patches):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(8))

    apply(patches, "loader-workers", Facts(loader_workers=0, workers_advised=2))
    assert DataLoader(Stream()).num_workers == 0
    assert patches.applied == []
    assert "once per worker" in patches.refused[0]


def test_workers_that_are_there_are_not_taken_away():
    assert "4 workers already" in FIXES["loader-workers"].plan(
        Facts(loader_workers=4, workers_advised=2)
    )


def test_keeping_workers_needs_some(patches):
    apply(patches, "persistent-workers", Facts(loader_workers=2))
    assert DataLoader(DATA, num_workers=2).persistent_workers
    assert not DataLoader(DATA).persistent_workers
    assert patches.refused == ["its loader has no workers"]
    plan = FIXES["persistent-workers"].plan
    assert plan(Facts(loader_workers=0)) == "its loader has no workers"


def test_arguments_that_a_class_refuses_leave_the_object_as_the_script_wants_it(patches):
    class Picky:
        def __init__(self, items, size=1):
            self.items = list(items)
            if size > 2:
                raise ValueError("too large")
            self.size = size

    patches.arguments(Picky, lambda _said: {"size": 9})
    made = Picky(number for number in range(3))
    assert (made.size, made.items) == (1, [0, 1, 2])
    assert "too large" in patches.refused[0]
    assert patches.applied == []


def test_a_change_that_fails_leaves_the_object_as_the_script_wants_it(patches):
    class Plain:
        def __init__(self, size=1):
            self.size = size

    def fail(_said):
        raise RuntimeError("broken")

    patches.arguments(Plain, fail)
    assert Plain(2).size == 2
    assert "broken" in patches.refused[0]


def test_the_collector_is_frozen_and_runs_rarely(patches):
    collect, before = gc.collect, gc.isenabled()
    plan = apply(patches, "rare-gc", Facts())
    patches.stepped(1)
    assert gc.isenabled() == before
    assert patches.applied == []
    frozen = gc.get_freeze_count()
    patches.stepped(2)
    assert not gc.isenabled()
    assert gc.get_freeze_count() > frozen
    assert patches.applied == ["after step 2"]

    class Cycle:
        def __init__(self):
            self.me = self

    gone = []
    Cycle()
    weakref.finalize(Cycle(), gone.append, 1)
    gc.collect()
    assert gone == []
    assert patches.overrode[0].endswith("gc.collect(2)")
    patches.stepped(plan.value)
    assert gone == [1]
    patches.undo()
    assert gc.collect is collect
    assert gc.isenabled() == before


@pytest.mark.parametrize(
    ("facts", "number"),
    [
        (Facts(threads=8, cpus=2), 2),
        (Facts(threads=8, cpus=8, local_ranks=4), 2),
        (Facts(threads=8, cpus=8, loader_workers=3), 5),
        (Facts(threads=2, cpus=2, loader_workers=9), 1),
        (Facts(threads=4, cpus=4), 2),
    ],
)
def test_threads_are_what_the_cpus_allow(facts, number):
    assert FIXES["threads"].plan(facts).value == number


def test_threads_are_never_added():
    for threads in range(1, 9):
        for cpus in range(1, 17):
            plan = FIXES["threads"].plan(Facts(threads=threads, cpus=cpus))
            assert isinstance(plan, str) or 1 <= plan.value < threads


def test_threads_are_kept_whatever_the_script_says(patches, request):
    request.addfinalizer(functools.partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(3)
    FIXES["threads"].apply(patches, 1)
    torch.set_num_threads(7)
    assert torch.get_num_threads() == 1
    assert patches.overrode[0].endswith("torch.set_num_threads(7)")
    patches.undo()
    assert torch.get_num_threads() == 3
    assert FIXES["threads"].plan(Facts(threads=1, cpus=8)) == "torch uses a single thread"


def parameters():
    return [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "Adagrad"])
@pytest.mark.parametrize("value", ["fused", "foreach"])
def test_optimizers_are_fused_and_give_the_same(patches, kind, value):
    def trained():
        ours = parameters()
        optimizer = getattr(torch.optim, kind)((one for one in ours), lr=0.1, **{value: False})
        for _ in range(3):
            for one in ours:
                one.grad = torch.full((3,), 0.5)
            optimizer.step()
        return optimizer, torch.cat([one.detach() for one in ours])

    plain, expected = trained()
    assert not plain.defaults[value]
    apply(patches, f"{value}-optimizer", Facts())
    optimizer, found = trained()
    assert optimizer.defaults[value] is True
    torch.testing.assert_close(found, expected)
    assert patches.overrode[0].endswith(f"{value}=False")
    patches.undo()
    assert not trained()[0].defaults[value]


@pytest.mark.parametrize("name", ["fused-optimizer", "foreach-optimizer"])
def test_the_lines_name_the_classes_that_the_script_uses(name):
    argument = f"{name.partition('-')[0]}=True"
    used = ("torch.optim.Adam", "torch.optim.SGD")
    assert FIXES[name].plan(Facts(optimizers=used)).lines == (
        f"torch.optim.Adam(..., {argument})",
        f"torch.optim.SGD(..., {argument})",
    )
    assert FIXES[name].plan(Facts()).lines == (f"OPTIMIZER(..., {argument})",)


def test_classes_are_named_as_a_script_imports_them():
    from stepscope.trial.inside.companion import _import_name

    class Own(torch.optim.SGD):
        pass

    assert _import_name(torch.optim.Adam) == "torch.optim.Adam"
    assert _import_name(Own).endswith("Own")
    assert not _import_name(Own).startswith("torch")


class Sleepy(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.002)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_are_timed_while_they_make_batches(patches, workers):
    watch = WorkerWatch()
    watch.install(patches)
    data = Sleepy(torch.zeros(16, 2))
    loader = DataLoader(
        data, 4, num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    for _ in range(2):
        assert len(list(loader)) == 4
    if workers:
        assert watch.batch_ns > 8_000_000
    else:
        assert watch.batch_ns is None


@pytest.mark.parametrize("cpus", [1, 2, 8])
def test_without_advice_workers_leave_the_training_a_cpu(cpus):
    plan = FIXES["loader-workers"].plan(Facts(loader_workers=0, cpus=cpus))
    assert plan.value == max(1, cpus - 1)


def test_an_optimizer_that_cannot_be_fused_is_left_as_it_is(patches):
    apply(patches, "fused-optimizer", Facts())
    optimizer = torch.optim.AdamW(parameters(), differentiable=True)
    assert not optimizer.defaults["fused"]
    assert patches.applied == []
    assert "fused" in patches.refused[0]


def test_gradients_are_dropped_where_the_script_fills_them(patches):
    apply(patches, "zero-grad-none", Facts())
    ours = parameters()
    optimizer = torch.optim.SGD(ours, lr=0.1)
    model = torch.nn.Linear(2, 2)
    optimizer.zero_grad()
    assert patches.applied == []
    ours[0].grad = torch.ones(3)
    optimizer.zero_grad(set_to_none=False)
    assert ours[0].grad is None
    model.weight.grad = torch.ones(2, 2)
    model.zero_grad(set_to_none=False)
    assert model.weight.grad is None
    assert len(patches.overrode) == 2


@pytest.mark.parametrize("name", ["tf32", "pin-memory", "non-blocking"])
def test_fixes_for_gpus_need_one(name):
    assert FIXES[name].plan(Facts(loader_workers=0)) == "no GPU is in use"
    assert isinstance(FIXES[name].plan(Facts(loader_workers=0, uses_gpu=True)), Plan)


def test_precision_is_kept_whatever_the_script_says(patches):
    before = torch.get_float32_matmul_precision()
    apply(patches, "tf32", Facts(uses_gpu=True))
    torch.set_float32_matmul_precision("highest")
    assert torch.get_float32_matmul_precision() == "high"
    assert patches.overrode[0].endswith("('highest')")
    patches.undo()
    assert torch.get_float32_matmul_precision() == before


def test_copies_do_not_wait_if_they_come_from_pinned_memory(patches, monkeypatch):
    seen = []

    def to(tensor, *arguments, **keywords):
        seen.append(keywords)
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.numel() == 2)
    FIXES["non-blocking"].apply(patches, ["cuda"])
    pinned, pageable = torch.zeros(2), torch.zeros(3)
    for target in ("cuda:0", torch.device("cuda"), 0):
        pinned.to(target)
    pinned.to(device="cuda")
    assert [one.pop("non_blocking") for one in seen] == [True] * 4
    seen.clear()
    pageable.to("cuda")
    pinned.to("cpu")
    pinned.to(torch.float16)
    pinned.to("cuda", non_blocking=False)
    pinned.to(pageable)
    assert [one.get("non_blocking") for one in seen] == [None, None, None, False, None]


def test_the_allocator_is_set_where_every_torch_reads_it(monkeypatch, patches):
    fix, value = FIXES["allocator-settings"], "max_split_size_mb:64"
    assert "not simulated" in fix.plan(Facts(uses_gpu=True))
    assert fix.plan(Facts(uses_gpu=True, allocator="none is better")) == "none is better"
    assert "no GPU" in fix.plan(Facts(allocator=Plan(value, value, ())))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:native")
    fix.apply(patches, value)
    assert "sets PYTORCH_CUDA_ALLOC_CONF itself" in patches.refused[0]
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", value)
    fix.apply(patches, value)
    assert patches.applied == [f"PYTORCH_CUDA_ALLOC_CONF={value}"]
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    assert "_set_allocator_settings('expandable_segments:True')" in patches.overrode[0]


def test_ranks_get_cpus_of_their_own(patches, monkeypatch):
    affinity = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda _, cpus: affinity.append(list(cpus)), raising=False
    )
    monkeypatch.setenv("LOCAL_RANK", "1")
    facts = Facts(local_ranks=2, cpus=4)
    assert FIXES["cpu-affinity"].plan(facts).changes == "2 CPUs of its own for each rank"
    FIXES["cpu-affinity"].apply(patches, 2)
    patches.undo()
    assert affinity == [[2, 3], [0, 1, 2, 3]]
    assert "too few" in FIXES["cpu-affinity"].plan(Facts(local_ranks=2, cpus=3))
    assert "single rank" in FIXES["cpu-affinity"].plan(Facts(cpus=8))


def test_the_outermost_module_is_compiled_once(patches):
    call = torch.nn.Module.__call__
    FIXES["compile"].apply(patches, {"backend": "eager"})
    inner = torch.nn.Linear(2, 2)
    outer = torch.nn.Sequential(inner, torch.nn.ReLU())
    with torch.no_grad():
        outer(torch.ones(1, 2))
    assert patches.applied == []
    found = outer(torch.ones(1, 2))
    torch.testing.assert_close(found, torch.relu(inner(torch.ones(1, 2))))
    (applied,) = patches.applied
    assert applied.endswith("Sequential")
    assert outer._compiled_call_impl is not None
    assert inner._compiled_call_impl is None
    assert torch.nn.Module.__call__ is call
    torch._dynamo.reset()
    assert FIXES["compile"].only_if_asked


def test_ddp_is_made_with_larger_buckets(patches, monkeypatch):
    from torch.nn.parallel import DistributedDataParallel

    made = []
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(*arguments, **keywords):
        bound = inspect.signature(original).bind(*arguments, **keywords)
        made.append(bound.arguments.get("bucket_cap_mb"))

    monkeypatch.setattr(DistributedDataParallel, "__init__", init)
    apply(patches, "ddp-buckets", Facts(is_distributed=True))
    DistributedDataParallel(torch.nn.Linear(1, 1))
    assert made == [100]
    assert "several ranks" in FIXES["ddp-buckets"].plan(Facts())
