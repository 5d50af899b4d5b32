"""The guide of fsdp-qlora: its command line, its four artifacts, its schedule."""

from __future__ import annotations

import gzip
import json
import re

import pytest
from tests.support.guides import run_inline, run_script
from tests.support.runs import manifest_of, steps_in_trace

SCRIPT = """
    import argparse

    from tests.support.training import SmallTraining, batches

    import stepscope

    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name")
    parser.add_argument("--train_type")
    parser.add_argument("--max_steps", type=int, default=-1)
    stepscope.add_arguments(parser, dialect="fsdp-qlora")
    args = parser.parse_args()
    training = SmallTraining()
    with stepscope.Profiler.from_args(args) as profiler:
        for number, batch in enumerate(profiler.watch(batches(100))):
            if number == args.max_steps:
                break
            training.step(batch)
    print("batches", len(training.losses))
"""
MODEL = ["--model_name", "meta-llama/Llama-2-7b-hf", "--train_type", "qlora"]
FOLDER = "profiling_outputs/Llama-2-7b-hf_qlora-0"
STEM = "Llama-2-7b-hf-qlora"


def test_the_guides_command_leaves_its_four_artifacts(tmp_path):
    flags = [*MODEL, "--profile", "true", "--export_trace", "true"]
    flags += ["--export_memory_timeline", "true", "--max_steps", "10"]
    result = run_script(tmp_path, SCRIPT, flags)
    assert result.returncode == 0, result.stderr
    assert "batches 10" in result.stdout
    lines = result.stderr.splitlines()
    assert "stepscope: window 0: warming up to record step 9" in lines
    assert "stepscope: recorded the times of 10 steps and 1 window: step 9" in lines
    (saved,) = (at for at, line in enumerate(lines) if "window 0: saved step 9, " in line)
    assert re.search(r", \d+\.\d kB, training paused for [\d.]+ m?s:$", lines[saved])
    told = {line.removeprefix("stepscope:   ") for line in lines[saved + 1 : saved + 5]}
    assert told == {f"{FOLDER}/{path.name}" for path in (tmp_path / FOLDER).iterdir()}
    folder = tmp_path / FOLDER
    assert {path.name for path in folder.iterdir()} == {
        f"{STEM}-chrome-trace.json.gz",
        f"{STEM}-key_averages.txt",
        f"{STEM}-memory-timeline.html",
        f"{STEM}-stacks.txt",
    }
    trace = folder / f"{STEM}-chrome-trace.json.gz"
    # Wait for 7, warm up for 2, record 1: of ten steps the last.
    assert steps_in_trace(trace) == [9]
    document = json.loads(gzip.decompress(trace.read_bytes()))
    shapes = [event for event in document["traceEvents"] if "Input Dims" in event.get("args", {})]
    assert shapes
    table = (folder / f"{STEM}-key_averages.txt").read_text()
    assert table.startswith("sorted by ")
    assert "aten::mm" in table
    # One row per shape and line, as the guide prints its table.
    head = next(line for line in table.splitlines() if line.startswith("Name "))
    assert head.split()[-3:] == ["Input", "shapes", "Source"]
    rows = [line for line in table.splitlines() if line.startswith("aten::mm ")]
    shapes = {re.search(r"\[8, 16\], \[16, 32\]|\[8, 32\], \[32, 4\]", line) for line in rows}
    assert len(rows) == 5  # two products forward, three backward
    assert {found[0] for found in shapes if found} == {"[8, 16], [16, 32]", "[8, 32], [32, 4]"}
    assert all("training.py(" in line and "): step" in line for line in rows)
    stacks = (folder / f"{STEM}-stacks.txt").read_text().splitlines()
    assert all(re.fullmatch(r".+ \d+", line) for line in stacks)
    assert any("training.py" in line and "aten::mm" in line for line in stacks)
    page = (folder / f"{STEM}-memory-timeline.html").read_text()
    assert {f"</i>{name}</span>" in page for name in ("Parameter", "Gradient", "Activation")} == {
        True
    }
    manifest = manifest_of(tmp_path / "profiling_outputs")
    assert manifest.step_unit == "micro-batch"
    assert manifest.state == "finished"


@pytest.mark.parametrize(
    ("flags", "batches", "recorded"),
    [
        pytest.param(["--max_steps", "30"], 30, [[9], [19], [29]], id="cycles of ten for ever"),
        pytest.param(
            ["--wait_steps", "1", "--warmup_steps", "1", "--active_steps", "1", "--repeat", "1"],
            100,
            [[2]],
            id="the guide's first way",
        ),
        pytest.param(["--max_steps", "3"], 10, [[9]], id="too short for a window"),
    ],
)
def test_the_guides_schedules(monkeypatch, capsys, tmp_path, flags, batches, recorded):
    run_inline(monkeypatch, tmp_path, SCRIPT, [*MODEL, "--profile", "true", *flags])
    assert f"batches {batches}" in capsys.readouterr().out
    manifest = manifest_of(tmp_path / "profiling_outputs")
    found = [
        list(range(window.first_step, window.last_step + 1))
        for window in manifest.windows
        if window.state == "complete"
    ]
    assert found == recorded
    assert (tmp_path / FOLDER / f"{STEM}-chrome-trace.json.gz").exists()
    assert not (tmp_path / FOLDER / f"{STEM}-stacks.txt").exists()


EPOCHS = SCRIPT.replace(
    "for number, batch in enumerate(profiler.watch(batches(100))):",
    "for batch in (b for _ in range(2) for b in profiler.watch(batches(100))):",
).replace(
    """            if number == args.max_steps:
                break
""",
    "",
)


@pytest.mark.parametrize(
    ("flags", "batches"),
    [
        pytest.param(["--profile", "true", "--max_steps", "12"], 24, id="profiled"),
        pytest.param(["--max_steps", "12"], 24, id="not profiled"),
        pytest.param(["--max_steps", "3"], 6, id="not profiled, and not raised"),
        pytest.param(["--profile", "false", "--max_steps", "3"], 6, id="switched off"),
        pytest.param(["--profile", "true", "--max_steps", "3"], 20, id="raised to one window"),
        pytest.param(["--profile", "true"], 200, id="no limit"),
    ],
)
def test_max_steps_limits_each_epoch(monkeypatch, capsys, tmp_path, flags, batches):
    run_inline(monkeypatch, tmp_path, EPOCHS, [*MODEL, *flags])
    printed = capsys.readouterr()
    assert f"batches {batches}\n" in printed.out
    assert ("true" in flags) == ("stepscope:" in printed.err)


def test_files_of_an_earlier_recording_are_not_left_beside_new_ones(monkeypatch, capsys, tmp_path):
    wanted = ["--wait_steps", "0", "--warmup_steps", "1", "--repeat", "2", "--max_steps", "4"]
    run_inline(
        monkeypatch,
        tmp_path,
        SCRIPT,
        [*MODEL, "--profile", "true", "--with_stack", "true", *wanted],
    )
    before = (tmp_path / FOLDER / f"{STEM}-stacks.txt").read_text()
    assert "earlier" not in capsys.readouterr().err
    run_inline(monkeypatch, tmp_path, SCRIPT, [*MODEL, "--profile", "true", *wanted])
    assert f"moved to {FOLDER}/earlier/" in capsys.readouterr().err
    left = {path.name for path in (tmp_path / FOLDER).iterdir() if path.is_file()}
    assert left == {f"{STEM}-chrome-trace.json.gz", f"{STEM}-key_averages.txt"}
    (earlier,) = (tmp_path / FOLDER / "earlier").iterdir()
    assert len(list(earlier.iterdir())) == 3
    assert (earlier / f"{STEM}-stacks.txt").read_text() == before


def test_without_the_flag_nothing_is_profiled(monkeypatch, capsys, tmp_path):
    run_inline(monkeypatch, tmp_path, SCRIPT, [*MODEL, "--max_steps", "3"])
    assert "batches 3" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
