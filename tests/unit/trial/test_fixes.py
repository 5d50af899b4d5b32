"""Each fix: what it needs to be planned, what it changes, and that it can be undone."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402

from stepscope.trial.fixes import FIXES  # noqa: E402
from stepscope.trial.fixes.fix import Facts, Plan  # noqa: E402
from stepscope.trial.inside.patches import Patches  # noqa: E402

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


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [("loader-prefetch", "prefetch_factor", 8), ("persistent-workers", "persistent_workers", True)],
)
def test_fixes_of_workers_need_some(patches, name, argument, value):
    apply(patches, name, Facts(loader_workers=2))
    assert getattr(DataLoader(DATA, num_workers=2), argument) == value
    assert getattr(DataLoader(DATA), argument) != value
    assert patches.refused == ["its loader has no workers"]
    assert FIXES[name].plan(Facts(loader_workers=0)) == "its loader has no workers"


def test_arguments_that_a_class_refuses_leave_the_object_as_the_script_wants_it(patches):
    class Picky:
        def __init__(self, items, size=1):
            self.items = list(items)
            if size > 2:
                raise ValueError("too large")
            self.size = size

    patches.arguments(Picky, lambda _object, _all, _given: {"size": 9})
    made = Picky(number for number in range(3))
    assert (made.size, made.items) == (1, [0, 1, 2])
    assert "too large" in patches.refused[0]
    assert patches.applied == []


def test_a_change_that_fails_leaves_the_object_as_the_script_wants_it(patches):
    class Plain:
        def __init__(self, size=1):
            self.size = size

    def fail(_object, _all, _given):
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
    __import__("weakref").finalize(Cycle(), gone.append, 1)
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


def test_threads_are_kept_whatever_the_script_says(patches):
    before = torch.get_num_threads()
    FIXES["threads"].apply(patches, 1)
    torch.set_num_threads(7)
    assert torch.get_num_threads() == 1
    assert patches.overrode[0].endswith("torch.set_num_threads(7)")
    patches.undo()
    assert torch.get_num_threads() == before
    assert FIXES["threads"].plan(Facts(threads=1, cpus=8)) == "torch uses a single thread"
