"""Reads Chrome traces, as written by PyTorch's recorder Kineto and other tools, into tables.

The list of events is read by the compiled scanner (`scan.py`). Where it does not recognise events,
they are repaired as a block (`repair_events.py`). The tolerant reader in Python (`event_text.py`),
which knows every layout, reads the others; where nothing can be compiled it reads all, with the
same rows, in fifteen times the time, but repairs no event that is not valid JSON.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from stepscope.errors import UnreadableInputError
from stepscope.trace.formats.chrome.assemble import Assembler
from stepscope.trace.formats.chrome.device_lanes import (
    names_other_devices,
    with_device_lanes,
    with_unknown_lanes,
)
from stepscope.trace.formats.chrome.event_list import (
    BytePositions,
    ReadEvents,
    Take,
    decode,
    more,
    read_events_tolerantly,
)
from stepscope.trace.formats.chrome.tolerant.event_text import MOST_FRUITLESS
from stepscope.trace.formats.chrome.tolerant.json_text import (
    SPACE,
    clean,
    is_cut_short,
    may_go_on,
    standard_text,
    strict_value,
    without_surrogates,
)
from stepscope.trace.formats.chrome.tolerant.lenient_json import LenientError, read_lenient
from stepscope.trace.formats.trace_format import Input, TraceFormat
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content
from stepscope.trace.tables import Frames, Tables

_BEFORE_JSON = b"\xef\xbb\xbf \t\r\n"  # byte order mark and space
_LOG = logging.getLogger(__name__)
_SEPARATORS = re.compile(r"[ \t\r\n,]*")
_COLON = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_EVENTS_KEY = re.compile(r'"traceEvents"\s*:\s*\[')
_NO_EVENTS = ("not_an_event", "no_phase", "skipped")
MOST_MEMBERS = 1000
"""Top-level values that are kept. Recorders write a few dozen."""
_LARGEST_VALUE = 64 * 1024 * 1024


class _Walk:
    def __init__(self, name: str, blocks: Content, assembler: Assembler) -> None:
        self.name = name
        self.blocks = blocks
        self.assembler = assembler
        self.data = b""
        self.offset = 0
        self.final = False
        self.text = ""
        self.here = 0
        self.byte_here = BytePositions("")
        self.lists = 0

    # -- buffered text ---------------------------------------------------------------------

    def hold(self, data: bytes, offset: int) -> None:
        self.data, self.offset = data, offset
        self.text, self.here = decode(data), 0
        self.byte_here = BytePositions(self.text)

    def grow(self) -> bool:
        """Reads more text; False at the end of the file."""
        if self.final:
            return False
        used = self.byte_here(self.here)
        kept = self.data[used:]
        if len(kept) > _LARGEST_VALUE:
            if self.lists:  # the events were read
                self.final = True
                return False
            raise UnreadableInputError(
                f"{self.name}: a top-level value at byte {self.offset + used} is larger than "
                f"{_LARGEST_VALUE // 1024**2} MiB; this is not a trace"
            )
        data, self.final = more(kept, self.blocks)
        grew = len(data) > len(kept)
        self.hold(data, self.offset + used)
        return grew

    def problem(self, kind: str) -> None:
        self.assembler.problems.add(kind, self.offset + self.byte_here(self.here))

    def skip(self, pattern: re.Pattern[str]) -> str:
        """Skips a match, and returns the next character; "" at the end of the file."""
        while True:
            match = pattern.match(self.text, self.here)
            self.here = match.end() if match else self.here
            if self.here < len(self.text):
                return self.text[self.here]
            if not self.grow():
                return ""

    # -- the document ----------------------------------------------------------------------

    def walk(self, read_events: ReadEvents, take: Take) -> None:
        while len(self.data) < 3 and self.grow():  # enough for a byte order mark
            continue
        if self.data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise UnreadableInputError(f"{self.name}: encoded as UTF-16; save it as UTF-8")
        if self.text.startswith("\ufeff"):
            self.here = 1
        character = self.skip(SPACE)
        if character == "[":
            self.here += 1
            if self.events(read_events, take):
                self.trailing()
        elif character == "{":
            self.here += 1
            self.members(read_events, take)
        elif character == "":
            raise UnreadableInputError(f"{self.name}: empty; the recorder wrote nothing")
        else:
            while len(self.text) - self.here < 20 and self.grow():
                continue
            start = self.text[self.here : self.here + 20].partition("\n")[0].rstrip()
            what = f"it starts with '{start}'" if start.isprintable() else "its content is binary"
            remedy = "; for py-spy, record with --format chrometrace" if character == "<" else ""
            if self.name.endswith(".py"):
                remedy = f"; `stepscope run -- python {self.name}` records a script"
            raise UnreadableInputError(
                f"{self.name}: neither JSON nor any other known trace format ({what}){remedy}"
            )

    def events(self, read_events: ReadEvents, take: Take) -> bool:
        self.lists += 1
        used = self.byte_here(self.here)
        ending = read_events(self.data[used:], self.offset + used, self.blocks, take)
        self.hold(ending.rest, ending.offset)
        is_over = ending.closed or ending.given_up
        if is_over and not self.blocks.has_events and self._fruitless():
            first = f"the first {MOST_FRUITLESS:,}" if ending.given_up else "the"
            raise UnreadableInputError(
                f"{self.name}: {first} elements of its list of events are no events (they have no"
                " phase, 'ph'); it is JSON, but not a trace"
            )
        if ending.given_up:
            self.final = True
            self.problem("no_more_events")
            return False
        if not ending.closed:
            self.final = True
            if not self.assembler.problems.count("truncated"):
                self.problem("truncated")
        return ending.closed

    def _fruitless(self) -> int:
        return sum(map(self.assembler.problems.count, _NO_EVENTS))

    def members(self, read_events: ReadEvents, take: Take) -> None:
        keys: set[str] = set()
        while True:
            character = self.skip(_SEPARATORS)
            if character == "}":
                self.here += 1
                self.trailing()
                break
            if character == "":
                self.problem("truncated")
                break
            found = self.key()
            if found is None:
                if not self.lost():
                    break
                key, start = "traceEvents", self.here
            else:
                key, start = found
            if key in keys:
                self.problem("duplicate_key")
            keys.add(key)
            if key == "traceEvents" and self.text[start] == "[":
                self.here = start + 1
                if not self.events(read_events, take):
                    break
            elif not self.value(key) and not self.lost(inside_value=True):
                break
        if not self.lists:
            raise UnreadableInputError(
                f"{self.name}: has no list of events"
                + (
                    ", because it is truncated; the recorder was probably killed"
                    if self.assembler.problems.count("truncated")
                    else " ('traceEvents'); it is JSON, but not a trace"
                )
            )

    def key(self) -> tuple[str, int] | None:
        """Returns the key at the current position and the start of its value, if there is a key."""
        while True:
            try:
                if self.text[self.here] != '"':
                    return None
                key, end = strict_value(self.text, self.here)
                colon = _COLON.match(self.text, end)
                if colon is not None and colon.end() < len(self.text):
                    return clean(key), colon.end()
                if colon is None and end + 1 < len(self.text.rstrip()):
                    return None
            except (ValueError, StopIteration):
                if self.final:
                    return None
            if not self.grow():
                return None

    def value(self, key: str) -> bool:
        """Stores the member at the current position; False if its value cannot be read."""
        while True:
            found = self.key()
            if found is None:
                return False
            start = found[1]
            try:
                value, end = strict_value(self.text, start)
                if not may_go_on(self.text, end):
                    raw = self.text[start:end]
                    text = without_surrogates(raw)
                    if text != raw:
                        self.problem("invalid_utf8")
                    self.keep(key, text)
                    self.here = end
                    return True
            except (ValueError, StopIteration, RecursionError) as failure:
                if not self.final and is_cut_short(failure, self.text):
                    self.grow()  # no repair of what may be sound once all of it is there
                    continue
                try:
                    value, end = read_lenient(self.text, start, self.final)
                    if not may_go_on(self.text, end):
                        self.problem("invalid_header")
                        self.keep(key, standard_text(value))
                        self.here = end
                        return True
                except LenientError as error:
                    if not error.at_end:
                        return False
            if self.final:
                return False
            self.grow()  # if nothing more comes, this parses the text once more as final

    def keep(self, key: str, text: str) -> None:
        if len(self.assembler.metadata) < MOST_MEMBERS:
            self.assembler.metadata.append((key, text))
        else:
            self.problem("too_many_members")

    def lost(self, inside_value: bool = False) -> bool:
        """Skips unreadable header text up to the list of events; False if there is none."""
        if self.final and _ends_early(self.text, self.here):
            self.problem("truncated")
            return False
        self.problem("invalid_header")
        if self.lists:
            return False  # nothing important follows the events
        while True:
            match = _EVENTS_KEY.search(self.text, self.here)
            if match is not None:
                # `members` expects the bracket as the next character.
                self.here = match.end() - 1 if not inside_value else match.start()
                return True
            if not self.grow():
                self.problem("truncated")
                return False

    def trailing(self) -> None:
        if self.skip(SPACE) != "":
            self.problem("trailing_data")
        for _ in self.blocks:
            continue


def _ends_early(text: str, at: int) -> bool:
    """Whether the member at `at` is unreadable because the text ends."""
    if not text.startswith('"', at):
        return not text[at:].strip()
    try:
        _, end = read_lenient(f"{{{text[at:]}", 0, final=False)
    except LenientError as error:
        return error.at_end
    return end < 0


def read_tables(
    name: str, content: Content, problems: Problems, read_events: ReadEvents | None = None
) -> Tables:
    """Reads a Chrome trace into memory, repairing what it can.

    Args:
        read_events: Reads the list of events. Default: the compiled reader, where there is one.

    Returns:
        The tables. `problems` reports what was repaired or skipped.
    """
    chunks: list[Frames] = []
    small = read_in_chunks(name, content, problems, chunks.append, read_events)
    return Tables.joined(chunks, small)


def read_in_chunks(
    name: str,
    content: Content,
    problems: Problems,
    take: Callable[[Frames], None],
    read_events: ReadEvents | None = None,
) -> Frames:
    """Like `read_tables`, but passes on the growing tables in chunks.

    Returns:
        The tables that do not grow with the file.
    """
    assembler = Assembler()
    walk = _Walk(name, content, assembler)
    walk.walk(read_events or _events_reader(name), lambda rows: take(assembler.add(rows)))
    take(assembler.close())
    assembler.problems.merge(problems)
    return assembler.small_tables()


def _events_reader(name: str) -> ReadEvents:
    """The compiled reader of the list of events; that in Python where it cannot be compiled."""
    try:
        from stepscope.trace.formats.chrome.scan import read_events_compiled
    except OSError:  # raised while the first function is translated
        _LOG.warning(
            "%s: the source code of Stepscope is not available (a frozen program?), so the fast"
            " reader cannot be compiled; the slow one takes fifteen times as long",
            name,
        )
        return read_events_tolerantly
    return read_events_compiled


def _read(trace: Input) -> Tables:
    return with_device_lanes(read_tables(trace.name, trace.content, trace.problems))


def _stream(trace: Input, take: Callable[[Frames], None]) -> Frames:
    if names_other_devices(trace.content.peek()):
        # What an event stands for depends on names, flows and arguments of the whole file.
        return _read(trace).pass_on(take)
    small = read_in_chunks(trace.name, trace.content, trace.problems, take)
    return {**small, "problems": with_unknown_lanes(small["problems"], small["lanes"])}


FORMAT = TraceFormat(
    name="chrome",
    recognises=lambda beginning: beginning.lstrip(_BEFORE_JSON)[:1] in (b"{", b"["),
    read=_read,
    stream=_stream,
)
"""Traces of Kineto, and any other Chrome traces."""
