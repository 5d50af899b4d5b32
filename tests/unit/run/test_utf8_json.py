"""Names of files need not be UTF-8; what names them is JSON all the same."""

from __future__ import annotations

import dataclasses
import json
import os
import sys

import orjson
import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, us

from stepscope.commands.main import cli
from stepscope.run.manifest import JobRecord, read_record, write_record
from stepscope.run.side_json import utf8_json
from stepscope.run.step_record import StepRecord, decode_step, encode_step

ODD = os.fsdecode(b"o\xffdd") if sys.platform != "win32" else "o\udcffdd"


@dataclasses.dataclass(frozen=True)
class Named:
    name: str
    others: tuple[str, ...]


def test_what_is_not_utf8_is_replaced_wherever_it_is():
    value = {ODD: Named(ODD, ("a", ODD)), "list": [1, None, ODD]}
    assert json.loads(utf8_json(value)) == {
        "o�dd": {"name": "o�dd", "others": ["a", "o�dd"]},
        "list": [1, None, "o�dd"],
    }


def test_everything_else_is_written_as_orjson_writes_it():
    value = {"a": [1, 2.5, True, "ä"], "b": {"c": None}}
    assert utf8_json(value, orjson.OPT_INDENT_2) == orjson.dumps(value, option=orjson.OPT_INDENT_2)
    with pytest.raises(TypeError):
        utf8_json({"a": object()})
    assert utf8_json({"a": {1}}, default=sorted) == b'{"a":[1]}'


def test_a_job_with_such_an_argument_can_be_recorded(tmp_path):
    write_record(tmp_path / "run.json", JobRecord("name", 3, ("train.py", ODD)))
    assert read_record(tmp_path / "run.json", JobRecord).command == ("train.py", "o�dd")


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux only")
@pytest.mark.parametrize("words", [["report"], ["show", "kernels"], ["compare"]])
def test_verbs_write_json_about_such_a_file(words, tmp_path):
    trace = GpuTrace()
    for _ in range(4):
        with trace.step():
            trace.op("aten::mm").launch("sgemm", us(100))
    path = tmp_path / f"{ODD}.json"
    path.write_bytes(trace.json())
    paths = [str(path)] * (2 if words == ["compare"] else 1)
    result = CliRunner().invoke(cli, [*words, *paths, "--format", "json"])
    assert result.exit_code == 0, result.output
    assert "dd.json" in json.dumps(json.loads(result.stdout))


def test_a_step_with_such_a_phase_is_recorded():
    record = StepRecord(step=1, start_ns=2, dur_ns=5, phases={ODD: 3})
    assert decode_step(encode_step(record)).phases == {"o�dd": 3}
