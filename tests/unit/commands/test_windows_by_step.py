"""A run of several windows: each verb takes the one that has the steps asked for."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, us

from stepscope.commands import compare, report, show
from stepscope.errors import UsageError
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import (
    ArtifactRecord,
    JobRecord,
    RankManifest,
    WindowRecord,
    write_record,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Windows of steps 10 to 12, with short kernels, and 20 to 22, with long ones."""
    layout = RunLayout(tmp_path_factory.mktemp("windows") / "run")
    write_record(layout.run_file, JobRecord("run", 1_700_000_000_000_000_000, world_size=1))
    rank = layout.rank(0)
    windows = []
    for index, (first, length) in enumerate(((10, us(100)), (20, us(500)))):
        t = GpuTrace(first_step=first)
        for _ in range(3):
            with t.step():
                t.op("aten::mm").launch("sgemm", length)
                t.sync()
        path = rank.window(index) / "trace.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(t.json())
        relative = path.relative_to(rank.root).as_posix()
        windows.append(
            WindowRecord(index, "complete", artifacts=(ArtifactRecord("trace", relative),))
        )
    manifest = RankManifest(0, world_size=1, state="finished", ended="", windows=tuple(windows))
    write_record(rank.manifest, manifest)
    return str(layout.root)


def asked(module, *words):
    result = CliRunner().invoke(module.command, [*words, "--format", "json"], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("words", "steps", "compute_ns"),
    [
        ([], [20, 21, 22], us(1_500)),
        (["--steps", "11"], [11], us(100)),
        (["--steps", "10-12"], [10, 11, 12], us(300)),
        (["--steps", "21-22"], [21, 22], us(1_000)),
    ],
)
def test_the_window_with_the_steps_is_taken(run, words, steps, compute_ns):
    document = asked(report, run, *words)["ranks"][0]["trace"]
    assert document["scope"]["steps"] == steps
    parts = {part["name"]: part["total_ns"] for part in document["partition"]["parts"]}
    assert parts["compute"] == compute_ns
    shown = asked(show, "timeline", run, *words)
    assert [row["step"] for row in shown["steps"]] == steps
    assert shown["compute_ns"] == compute_ns
    both = asked(compare, run, run, *words)
    assert both["a"]["scope"]["steps"] == steps
    kernel = next(row for row in both["changes"] if row["table"] == "kernel")
    assert kernel["a_ns"] == kernel["b_ns"] == compute_ns / len(steps)


@pytest.mark.parametrize("steps", ["12,20", "99"])
def test_steps_that_no_window_has(run, steps):
    for module, words in ((report, [run]), (show, ["timeline", run]), (compare, [run, run])):
        with pytest.raises(UsageError, match="no step"):
            asked(module, *words, "--steps", steps)
