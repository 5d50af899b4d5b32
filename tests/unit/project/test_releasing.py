"""Workflows, issue forms and release files name only what exists, and agree with pyproject.toml."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from tests.support.project import ROOT, pyproject

import stepscope

GITHUB = ROOT / ".github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in GITHUB.glob("workflows/*.yml")}
PROJECT = pyproject()["project"]
STEPS = [
    (name, step)
    for name, workflow in WORKFLOWS.items()
    for job in workflow["jobs"].values()
    for step in job["steps"]
]
COMMANDS = [(name, step["run"]) for name, step in STEPS if "run" in step]


def test_there_are_workflows():
    assert {"ci", "release", "site"} <= set(WORKFLOWS)
    assert len(COMMANDS) > 8


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_commands_name_targets_scripts_and_tests_that_exist(name, command):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", command)) <= targets
    for path in re.findall(r"\b((?:scripts|tests)/[\w/.]+)", command):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_scripts_take_the_options_that_they_are_given(name, command):
    for line in command.splitlines():
        words = shlex.split(line)
        for script in (word for word in words if word.startswith("scripts/")):
            helped = subprocess.run(
                [sys.executable, script, "--help"],
                check=False,
                cwd=ROOT,
                capture_output=True,
                text=True,
            )
            options = {word for word in words if word.startswith("--")}
            assert all(option in helped.stdout for option in options)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_may_do_no_more_than_they_need(name):
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    for job in WORKFLOWS[name]["jobs"].values():
        assert job["timeout-minutes"] <= 60
        writes = {key for key, value in job.get("permissions", {}).items() if value == "write"}
        assert writes <= {"pages", "id-token"}
        assert not writes or job["environment"]


def test_no_text_of_a_request_is_run_and_every_action_has_a_version():
    for _, step in STEPS:
        assert "${{" not in step.get("run", "")
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step.get("uses", "a/b@v1"))


def test_every_python_that_the_package_claims_is_tried():
    claimed = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    matrix = WORKFLOWS["ci"]["jobs"]["install"]["strategy"]["matrix"]
    assert matrix["python"] == claimed
    assert matrix["dependencies"] == ["newest", "lowest"]


def test_the_recipe_for_conda_agrees_with_the_package():
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
    package = recipe["package"]
    assert (package["name"], package["version"]) == (PROJECT["name"], stepscope.__version__)
    (entry,) = PROJECT["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(entry)]
    in_conda = {"duckdb": "python-duckdb", "isal": "python-isal"}
    wanted = {f"python {PROJECT['requires-python']}"}
    for line in PROJECT["dependencies"]:
        asked, _, marker = line.partition("; ")
        if (
            ">=" not in marker
        ):  # newer Pythons have a least version of their own: conda works it out
            name, _, least = asked.partition(">=")
            wanted.add(f"{in_conda.get(name, name)} >={least}")
    assert set(recipe["requirements"]["run"]) == wanted


def test_issue_forms_ask_for_what_they_need():
    forms = [path for path in GITHUB.glob("ISSUE_TEMPLATE/*.yml") if path.stem != "config"]
    assert len(forms) == 3
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert form["name"]
        assert form["description"]
        fields = [one for one in form["body"] if one["type"] != "markdown"]
        assert any(one.get("validations", {}).get("required") for one in fields)
        assert len({one["id"] for one in fields}) == len(fields)
        for shown in re.findall(r"`stepscope (\w+)", path.read_text()):
            assert (ROOT / "src/stepscope/commands" / f"{shown}.py").exists()


def test_the_citation_agrees_with_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["abstract"] == PROJECT["description"]
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert citation["keywords"] == PROJECT["keywords"]


@pytest.fixture(scope="module")
def problems():
    spec = importlib.util.spec_from_file_location("check", ROOT / "scripts" / "check_release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.problems


CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2030-01-01\n\n## [1.3.0rc1]\n"


@pytest.mark.parametrize(
    ("tag", "version", "expected"),
    [
        ("v1.2.3", "1.2.3", []),
        ("v1.3.0rc1", "1.3.0rc1", []),
        ("1.2.3", "1.2.3", ["the tag is 1.2.3"]),
        ("v1.2.3", "1.2.4", ["the tag is v1.2.3", "no section [1.2.4]"]),
        ("v1.2.3.dev0", "1.2.3.dev0", ["no version to release", "no section"]),
    ],
)
def test_only_a_described_version_under_its_tag_is_released(tag, version, expected, problems):
    found = problems(tag, version, CHANGELOG)
    assert len(found) == len(expected)
    assert all(part in problem for part, problem in zip(expected, found, strict=True))
