"""Pictures of answers say what their tables say."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, us
from tests.support.page_data import blocks_of, data_of
from tests.support.rank_jobs import rank_of_job
from tests.support.transformer_memory import transformer_memory
from tests.support.viewer import training

from stepscope.analysis.questions import question
from stepscope.commands.main import cli
from stepscope.fleet.job import read_job
from stepscope.fleet.stragglers import stragglers_of_job
from stepscope.report.pictures import pictures_of, rank_pictures
from stepscope.trace.load import load
from stepscope.trace.paths import resolve_traces


def run(*arguments):
    done = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    path.write_bytes(training().json())
    return load(str(path))


def drawn(name, trace):
    result = question(name).ask(trace)
    return result, [one.drawn for one in pictures_of(name, result)]


def test_each_kernel_is_a_point_and_the_costliest_lies_on_the_uppermost_line(trace):
    result, (picture,) = drawn("kernels", trace)
    points = picture["points"]
    assert [one["name"] for one in points] == result.kernels["name"].to_list()
    assert "communication" in {one["kind"] for one in points}
    for one, row in zip(points, result.kernels.iter_rows(named=True), strict=True):
        assert (one["x"], one["y"], one["weight"]) == (
            row["count"], row["mean_ns"], row["total_ns"],
        )  # fmt: skip
    most = max(result.kernels["total_ns"])
    assert picture["lines"][0]["at"][0] == [1, most]


def test_savings_are_hatched_up_to_today_s_step(trace):
    result, (picture,) = drawn("what-if", trace)
    today, *others = picture["rows"]
    assert today["to"] == result.step_ns
    saving = dict(zip(result.causes["step_ns"], result.causes["saving_ns"], strict=True))
    for one in others:
        assert one["gone"] == result.step_ns
        assert one["gone"] - one["to"] == saving[one["to"]] > 0


def test_the_causes_of_the_path_follow_each_other_and_add_up_to_the_step(trace):
    result, (picture,) = drawn("critical-path", trace)
    at = 0
    for one in picture["rows"]:
        assert one["from"] == pytest.approx(at)
        at = one["to"]
    assert at == pytest.approx(result.total_ns / result.partition.steps)


def test_the_peak_of_memory_is_in_its_curve_and_its_parts_add_up_to_it(trace):
    result, pictures = drawn("memory", trace)
    curve = pictures[0]
    peak = result.devices["peak_allocated_bytes"].max()
    assert curve["peak"][1] == max(curve["allocated"]) == peak
    column = (curve["peak"][0] - curve["start"]) // curve["step"]
    assert curve["allocated"][min(column, len(curve["allocated"]) - 1)] == peak


def test_a_curve_goes_on_with_what_is_held_after_a_moment_with_more():
    devices = pl.DataFrame(
        {
            "kind": ["gpu"],
            "device": [0],
            "peak_time_ns": [1],
            "peak_allocated_bytes": [9],
            "peak_reserved_bytes": [0],
        }
    )
    curve = pl.DataFrame(
        {
            "kind": ["gpu"] * 4,
            "device": [0] * 4,
            "time_ns": [0, 1, 2, 5000],
            "allocated_bytes": [4, 9, 4, 5],
            "reserved_bytes": pl.Series([None] * 4, dtype=pl.Int64),
        }
    )
    held = pl.DataFrame(
        schema={
            "kind": pl.String,
            "device": pl.Int64,
            "operator": pl.String,
            "inner_operator": pl.String,
            "frame": pl.String,
            "live_bytes": pl.Int64,
            "allocations": pl.Int64,
        }
    )
    result = type("Memory", (), {"devices": devices, "timeline": curve, "at_peak": held})()
    (figure,) = pictures_of("memory", result)
    allocated = figure.drawn["allocated"]
    assert figure.drawn["reserved"] is None
    assert (allocated[0], set(allocated[1:-1]), allocated[-1]) == (9, {4}, 5)


def test_a_roofline_has_a_roof_for_each_type_and_device_that_is_known():
    operators = pl.DataFrame(
        {
            "name": ["aten::mm", "aten::add"],
            "dims": ["[[8,8],[8,8]]", "[]"],
            "type": ["float16"] * 2,
            "device": [0, 0],
            "count": [3, 1],
            "busy_ns": [3000, 500],
            "teraflops_per_s": [100.0, 0.0],
            "flops_per_byte": [50.0, 0.1],
            "bound": ["compute", "memory"],
            "attained_share": [0.5, None],
        }
    )
    ceilings = pl.DataFrame(
        {"device": [0], "type": ["float16"], "peak": [200e12], "bandwidth": [2e12]}
    )
    result = type("Report", (), {"operators": operators, "ceilings": ceilings})()
    (figure,) = pictures_of("flops", result)
    (point,) = figure.drawn["points"]  # one without a speed is no point
    assert (point["x"], point["y"]) == (50.0, 100e12)
    (roof,) = figure.drawn["lines"]
    (left, ridge, right) = roof["at"]
    assert ridge == [100.0, 200e12]
    assert left[1] == pytest.approx(left[0] * 2e12)
    assert right[1] == 200e12


def test_ranks_stand_in_the_order_in_which_they_came_the_last_first(tmp_path):
    delays = (0.0, 3.0, 1.0)
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_bytes(rank_of_job(rank, delays, steps=3).json())
    out = run("show", "stragglers", tmp_path, "--format", "json")
    answer = json.loads(out.stdout)
    (figure,) = rank_pictures(pl.DataFrame(answer["arrivals"]), pl.DataFrame(answer["sets"]), None)
    rows = figure.drawn["rows"]
    assert rows[0]["rank"] == 1
    assert rows[0]["words"] == "comes last"
    assert [one["from"] for one in rows] == sorted((one["from"] for one in rows), reverse=True)
    worst = max(one["total_wait_ns"] for one in answer["sets"])
    assert sum(one["gone"] - one["from"] for one in rows) == worst
    sets = pl.DataFrame(answer["sets"])
    unknown = sets.with_columns(message_bytes=pl.lit(None, pl.Int64))
    (figure,) = rank_pictures(pl.DataFrame(answer["arrivals"]), unknown, None)
    assert figure.drawn["title"].endswith(("of step 0", "of step 1", "of step 2"))


def test_a_report_s_page_draws_how_the_ranks_meet_as_the_question_does(tmp_path):
    traces = tmp_path / "job"
    traces.mkdir()
    for rank in range(4):
        trace = rank_of_job(rank, (0.0, 3.0, 1.0, 0.5), steps=3)
        (traces / f"rank{rank}.json").write_bytes(trace.json())
    run("report", traces, "-o", tmp_path / "page.html")
    sections = data_of((tmp_path / "page.html").read_text())["sections"]
    ranks = next(one for one in sections if one["id"] == "ranks")
    arrivals, lanes = (one for one in ranks["blocks"] if one["is"] in ("bars", "lanes"))
    found = stragglers_of_job(read_job(resolve_traces((str(traces),))))
    expected = json.loads(json.dumps([one.drawn for one in pictures_of("stragglers", found)]))
    assert [arrivals, lanes] == expected
    assert [one["rank"] for one in lanes["lanes"]] == [found.straggler, 0, 2, 3]


def test_who_sends_to_whom_is_a_matrix_of_bytes():
    collectives = pl.DataFrame(
        {
            "message_bytes": [100, 50, 7],
            "bus_bandwidth_gb_per_s": [None] * 3,
            "dur_ns": [1, 2, 3],
            "from_rank": [0, 0, 1],
            "to_rank": [1, 1, 0],
        },
        schema_overrides={"bus_bandwidth_gb_per_s": pl.Float64},
    )  # fmt: skip
    result = type("Answer", (), {"collectives": collectives})()
    (figure,) = pictures_of("communication", result)
    assert [one[:3] for one in figure.drawn["cells"]] == [[0, 1, 150], [1, 0, 7]]


def test_a_page_of_an_answer_has_its_pictures_and_moments_from_the_first_event_on(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(training().json())
    page = tmp_path / "answer.html"
    run("show", "kernels", path, "-o", page)
    text = page.read_text("utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    (section,) = data["sections"]
    kinds = [one["is"] for one in section["blocks"]]
    assert kinds[0] == "scatter"
    assert "table" in kinds


def test_an_answer_with_nothing_in_it_has_no_picture(tmp_path):
    t = GpuTrace()
    with t.step():
        t.python(us(100))
    path = tmp_path / "trace.json"
    path.write_bytes(t.json())
    loaded = load(str(path))
    for name in ("kernels", "flops", "communication", "memory"):
        assert drawn(name, loaded)[1] == []


def test_modules_beside_each_other_have_bars_that_add_up():
    t = GpuTrace()
    with t.step(), t.frame("nn.Module: Net_0"):
        for layer, length in ((0, us(300)), (1, us(100))):
            with t.frame(f"nn.Module: Layer_{layer}"):
                t.op("aten::mm").launch("gemm", length)
        t.sync()
    _, (picture,) = drawn("modules", t.load())
    assert [(one["name"], one["to"]) for one in picture["rows"]] == [
        ("Layer_0", us(300)),
        ("Layer_1", us(100)),
    ]
    assert picture["title"] == "GPU time by module: forward"
    for one in picture["rows"]:
        assert sum(ns for ns, _ in one["pieces"]) == one["to"]


def test_a_held_module_has_a_bar(tmp_path):
    path = tmp_path / "memory.pickle"
    path.write_bytes(transformer_memory())
    done = run("memory", path, "peak", "--format", "html")
    (picture,) = blocks_of(data_of(done.output), "bars")
    assert picture["title"] == "Memory by module"
    assert all(one["to"] > 0 for one in picture["rows"])
