"""A run as metrics and curves of other systems, read back by each system's own client or format."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from functools import partial

import pytest
from click.testing import CliRunner
from tests.support.project import ROOT
from tests.unit.export.metrics.test_prometheus import GPU
from tests.unit.monitor.test_live import now_records, write_metrics, write_rank

from stepscope.analysis.record.live import look_live
from stepscope.commands.main import cli
from stepscope.errors import UnreadableInputError, UsageError
from stepscope.export.metrics.curves import Curves
from stepscope.export.metrics.destinations import writers
from stepscope.export.metrics.table import METRICS, Moment, curve_points
from stepscope.export.metrics.watch import Watch, export
from stepscope.run.layout import RunLayout
from stepscope.run.step_record import encode_step

PHASES = {"forward": 30.0, "forward/attention": 10.0}


@pytest.fixture
def profiles(tmp_path):
    """A run of two ranks that has ended; the second one waits for its input."""
    root = tmp_path / "profiles"
    for rank in range(2):
        waits = {"waits_ms": 40.0} if rank else {}
        records = now_records(25, phases_ms=PHASES, **waits)
        layout = write_rank(root / "job", rank, records, state="finished")
        write_metrics(layout, [GPU], records[-1].start_ns)
    return root


def watch_of(path):
    return Watch(partial(look_live, path, list), lambda _: ())


def monitor(*words):
    done = CliRunner().invoke(cli, ["monitor", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_a_run_in_tensorboards_own_folder_is_found(profiles, monkeypatch):
    """As of a training with `--tensorboard-dir`: its folder of runs is not `profiles`."""
    board = profiles.rename(profiles.with_name("board"))
    monkeypatch.chdir(board.parent)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("waits for a run that has ended"))
    monitor("--tensorboard", "board")
    assert list(board.glob("job/events.out.tfevents.*"))
    # Another run where runs usually are goes first.
    shutil.copytree(board / "job", "profiles/other")
    monitor("--tensorboard", "board")
    assert list(board.glob("other/events.out.tfevents.*"))


def test_that_there_is_no_run_yet_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["monitor", "--tensorboard", "board", "--count", "1"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert "no run in profiles yet: its metrics follow once there is one" in done.output


def test_names_follow_from_unit_and_name_and_none_comes_twice():
    for names in (
        [one.name for one in METRICS],
        [one.prometheus_name for one in METRICS],
        [one.curve_name for one in METRICS],
    ):
        assert len(set(names)) == len(names)
    by_name = {one.name: (one.prometheus_name, one.curve_name) for one in METRICS}
    assert by_name["step"] == ("stepscope_step_seconds", "stepscope/step_ms")
    assert by_name["tokens"] == ("stepscope_tokens_per_second", "stepscope/tokens_per_second")
    assert by_name["gpu.busy"] == ("stepscope_gpu_busy_ratio", "stepscope/gpu_busy_ratio")


def test_the_page_names_every_metric():
    page = (ROOT / "docs" / "verbs" / "monitor.md").read_text(encoding="utf-8")
    for one in METRICS:
        assert f"`{one.prometheus_name}{'_total' if one.is_counter else ''}`" in page


def test_points_are_of_ten_steps_and_each_comes_once(tmp_path):
    root = tmp_path / "job"
    records = now_records(34)
    write_rank(root, 0, records[:25])
    curves = Curves(watch_of(root))
    assert [one.step for one in curves.new_points()] == [9, 19]
    assert curves.new_points() == []
    write_rank(root, 0, records)
    assert [one.step for one in curves.new_points()] == [29]
    write_rank(root, 0, records, state="finished")
    (last,) = curves.new_points()
    assert (last.step, last.time_ns) == (33, records[-1].start_ns + records[-1].dur_ns)
    assert last.values["stepscope/step_ms"] == pytest.approx(100)


def test_a_rank_that_stands_still_holds_nothing_back_once_that_is_known(tmp_path):
    root = tmp_path / "job"
    for rank in range(2):
        write_rank(root, rank, now_records(40 if rank else 15))
    curves = Curves(watch_of(root))
    assert [one.step for one in curves.new_points()] == [9]
    with RunLayout(root).rank(1).steps.open("ab") as file:
        file.write(encode_step(now_records(41)[-1]))
    points = curves.new_points()
    assert [one.step for one in points] == [19, 29, 39]
    assert "stepscope/step_ms/max" not in points[0].values  # of one rank alone


def test_a_newer_run_does_not_take_the_place_of_the_one_that_is_logged(tmp_path):
    write_rank(tmp_path / "first", 0, now_records(15))
    curves = Curves(watch_of(tmp_path))
    assert [one.step for one in curves.new_points()] == [9]
    write_rank(tmp_path / "second", 0, now_records(40))
    write_rank(tmp_path / "first", 0, now_records(15), state="finished")
    assert [one.step for one in curves.new_points()] == [14]
    assert (curves.path.name, curves.has_ended) == ("first", True)


def test_of_a_long_run_a_point_is_of_more_steps(tmp_path):
    write_rank(tmp_path / "job", 0, now_records(30_000), state="finished")
    points = Curves(watch_of(tmp_path)).new_points()
    assert [one.step for one in points[:2]] == [14, 29]
    assert len(points) == 2000
    assert points[0].values["stepscope/steps_per_second"] == pytest.approx(10)


def test_opentelemetry_reads_what_prometheus_gets(profiles):
    reading = pytest.importorskip("opentelemetry.sdk.metrics.export")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from stepscope.export.metrics.to_otlp import OtlpWriter

    reader = reading.InMemoryMetricReader()
    watch = watch_of(profiles)
    writer = OtlpWriter(watch, "http://localhost:4318", reader)
    assert writer.where == "http://localhost:4318/v1/metrics"
    writer.write()
    (resource,) = reader.get_metrics_data().resource_metrics
    assert resource.resource.attributes["service.name"] == "stepscope"
    (scope,) = resource.scope_metrics
    moment = watch.moment()
    known = {f"stepscope.{one.name}": one for one in METRICS if list(one.measure(moment))}
    assert {one.name for one in scope.metrics} == known.keys()
    for one in scope.metrics:
        metric = known[one.name]
        assert (one.unit, one.description) == (metric.unit, metric.help)
        assert hasattr(one.data, "is_monotonic") == metric.is_counter
    steps = next(one for one in scope.metrics if one.name == "stepscope.data_wait")
    waits = {p.attributes["stepscope.rank"]: p.value for p in steps.data.data_points}
    assert waits == pytest.approx({"0": 0.0, "1": 0.04})
    assert steps.data.data_points[0].attributes["host.name"] == "node-a"
    writer.close()


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_SERVICE_NAME": "mine"},
        {"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine,deployment.environment=lab"},
    ],
)
def test_the_service_is_called_as_the_environment_says(profiles, monkeypatch, variables):
    reading = pytest.importorskip("opentelemetry.sdk.metrics.export")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from stepscope.export.metrics.to_otlp import OtlpWriter

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    reader = reading.InMemoryMetricReader()
    OtlpWriter(watch_of(profiles), "http://localhost:4318/custom", reader).write()
    (resource,) = reader.get_metrics_data().resource_metrics
    assert resource.resource.attributes["service.name"] == "mine"


def test_an_endpoint_that_is_no_url_is_refused(profiles):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with pytest.raises(UsageError, match="such as http://localhost:4318"):
        writers({"otlp": "localhost:4318"}, watch_of(profiles))


def test_mlflow_has_the_curves_and_the_findings(profiles, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    monitor("--mlflow", profiles)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.info.status) == ("job", "FINISHED")
    waits = client.get_metric_history(run.info.run_id, "stepscope/data_wait_ms")
    assert [(one.step, one.value) for one in waits] == [(9, 20.0), (19, 20.0), (24, 20.0)]
    last = run.data.metrics
    assert last["stepscope/data_wait_ms.max"] == pytest.approx(40)
    assert last["stepscope/phase_ms.forward.attention"] == pytest.approx(10)
    assert last["stepscope/gpu_busy_ratio"] == pytest.approx(0.5)
    assert last["stepscope/finding_saving_ms.input-bound"] == pytest.approx(40, rel=0.2)


def test_a_run_of_mlflow_that_the_training_made_is_left_running(profiles, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    own = mlflow.MlflowClient().create_run("0").info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", own)
    monitor("--mlflow", profiles)
    run = mlflow.MlflowClient().get_run(own)
    assert run.info.status == "RUNNING"
    assert run.data.metrics["stepscope/step_ms"] == pytest.approx(100)
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with pytest.raises(UnreadableInputError, match="cannot be used by MLflow"):
        writers({"mlflow": True}, watch_of(profiles))


def test_wandb_has_the_curves_in_a_run_of_its_own(profiles, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    # In a process of its own: the client's service has written everything once that has ended.
    command = [sys.executable, "-m", "stepscope", "monitor", "--wandb", str(profiles)]
    subprocess.run(command, check=True, capture_output=True)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = history_of(file.read_bytes())
    assert [row["stepscope/step"] for row in rows] == [9, 19, 24]
    assert rows[0]["stepscope/data_wait_ms/max"] == 40
    assert rows[-1]["stepscope/finding_saving_ms/input-bound"] == pytest.approx(40, rel=0.2)


def test_a_folder_of_tensorboard_gets_the_curves_as_they_come(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    root, board = tmp_path / "job", tmp_path / "board"
    records = now_records(34)
    write_rank(root, 0, records[:25])
    (writer,) = writers({"tensorboard": board}, watch_of(root))
    writer.write()
    (file,) = (board / "job").glob("events.out.tfevents.*.stepscope")
    before = file.read_bytes()
    assert before.count(b"stepscope/step_ms") == 2
    writer.write()
    assert file.read_bytes() == before
    write_rank(root, 0, records, state="finished")
    writer.write()
    writer.close()
    assert file.read_bytes().count(b"stepscope/step_ms") == 4
    assert writer.is_done
    found = EventAccumulator(str(board / "job"))
    found.Reload()
    steps = {event.step: event.value for event in found.Scalars("stepscope/step_ms")}
    assert list(steps) == [9, 19, 29, 33]
    assert steps == pytest.approx(dict.fromkeys(steps, 100.0), rel=0.2)


def history_of(data: bytes) -> list[dict[str, float]]:
    """The rows of a run that was logged offline: records in a log of blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    found, part, at = [], b"", 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            record = Record()
            record.ParseFromString(part)
            part = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                found.append(
                    {
                        "/".join(one.nested_key) or one.key: json.loads(one.value_json)
                        for one in items
                    }
                )
    return found


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (("--otlp", "http://localhost:4318"), "opentelemetry", "otel"),
        (("--mlflow",), "mlflow", "mlflow"),
        (("--wandb",), "wandb", "wandb"),
        (("--prometheus", "0"), "prometheus_client", "prometheus"),
    ],
)
def test_a_missing_client_is_named(words, package, extra, profiles, monkeypatch):
    for name in [one for one in sys.modules if one.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(cli, ["monitor", *words, str(profiles)])
    assert isinstance(done.exception, UsageError)
    assert f"pip install 'stepscope[{extra}]'" in str(done.exception)


def test_what_a_client_cannot_write_is_announced_and_written_the_next_time():
    class Flaky:
        name, where, is_served, is_done = "Flaky", "there", False, False
        tries = 0
        closed = False

        def write(self):
            self.tries += 1
            if self.tries == 1:
                raise ConnectionError("no route")
            self.is_done = True

        def close(self):
            self.closed = True

    said, flaky = [], Flaky()
    export([flaky], 0.0, None, said.append)
    assert said == ["metrics for Flaky: there", "metrics for Flaky: not written: no route"]
    assert (flaky.tries, flaky.closed) == (2, True)


def test_values_that_are_no_numbers_make_no_points():
    assert curve_points(Moment(None)) == {}


def test_other_clients_stay_unimported(profiles, tmp_path):
    code = (
        "import sys\n"
        "from stepscope.commands.main import cli\n"
        f"cli(['monitor', '--prometheus-file', {str(tmp_path / 'o.prom')!r}, '--count', '1', "
        f"{str(profiles)!r}], standalone_mode=False)\n"
        "print(sorted({'mlflow', 'wandb', 'opentelemetry', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
