"""Notes on places of a trace: read, kept, taken away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.errors import UsageError
from stepscope.viewer.notes import Note, notes_path, read_notes, write_notes
from stepscope.viewer.routes.answers import MOST_TIME_NS, Asked, Endpoint


def _notes(asked: Asked) -> dict[str, Any]:
    content = asked.content
    origin = content.index.origin_ns
    notes = read_notes(notes_path(content.origin.path))
    return {
        "notes": [
            {"start_ns": note.start_ns - origin, "end_ns": note.end_ns - origin, "text": note.text}
            for note in notes
        ]
    }


def _keep(asked: Asked) -> dict[str, Any]:
    note = _given(asked)
    return _changed(asked, lambda notes: [*notes, note])


def _forget(asked: Asked) -> dict[str, Any]:
    gone = _given(asked)
    return _changed(asked, lambda notes: [note for note in notes if note != gone])


def _given(asked: Asked) -> Note:
    start, end, text = (asked.body.get(name) for name in Note._fields)
    if (
        not isinstance(start, int)
        or not isinstance(end, int)
        or not isinstance(text, str)
        or not -MOST_TIME_NS <= start <= end <= MOST_TIME_NS
    ):
        raise UsageError("a note has a start_ns, an end_ns not before it, and a text")
    origin = asked.content.index.origin_ns
    return Note(origin + start, origin + end, text.strip())


def _changed(asked: Asked, change: Callable[[list[Note]], list[Note]]) -> dict[str, Any]:
    content = asked.content
    path = notes_path(content.origin.path)
    content.at_once(lambda: write_notes(path, sorted(change(read_notes(path)))))
    return _notes(asked)


ENDPOINTS = (
    Endpoint("/api/traces/{id}/notes", _notes),
    Endpoint("/api/traces/{id}/notes/keep", _keep, "POST"),
    Endpoint("/api/traces/{id}/notes/forget", _forget, "POST"),
)
