"""An answer that found nothing says so once, and draws no empty tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, us

from stepscope.commands.show import command
from stepscope.report.answer import NOTHING


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A training on one GPU."""
    trace = GpuTrace()
    for _ in range(2):
        with trace.step():
            trace.op("aten::mm").launch("ampere_sgemm_128x64_nn", us(200))
            trace.python(us(40))
    file = tmp_path / "alone.json"
    file.write_bytes(trace.json())
    return file


@pytest.mark.parametrize("output", ["table", "md", "html"])
def test_communication_without_collectives_is_said(output: str, alone: Path) -> None:
    told = CliRunner().invoke(command, ["communication", str(alone), "--format", output])
    assert told.exit_code == 0
    assert told.output.count(NOTHING) == 1
    assert "no collective was recorded in this scope" in told.output
    assert "By kind and size" not in told.output


def test_a_number_that_is_nothing_is_none(alone: Path) -> None:
    told = CliRunner().invoke(command, ["compute", str(alone)]).output
    assert "of unknown category, not counted: none" in told
    assert ": 0 ns" not in told
