"""Notes on places of a trace: read, kept, taken away.

They lie in a file beside the trace, one JSON object a line, on the trace's own clock. The file has
the trace's name and `.notes`, so that a run keeps its notes wherever it is copied. One that cannot
be read is never written over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.run.files import write_atomically
from stepscope.run.side_json import decode, parse_json, utf8_json
from stepscope.viewer.routes.answers import MOST_TIME_NS, Asked, Endpoint

MOST_NOTES = 500
MOST_CHARACTERS = 500
"""Of one note."""
MOST_BYTES = 4_000_000


@dataclass(frozen=True, order=True)
class Note:
    """What somebody wrote about a range of time."""

    start_ns: int
    end_ns: int
    text: str


def notes_path(trace: str) -> Path:
    """Where the notes of a trace are kept.

    Raises:
        UsageError: The trace is no file of this machine.
    """
    path = Path(trace)
    if not path.is_file():
        raise UsageError("notes are kept beside a trace that is a file on this machine")
    return path.with_name(f"{path.name}.notes")


def read_notes(path: Path) -> list[Note]:
    """The notes in a file, in order of their start; none where there is no file.

    Raises:
        UnreadableInputError: It is not what `write_notes` writes.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnreadableInputError(f"{path}: cannot be read: {error.strerror}") from error
    notes = []
    try:
        for line in data.splitlines():
            note = decode(Note, parse_json(line))
            notes.append(replace(note, text=note.text[:MOST_CHARACTERS]))
    except (ValueError, TypeError) as error:
        line_number = len(notes) + 1
        raise UnreadableInputError(
            f"{path}: line {line_number} is no note; mend it, or move the file away"
        ) from error
    if len(data) > MOST_BYTES or len(notes) > MOST_NOTES:
        raise UnreadableInputError(f"{path}: holds more than {MOST_NOTES} notes")
    return sorted(notes)


def write_notes(path: Path, notes: Sequence[Note]) -> None:
    """Keep these notes, and no others.

    Raises:
        UsageError: There are too many, one has no text or too much, or the file cannot be written.
    """
    if len(notes) > MOST_NOTES:
        raise UsageError(f"a trace can have {MOST_NOTES} notes")
    if any(not 0 < len(note.text) <= MOST_CHARACTERS for note in notes):
        raise UsageError(f"a note has a text, of {MOST_CHARACTERS} characters at most")
    lines = b"".join(utf8_json(note) + b"\n" for note in notes)
    try:
        write_atomically(path, lines)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


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
