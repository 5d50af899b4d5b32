"""The examples of integrations run as they stand, where the frameworks are installed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.support.frameworks import skip_without
from tests.support.guides import environment
from tests.support.launching import paths_of_this_process
from tests.support.project import ROOT

from stepscope import open_run

EXAMPLES = {
    "huggingface_trainer": (("transformers", "accelerate"), (), 40),
    "trl_sft": (("transformers", "trl", "datasets"), (), 30),
    "lightning_callback": (("lightning",), (), 40),
    "lightning_callback --profiler": (("lightning",), ("--profiler",), 40),
    "accelerate_loop": (("accelerate",), (), 64),
}


def run_example(name, folder, *arguments):
    return subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name.split()[0]}.py", *arguments],
        cwd=folder,
        env=environment(PYTHONPATH=paths_of_this_process()),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_and_leaves_a_run(tmp_path, capsys, name):
    packages, more, steps = EXAMPLES[name]
    skip_without(*packages)
    ended = run_example(name, tmp_path, "--output", "out", *more)
    assert ended.returncode == 0, ended.stderr
    assert f"trained for {steps} steps" in ended.stdout
    (rank,) = open_run(tmp_path / "out").ranks
    assert (rank.manifest.state, rank.manifest.steps) == ("finished", steps)
    assert rank.manifest.problems == ()
    assert [window.record.state for window in rank.windows] == ["complete"]
    assert {path.name for path in tmp_path.iterdir()} == {"out"}

    from stepscope.commands.main import main

    assert main(["report", str(tmp_path / "out")]) == 0
    assert "Verdict" in capsys.readouterr().out


def test_each_example_says_what_it_does(tmp_path):
    for name in {name.split()[0] for name in EXAMPLES}:
        text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        assert re.match(rf'"""[A-Z].*?python examples/{name}\.py.*?"""', text, re.DOTALL)
        compile(text, name, "exec")


@pytest.mark.parametrize(
    "name",
    [
        "accelerate_loop",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("huggingface_trainer", "trl_sft", "lightning_callback")
        ),
    ],
)
def test_help(tmp_path, name):
    skip_without(*EXAMPLES[name][0])
    ended = run_example(name, tmp_path, "--help")
    assert ended.returncode == 0
    assert "--output" in ended.stdout
