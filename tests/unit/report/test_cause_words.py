"""Causes of idle time in words where people read them; programs get the codes."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
from tests.support.page_data import data_of

from stepscope.analysis.host.idle_gaps import IDLE_CAUSES
from stepscope.analysis.selection.partition import IDLE_LABELS
from stepscope.report.cells import shown
from stepscope.report.document import DataTable, Page, Section
from stepscope.report.render.html import page_of
from stepscope.viewer.tables import for_page

GAPS = pl.DataFrame(
    {"cause": ["device_wait", None, "op_dispatch", "late start"], "dur_ns": [4, 3, 2, 1]}
)
WORDS = ["queued work waits", None, "launches and dispatch", "late start"]


def test_every_cause_has_words_of_its_own():
    assert set(IDLE_LABELS) == set(IDLE_CAUSES)
    words = [shown("cause", cause) for cause in IDLE_CAUSES]
    assert len(set(words)) == len(words)
    assert not any("_" in text or "idle" in text for text in words)


def test_tables_for_people_have_words_in_every_layout():
    assert [shown("cause", cause) for cause in GAPS["cause"]] == [
        "–" if text is None else text for text in WORDS
    ]
    assert [row[0] for row in for_page(GAPS, 0)["rows"]] == WORDS
    module = SimpleNamespace(
        page=lambda *_: Page("", "", "", [Section("gaps", "Gaps", (DataTable("Gaps", GAPS),))])
    )
    block = data_of(page_of(module, None))["sections"][0]["blocks"][0]
    assert [row[0] for row in block["rows"]] == WORDS


def test_only_causes_are_put_into_words():
    assert shown("name", "device_wait") == "device_wait"
    assert [row[0] for row in for_page(GAPS.rename({"cause": "name"}), 0)["rows"]] == list(
        GAPS["cause"]
    )
