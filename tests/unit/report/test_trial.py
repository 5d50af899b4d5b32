"""Trials in each output."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from tests.support.trial_records import BASELINE, trials_record

from stepscope.opening.trials import REDRAWN, LossRecord, TrialRecord, TrialsRecord
from stepscope.report.outputs import output
from stepscope.report.trial import costs, memory, notes, rows
from stepscope.run.manifest import read_record, write_record


class Text:
    """A sink that keeps what is written."""

    is_terminal = False

    def __init__(self):
        self.text = ""

    def write(self, content):
        self.text += content

    def flush(self):
        pass

    def isatty(self):
        return False

    def console(self, *, keeps_padding=False, width=None):
        from stepscope.report.console import console_on

        return console_on(self, keeps_padding=keeps_padding, width=width)


def written(form, record=None):
    sink = Text()
    output("trial", form).write(record or trials_record(), sink)
    return sink.text


def test_a_verdict_of_many_words_makes_the_table_no_wider(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    record = trials_record()
    lines = written("table", record).splitlines()
    rule = next(line for line in lines if set(line) == {"─"})
    heading = lines[lines.index(rule) - 1]
    assert len(rule) == len(heading)
    crashed = next(line for line in lines if "crashed: exit code 1" in line)
    assert crashed.index("crashed: ") == heading.index("Verdict")


@pytest.mark.parametrize("form", ["table", "md"])
def test_what_people_read_has_promise_outcome_and_what_to_write(form):
    text = written(form).replace("\\", "")
    for words in (
        "loader-workers helps: 1.92× as fast",
        "20.0 ms a step as it is: 96 steady steps of 3 processes",
        "10.0 ms (−50.0%)",
        "10.4 ms (−48.0%)",
        "−49.0% to −47.0%",
        "+12.0 MiB",
        "helps, but changes the losses",
        "changed (25%)",
        "crashed: exit code 1: a | pipe",
        "DataLoader(..., num_workers=2, persistent_workers=True)",
        "applied: train.py:12: num_workers=2",
        "instead of train.py:12: num_workers=0",
        "the promised step was 3.8% too low",
        "the script wrote files of its own",
        "tf32 does not apply: no GPU is in use",
        "cpu-bound-python has no fix that was tried. By the diagnosis, fixing it saves 25%",
        "of the step. Move that Python out.",
        "1.05 min in all, of which 1.00 min",
    ):
        assert words in text, words


def test_the_fastest_come_first_and_what_was_not_measured_last():
    assert [row[0] for row in rows(trials_record())] == ["loader-workers", "rare-gc", "threads"]


@pytest.mark.parametrize(
    ("busy", "is_named"), [((0.02, 0.5, 0.03), True), ((0.02, 0.09), False), ((), False)]
)
def test_a_busy_machine_is_named_with_what_that_does(busy, is_named):
    said = " ".join(notes(replace(trials_record(), busy=busy)))
    assert ("other programs used up to 50% of the CPUs" in said) is is_named
    assert ("do not count" in said) is is_named


def test_what_others_used_is_told_with_the_costs():
    found = costs(replace(trials_record(), busy=(0.02, 0.03, 0.04, 0.5)))
    assert "other programs used 3.5% of the CPUs" in found
    assert "other programs" not in costs(replace(trials_record(), busy=()))


def test_settings_of_the_allocator_show_what_they_reserve_next_to_the_promise():
    baseline = replace(BASELINE, peak_reserved_bytes=10 << 30, allocator_retries=3)
    trial = TrialRecord(
        "allocator-settings",
        ("allocator-settings",),
        ratio=1.0,
        peak_reserved_bytes=8 << 30,
        promised_reserved_bytes=7 << 30,
        promised_retries=0,
    )
    assert memory(trial, baseline) == (
        "−2.00 GiB reserved (promised −3.00 GiB), 3 → 0 retries (promised 0)"
    )
    few = replace(baseline, allocator_retries=0)
    assert memory(trial, few) == "−2.00 GiB reserved (promised −3.00 GiB)"


def test_markdown_tables_have_as_many_cells_in_each_row():
    lines = [line for line in written("md").splitlines() if line.startswith("|")]
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert cells == {8}
    assert len(lines) == 5


def test_json_is_what_the_run_keeps(tmp_path):
    record = trials_record()
    write_record(tmp_path / "trials.json", record)
    assert read_record(tmp_path / "trials.json", TrialsRecord) == record
    kept = json.loads((tmp_path / "trials.json").read_bytes())
    assert json.loads(written("json")) == {**kept, "schema_version": 1}


def test_the_list_of_fixes():
    from stepscope.trial.fixes import FIXES

    sink = Text()
    output("fixes", "table").write(list(FIXES.values()), sink)
    for name, fix in FIXES.items():
        assert name in sink.text
        assert fix.risks in sink.text
    sink = Text()
    output("fixes", "json").write(list(FIXES.values()), sink)
    assert [one["name"] for one in json.loads(sink.text)["fixes"]] == list(FIXES)


def test_losses_of_other_random_numbers_are_explained():
    record = trials_record()
    first, *others = record.trials
    redrawn = replace(first, losses=LossRecord(REDRAWN, 0.05, 0.0, 40))
    record = replace(record, trials=(redrawn, *others))
    assert redrawn.is_recommended
    assert any(row[0] == first.name and row[4] == "other draws (5.0%)" for row in rows(record))
    (note,) = (one for one in notes(record) if "another order" in one)
    assert note.startswith(f"{first.name}: random numbers for the data")
    for form in ("table", "md"):
        assert "on average they are the same" in " ".join(written(form, record).split())
