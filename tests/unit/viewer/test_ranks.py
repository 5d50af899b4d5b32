"""The ranks view's server, against what `stepscope show` says of the same job."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from tests.support.rank_jobs import rank_of_job
from tests.support.viewer import PATIENCE_S, decode, training, viewing

from stepscope.commands.main import cli
from stepscope.fleet.job import Job, read_job
from stepscope.fleet.rank_map import RankMap, rank_map
from stepscope.report import units
from stepscope.trace.paths import resolve_traces
from stepscope.viewer.ranks import MEASURES, MOST_STEPS, JobRanks

DELAYS_MS = (1.0, 1.1, 6.0, 1.05)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    for rank in range(len(DELAYS_MS)):
        (folder / f"rank{rank}.json").write_bytes(rank_of_job(rank, DELAYS_MS).json())
    return folder


@pytest.fixture(scope="module")
def viewer(job):
    with viewing([job]) as client:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            status = client.post("/api/traces/{}/ranks/open", {}).json
            assert status["stage"] != "failed", status
            if status["stage"] == "ready":
                break
            time.sleep(0.02)
        yield client


def said(question, job):
    """What the command line says, as JSON."""
    found = CliRunner().invoke(cli, ["show", question, str(job), "--format", "json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_blame_is_what_show_stragglers_says(viewer, job):
    asked = said("stragglers", job)
    found = viewer.get("/api/traces/{}/ranks")
    assert found["verdict"] == asked["verdict"]
    caused = {row["rank"]: row["caused_wait_ns"] for row in asked["ranks"]}
    assert {row["rank"]: row["caused_wait_ns"] for row in found["ranks"]} == caused
    assert found["ranks"][0]["rank"] == asked["straggler"] == 2
    notable = [row for row in asked["causes"] if row["is_notable"]]
    assert [(row["rank"], row["cause"], row["gain_ns"]) for row in found["causes"]] == [
        (row["rank"], row["cause"], row["gain_ns"]) for row in notable
    ]
    assert {row["rank"]: row["cause"] for row in found["ranks"] if row["cause"]} == {2: "host"}
    # The others follow by what they do themselves.
    own = [row["own_ns"] for row in found["ranks"][1:]]
    assert own == sorted(own, reverse=True)


@pytest.mark.parametrize(
    ("peers", "accused"), [([], {1}), ([3], {1, 3}), ([0, 2, 3], set())], ids=["one", "two", "all"]
)
def test_all_that_a_slow_link_may_belong_to_are_marked_unless_that_is_everybody(
    job, peers, accused
):
    found = JobRanks.of(read_job(resolve_traces((str(job),))))
    causes = found.stragglers.causes.head(1).with_columns(
        rank=pl.lit(1, pl.Int64),
        cause=pl.lit("slow link"),
        is_notable=pl.lit(value=True),
        indistinguishable_from=pl.lit(peers, pl.List(pl.Int64)),
    )
    changed = replace(found, stragglers=replace(found.stragglers, causes=causes))
    rows = changed.about({})["ranks"]
    assert {row["rank"] for row in rows if row["cause"] == "slow link"} == accused


def test_a_finding_of_several_ranks_is_one_card_of_its_largest_saving(viewer, job):
    found = CliRunner().invoke(cli, ["report", str(job), "--format", "json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)["findings"]
    ranks: dict[str, set[int]] = {}
    for one in told:
        ranks.setdefault(one["id"], set()).add(one["rank"])
    assert any(len(having) > 1 for having in ranks.values())
    found = viewer.get("/api/traces/{}/findings")
    assert found["shown_rank"] == 0  # whose timeline is open, whichever rank the verdict names
    cards = found["findings"]
    assert [card["id"] for card in cards] == list(ranks)  # in the order of the report
    for card in cards:
        assert {int(number) for number in re.findall(r"\d+", card["where"].split("; ")[0])} <= (
            ranks[card["id"]]
        )
        others = re.search(r"on (\d+) others?: (.*)", card["where"])
        assert len(ranks[card["id"]]) == 1 + (int(others[1]) if others else 0)
        savings = [units.duration(one["saving_ns"]) for one in told if one["saving_ns"]]
        assert card["saving"].startswith("saving not estimated") or any(
            card["saving"].startswith(f"saves {one} per step: ") for one in savings
        )
        assert (0 in ranks[card["id"]]) or card["place"] is None  # rank 0 is what is looked at


def test_every_cell_is_what_show_ranks_says(viewer, job):
    asked = said("ranks", job)
    found = viewer.get("/api/traces/{}/ranks")
    order, steps = [row["rank"] for row in found["ranks"]], found["steps"]
    known = {(row["rank"], row["step"]): row for row in asked["steps"]}
    path = f"/api/traces/{viewer.library.traces[0].id}/ranks/map"
    for measure in MEASURES:
        meta, columns = decode(viewer.ask(f"{path}?of={measure}").body)
        values = columns["values"].reshape(meta["ranks"], meta["steps"])
        for row, rank in enumerate(order):
            for column, step in enumerate(steps):
                assert values[row, column] == known[rank, step][measure]


def test_each_rank_leads_to_its_own_trace(viewer, job):
    traces = viewer.get("/api/traces")["traces"]
    for row in viewer.get("/api/traces/{}/ranks")["ranks"]:
        assert traces[row["trace"]]["title"] == f"rank{row['rank']}.json"
    assert viewer.get("/api/traces/{}/overview")["ranks"] == len(DELAYS_MS)


def test_an_unknown_measure_gets_one_line(viewer):
    answer = viewer.ask(f"/api/traces/{viewer.library.traces[0].id}/ranks/map?of=secrets")
    assert answer.status == 400
    assert "a map is of own_ns" in answer.json["error"]


def test_a_trace_that_is_alone_has_no_ranks(job):
    with viewing([job / "rank0.json"]) as client:
        assert client.get("/api/traces/{}/overview")["ranks"] == 1
        answer = client.post("/api/traces/{}/ranks/open", {})
        assert answer.status == 400
        assert "the only rank" in answer.json["error"]


def test_a_thousand_ranks_are_one_small_matrix_with_gaps_where_steps_are_missing():
    ranks, steps = 1024, MOST_STEPS + 50
    rng = np.random.default_rng(3)
    table = pl.DataFrame(
        {
            "rank": np.repeat(np.arange(ranks), steps),
            "step": np.tile(np.arange(steps), ranks),
            "own_ns": rng.integers(1, 10**9, ranks * steps),
        }
    ).filter((pl.col("rank") != 7) | (pl.col("step") % 2 == 0))
    found = JobRanks(
        Job((), None), RankMap("", 0, 1, (), pl.DataFrame(), pl.DataFrame(), table, None, ()),  # type: ignore[arg-type]
        None, "", tuple(range(ranks - 1, -1, -1)), tuple(range(50, steps)),
    )  # fmt: skip
    values = found.matrix("own_ns")
    assert values.shape == (ranks, MOST_STEPS)
    assert np.isnan(values).sum() == MOST_STEPS / 2
    assert np.isnan(values[ranks - 1 - 7, 1])
    some = table.filter((pl.col("rank") == 1000) & (pl.col("step") == 1234))["own_ns"][0]
    assert values[ranks - 1 - 1000, 1234 - 50] == some


def test_ranks_that_never_meet_are_ordered_by_their_own_time(tmp_path):
    from tests.support.gpu_trace import GpuTrace, ms, us

    from stepscope.fleet.job import read_job
    from stepscope.trace.paths import resolve_traces

    for rank, late in enumerate((1, 5, 3)):
        t = GpuTrace(rank=rank, world_size=3, device=rank)
        for _ in range(2):
            with t.step():
                t.python(ms(late))
                t.op("aten::mm").launch("sgemm", us(100))
                t.sync()
        (tmp_path / f"rank{rank}.json").write_bytes(t.json())
    job = read_job(resolve_traces((str(tmp_path),)))
    found = JobRanks.of(job)
    assert found.order == tuple(rank_map(job).ranks["rank"]) == (1, 2, 0)
    assert found.about({})["ranks"][0]["caused_wait_ns"] in {None, 0}


def test_files_given_one_by_one_are_the_ranks_of_one_run(job, viewer):
    files = sorted(job.iterdir())
    with viewing([str(file) for file in files]) as client:
        listed = client.get("/api/traces")["traces"]
        assert [one["rank"] for one in listed] == [0, 1, 2, 3]
        until = time.monotonic() + PATIENCE_S
        while (status := client.post("/api/traces/{}/ranks/open", {}).json)["stage"] != "ready":
            assert status["stage"] != "failed", status
            assert time.monotonic() < until
            time.sleep(0.02)
        mine, whole = (one.get("/api/traces/{}/ranks") for one in (client, viewer))
    assert mine["verdict"] == whole["verdict"]
    assert mine["ranks"] == whole["ranks"]


def test_unrelated_files_are_no_run(tmp_path):
    for name in ("before.json", "after.json"):
        (tmp_path / name).write_bytes(training().json())
    with viewing([tmp_path / "before.json", tmp_path / "after.json"]) as client:
        assert [one["title"] for one in client.get("/api/traces")["traces"]] == [
            "before.json",
            "after.json",
        ]
        assert client.get("/api/traces/{}/overview")["ranks"] == 1


def test_a_map_of_some_of_the_ranks_says_of_how_many(job, tmp_path):
    whole = JobRanks.of(read_job(resolve_traces((str(job),))))
    traces = sorted(job.iterdir())
    some = JobRanks.of(read_job(resolve_traces(tuple(map(str, traces[:-1])))))
    assert whole.about({})["world_size"] == len(whole.order)
    assert some.about({})["world_size"] == len(some.order) + 1
