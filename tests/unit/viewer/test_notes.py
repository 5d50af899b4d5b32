"""Notes on places: kept beside the trace, on its own clock, and never lost to a damaged file."""

from __future__ import annotations

import json

import pytest
from tests.support.viewer import training, viewing

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.viewer.routes.notes import (
    MOST_CHARACTERS,
    MOST_NOTES,
    Note,
    read_notes,
    write_notes,
)

NOTES = "/api/traces/{}/notes"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_bytes(training().json())
    return path


def test_a_note_is_kept_beside_its_trace_on_the_trace_s_clock(file):
    note = {"start_ns": 1000, "end_ns": 2500, "text": " <b>slow</b> here "}
    with viewing([file]) as viewer:
        origin = int(viewer.get("/api/traces/{}/overview")["origin_ns"])
        assert viewer.get(NOTES) == {"notes": []}
        answer = viewer.post(f"{NOTES}/keep", note).json
        assert answer == {"notes": [{**note, "text": "<b>slow</b> here"}]}
    kept = file.with_name("rank0.json.notes")
    assert read_notes(kept) == [Note(origin + 1000, origin + 2500, "<b>slow</b> here")]
    with viewing([file]) as viewer:
        (found,) = viewer.get(NOTES)["notes"]
        assert found["start_ns"] == 1000
        assert viewer.post(f"{NOTES}/forget", found).json == {"notes": []}
    assert read_notes(kept) == []


def test_notes_do_not_make_another_rank_of_their_folder(file):
    write_notes(file.with_name("rank0.json.notes"), [Note(1, 2, "here")])
    with viewing([file.parent]) as viewer:
        assert [one.origin.title for one in viewer.library.traces] == ["rank0.json"]


@pytest.mark.parametrize(
    "note",
    [
        {},
        {"start_ns": 5, "end_ns": 4, "text": "backwards"},
        {"start_ns": 0, "end_ns": 2**60, "text": "too late"},
        {"start_ns": 0.5, "end_ns": 1, "text": "no whole number"},
        {"start_ns": 0, "end_ns": 1, "text": ["no text"]},
        {"start_ns": 0, "end_ns": 1, "text": "  "},
        {"start_ns": 0, "end_ns": 1, "text": "x" * (MOST_CHARACTERS + 1)},
    ],
)
def test_what_is_no_note_is_refused_and_changes_nothing(file, note):
    with viewing([file]) as viewer:
        answer = viewer.post(f"{NOTES}/keep", note)
    assert answer.status == 400
    assert "note" in answer.json["error"]
    assert not file.with_name("rank0.json.notes").exists()


def test_a_file_that_is_damaged_is_named_and_stays(file):
    kept = file.with_name("rank0.json.notes")
    good = json.dumps({"start_ns": 1, "end_ns": 2, "text": "here"})
    kept.write_text(f"{good}\n{{", encoding="utf-8")
    before = kept.read_bytes()
    with pytest.raises(UnreadableInputError, match=r"rank0\.json\.notes: line 2 is no note"):
        read_notes(kept)
    with viewing([file]) as viewer:
        answer = viewer.post(f"{NOTES}/keep", {"start_ns": 0, "end_ns": 1, "text": "more"})
    assert "line 2 is no note" in answer.json["error"]
    assert kept.read_bytes() == before


def test_there_are_only_so_many(file):
    kept = file.with_name("rank0.json.notes")
    write_notes(kept, [Note(at, at, "n") for at in range(MOST_NOTES)])
    with viewing([file]) as viewer:
        answer = viewer.post(f"{NOTES}/keep", {"start_ns": 0, "end_ns": 1, "text": "more"})
    assert "500 notes" in answer.json["error"]
    assert len(read_notes(kept)) == MOST_NOTES


def test_a_place_where_no_file_can_be_is_said(file):
    with pytest.raises(UsageError, match="cannot be written"):
        write_notes(file / "x.notes", [Note(0, 1, "here")])
