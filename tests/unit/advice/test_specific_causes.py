"""What most of the late launches come from stands above the finding that launches are late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.advice.finding import Finding, Severity
from stepscope.advice.rules import RULES
from stepscope.advice.specific_causes import specific_first

LAUNCHES = "launch-bound"
SPECIFIC = ("many-small-collectives", "unfused-optimizer")
NAMES = (LAUNCHES, *SPECIFIC, "many-small-kernels", "input-bound")


def _finding(name: str, rank: int, saving_ns: int | None) -> Finding:
    reason = "" if saving_ns is not None else "not known"
    return Finding(name, "", Severity.LOW, rank, saving_ns, reason, "", None, (), (), "")


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
def test_only_late_launches_move_and_only_behind_what_is_most_of_them(found):
    ordered = specific_first(found)
    assert sorted(map(repr, ordered)) == sorted(map(repr, found))
    others = [one for one in found if one.id != LAUNCHES]
    assert [one for one in ordered if one.id != LAUNCHES] == others
    for one in found:
        if one.id != LAUNCHES:
            continue
        most = {
            name
            for name in SPECIFIC
            for other in found
            if (other.id, other.rank) == (name, one.rank)
            and one.saving_ns is not None
            and 2 * (other.saving_ns or 0) >= one.saving_ns
        }
        above = {o.id for o in ordered[: ordered.index(one)] if o.rank == one.rank}
        assert most <= above
        if not most:
            before = {o.id for o in found[: found.index(one)] if o.rank == one.rank}
            assert above == before
