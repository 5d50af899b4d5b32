"""A run as metrics of Prometheus, read back by Prometheus' own parser."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from tests.support.project import ROOT
from tests.unit.monitor.test_live import now_records, write_rank

from stepscope.commands.main import cli
from stepscope.errors import UsageError

GPU = {
    "index": 0,
    "uuid": "GPU-1",
    "utilization.gpu": 50,
    "memory.used": 1024,
    "memory.total": 4096,
    "power.draw": 300.5,
    "temperature.gpu": 70,
    "clocks_event_reasons.active": "0x0000000000000004",
}
"""One whose power limit lowers its clocks."""


@pytest.fixture
def run_folder(tmp_path):
    root = tmp_path / "profiles" / "job"
    for rank in range(3):
        waits = {"waits_ms": 40.0} if rank == 1 else {}
        write_rank(root, rank, now_records(**waits), gpus=[GPU])
    return root


def textfile(run: Path, *words: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Every metric with its values by the values of its labels, in order of the labels' names."""
    file = run.parent.parent / "out.prom"
    command = ["monitor", "--prometheus-file", str(file), "--count", "1", *words, str(run)]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    families = text_string_to_metric_families(file.read_text())
    return {
        family.name: {
            tuple(value for _, value in sorted(one.labels.items())): one.value
            for one in family.samples
        }
        for family in families
    }


def test_steps_and_their_parts_are_those_of_the_record(run_folder):
    found = textfile(run_folder)
    assert found["stepscope_up"] == {(): 1}
    key = ("node-a", "1", "job")
    assert found["stepscope_rank_running"][key] == 1
    assert found["stepscope_last_step"][key] == 19
    assert found["stepscope_step_seconds"][key] == pytest.approx(0.1)
    assert found["stepscope_steps_per_second"][key] == pytest.approx(10, rel=0.01)
    parts = {
        part: value
        for (_, part, rank, _), value in found["stepscope_step_part_ratio"].items()
        if rank == "1"
    }
    assert parts["input"] == pytest.approx(0.4)
    assert sum(parts.values()) == pytest.approx(1)
    assert "stepscope_finding_saving_seconds" not in found


def test_gpus_that_several_ranks_sample_count_once_and_in_base_units(run_folder):
    found = textfile(run_folder)
    assert found["stepscope_gpu_busy_ratio"] == {("0", "node-a", "GPU-1"): 0.5}
    assert found["stepscope_gpu_memory_used_bytes"] == {("0", "node-a", "GPU-1"): 1024 * 2**20}
    assert found["stepscope_gpu_throttled"] == {("0", "node-a", "GPU-1"): 1}
    assert found["stepscope_host_cpu_busy_ratio"] == {("node-a",): 0.37}


def test_findings_follow_once_all_ranks_have_ended(tmp_path):
    root = tmp_path / "profiles" / "done"
    records = now_records(waits_ms=60.0)
    write_rank(root, 0, records, state="finished")
    ((labels, saving),) = textfile(root)["stepscope_finding_saving_seconds"].items()
    assert (labels[0], labels[2]) == ("input-bound", "done")
    assert saving == pytest.approx(0.06, rel=0.2)


def test_without_a_run_there_are_metrics_of_the_machine(tmp_path):
    found = textfile(tmp_path)
    assert found["stepscope_up"] == {(): 0}
    assert "stepscope_last_step" not in found


def test_a_scrape_reads_the_run_anew(run_folder):
    command = [sys.executable, "-m", "stepscope", "monitor", "--prometheus", "0", str(run_folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/metrics", line).group()
        for steps in (20, 30):
            write_rank(run_folder, 0, now_records(steps))
            text = urllib.request.urlopen(address, timeout=60).read().decode()
            assert f'stepscope_last_step{{host="node-a",rank="0",run="job"}} {steps - 1}.0' in text
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        process.stderr.close()


@pytest.mark.parametrize("address", ["x", "70000", "1:2:x"])
def test_an_address_that_is_none_is_refused(address, tmp_path):
    done = CliRunner().invoke(cli, ["monitor", "--prometheus", address, str(tmp_path)])
    assert isinstance(done.exception, UsageError)
    assert "give a port, or HOST:PORT" in str(done.exception)


def test_alerts_and_dashboard_use_metrics_that_exist(run_folder):
    root = run_folder.parent / "ended"
    write_rank(root, 0, now_records(waits_ms=60.0), state="finished")
    known = {*textfile(run_folder), *textfile(root)}
    alerts = yaml.safe_load((ROOT / "examples" / "prometheus_alerts.yml").read_text())
    dashboard = json.loads((ROOT / "examples" / "grafana_dashboard.json").read_text())
    asked = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    asked += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for text in asked for name in re.findall(r"stepscope_\w+", text)}
    # Not sampled here: a machine without control groups or tensor cores, a loop without tokens.
    optional = {name for name in named if re.search(r"cgroup|tensor_cores|tokens", name)}
    assert named - optional <= known
