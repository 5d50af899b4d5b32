"""`stepscope compare`: what it does with its paths."""

from __future__ import annotations

from tests.support.step_records import step_records, write_run

from stepscope.commands.main import main
from stepscope.opening import reader


def test_each_side_is_opened_once(tmp_path, monkeypatch, capsys):
    paths = [
        str(write_run(tmp_path, {0: step_records([length] * 20)}, name))
        for name, length in (("before", 100), ("after", 80), ("last", 60))
    ]
    opened = []

    def noting(path):
        opened.append(str(path))
        return reader.open_run(path)

    monkeypatch.setattr("stepscope.trace.paths.open_run", noting)
    assert main(["compare", *paths]) == 0
    assert opened == paths
    printed = capsys.readouterr().out
    assert "100 ms → 80.0 ms" in printed
    assert "100 ms → 60.0 ms" in printed
