"""The traces that a viewer serves: opened in the background, known to the page by opaque ids.

A memory snapshot is served like a trace, with one view. A trace can have memory, too: the newest
snapshot of its rank, or the host's memory events in it, which are read when they are looked at.

A trace goes through stages: waiting, reading (its file becomes tables), arranging (tables become
rows of slices), ready. The rest is worked out while the page already draws: of a large trace that
is opened for the first time links and the steps of GPUs, then it is whole; of every trace idle
causes and counters. A question that needs them waits for them.

What the first picture does not need is imported when it is first asked for.

A trace's arguments and some columns are read from its store when they are asked for. Where another
process has replaced the store meanwhile, what it holds is another recording: every answer checks,
and says so instead of mixing the two.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from stepscope.errors import StepscopeError
from stepscope.terminal.plain_text import escaped
from stepscope.trace.load import load
from stepscope.trace.model import Trace
from stepscope.viewer.background import Background
from stepscope.viewer.cached_index import cache_index, cached_index
from stepscope.viewer.index import arrange, early_index, whole_index
from stepscope.viewer.tiles import warm_up

if TYPE_CHECKING:
    from stepscope.analysis.counters import Series
    from stepscope.viewer.flame import Forest
    from stepscope.viewer.index import Lane, TraceIndex
    from stepscope.viewer.memory.history import MemoryContent
    from stepscope.viewer.ranges import RangeBasis
    from stepscope.viewer.search import NameIndex
    from stepscope.viewer.slice_rows import SliceRows

_LOG = logging.getLogger(__name__)
Answer = TypeVar("Answer")
_LONGEST_PICTURE_S = 10.0
"""After that, idle causes and counters are worked out even if no page has asked for them."""
EARLY_ABOVE_EVENTS = 500_000
"""Traces with more events are shown before links and the steps of GPUs are worked out."""


class TraceChangedError(StepscopeError):
    """The trace's file or store is not the one that was opened."""


@dataclass(frozen=True)
class Origin:
    """One trace or snapshot to serve.

    Attributes:
        path: Its file or URL.
        title: What the page calls it.
        run: What was given on the command line, for findings and ranks: a run, the file itself, or
            several files that are ranks of one run.
        window: Index of its window; None for what is no window.
        metrics: The `metrics.csv` beside it; None: there is none.
        step_record: The `steps.jsonl` of its rank; None for a trace outside a run.
        snapshot: The memory snapshot of its rank; None: there is none.
        is_memory: Whether it is a memory snapshot, and no trace.
    """

    path: str
    title: str
    run: tuple[str, ...]
    rank: int = 0
    window: int | None = None
    metrics: Path | None = None
    step_record: Path | None = None
    snapshot: str | None = None
    is_memory: bool = False


@dataclass(frozen=True, eq=False)
class Extras:
    """What is worked out after the first picture.

    Attributes:
        idle: Why each device was idle; None: it has no GPU work, or it failed.
        notes: What could not be worked out.
    """

    idle: pl.DataFrame | None
    idle_rows: SliceRows | None
    idle_lanes: tuple[Lane, ...]
    counters: tuple[Series, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Content:
    """A trace that is ready, and what is worked out from it when it is first asked for.

    Attributes:
        is_whole: Whether nothing is missing in the index: links and steps of GPUs are known.
        attained: What GPU work reaches of its limit; empty until `find_attained` has ended.
    """

    trace: Trace
    index: TraceIndex
    is_whole: bool
    origin: Origin
    _fingerprint: object
    attained: dict[int, tuple[float, str]] = field(default_factory=dict)
    _asking: threading.RLock = field(default_factory=threading.RLock)
    _clicking: threading.RLock = field(default_factory=threading.RLock)
    _preparing: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Guard an answer that reads the store: it was there, and the same, before and after.

        Raises:
            TraceChangedError: It is not.
        """
        self._check()
        try:
            yield
        except (OSError, pl.exceptions.PolarsError) as error:
            self._check()
            raise error from None
        self._check()

    def _check(self) -> None:
        if _fingerprint(self.trace) != self._fingerprint:
            raise TraceChangedError(
                f"{self.trace.path}: the recording has changed since it was opened: open it again"
            )

    def alone(self, answer: Callable[[], Answer]) -> Answer:
        """An answer of an analysis: one at a time, so that nothing is worked out twice."""
        with self._asking, self.unchanged():
            return answer()

    def at_once(self, answer: Callable[[], Answer]) -> Answer:
        """An answer to a click, which does not wait for an analysis to end.

        What both need is worked out by whoever asks first (`trace/session.py`).
        """
        with self._clicking, self.unchanged():
            return answer()

    @cached_property
    def names(self) -> NameIndex:
        """Its names, as they are searched."""
        from stepscope.viewer.search import NameIndex

        return NameIndex.of(self.index)

    @cached_property
    def links(self) -> pl.DataFrame:
        """Who launched what."""
        from stepscope.viewer.events import links_of

        return links_of(self.trace)

    def find_attained(self) -> None:
        """Work out what GPU work reaches of its limit, which clicks do not wait for."""
        from stepscope.viewer.events import attained_shares

        try:
            self.attained.update(self.alone(lambda: attained_shares(self.trace)))
        except Exception:  # noqa: BLE001 - a sentence is then shorter
            _LOG.info("%s: shares of the peak failed", self.trace.path, exc_info=True)

    @cached_property
    def forest(self) -> Forest:
        """Its call trees."""
        from stepscope.viewer.flame import Forest

        return Forest.of(self.trace)

    @property
    def extras(self) -> Extras:
        """Idle causes and counters; who asks while they are worked out waits."""
        with self._preparing:
            return self._extras

    @cached_property
    def _extras(self) -> Extras:
        from stepscope.analysis.counters import counters_of
        from stepscope.analysis.host.idle_gaps import idle_segments
        from stepscope.viewer.gaps import idle_rows

        notes: list[str] = []

        def tried(what: str, work: Callable[[], Answer]) -> Answer | None:
            try:
                return work()
            except Exception as error:  # noqa: BLE001 - a part that fails must not hide the others
                _LOG.warning("%s: %s failed", self.trace.path, what, exc_info=True)
                notes.append(f"{what} could not be worked out: {error}")
                return None

        idle = tried("idle time", lambda: idle_segments(self.trace))
        rows: SliceRows | None = None
        lanes: tuple[Lane, ...] = ()
        if idle is not None and len(idle):
            rows, lanes = idle_rows(self.trace, self.index, idle)
        counters = tried(
            "counters", lambda: counters_of(self.trace, self.index.origin_ns, self.origin.metrics)
        )
        return Extras(idle, rows, lanes, counters or (), tuple(notes))

    @cached_property
    def basis(self) -> RangeBasis:
        """What ranges are measured on."""
        from stepscope.viewer.ranges import range_basis

        return range_basis(self.trace, self.extras.idle)


def _fingerprint(trace: Trace) -> object:
    """What tells a recording from another at the same place."""
    from stepscope.trace.store.directory import MANIFEST

    if trace.store is None:
        return None
    try:
        status = (trace.store / MANIFEST).stat()
    except OSError:
        return "gone"
    return (status.st_ino, status.st_mtime_ns, status.st_size)


class Opened(Background[Content]):
    """One trace, from the moment it is asked for.

    Its stages are "waiting", "reading", "arranging", "ready" and "failed". Its content is there
    before all of it is worked out, and is replaced once when it is whole.

    Args:
        says_failure: Whether to log why it cannot be read.

    Attributes:
        id: What the page knows it by.
        is_over: Set once it is whole, or has failed.
        has_extras: Whether idle causes and counters are there.
        extras_wanted: Set when the page asks for these, which it does once its picture is drawn.
        memory: Its memory, read when it is asked for; None: it has none, as far as is known.
        has_gpu_memory: Whether it has no snapshot, but events of GPUs' memory: the answer of
            `show memory` is all that is known of it.
    """

    def __init__(self, origin: Origin, *, reports_failure: bool = True) -> None:
        super().__init__("trace", self._open)
        self._reports_failure = reports_failure
        self.id = secrets.token_hex(8)
        self.origin = origin
        self.has_extras = False
        self.extras_wanted = threading.Event()
        self.is_over = threading.Event()
        self.has_gpu_memory = False
        self.memory: Background[MemoryContent] | None = None
        snapshot = origin.path if origin.is_memory else origin.snapshot
        if snapshot is not None:
            from stepscope.analysis.memory.opening import open_memory
            from stepscope.viewer.memory.history import memory_of

            self.memory = memory_of(lambda: open_memory(snapshot).view)

    def start(self) -> None:
        """Read it in a thread, unless that has begun."""
        if self.memory is not None and self.origin.is_memory:
            self.memory.start()
        else:
            super().start()

    def _run(self) -> None:
        super()._run()
        self.is_over.set()

    def _open(self, enter: Callable[[str], None]) -> Content:
        try:
            content = self._show(load(self.origin.path), enter)
            # The first picture must not share the processor with idle causes and counters.
            self.extras_wanted.wait(_LONGEST_PICTURE_S)
            content.names  # noqa: B018 - the first search need not wait for it
            self._add_extras(content)
        except StepscopeError as error:
            # Also said where the command runs: there may be no page to say it on.
            if self._reports_failure:
                _LOG.error("stepscope: %s", escaped(str(error)))
            raise
        return content

    def _show(self, trace: Trace, enter: Callable[[str], None]) -> Content:
        """Arrange the slices, or read how they were; of many the first picture comes early."""
        fingerprint = _fingerprint(trace)
        warm_up()

        def ready(index: TraceIndex, *, is_whole: bool) -> Content:
            content = self._content = Content(trace, index, is_whole, self.origin, fingerprint)
            if is_whole:
                self.is_over.set()
            enter("ready")
            return content

        index = cached_index(trace)
        if index is not None:
            trace.derived  # noqa: B018 - read from the store once, not by several questions at a time
            return ready(index, is_whole=True)
        is_early = trace.event_count > EARLY_ABOVE_EVENTS
        if not is_early:
            trace.derived  # noqa: B018 - steps, nesting and links are part of reading
        enter("arranging")
        arranged = arrange(trace)
        if is_early:
            ready(early_index(trace, arranged), is_whole=False)
        index = whole_index(trace, arranged)
        content = ready(index, is_whole=True)
        cache_index(trace, index)
        return content

    def _add_extras(self, content: Content) -> None:
        from stepscope.analysis.memory.trace_history import has_host_memory, of_gpus

        content.extras  # noqa: B018 - worked out before the page is told that they are there
        self.has_gpu_memory = self.memory is None and bool(of_gpus(content.trace))
        if self.memory is None and has_host_memory(content.trace):
            from stepscope.analysis.memory.opening import memory_of_trace
            from stepscope.viewer.memory.history import memory_of

            self.memory = memory_of(lambda: memory_of_trace(content.trace, self.origin.path))
        self.has_extras = True
        # Of a large trace it would take the processor from whoever looks at it.
        if content.index.event_count <= EARLY_ABOVE_EVENTS:
            content.find_attained()

    def status(self) -> dict[str, Any]:
        """How far it is."""
        is_memory = self.origin.is_memory
        return {
            "id": self.id,
            "title": self.origin.title,
            "rank": self.origin.rank,
            "window": self.origin.window,
            "is_memory": is_memory,
            **(self.memory.status() if self.memory and is_memory else super().status()),
        }
