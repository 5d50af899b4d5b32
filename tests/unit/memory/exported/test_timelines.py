"""Memory timelines as torch exports them: read to the byte, and refused where damaged."""

from __future__ import annotations

import json

import polars as pl
import pytest
import torch
from click.testing import CliRunner
from tests.support.page_data import blocks_of, data_of
from tests.support.snapshots import plain_training

from stepscope.artifacts.memory_timeline import MemoryTimeline, write_html, write_json
from stepscope.commands import memory, show
from stepscope.errors import StepscopeError, UnreadableInputError, UsageError
from stepscope.memory import exported as reading
from stepscope.memory.exported import CATEGORIES, read_timelines, table_of
from stepscope.memory.recognition import is_timeline_file
from stepscope.trace.load import load

TORCH = "ignore:.*export_memory_timeline.*:FutureWarning"


def asked(*words, verb=memory):
    result = CliRunner().invoke(verb.command, [str(word) for word in words])
    if isinstance(result.exception, StepscopeError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """One training on the CPU, as torch exports it in both forms."""
    folder = tmp_path_factory.mktemp("timelines")
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 2))
    optimizer = torch.optim.Adam(model.parameters())
    recorder = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        profile_memory=True,
        record_shapes=True,
        with_stack=True,
    )
    with recorder:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(64, 300)).sum().backward()
            optimizer.step()
    for name in ("plain.json", "raw.raw.json.gz"):
        recorder.export_memory_timeline(str(folder / name), device="cpu")
    actions = [action.name for _, action, _, _ in recorder._memory_profile().timeline]
    made = actions.count("CREATE") + actions.count("PREEXISTING")
    (folder / "made").write_text(str(made))
    return folder


@pytest.mark.filterwarnings(TORCH)
def test_torchs_own_forms_are_read_to_the_byte(exported):
    times, sizes = json.loads((exported / "plain.json").read_text())
    totals = [sum(row) for row in sizes]
    peak = max(totals)
    found = json.loads(asked(exported / "plain.json", "--format", "json"))
    assert found["peak_allocated_bytes"] == peak
    assert found["allocated_bytes"] == totals[-1]
    assert found["span_ns"] == (times[-1] - times[0]) * 1000
    at_peak = sizes[totals.index(peak)]
    expected = {name: at_peak[k + 1] for k, name in enumerate(CATEGORIES) if at_peak[k + 1]}
    assert {r["category"]: r["allocated_bytes"] for r in found["categories"]} == expected
    assert expected["parameter"] >= 4 * (300 * 300 + 300 + 300 * 2 + 2)
    for name in ("allocations", "reserved_bytes", "replay_mismatches"):
        assert found[name] is None
    assert "record a snapshot" in found["notes"][0]


@pytest.mark.filterwarnings(TORCH)
def test_both_forms_of_torch_say_the_same(exported):
    (plain,) = read_timelines(str(exported / "plain.json"))
    (raw,) = read_timelines(str(exported / "raw.raw.json.gz"))
    assert str(raw.allocations) == (exported / "made").read_text()
    one = table_of(plain)
    # torch cuts the times of its shorter form to microseconds, by way of floats.
    cut = [int(time_ns / 1000) * 1000 for time_ns in table_of(raw)["time_ns"]]
    other = table_of(raw).with_columns(time_ns=pl.Series(cut))
    other = other.group_by("time_ns", maintain_order=True).last()
    assert one.rows() == other.rows()
    assert len(one) > 20


@pytest.mark.filterwarnings(TORCH)
@pytest.mark.parametrize("question", ["overview", "peak", "timeline"])
def test_every_output_and_show(exported, question):
    path = exported / "raw.raw.json.gz"
    text = asked(path, question)
    assert "torch's raw memory timeline" in text
    assert "Held at the peak, by category" in text
    assert asked(f"memory-{question}", path, verb=show).split("\n")[0] == text.split("\n")[0]
    if question == "overview":
        for output in ("md", "html", "csv"):
            assert "parameter" in asked(path, question, "--format", output)
        assert asked("memory", path, "--format", "csv", verb=show) == asked(path, "--format", "csv")


@pytest.mark.filterwarnings(TORCH)
def test_questions_without_an_answer_say_what_to_record(exported):
    with pytest.raises(UsageError, match="no answer to 'growth', only to overview, peak, timeline"):
        asked(exported / "plain.json", "growth")
    with pytest.raises(UsageError, match="does not say of which device"):
        asked(exported / "plain.json", "--device", "0")
    with pytest.raises(UnreadableInputError, match="a memory timeline, not a trace"):
        load(exported / "plain.json")


def own(path):
    timelines = [
        MemoryTimeline("cpu", [5, 9], [10, 30], [0, 0], {"forward": [10, 30]}, 2),
        MemoryTimeline("gpu 1", [5, 9, 11], [50, 80, 60], [100, 100, 90],
                       {"forward": [30, 60, 40], "backward": [20, 20, 20]}, 7),
    ]  # fmt: skip
    write_json(timelines, path)
    write_html(timelines, {}, path.with_suffix(".html"))
    return path


def test_a_runs_own_timeline_has_reserved_bytes_and_devices(tmp_path):
    path = own(tmp_path / "memory_timeline.json")
    for place in (path, path.with_suffix(".html")):  # the page has the JSON beside it
        found = json.loads(asked(place, "--format", "json"))
        assert (found["device"], found["peak_allocated_bytes"]) == ("gpu 1", 80)
        assert found["reserved_bytes"] == 100
        assert [row["category"] for row in found["categories"]] == ["forward", "backward"]
        assert any("cpu" in note for note in found["notes"])
    assert json.loads(asked(path, "--device", "1", "--format", "json"))["device"] == "gpu 1"
    with pytest.raises(UsageError, match="nothing of device 3; it has cpu, gpu 1"):
        asked(path, "--device", "3")


def drawn(path):
    (block,) = blocks_of(data_of(asked(path, "--format", "html")), "memory")
    return block


@pytest.mark.filterwarnings(TORCH)
def test_the_page_draws_the_timeline_by_category(exported):
    _, sizes = json.loads((exported / "plain.json").read_text())
    block = drawn(exported / "plain.json")
    totals = [sum(row) for row in sizes]
    assert max(block["allocated"]) == block["peak"][1] == max(totals)
    sums = [sum(one) for one in zip(*(band["bytes"] for band in block["bands"]), strict=True)]
    assert sums == block["allocated"]
    assert block["reserved"] is None


def test_the_page_of_a_runs_own_timeline_has_phases_and_what_was_reserved(tmp_path):
    block = drawn(own(tmp_path / "memory_timeline.json"))
    assert block["peak"] == [4, 80]
    assert [band["name"] for band in block["bands"]] == ["forward", "backward"]
    assert (max(block["reserved"]), block["reserved"][-1]) == (100, 90)


def test_a_category_below_nothing_is_not_stacked(tmp_path):
    path = tmp_path / "x"
    path.write_text("[[1000, 1, 100, 0], [2000, 1, 50, 4], [3000, 2, -80, 4], [4000, 1, 9, 0]]")
    block = drawn(path)
    assert min(one for band in read_timelines(str(path))[0].parts.values() for one in band) < 0
    assert block["bands"] == [{"name": "allocated", "bytes": block["allocated"]}]


def test_a_page_alone_has_only_a_picture(tmp_path):
    page = tmp_path / "timeline.html"
    page.write_text(
        '<html>\n<head><meta charset="utf-8" /><title>GPU Memory Timeline HTML</title></head>\n'
        "<body>\n  <img src='data:image/png;base64,AAAA'>\n</body>\n</html>"
    )
    with pytest.raises(UnreadableInputError, match="only a picture: give the JSON"):
        asked(page)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[1, 2], [[0,1,2,3,4,5,6,7,8]]]", "sizes for 2 times"),
        ("[[1], [[0,1,2]]]", "1 × 3 sizes"),
        ("[[1], [[0,1,2,3,4,5,6,7,1.5]]]", "other than whole numbers"),
        ('[[1, 1, 5, 0], [2, 1, "x", 0]]', "other than whole numbers"),
        ("[[1, 1, 5, 0], [2, 1, 7, 9]]", "none of torch's"),
        ("[[1, 1, 5, 0], [2, 1]]", "damaged"),
        ("[[1, 1, 5, 0], [2, 1, 99999999999999999999, 0]]", "other than whole numbers"),
        ("[[1, 1, 5, 0], [2, 1", "damaged"),
        ("[[], []]", "empty"),
        ('{"format": "stepscope-memory-timeline", "devices": [{"device": "cpu"}]}', "damaged"),
        ('{"format": "stepscope-memory-timeline", "devices": []}', "empty"),
    ],
)
def test_damaged_timelines_are_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "x"
    path.write_text(content)
    with pytest.raises(UnreadableInputError, match=message) as refused:
        read_timelines(str(path))
    assert "\n" not in str(refused.value)


def test_a_timeline_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_MOST_BYTES", 100)
    path = tmp_path / "x"
    path.write_text("[" + ", ".join(["[1, 1, 5, 0]"] * 10) + "]")
    with pytest.raises(UnreadableInputError, match="larger than any memory timeline"):
        read_timelines(str(path))


def test_other_files_are_no_timelines(tmp_path):
    path = tmp_path / "x"
    for content in (
        json.dumps(plain_training()), '[{"ph": "X"}]', "[[0.5, 1], [2, 3]]", "[1, 2]", "",
        "[[[1]]]", '[["a", 1]]', "<html></html>",
    ):  # fmt: skip
        path.write_text(content)
        assert not is_timeline_file(str(path)), content


def test_changes_before_the_recording_begin_with_it(tmp_path):
    path = tmp_path / "x"
    path.write_text("[[-1, 1, 100, 0], [7000, 2, 50, 4], [9000, 4, -50, 4], [9000, 3, -10, 0]]")
    (found,) = read_timelines(str(path))
    assert found.allocations == 2
    assert table_of(found).rows(named=True) == [
        {"time_ns": 7000, "allocated_bytes": 150, "parameter_bytes": 100, "activation_bytes": 50},
        {"time_ns": 9000, "allocated_bytes": 90, "parameter_bytes": 90, "activation_bytes": 0},
    ]
