"""Why ranks make others wait, by name and in words; imported by reports that analyse nothing."""

from __future__ import annotations

import re

LATE_START = "late start"
SLOW_LINK = "slow link"
SLOW_STAGE = "slow stage"
OTHER = "other"
FEWEST_RANKS = 3
"""Of two ranks that differ, nothing says which is as it should be."""

_CLAUSES = {
    OTHER: "something that was not recorded",
    LATE_START: "it began late",
    SLOW_LINK: "its transfers are slow",
    SLOW_STAGE: "its stage of the pipeline computes longer than others",
    "host": "its CPU is slower to launch work and to run Python",
    "input": "it waits for its input",
    "compute": "its computation takes longer",
    "garbage_collection": "Python's garbage collector stops it",
}


def means_slow_link(text: str) -> bool:
    """Whether a cause in words is a slow link."""
    return text in {cause_clause(SLOW_LINK), cause_clause(SLOW_LINK, several=True)}


def cause_clause(cause: str, *, several: bool = False) -> str:
    """Why a rank makes the others wait, or why several do, as a clause."""
    text = _CLAUSES.get(cause, cause.replace("_", " "))
    if not several:
        return text
    text = re.sub(r"\bits\b", "their", text).replace("their CPU is", "their CPUs are")
    return (
        text.replace("it waits", "they wait")
        .replace("it began", "they began")
        .replace("stops it", "stops them")
    )
