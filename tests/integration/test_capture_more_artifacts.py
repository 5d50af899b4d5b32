"""Further artifacts of a window: memory over time, TensorBoard."""

from __future__ import annotations

import gc
import gzip
import json
import re
import warnings

import pytest
import torch
from tests.support.runs import manifest_of, rank_directory
from tests.support.training import SmallTraining, bare_losses, batches

import stepscope
from stepscope import open_run
from stepscope.artifacts.calls import gather
from stepscope.artifacts.job import TORCH_TIMELINE, RawTrace
from stepscope.artifacts.memory_timeline import BEFORE, _axes, memory_timelines
from stepscope.run.figures import binary_size

CATEGORIES = (
    "parameter", "optimizer_state", "input", "temporary", "activation", "gradient",
    "autograd_detail", "unknown",
)  # fmt: skip
"""In the order of torch's numbers."""
QUICK = {"wait": 1, "warmup": 1, "active": 2, "repeat": 1, "activities": "cpu"}


def train(output, steps=6, **options):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=output, **{**QUICK, **options}) as profiler:
        for batch in batches(steps):
            with profiler.phase("forward and more"):
                training.step(batch)
            profiler.step()
    assert training.losses == bare_losses(steps)
    return manifest_of(output).windows[0]


def artifacts_of(window, kind):
    return [item for item in window.artifacts if item.kind == kind]


def test_memory_over_time_is_drawn_from_the_trace(tmp_path):
    window = train(tmp_path, memory_timeline="trace")
    directory = rank_directory(tmp_path)
    page = (directory / artifacts_of(window, "memory_timeline")[0].path).read_text()
    assert "<svg" in page
    assert "<script" not in page
    assert "<h2>cpu: peak " in page
    assert "forward and more" in page


def test_the_timeline_follows_the_allocators_own_total(tmp_path):
    activities = [torch.profiler.ProfilerActivity.CPU]
    kept = []
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        for number in range(50):
            with torch.profiler.record_function(f"phase {number % 12}"):
                kept.append(torch.ones(1000 + number))
                if number % 3 == 0:
                    kept.pop(0)
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    window = gather(RawTrace(tmp_path / "t.json").events(), {})
    (timeline,) = memory_timelines(window)
    assert timeline.changes == len(window.memory)
    totals = [change.allocated_bytes for change in sorted(window.memory, key=lambda c: c.time_ns)]
    assert timeline.allocated_bytes == totals
    assert len(timeline.parts) <= 9
    assert sum(values[-1] for values in timeline.parts.values()) == totals[-1]
    assert timeline.parts[BEFORE][0] == totals[0] - window.memory[0].bytes


def test_torchs_own_timeline_is_drawn_by_its_categories(tmp_path, monkeypatch):
    """What is drawn, and what stands beside it, is what torch finds on the same run."""
    exports = []
    export = torch.profiler.profile.export_memory_timeline

    def keep(profiler, path, device=None):
        own = tmp_path / "own.json"
        export(profiler, str(own), device=device)
        exports.append(json.loads(own.read_text()))
        return export(profiler, path, device=device)

    monkeypatch.setattr(torch.profiler.profile, "export_memory_timeline", keep)
    window = train(tmp_path / "run", memory_timeline="torch")
    (page,) = artifacts_of(window, "memory_timeline")
    assert not page.problem
    path = rank_directory(tmp_path / "run") / page.path
    assert path.name == "memory_timeline.html"
    ((_, sizes),) = exports
    _, beside = json.loads(gzip.decompress(path.with_name(TORCH_TIMELINE).read_bytes()))
    assert beside == sizes
    most = {name: max(row[place + 1] for row in sizes) for place, name in enumerate(CATEGORIES)}
    peaks = {name: size for name, size in most.items() if size}
    assert {"parameter", "gradient", "activation", "input"} <= set(peaks)
    drawn = path.read_text()
    for name, most in peaks.items():
        shown = name.replace("_", " ").capitalize()
        assert f"<title>{shown}: at most {binary_size(most)}</title>" in drawn
    fullest = max(sizes, key=sum)
    at_peak = {name: fullest[place + 1] for place, name in enumerate(CATEGORIES)}
    rows = re.findall(r"<tr><td>([^<]+)</td><td>([^<]+)</td><td>([^<]+)</td></tr>", drawn)
    assert rows == [
        *(
            (name.replace("_", " ").capitalize(), *map(binary_size, (at_peak[name], most)))
            for name, most in peaks.items()
        ),
        ("all", *[binary_size(sum(fullest))] * 2),
    ]
    assert window.state == "complete"


@pytest.mark.parametrize("scale", [1, 37, 1000, 123_457, 10**9, 3 * 10**12])
def test_axes_have_few_round_numbers_that_lie_within_the_picture(scale):
    for number in range(1, 40):
        lines, words = _axes(number * scale, number * scale)
        labels = re.findall(r'class="([xy])" style="\w+:([\d.]+)%">([^<]+)<', words)
        for axis in "xy":
            mine = [(float(place), text) for which, place, text in labels if which == axis]
            assert 2 <= len(mine) <= 9 or number * scale < 3
            assert mine[0] == (0, "0")
            assert all(0 <= place <= 100 for place, _ in mine)
            assert len({text for _, text in mine}) == len(mine)
        assert lines.count("<line") == sum(which == "y" for which, _, _ in labels)


def test_torchs_own_timeline_survives_garbage_collection(tmp_path):
    """Torch's reader of its events knows no pause of Python's collector."""
    training, done = SmallTraining(), []
    handler = {"on_trace_ready": lambda profiler: done.append(own_timeline(profiler, tmp_path))}
    for name, asked in (("option", {"memory_timeline": "torch"}), ("handler", handler)):
        options = {**QUICK, **asked, "with_stack": True, "record_shapes": True}
        with stepscope.Profiler(
            output_dir=tmp_path / name, **options, profile_memory=True
        ) as profiler:
            for batch in batches(6):
                training.step(batch)
                gc.collect()
                profiler.step()
        (window,) = manifest_of(tmp_path / name).windows
        assert not [item.problem for item in window.artifacts if item.problem]
    assert artifacts_of(manifest_of(tmp_path / "option").windows[0], "memory_timeline_torch")
    assert done == [True]


def own_timeline(profiler, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it deprecated
        profiler.export_memory_timeline(str(folder / "own.json"), device="cpu")
    return (folder / "own.json").is_file()


def test_where_torchs_own_timeline_fails_phases_are_drawn(tmp_path, monkeypatch):
    def fail(*_, **more):
        raise AssertionError("no such tensor" + " {id=7}" * 1000)  # torch lists all of them

    monkeypatch.setattr(torch.profiler.profile, "export_memory_timeline", fail)
    window = train(tmp_path, memory_timeline="torch")
    (failed,) = artifacts_of(window, "memory_timeline_torch")
    assert failed.problem.startswith(
        "memory is drawn by phase, as torch found no categories: AssertionError: no such tensor {"
    )
    assert len(failed.problem) < 200
    assert not (rank_directory(tmp_path) / failed.path).exists()
    (page,) = artifacts_of(window, "memory_timeline")
    assert BEFORE in (rank_directory(tmp_path) / page.path).read_text()
    assert window.state == "complete"


def test_tensorboard_finds_a_copy_that_names_the_rank(tmp_path):
    window = train(tmp_path / "runs", tensorboard_dir=tmp_path / "board")
    (path,) = (tmp_path / "board").iterdir()
    assert path.name.startswith("rank0_")
    assert path.name.endswith(".pt.trace.json.gz")
    assert artifacts_of(window, "tensorboard")[0].bytes == path.stat().st_size
    (found,) = open_run(tmp_path / "board").windows
    assert found.rank == 0


def test_a_format_that_needs_no_compression_is_read_all_the_same(tmp_path):
    window = train(tmp_path, trace_format="json")
    path = open_run(tmp_path).windows[0].trace_path
    assert path.name == "trace.json"
    assert json.loads(path.read_bytes())["traceEvents"]
    assert window.state == "complete"
