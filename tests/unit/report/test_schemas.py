"""What `--format json` prints: every output of every verb is as its schema says."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys

import pytest
from tests.support.flight_dumps import as_json, document
from tests.support.json_schemas import json_schemas, problems_of
from tests.support.rank_jobs import rank_of_job
from tests.support.snapshots import PROGRAMS, plain_training
from tests.support.step_records import step_records, write_run
from tests.support.trial_records import trials_record
from tests.support.viewer import training
from tests.support.warm_python import warm_python
from tests.unit.commands.test_report_metrics import SMI
from tests.unit.demo.test_runner import outcome
from tests.unit.demo.test_runner import training as demo_training
from tests.unit.fleet.test_hangs import WAITS, up_to
from tests.unit.fleet.test_what_if_ranks import Job, written
from tests.unit.monitor.test_live import write_metrics
from tests.unit.trace.formats.test_pyspy import RECORDING

from stepscope.report import demo, trial
from stepscope.report.outputs import OUTPUTS
from stepscope.report.render import json as as_printed
from stepscope.run.layout import RunLayout

INPUTS = ("trace", "ranks", "run", "snapshot", "stacks", "metrics.csv", "operations.parquet")
pytestmark = pytest.mark.usefixtures("cache_of_the_module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An input of each kind, by its name."""
    root = tmp_path_factory.mktemp("inputs")
    (root / "trace").write_bytes(training().json())
    (root / "ranks").mkdir()
    for rank in range(3):
        (root / "ranks" / f"rank{rank}.json").write_bytes(rank_of_job(rank, [1.0, 1.0, 4.0]).json())
    # Every fifth step is longer.
    lengths = [300.0 if step % 5 == 4 else 100.0 for step in range(60)]
    records = step_records(lengths, waits_ms=40.0, phases_ms={"forward": 20.0})
    run = write_run(root, {0: records, 1: records}, windows={0: training().json()})
    gpu = {"index": 0, "uuid": "GPU-1", "utilization.gpu": 50, "memory.used": 1024}
    write_metrics(RunLayout(run).rank(0), [gpu], records[3].start_ns)
    (root / "snapshot").write_bytes(pickle.dumps(PROGRAMS["out of memory"]()))
    (root / "smaller").write_bytes(pickle.dumps(plain_training()))
    (root / "stacks").write_text(json.dumps(RECORDING))
    (root / "metrics.csv").write_text(SMI)
    written(Job(), root / "operations.parquet")
    (root / "dumps").mkdir()
    for rank, entries in enumerate((WAITS, up_to(4), WAITS)):
        dump = as_json(document(entries, {"0": range(3)}))
        (root / "dumps" / f"nccl_trace_rank_{rank}").write_bytes(dump)
    return root


@pytest.mark.parametrize("name", INPUTS)
def test_every_output_about_an_input_is_as_its_schema_says(folder, name):
    found = {}
    for command in json_schemas.commands(str(folder / name)):
        for document_ in json_schemas.outputs(command):
            assert problems_of(document_) == [], command
            found[json_schemas.name_of(document_)] = document_
    assert len(found) >= {"trace": 20, "ranks": 25, "run": 20, "snapshot": 10}.get(name, 1), (
        found.keys()
    )


@pytest.mark.parametrize("words", json_schemas.WITHOUT_INPUT, ids=" ".join)
def test_every_output_without_an_input_is_as_its_schema_says(words, monkeypatch):
    monkeypatch.setattr(sys, "executable", warm_python())  # in which the doctor tries torch
    (document_,) = json_schemas.outputs(words)
    assert problems_of(document_) == []


def test_what_needs_several_inputs_is_as_its_schema_says(folder):
    commands = [
        ["hangs", str(folder / "dumps")],
        ["memory", str(folder / "snapshot"), "fit", "--size", "8",
         "--also", f"{folder / 'smaller'}=4", "--target", "9"],
        ["show", "timeline", str(folder / "trace"), str(folder / "trace")],
        ["compare", str(folder / "ranks" / "rank0.json"), str(folder / "ranks")],
    ]  # fmt: skip
    names = []
    for command in commands:
        for document_ in json_schemas.outputs(command):
            assert problems_of(document_) == [], command
            names.append(json_schemas.name_of(document_))
    assert names == ["show-hangs", "memory-fit", "show-timeline", "show-timeline", "compare"]


@pytest.mark.parametrize("slow", ["input-bound"])
def test_outcomes_of_trials_and_of_the_demo_are_as_their_schemas_say(slow):
    demonstrated = outcome(demo_training(slow, step_ns=100), demo_training(step_ns=60))
    for module, result in ((trial, trials_record()), (demo, demonstrated)):
        printed = []
        sink = type("Sink", (), {"write": staticmethod(printed.append)})
        as_printed.write(module, result, sink, None)
        assert problems_of(json.loads(printed[0])) == []


def test_schemas_are_those_of_the_types_of_results():
    current = json_schemas.current()
    for name, schema in current.items():
        assert json_schemas.written(name) == schema, "run python scripts/json_schemas.py"
    assert {path.stem for path in json_schemas.FOLDER.glob("*.json")} == current.keys()
    kinds = {
        kind for kind, outputs in OUTPUTS.items() if any(o.format.name == "json" for o in outputs)
    }
    formats = {schema["properties"]["format"]["const"] for schema in current.values()}
    assert len(formats) == len(kinds - {"rows"})  # the columns of a query are its own


def test_a_field_that_goes_is_noticed():
    schema = json_schemas.written("trials")
    whole = dataclasses.asdict(trials_record())
    del whole["verdict"]
    assert problems_of({**whole, "format": "stepscope-trials", "schema_version": 1}, schema)
