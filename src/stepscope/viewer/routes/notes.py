"""Notes on places of a trace: read, kept, taken away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from stepscope.errors import UsageError
from stepscope.run.side_json import decode
from stepscope.viewer.notes import Note, notes_path, read_notes, write_notes
from stepscope.viewer.routes.answers import MOST_TIME_NS, Asked, Endpoint


def _notes(asked: Asked) -> dict[str, Any]:
    return _shown(asked, read_notes(notes_path(asked.content.origin.path)))


def _keep(asked: Asked) -> dict[str, Any]:
    note = _given(asked)
    return _changed(asked, lambda notes: [*notes, note])


def _forget(asked: Asked) -> dict[str, Any]:
    gone = _given(asked)
    return _changed(asked, lambda notes: [note for note in notes if note != gone])


def _given(asked: Asked) -> Note:
    refused = UsageError("a note has a start_ns, an end_ns not before it, and a text")
    try:
        note: Note = decode(Note, asked.body)
    except TypeError:
        raise refused from None
    if not -MOST_TIME_NS <= note.start_ns <= note.end_ns <= MOST_TIME_NS:
        raise refused
    return _moved(replace(note, text=note.text.strip()), asked.content.index.origin_ns)


def _changed(asked: Asked, change: Callable[[list[Note]], list[Note]]) -> dict[str, Any]:
    path = notes_path(asked.content.origin.path)

    def written() -> list[Note]:
        notes = sorted(change(read_notes(path)))
        write_notes(path, notes)
        return notes

    return _shown(asked, asked.content.at_once(written))


def _shown(asked: Asked, notes: list[Note]) -> dict[str, Any]:
    origin = asked.content.index.origin_ns
    return {"notes": [asdict(_moved(note, -origin)) for note in notes]}


def _moved(note: Note, by_ns: int) -> Note:
    return replace(note, start_ns=note.start_ns + by_ns, end_ns=note.end_ns + by_ns)


ENDPOINTS = (
    Endpoint("/api/traces/{id}/notes", _notes),
    Endpoint("/api/traces/{id}/notes/keep", _keep, "POST"),
    Endpoint("/api/traces/{id}/notes/forget", _forget, "POST"),
)
