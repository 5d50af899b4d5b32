"""`report` on a file of metrics, which the guides make with nvidia-smi."""

from __future__ import annotations

import json
import re

import pytest

from stepscope.commands.main import main

SMI = """timestamp, name, utilization.gpu [%], memory.used [MiB], memory.free [MiB], temperature.gpu
2026/01/31 12:00:00.000, NVIDIA A100-SXM4-80GB, 90 %, 70000 MiB, 11000 MiB, 61
2026/01/31 12:00:01.000, NVIDIA A100-SXM4-80GB, 70 %, 72000 MiB, 9000 MiB, 63
"""


@pytest.mark.parametrize("verb", ["report", "info"])
def test_both_verbs_read_what_nvidia_smi_wrote(tmp_path, capsys, verb):
    path = tmp_path / "gpu_usage.csv"
    path.write_text(SMI)
    assert main([verb, str(path)]) == 0
    assert "80" in capsys.readouterr().out  # the mean utilisation, percent
    assert main([verb, str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_table_that_is_no_file_of_metrics_is_refused(tmp_path, capsys):
    path = tmp_path / "losses.csv"
    path.write_text("step,loss\n1,2\n")
    assert main(["report", str(path)]) == 3
    assert str(path) in capsys.readouterr().err


def test_a_file_without_a_gpu_shows_no_gpu(tmp_path, capsys):
    path = tmp_path / "usage.csv"
    path.write_text(
        "timestamp, host.cpu.utilization [%], host.memory.used [MiB]\n"
        "2026/01/01 00:00:00.000, 20 %, 4542 MiB\n"
        "2026/01/01 00:00:01.000, 30 %, 4542 MiB\n"
    )
    assert main(["report", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "no GPU was sampled" in shown
    assert "busy  tensor" not in shown
    assert "2 samples over 1.00 s" in shown


@pytest.mark.parametrize(("errors", "said"), [(1, "1 Xid error"), (1200, "1,200 Xid errors")])
def test_errors_of_a_gpu_are_counted_in_words(tmp_path, capsys, monkeypatch, errors, said):
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "metrics.csv"
    path.write_text(
        "timestamp, index, utilization.gpu [%], xid.count\n"
        "2026/01/31 12:00:00.000, 0, 90 %, 0\n"
        f"2026/01/31 12:00:01.000, 0, 70 %, {errors}\n"
    )
    assert main(["report", str(path)]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"{said}\b(?!s)", printed), printed


@pytest.mark.parametrize(
    ("busy", "used", "said"),
    [
        (42, 20000, "low-gpu-utilisation: the GPU is busy for 42% of the time, and should be"),
        (42, 20000, "memory-far-below-limit: 25% of the memory"),
        (95, 79000, "memory-near-limit: 98% of the memory"),
        (95, 65000, "nothing stands out: the GPU is busy for 95% of the time, and 80% of the"),
    ],
)
def test_the_guides_two_thresholds_are_a_verdict(tmp_path, capsys, busy, used, said):
    """GPU above 80 %, memory close to its capacity: of `utilization.gpu`, used and free memory."""
    path = tmp_path / "gpu_usage.csv"
    path.write_text(
        "timestamp, name, utilization.gpu [%], memory.used [MiB], memory.free [MiB]\n"
        f"2026/01/31 12:00:00.000, NVIDIA A100, {busy} %, {used} MiB, {81000 - used} MiB\n"
        f"2026/01/31 12:00:01.000, NVIDIA A100, {busy} %, {used} MiB, {81000 - used} MiB\n"
    )
    assert main(["report", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("Verdict")
    assert said in printed
