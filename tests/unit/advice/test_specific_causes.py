"""What makes launches late, or the host wait, stands above the finding that they are late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepscope.advice.evidence.specific_causes import IDLE_LABEL, SPIKES_LABEL, specific_first
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.rules import RULES

LAUNCHES = "launch-bound"
SPECIFIC = ("many-small-collectives", "unfused-optimizer")
HOST = ("input-bound", "garbage-collector")
CAUSES = {LAUNCHES: (SPECIFIC, 5), "synchronisation": (HOST, 9)}
"""Of each symptom what explains it, and how many tenths of its saving that must save."""
NAMES = (*CAUSES, *SPECIFIC, "many-small-kernels", *HOST)


def _finding(name: str, rank: int, saving_ns: int | None) -> Finding:
    reason = "" if saving_ns is not None else "not known"
    return Finding(
        id=name, title="", severity=Severity.LOW, rank=rank, saving_ns=saving_ns,
        saving_reason=reason, evidence=(), advice="",
    )  # fmt: skip


@st.composite
def findings(draw):
    names = st.tuples(st.sampled_from(NAMES), st.integers(0, 2))
    found = [
        _finding(*name, draw(st.none() | st.integers(1, 12)))
        for name in draw(st.lists(names, unique=True, max_size=12))
    ]
    return sorted(found, key=lambda one: (one.saving_ns is None, -(one.saving_ns or 0)))


def test_the_rules_are_there():
    assert set(NAMES) <= set(RULES)


@given(findings())
@example([_finding(LAUNCHES, 0, 12), _finding(LAUNCHES, 1, 9), _finding(SPECIFIC[1], 0, 6)])
@example([_finding(LAUNCHES, 0, 12), _finding(SPECIFIC[1], 0, 5)])
def test_only_symptoms_move_and_only_behind_what_explains_them(found):
    placed = specific_first(found)
    ordered = [replace(one, placed="") for one in placed]
    assert sorted(map(repr, ordered)) == sorted(map(repr, found))
    # Whoever saves less than one below it, and does not only stand beside another rank, says why.
    for place, one in enumerate(placed):
        below = [o.saving_ns or 0 for o in placed[place + 1 :] if o.rank == one.rank]
        if max(below, default=0) > (one.saving_ns or 0):
            assert one.placed.startswith("above ")
    others = [one for one in found if one.id not in CAUSES]
    assert [one for one in ordered if one.id not in CAUSES] == others
    for one in found:
        if one.id not in CAUSES:
            continue
        names, tenths = CAUSES[one.id]
        most = {
            other.id
            for other in found
            if other.id in names
            and other.rank == one.rank
            and one.saving_ns is not None
            and 10 * (other.saving_ns or 0) >= tenths * one.saving_ns
        }
        above = {o.id for o in ordered[: ordered.index(one)] if o.rank == one.rank}
        assert most <= above
        if not most:
            before = {o.id for o in found[: found.index(one)] if o.rank == one.rank}
            assert above - set(CAUSES) == before - set(CAUSES)


def test_the_wait_for_input_stands_above_the_host_that_cannot_run_ahead_of_it():
    """Where the host stops for the GPU, it waits for its batch only then: both save as much."""
    found = [_finding("synchronisation", 2, 602), _finding("input-bound", 2, 600)]
    assert [one.id for one in specific_first(found)] == ["input-bound", "synchronisation"]
    found = [_finding("synchronisation", 2, 700), _finding("input-bound", 2, 600)]
    assert [one.id for one in specific_first(found)] == ["synchronisation", "input-bound"]


@pytest.mark.parametrize(("label", "is_slow_in_some"), [(SPIKES_LABEL, True), ("longest", False)])
@pytest.mark.parametrize(("saving_ns", "is_enough"), [(30, True), (29, False)])
def test_busy_cpus_stand_above_a_phase_that_is_slow_in_some_steps(
    label, is_slow_in_some, saving_ns, is_enough
):
    """A phase's other threads wait for a CPU as well, and the record does not have that."""
    phase = replace(_finding("slow-phase", 0, 60), evidence=(Evidence(label, 60, "ns"),))
    busy = _finding("busy-cpus", 0, saving_ns)
    placed = specific_first([phase, busy])
    assert (placed[0].id == "busy-cpus") is (is_slow_in_some and is_enough)
    if placed[0].id == "busy-cpus":
        assert placed[0].placed == (
            "above slow-phase, because the threads of the phase may wait for a CPU, too"
        )
    assert specific_first([phase, replace(busy, rank=1)])[0] is phase


@pytest.mark.parametrize("phase", ["backward", "communication", "forward"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("saving_ns", "is_enough"), [(15, True), (14, False)])
def test_busy_cpus_of_any_rank_stand_above_phases_in_which_ranks_wait(
    phase, rank, saving_ns, is_enough
):
    """Whoever waits for a CPU holds up the others, in whose records nobody waits for one."""
    slow = replace(
        _finding("slow-phase", 0, 60),
        title=f"the phase '{phase}' is far slower in 5 of 53 steps",
        evidence=(Evidence(SPIKES_LABEL, 60, "ns"),),
    )
    found = [slow, _finding("busy-cpus", rank, saving_ns), _finding("input-bound", 1, 1)]
    placed = specific_first(found)
    assert (placed[0].id == "busy-cpus") is (is_enough and phase != "forward")
    if placed[0].id == "busy-cpus" and rank == 1:
        assert placed[0].placed == (
            "above slow-phase, because rank 0 may wait there for rank 1, whose CPUs are busy"
        )
    rest = [one.id for one in found if one.id != placed[0].id]
    assert [one.id for one in placed[1:]] == rest


@pytest.mark.parametrize("other", ["input-bound", "many-small-kernels"])
@pytest.mark.parametrize("is_paced", [False, True])
@pytest.mark.parametrize(("saving_ns", "is_first"), [(29, False), (40, True), (59, True)])
@pytest.mark.parametrize(("idle_share", "hides"), [(0.0, True), (0.08, True), (0.7, False)])
def test_what_else_the_gpu_waits_for_comes_first_where_recording_slows_dispatch(
    saving_ns, is_first, idle_share, hides, is_paced, other
):
    launches = replace(
        _finding(LAUNCHES, 0, 60),
        predicted_step_ns=40,
        evidence=(Evidence(IDLE_LABEL, idle_share, "share"),),
    )
    found = [launches, _finding(other, 0, saving_ns)]
    placed = specific_first(found, (0,) if is_paced else ())
    comes_first = is_first and hides and not is_paced and other == "input-bound"
    assert (placed[0].id == other) is comes_first
    if comes_first:
        assert placed[0].placed == (
            "above launch-bound, because the GPU waits for it longer than for late launches"
        )


@pytest.mark.parametrize(
    ("best_ns", "sure_ns", "is_first"),
    [(160, 118, True), (160, 79, False), (160, 109, False), (100, 49, False), (60, 40, True)],
)
def test_blocking_calls_come_first_where_a_graph_that_they_forbid_saves_little_more(
    best_ns, sure_ns, is_first
):
    """Of a step of 1,000: half of it at least, and at most 50 less."""
    launches = replace(_finding(LAUNCHES, 0, best_ns), predicted_step_ns=1000 - best_ns)
    placed = specific_first([launches, _finding("synchronisation", 0, sure_ns)], (0,))
    assert (placed[0].id == "synchronisation") is is_first
    if is_first:
        assert placed[0].placed == "above launch-bound, because no CUDA graph can hold its calls"
