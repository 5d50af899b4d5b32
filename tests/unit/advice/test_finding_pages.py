"""Every rule has its page, and the pages speak of thresholds that exist."""

from __future__ import annotations

import dataclasses
import re

from tests.support.project import ROOT

from stepscope.advice.rules import RULES
from stepscope.advice.thresholds import Thresholds

PAGES = ROOT / "docs" / "findings"
SECTIONS = ("What it means", "How it is measured", "How the saving is estimated", "How to fix it")


def test_every_rule_has_its_page_and_every_page_its_rule():
    assert {page.stem for page in PAGES.glob("*.md")} == set(RULES)


def test_every_rule_is_found_by_its_id():
    folder = ROOT / "src" / "stepscope" / "advice" / "rules"
    defined = set()
    for path in folder.rglob("*.py"):
        defined |= set(
            re.findall(r"^def find_(\w+)\(subject: Subject\b", path.read_text(), re.MULTILINE)
        )
    assert defined == {rule.replace("-", "_") for rule in RULES}
    for rule in RULES:
        assert RULES[rule].__name__ == f"find_{rule.replace('-', '_')}"
    assert "os" not in RULES


def test_every_page_says_what_a_reader_needs():
    for rule in RULES:
        text = (PAGES / f"{rule}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {rule}: ")
        for section in (*SECTIONS, "When to ignore it"):
            assert f"\n## {section}\n" in text, f"{rule} has no section '{section}'"


def test_every_threshold_is_explained_where_it_is_set():
    names = {field.name for field in dataclasses.fields(Thresholds)}
    explained = set(re.findall(r"^ {4,8}(\w+): ", Thresholds.__doc__ or "", re.MULTILINE))
    assert names == explained


def test_every_threshold_stands_in_the_documented_table_with_its_value():
    page = (ROOT / "docs" / "thresholds.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \| \S.* \|$", page, re.MULTILINE))
    assert {name: float(value) for name, value in rows.items()} == {
        name: float(value) for name, value in dataclasses.asdict(Thresholds()).items()
    }
