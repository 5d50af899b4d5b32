"""Which files belong to one run, by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.opening.discover import TraceFile, are_of_one_run


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["it_1/rank0.json", "it_2/rank0.json"], True),
        (["rank0.json", "rank1.json"], True),
        (["a/rank0.json", "b/rank0.json"], False),
        (["host_12.1623143089861.pt.trace.json", "host_12.1623212756351.pt.trace.json"], True),
        (["slow_0.1623143089861.pt.trace.json", "slow_4.1623212756351.pt.trace.json"], False),
    ],
)
def test_files_of_one_rank_differ_only_in_numbers_and_share_their_worker(names, expected):
    ranks = [1 if "rank1" in name else 0 for name in names]
    files = [TraceFile(Path(name), rank) for name, rank in zip(names, ranks, strict=True)]
    assert are_of_one_run(files) is expected
