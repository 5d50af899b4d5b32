"""The site has every page, and its hooks make the pages of the examples."""

from __future__ import annotations

import importlib.util
import re
from types import SimpleNamespace

import pytest
import yaml
from tests.support.project import ROOT

EXAMPLES = ROOT / "examples"


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without making the Python objects that it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda _loader, suffix, _node: suffix)
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)


@pytest.fixture(scope="module")
def hooks():
    (file,) = CONFIG["hooks"]
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_of(entries):
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for inside in entry.values():
                yield from pages_of(inside if isinstance(inside, list) else [inside])


def test_the_navigation_has_every_page_once():
    docs = ROOT / CONFIG["docs_dir"]
    pages = list(pages_of(CONFIG["nav"]))
    assert len(pages) == len(set(pages))
    made = {page for page in pages if page.startswith("examples/")}
    assert set(pages) - made == {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}


def test_prompts_are_not_copied_with_their_commands():
    (file,) = CONFIG["extra_css"]
    rules = (ROOT / CONFIG["docs_dir"] / file).read_text(encoding="utf-8")
    assert re.search(r"\[data-md-copying\] \.gp \{ display: none; \}", rules)


def test_the_examples_are_listed_with_links_to_their_pages(hooks):
    linked = set(re.findall(r"\]\((\w+)\.md\)", hooks.examples_page()))
    assert linked == {
        path.stem
        for path in EXAMPLES.iterdir()
        if path.suffix in {".py", ".sh", ".ipynb", ".yml", ".json"}
    }


def test_links_to_the_examples_lead_into_the_site(hooks):
    def shown(source, text):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=source))
        return hooks.on_page_markdown(text, page=page, config=None, files=None)

    assert shown("index.md", "[a](../examples/README.md)") == "[a](examples/README.md)"
    assert shown("verbs/x.md", "[a](../../examples/flags.py)") == "[a](../examples/flags.md)"
    assert shown("index.md", "[a](../examples/read_a_trace.ipynb)") == (
        "[a](examples/read_a_trace.md)"
    )
    assert shown("verbs/x.md", "[a](../index.md)") == "[a](../index.md)"


@pytest.mark.parametrize(
    ("source", "meta"),
    [
        ("out-of-memory.md", {"search": {"boost": 5}}),
        ("benchmarks.md", {"search": {"boost": 0.1}}),
        ("loading.md", {}),
    ],
)
def test_in_a_search_problems_come_first_and_the_project_last(hooks, source, meta):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=source), meta={})
    hooks.on_page_markdown("text", page=page, config=None, files=None)
    assert page.meta == meta
    assert (ROOT / "docs" / source).exists()
    assert all(
        (ROOT / "docs" / one).exists() for one in hooks.ABOUT_THE_PROJECT + hooks.ABOUT_A_PROBLEM
    )


def test_the_notebook_is_shown_with_what_its_cells_answer(hooks):
    page = hooks.notebook_page()
    assert page.count("```python") == 5
    report, trace, kernels, idle = re.findall(
        r'<div class="shown" style="overflow-x: auto">(.*)</div>', page
    )
    assert 'sandbox="allow-scripts"' in report
    assert "waits for its input" in report
    assert "NVIDIA H100" in trace
    assert "sm90_xmma_gemm" in kernels
    assert "idle_ns" in idle


def test_pictures_are_small_and_shown():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        (page.parent / link).resolve()
        for page in pages
        for link in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    files = (ROOT / "docs" / "pictures").rglob("*")
    pictures = {path for path in files if path.is_file()}
    assert pictures == shown
    assert max(picture.stat().st_size for picture in pictures) <= 150_000
