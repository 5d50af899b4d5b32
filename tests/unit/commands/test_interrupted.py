"""Verbs that train: what they say when they are interrupted."""

from __future__ import annotations

import pytest

from stepscope.commands.main import main


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("stepscope.demo.runner.run_demo", ("demo", "--output-dir", "kept")),
        (
            "stepscope.trial.experiment.try_fixes",
            ("try", "--scratch", "kept", "--", "python", "train.py"),
        ),
    ],
)
@pytest.mark.parametrize("has_begun", [True, False])
def test_what_stays_is_told(work, words, has_begun, tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        if has_begun:
            (tmp_path / "kept").mkdir()
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, interrupted)
    assert main(words) == 130
    told = capsys.readouterr().err
    assert ("stepscope: interrupted: kept keeps what was written" in told) == has_begun
