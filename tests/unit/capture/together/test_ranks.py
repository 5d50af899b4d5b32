"""Who records: ranks from the launchers' variables, and the option `ranks`."""

from __future__ import annotations

import pytest

from stepscope.capture.ranks import RankIdentity, identify, parse_ranks, records
from stepscope.errors import UsageError


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, RankIdentity(0, 0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, RankIdentity(3, 1, 8)),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"},
            RankIdentity(5, 1, 16),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
            RankIdentity(2, 2, 4),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0"}, RankIdentity(1, 1, 2)),
        ({"RANK": "x", "WORLD_SIZE": "2"}, RankIdentity(0, 0, 1)),
        ({"RANK": "4", "WORLD_SIZE": "4"}, RankIdentity(0, 0, 1)),
        ({"RANK": "1"}, RankIdentity(0, 0, 1)),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, RankIdentity(0, 0, 1)),
    ],
)
def test_identity_from_the_launcher(monkeypatch, environment, expected):
    monkeypatch.setattr("os.environ", environment)
    assert identify() == expected


@pytest.mark.parametrize(
    ("option", "world", "expected"),
    [
        ("all", 4, [0, 1, 2, 3]),
        ("0", 4, [0]),
        ("1,3", 4, [1, 3]),
        ("1 3", 4, [1, 3]),
        ([2], 4, [2]),
        ((0, 9), 4, [0]),
        (range(2), 4, [0, 1]),
        ("every:8", 20, [0, 8, 16]),
        ("node-first", 8, [0, 4]),
    ],
)
def test_which_ranks_record(option, world, expected):
    parsed = parse_ranks(option)
    identities = [RankIdentity(rank, rank % 4, world) for rank in range(world)]
    assert [who.rank for who in identities if records(parsed, who)] == expected


@pytest.mark.parametrize(
    "option", ["", "none", "every:", "every:-1", "0;1", [True], [1.0], 3, None]
)
def test_nonsense_is_refused(option):
    with pytest.raises(UsageError, match="ranks="):
        parse_ranks(option)
