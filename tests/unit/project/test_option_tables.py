"""The tables of options in the documentation are as the options are."""

from __future__ import annotations

import importlib.util

import pytest
from tests.support.project import ROOT

import stepscope

SPEC = importlib.util.spec_from_file_location("option_tables", ROOT / "scripts/option_tables.py")
option_tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(option_tables)


@pytest.mark.parametrize("name", option_tables.TABLES)
def test_a_page_is_as_the_options_are(name):
    page = (option_tables.DOCS / name).read_text(encoding="utf-8")
    assert page == option_tables.page_as_it_should_be(name), "run scripts/option_tables.py"


def test_each_option_has_a_row_with_its_default():
    rows = list(option_tables.fields())[2:]
    assert len(rows) == len(stepscope.CaptureConfig.__dataclass_fields__)
    assert any(row.startswith("| `wait` | `5` | ") for row in rows)
    assert "| `--min-free-bytes` | 256MiB | " in "\n".join(option_tables.flags_of_run())


def test_the_reference_of_the_api_is_as_the_docstrings_are():
    spec = importlib.util.spec_from_file_location("api_page", ROOT / "scripts/api_page.py")
    api_page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api_page)
    text = api_page.PAGE.read_text(encoding="utf-8")
    assert text == api_page.page(), "run scripts/api_page.py"
    named = {name for names in api_page.SECTIONS.values() for name in names}
    assert named == set(stepscope.__all__) - {"__version__"}
    assert "watch(" in text
