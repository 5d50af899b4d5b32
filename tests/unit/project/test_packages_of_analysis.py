"""Questions stand on packages of analysis, and none of these but two stands on a question."""

from __future__ import annotations

import pytest
from tests.support.project import ROOT, pyproject

grimp = pytest.importorskip("grimp")
ANALYSIS = "stepscope.analysis"
FOLDER = ROOT / "src" / "stepscope" / "analysis"
ABOVE_QUESTIONS = {f"{ANALYSIS}.comparison", f"{ANALYSIS}.blame"}


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("stepscope", exclude_type_checking_imports=True, cache_dir=None)


def packages() -> set[str]:
    return {f"{ANALYSIS}.{path.parent.name}" for path in FOLDER.glob("*/__init__.py")}


def questions() -> set[str]:
    return {f"{ANALYSIS}.{path.stem}" for path in FOLDER.glob("*.py")} - {f"{ANALYSIS}.__init__"}


def test_no_package_imports_a_question_but_those_that_stand_above_them(graph):
    wrong = {
        (importer, question)
        for question in questions()
        for importer in graph.find_modules_that_directly_import(question)
        if any(importer.startswith(f"{package}.") for package in packages() - ABOVE_QUESTIONS)
    }
    assert wrong == set()


def test_no_question_imports_a_package_above_them(graph):
    importers = {
        importer
        for package in ABOVE_QUESTIONS
        for module in graph.find_descendants(package)
        for importer in graph.find_modules_that_directly_import(module)
    }
    assert importers & questions() == set()


def test_every_package_has_its_layer():
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c.get("containers") == [ANALYSIS])
    named = {name.strip() for layer in layers for name in layer.split("|")}
    assert named == {package.rpartition(".")[2] for package in packages()}
    assert len(questions()) > 15
