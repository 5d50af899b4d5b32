"""What takes one module and one line of a registry to add takes no line of a contract.

Such modules are named nowhere but in their registry. Nothing stands on them, so that they know
nothing of each other either. A module that others share is named in its package's contract.
"""

from __future__ import annotations

import re

import pytest
from tests.support.project import ROOT, pyproject

from stepscope.report.outputs import OUTPUTS

grimp = pytest.importorskip("grimp")

REPORT, FORMATS, ADAPTERS = "stepscope.report", "stepscope.trace.formats", "stepscope.adapters"
IMPORTERS = {
    REPORT: r"(?!stepscope\.report\.).*",  # verbs and views may begin with one
    FORMATS: r"stepscope\.trace\.formats\.registry",
    ADAPTERS: r"(?!)",  # scripts alone import integrations
}
"""Which modules may import what is added to a package."""


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("stepscope", exclude_type_checking_imports=True, cache_dir=None)


def added(package: str) -> set[str]:
    """The modules of a package that its contract does not name."""
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one.get("containers") == [package])
    folder = ROOT / "src" / package.replace(".", "/")
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    named = set(re.findall(r"\w+", " ".join(layers)))
    assert named <= modules | packages
    return (modules | packages) - named


@pytest.mark.parametrize("package", IMPORTERS)
def test_nothing_stands_on_what_is_added(graph, package):
    for name in added(package):
        module = f"{package}.{name}"
        own = {module, *graph.find_descendants(module)}
        importers = {
            importer
            for one in own
            for importer in graph.find_modules_that_directly_import(one) - own
        }
        unexpected = {one for one in importers if not re.fullmatch(IMPORTERS[package], one)}
        assert unexpected == set(), f"{module}: name it in the contract of {package}"


def test_what_is_added_to_the_report_is_a_kind_of_result():
    assert {"diagnosis", "stores"} <= added(REPORT) <= OUTPUTS.keys()


def test_what_is_added_to_the_formats_and_adapters_is_found():
    assert {"nsys", "pyspy"} <= added(FORMATS)
    assert {"transformers", "ray"} <= added(ADAPTERS)
