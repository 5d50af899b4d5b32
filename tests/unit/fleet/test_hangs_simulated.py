"""Dumps of simulated jobs: no wrong culprit, no blame on hardware where a rank did not come."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.support.flight_dumps import FORMS
from tests.support.flight_recorder import FAULTS, Case, simulate

from stepscope.fleet.hangs.dump import parse_dump
from stepscope.fleet.hangs.find_hang import Hang, find_hang

RIGHT, OPEN, WRONG = "right", "cannot say", "wrong"
HARDWARE = "the network or the GPUs"


def answered(case: Case) -> Hang:
    """The answer to the dumps, each as a file that torch would write."""
    form = FORMS[random.Random(case.seed).choice(("python", "c++", *["json"] * 6))]
    return find_hang(
        [parse_dump(form(dump), rank, f"rank_{rank}") for rank, dump in case.dumps.items()],
        case.world,
    )


def judged(case: Case, hang: Hang) -> str:
    """Whether an answer is right, leaves it open, or accuses wrongly."""
    named, verdict = set(hang.culprits), hang.verdict
    if verdict.startswith("nothing hangs"):
        shows = any(entry["state"] != "completed" and not _is_inner(entry, dump["entries"])
                    for dump in case.dumps.values() for entry in dump["entries"])  # fmt: skip
        return WRONG if case.hangs and shows else RIGHT
    if HARDWARE in verdict:
        return RIGHT if case.hangs and case.fault == "network" and not named else WRONG
    if "cannot say" in verdict:
        # Only ranks without a dump are named then, as those to look at.
        return OPEN if not named & set(case.dumps) else WRONG
    if not case.hangs or case.culprit not in named:
        return WRONG
    if named == {case.culprit}:
        return RIGHT
    if len(named) == 2 and (case.fault == "uneven exchange" or " called " in verdict):
        return RIGHT  # of two that disagree, nothing shows which is wrong
    circle = case.in_circle if case.fault in ("order", "direction") else frozenset()
    ambiguous = circle | (case.ends if len(case.ends) == 2 else frozenset())
    return RIGHT if case.culprit in named and named <= ambiguous else WRONG


def _is_inner(entry, entries):
    """Whether an entry is one of a coalesced group, whose state says nothing."""
    numbers = ("process_group", "collective_seq_id", "p2p_seq_id")
    alike = [one for one in entries if all(one[name] == entry[name] for name in numbers)]
    return not entry["profiling_name"].endswith("coalesced") and len(alike) > 1


def in_words(case: Case, hang: Hang) -> str:
    return f"seed {case.seed}, {case.fault} of rank {case.culprit}: {hang.culprits} {hang.verdict}"


def judge(seeds, fault=None):
    """How many answers are right and leave it open, by whether all evidence is there; the wrong."""
    found, wrong = Counter(), []
    for seed in seeds:
        case = simulate(seed, fault)
        hang = answered(case)
        judgement = judged(case, hang)
        found[judgement, case.is_complete] += 1
        if judgement == WRONG:
            wrong.append(in_words(case, hang))
    return found, wrong


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_nobody_is_accused_wrongly(fault):
    _, wrong = judge(range(1000, 1006), fault)
    assert wrong == []


@pytest.mark.slow
def test_of_300_dumps_none_accuses_wrongly():
    found, wrong = judge(range(300))
    assert wrong == []
    assert found.total() == 300


def test_open_operations_that_cannot_be_matched_are_not_called_completed():
    """All wait for rank 1, but what their dumps begin with is of a coalesced group cut in two."""
    hang = answered(simulate(50198))
    assert hang.verdict.startswith("cannot say whether anything hangs: ranks 0, 2 to 6 have open")
    assert hang.culprits == ()


@pytest.mark.parametrize("fault", ["absent", "order", "direction", "size", "output size", "type"])
def test_who_is_to_blame_is_named_where_all_evidence_is_there(fault):
    found, wrong = judge(range(2000, 2010), fault)
    assert wrong == []
    assert found[RIGHT, True] > 0
    assert found[OPEN, True] == 0


@pytest.mark.parametrize("fault", ["network", "stuck GPU"])
def test_broken_networks_and_stuck_gpus_are_distinguished_by_recorded_starts(fault):
    cases = [one for seed in range(3000, 3030) if (one := simulate(seed, fault)).is_complete]
    judgements = {(case.has_timing, judged(case, answered(case))) for case in cases[:12]}
    assert judgements == {(True, RIGHT), (False, OPEN)}


def test_what_was_lost_leaves_it_open_or_right():
    """Killed ranks leave no dump, as those whose dump was not collected."""
    found, wrong = judge(range(4000, 4012), "killed")
    assert wrong == []
    assert found[RIGHT, True] == found[OPEN, True] == 0
    assert found[OPEN, False] == 12


def test_the_first_missing_call_is_named_with_its_line():
    seeds, checked = iter(range(5000, 5100)), 0
    while checked < 10:
        case = simulate(next(seeds), "absent")
        if not case.is_complete or case.missing_call is None:
            continue
        hang = answered(case)
        checked += 1
        row = hang.ranks.row(0, named=True)
        assert row["rank"] == case.culprit
        group, operation = case.missing_call
        assert f" of group {group} " in row["missing_call"], case.seed
        if " " in operation:
            assert row["missing_call"].startswith("message "), case.seed
        if row["missing_where"] is not None:  # JSON has no frames
            assert row["missing_where"] in hang.verdict
            assert row["missing_where"] == f"train.py:{case.missing_line} in step", case.seed


def test_the_simulated_jobs_end_where_nothing_is_planted():
    assert not any(simulate(seed, "none").hangs for seed in range(40))
