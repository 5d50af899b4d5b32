"""What the pages list in tables is what there is: questions, fixes, views, problems, variables."""

from __future__ import annotations

import re

from tests.support.project import ROOT

from stepscope.adapters.options.dialect import OPTIONS
from stepscope.adapters.options.dialects import DIALECTS
from stepscope.analysis.questions import QUESTIONS
from stepscope.export.targets import TARGETS
from stepscope.memory.questions.names import ABOUT
from stepscope.trace.problems import MESSAGES
from stepscope.trace.sql.views import VIEWS
from stepscope.trial.fixes import FIXES

DOCS = ROOT / "docs"
BETWEEN_PROCESSES = {"STEPSCOPE_LAUNCH", "STEPSCOPE_TRIAL"}
"""Variables that Stepscope sets for processes of its own, and that are nobody's to set."""
OF_THE_TESTS = {"STEPSCOPE_TRACES"}


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def table_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the rows of the table with this heading in its first column."""
    _, _, after = text_of(page).partition(f"\n| {heading} |")
    assert after, f"docs/{page} has no table of {heading}"
    rows = after.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def code_in(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_questions_of_show():
    named = code_in([row[0] for row in table_of("verbs/show.md", "Question")])
    assert set(named) == {one.name for one in QUESTIONS}


def test_each_question_of_show_has_a_page():
    pages = {path.stem for path in (DOCS / "questions").glob("*.md")}
    of_one_page = {"operators-by-shape"}
    assert pages == {one.name for one in QUESTIONS} - of_one_page


def test_the_questions_about_memory():
    assert code_in([row[0] for row in table_of("verbs/memory.md", "Question")]) == list(ABOUT)


def test_the_fixes_and_what_they_answer():
    rows = table_of("verbs/try.md", "Fix")
    told = {code_in(row[:1])[0]: set(code_in(row[-1:])) for row in rows if len(row) == 3}
    assert told == {name: set(fix.answers) for name, fix in FIXES.items()}


def test_the_views_of_query():
    named = code_in([row[0] for row in table_of("verbs/query.md", "View")])
    assert set(named) == {view.name for view in VIEWS}


def test_the_formats_of_export():
    assert set(code_in([row[0] for row in table_of("verbs/export.md", "`--to`")])) == {
        target.name for target in TARGETS
    }


def test_the_dialects():
    assert code_in([row[0] for row in table_of("verbs/dialects.md", "Dialect")])[
        : len(DIALECTS)
    ] == list(DIALECTS)


def test_every_problem_of_reading_is_explained():
    _, _, section = text_of("loading.md").partition("### Damaged files\n")
    table = section.partition("\n### ")[0]
    named = {
        name
        for row in re.findall(r"\|([^|\n]*)\|$", table, re.MULTILINE)
        for name in code_in([row])
    }
    of_nsys = {"odd_time", "odd_device"}  # have messages of their own, with the table's name
    assert named - {"problems"} - of_nsys == set(MESSAGES)


def test_every_variable_stands_in_the_index():
    code = "\n".join(path.read_text() for path in (ROOT / "src" / "stepscope").rglob("*.py"))
    options = {f"STEPSCOPE_{name.upper()}" for name in OPTIONS}
    read = set(re.findall(r"\bSTEPSCOPE_[A-Z_]*[A-Z]\b", code)) - options
    rows = table_of("index.md", "Variable")
    listed = {name.partition("=")[0] for name in code_in([row[0] for row in rows])}
    assert listed - {"STEPSCOPE_", "NO_COLOR"} == read - BETWEEN_PROCESSES - OF_THE_TESTS
