"""Passes waits back to what caused them: delay analysis over all ranks at once.

The idea is Scalasca's (Böhme, Geimer, Wolf, Arnold: "Identifying the root causes of wait states in
large-scale parallel applications", ICPP 2010): a rank that arrives late may itself have waited
elsewhere, so the last one is not yet the guilty one.

Definitions
    Chain of an arrival: the rank's own work before it; the transfer of the rank's previous
    collective; the work of the member that arrived last there; and so on, back to the beginning.
    It is what the moment of the arrival is made of.
    For each member that waits in a collective, the chain of the last member and the chain of the
    waiting one are followed back to the collective that both pass through. The difference of the
    two is the wait. What lies on the last member's chain beyond the usual (`usual.py`) caused it:
    work of some rank, for some cause, or a transfer.
    The wait is divided among these in proportion to their excess, and none is charged more than
    its excess, so the parts never exceed the wait. What remains is unexplained: the waiting member
    was early, or ranks differ by design, as the stages of a pipeline do.
    Late start: a rank that arrives last in its first collective of the recording is late by what
    the others wait for whom it is the first one too (the median; where there are none, of all
    others). A chain that begins there charges the remainder, as far as it goes, to that.

All times that enter are differences on one rank's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.blame.matched import Matched, Numbers
from stepscope.analysis.blame.usual import Usual
from stepscope.trace.machine.arrays import Table, Written, WrittenTable
from stepscope.trace.machine.jit import jit

_LONGEST_CHAIN = 4096
_LEAST_WAIT_NS = 1_000


@dataclass(frozen=True)
class Delays:
    """What caused all waits.

    Attributes:
        work_ns: Of each row and cause, how long other ranks waited because of it, summed over
            them; the last column is late start.
        transfer_ns: Of each collective, how long ranks waited elsewhere because its transfer
            took longer than usual.
        unexplained_ns: Of each collective, the waits in it that nothing unusual explains.
        late_start_ns: Of each row, by how much its rank came late to its first collective.
    """

    work_ns: Numbers
    transfer_ns: Numbers
    unexplained_ns: Numbers
    late_start_ns: Numbers


def pass_back(matched: Matched, usual: Usual) -> Delays:
    """Passes every wait back to what caused it."""
    rows, causes = usual.excess_ns.shape
    count = len(matched.transfer_ns)
    late_start = _late_starts(matched)
    work = np.zeros((rows, causes + 1), np.float64)
    transfers, unexplained = np.zeros(count), np.zeros(count)
    if rows:
        jit(pass_back_by_loop)(
            (matched.collective, matched.previous, matched.last_row),
            matched.first_row,
            matched.rows,
            matched.wait_ns,
            usual.excess_ns,
            usual.excess_ns.sum(axis=1),
            usual.transfer_excess_ns,
            late_start,
            np.empty(_LONGEST_CHAIN, np.int64),
            np.empty(_LONGEST_CHAIN, np.int64),
            np.empty((_LONGEST_CHAIN, causes + 1), np.float64),
            (work, transfers, unexplained),
            causes,
        )
    return Delays(
        np.rint(work).astype(np.int64),
        np.rint(transfers).astype(np.int64),
        np.rint(unexplained).astype(np.int64),
        late_start,
    )


def _late_starts(matched: Matched) -> Numbers:
    """Of each row, by how much its rank came late to its first collective; 0 for all others."""
    late = np.zeros(len(matched.rank), np.int64)
    waits, is_first = matched.wait_ns, matched.previous < 0
    last_is_first = is_first[matched.last_row]
    for exchange in np.flatnonzero(last_is_first):
        members = matched.rows[matched.first_row[exchange] : matched.first_row[exchange + 1]]
        others = members[members != matched.last_row[exchange]]
        alike = others[is_first[others]]
        found = np.sort(waits[alike if len(alike) else others])
        late[matched.last_row[exchange]] = found[(len(found) - 1) // 2]
    return late


def pass_back_by_loop(
    links: tuple[Numbers, Numbers, Numbers],
    first_row: Numbers,
    rows: Numbers,
    waits: Numbers,
    excess: Table[np.int64],
    excess_of_all: Numbers,
    transfer_excess: Numbers,
    late_start: Numbers,
    chain: Written[np.int64],
    found: Written[np.int64],
    charged: WrittenTable[np.float64],
    caused: tuple[WrittenTable[np.float64], Written[np.float64], Written[np.float64]],
    causes: int,
) -> None:
    """The loop of `pass_back`: fills in what is caused.

    Args:
        links: Of each row its collective and its rank's previous row, and of each collective the
            row that arrived last.
        first_row: Of each collective, where its rows begin in `rows`; one more at the end.
        rows: Rows by collective.
        waits: Of each row.
        excess: Of each row and cause.
        excess_of_all: Of each row, over all causes.
        transfer_excess: Of each collective.
        late_start: Of each row.
        chain: Receives the rows on the last member's chain, back in time; `_LONGEST_CHAIN` long.
        found: As long, for the excess on the chain up to each of them.
        charged: Likewise, for what each is charged with, by cause; the last column is late start.
        caused: Receives `work_ns`, `transfer_ns` and `unexplained_ns` of `Delays`.
        causes: How many there are, late start apart.

    Rows and collectives are numbers that `Matched` has made, so they lie inside what is of each row
    and each collective; no chain grows longer than its array.
    """
    collective, previous, last_row = links
    work, transfers, unexplained = caused
    for exchange in range(len(last_row)):
        chain[0] = last_row[exchange]
        found[0] = excess_of_all[chain[0]]
        for cause in range(causes + 1):
            charged[0, cause] = 0.0
        known = 1
        for place in range(first_row[exchange], first_row[exchange + 1]):
            wait = waits[rows[place]]
            early = rows[place]
            if early == chain[0] or wait < _LEAST_WAIT_NS:
                continue
            # Back along both chains, always on the one that is at a later collective.
            link = 0
            while True:
                late = chain[link]
                before_late = collective[previous[late]] if previous[late] >= 0 else -1
                before_early = collective[previous[early]] if previous[early] >= 0 else -1
                if before_late == before_early or link == len(chain) - 1:
                    break
                if before_late < before_early:
                    early = last_row[before_early]
                    continue
                link += 1
                if link == known:
                    chain[link] = last_row[before_late]
                    found[link] = found[link - 1] + transfer_excess[before_late]
                    found[link] += excess_of_all[chain[link]]
                    for cause in range(causes + 1):
                        charged[link, cause] = 0.0
                    known += 1
            part = 1.0
            rest = wait - found[link]
            if rest < 0:
                part = float(wait) / float(found[link])
            else:
                charged[link, causes] += float(min(rest, late_start[chain[link]]))
                unexplained[exchange] += float(max(rest - late_start[chain[link]], 0))
            for step in range(link + 1):
                row = chain[step]
                if step:
                    transfers[collective[row]] += part * float(transfer_excess[collective[row]])
                for cause in range(causes):
                    charged[step, cause] += part * float(excess[row, cause])
        for link in range(known):
            for cause in range(causes + 1):
                work[chain[link], cause] += charged[link, cause]
