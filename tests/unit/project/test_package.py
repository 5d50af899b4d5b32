"""The package as an index and a source distribution show it."""

from __future__ import annotations

import importlib.util
import re
import sys
import types

import pytest
from tests.support.project import ROOT, pyproject

PROJECT = pyproject()
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture
def package_readme(monkeypatch):
    """scripts/package_readme.py, which the build tool imports; hatchling itself is not needed."""
    interface = types.ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    file = ROOT / PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["path"]
    spec = importlib.util.spec_from_file_location("package_readme", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_of_the_package_has_no_link_into_the_repository(package_readme):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert LINK.search(text), "nothing to replace"
    shown = package_readme.without_relative_links(text)
    assert [link for link in LINK.findall(shown) if not re.match("https?:", link)] == []
    assert "quick start (`docs/quickstart.md`)" in shown
    assert "![" not in shown
    outside = "[a](https://example.org/b) and [c](docs/d.md#e)"
    assert package_readme.without_relative_links(outside) == (
        "[a](https://example.org/b) and c (`docs/d.md`)"
    )


def test_the_source_distribution_has_what_its_readme_and_makefile_use():
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    tops = {name.lstrip("/") for name in included} | {"pyproject.toml"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = {link.partition("/")[0] for link in LINK.findall(readme) if ":" not in link}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w.-]+\.(?:txt|toml|json)\b|scripts(?=/)", makefile))
    assert {"constraints.txt", "scripts"} <= named
    assert (linked | named | {"Makefile"}) <= tops
    assert all((ROOT / name).exists() for name in tops)


def test_badges_say_what_is_true():
    spec = importlib.util.spec_from_file_location("badges", ROOT / "scripts" / "badges.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        badges = module.of_this_project()
    finally:
        del sys.modules[spec.name]
    said = {one.name: one.value for one in badges}
    (lowest,) = re.findall(r">=(3\.\d+)$", PROJECT["project"]["requires-python"])
    tried = re.findall(
        r"\d\.\d+", re.search(r"python: (\[\"3.*\])", WORKFLOW.read_text(encoding="utf-8"))[1]
    )
    assert said["python"] == f"{lowest} to {tried[-1]}"
    assert PROJECT["project"]["optional-dependencies"]["torch"] == ["torch>=2.4"]
    assert said["torch"] == "2.4 and later"
    assert said["license"].split() == ["Apache", "2.0"]
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert re.search(r"Apache License\s+Version 2\.0", licence)
    assert PROJECT["tool"]["mypy"]["strict"] is True
    assert said["types"] == "strict"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for one in badges:
        assert one.path.read_text(encoding="utf-8") == one.svg(), "run scripts/badges.py"
        assert f"({one.path.relative_to(ROOT).as_posix()})" in readme
        assert re.sub(r"\W+", " ", f"{one.label} {one.value}") in re.sub(r"\W+", " ", readme)


def test_only_systems_on_which_the_tests_run_are_claimed():
    systems = [
        one for one in PROJECT["project"]["classifiers"] if one.startswith("Operating System")
    ]
    assert systems == ["Operating System :: POSIX :: Linux"]


def test_extras_are_all_used():
    used = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    extras = set(PROJECT["project"]["optional-dependencies"]) - {"dev", "docs"}
    modules = {
        "fleet": "distributed",
        "http": "aiohttp",
        "otel": "opentelemetry",
        "perfetto": "viztracer",
        "prometheus": "prometheus_client",
        "py-spy": "py-spy",
        "zstd": "zstandard",
    }
    for name in extras:
        assert modules.get(name, name) in used, name
