"""All questions about a snapshot in one table, and how each is asked. Their names: `names`.

An answer is a frozen dataclass: its polars frames are tables, `notes` is what a reader must know,
and its other fields are numbers. Names carry units (`_ns`, `_bytes`, `_share`). An answer is about
one device: the fullest, if none is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.errors import UsageError, did_you_mean
from stepscope.memory.questions import (
    composition,
    fit,
    fragmentation,
    growth,
    oom,
    outside,
    settings,
    shard,
    timeline,
    totals,
)
from stepscope.memory.questions.bounded import Run
from stepscope.memory.questions.moments import moment_of
from stepscope.memory.questions.names import ABOUT
from stepscope.memory.questions.over_time import OverTime, over_time
from stepscope.memory.view import MemoryView, Moment


@dataclass(frozen=True)
class Asked:
    """What a question is asked with.

    Attributes:
        device: The device; None: the fullest.
        at: The moment, in the words of `moments`; None: the question's own.
        settings: Values of PYTORCH_CUDA_ALLOC_CONF to simulate.
        before: For a difference, the snapshot to compare with; None: the same one.
        before_at: The moment to compare with; None: the same one.
        capacity_bytes: What the device has for the allocator.
    """

    device: int | None = None
    at: str | None = None
    settings: tuple[str, ...] = ()
    before: MemoryView | None = None
    before_at: str | None = None
    runs: tuple[Run, ...] = ()
    targets: tuple[float, ...] = ()
    capacity_bytes: int | None = None


@dataclass(frozen=True)
class MemoryQuestion:
    """One question.

    Attributes:
        titles: Field of the answer to the title of its table, in display order.
        takes: The fields of `Asked` that it heeds, beside the device.
    """

    name: str
    about: str
    titles: Mapping[str, str]
    ask: Callable[[MemoryView, Asked], Any]
    takes: frozenset[str]


@dataclass(frozen=True)
class MemoryAnswer:
    """The answer to a question about a snapshot.

    Attributes:
        origin_ns: The time of its first event; people read other moments relative to it.
        kind: A phrase on what the file is.
        drawn: Memory over time, for an output that draws it; None where it was not asked for, and
            for answers about other runs than the recorded one.
    """

    question: MemoryQuestion
    path: str
    origin_ns: int
    result: Any
    kind: str = "memory snapshot"
    drawn: OverTime | None = None


def answer(
    view: MemoryView,
    question: MemoryQuestion,
    asked: Asked | None = None,
    *,
    is_drawn: bool = False,
) -> MemoryAnswer:
    """Asks a question.

    If `is_drawn`, the answer brings memory over time.

    Raises:
        UsageError: The question cannot be asked so, or the snapshot has nothing of that kind.
    """
    given = asked or Asked()
    for name, label in _OPTIONS.items():
        if getattr(given, name) and name not in question.takes:
            able = ", ".join(one.name for one in QUESTIONS if name in one.takes)
            raise UsageError(f"'{question.name}' takes no {label}; {able} does")
    result = question.ask(view, given)
    drawn = None
    if is_drawn and "targets" not in question.takes:  # a prediction is about runs nobody recorded
        drawn = over_time(view, given.device)
    return MemoryAnswer(question, view.snapshot.path, view.origin_ns, result, view.kind, drawn)


_OPTIONS = {
    "at": "--at",
    "settings": "--settings",
    "before": "--before",
    "before_at": "--before-at",
    "runs": "--size or --also",
    "targets": "--target",
    "capacity_bytes": "--capacity",
}


def _moment(view: MemoryView, asked: Asked, default: str) -> Moment:
    return moment_of(view, view.device(asked.device), asked.at or default)


def _fragmentation(view: MemoryView, asked: Asked) -> fragmentation.Fragmentation:
    moment = None if asked.at is None else _moment(view, asked, "")
    return fragmentation.fragmentation(view, asked.device, moment)


def _difference(view: MemoryView, asked: Asked) -> composition.Difference:
    if asked.before is None and asked.before_at is None:
        raise UsageError(
            "diff compares with another snapshot (--before FILE), with another moment "
            "(--before-at MOMENT), or both"
        )
    other = asked.before or view
    at = asked.at or ("end" if asked.before is None else "peak")
    device = view.device(asked.device)
    before = moment_of(other, other.device(asked.device), asked.before_at or at)
    names = ("", "") if asked.before is None else (other.snapshot.path, view.snapshot.path)
    return composition.difference(
        composition.composition(other, before),
        composition.composition(view, moment_of(view, device, at)),
        names,
    )


def _shard(view: MemoryView, asked: Asked) -> shard.Shard:
    run = asked.runs[0] if asked.runs else Run(1, view)
    if len(asked.runs) > 1:
        raise UsageError("'shard' predicts from one run: it takes no --also")
    return shard.shard(run, asked.targets, asked.device, asked.capacity_bytes)


def _fit(_view: MemoryView, asked: Asked) -> fit.Fit:
    return fit.will_it_fit(asked.runs, asked.targets, asked.device, asked.capacity_bytes)


_HELD = {
    "categories": "By category",
    "lines": "By line",
    "modules": "By module",
    "sizes": "By size",
    "allocations": "Allocations",
}

_PREDICTS = ("runs", "targets", "capacity_bytes")


def _question(
    name: str, ask: Callable[[MemoryView, Asked], Any], titles: Mapping[str, str], *takes: str
) -> MemoryQuestion:
    return MemoryQuestion(name, ABOUT[name], titles, ask, frozenset(takes))


QUESTIONS: tuple[MemoryQuestion, ...] = (
    _question(
        "overview",
        lambda view, asked: totals.totals(view, asked.device),
        {
            "categories": "Held at the peak, by category",
            "lines": "Held at the peak, by line",
            "devices": "Devices",
            "mismatches": "Contradictions in the history",
        },
    ),
    _question("peak", lambda view, asked: composition.peak(view, asked.device), _HELD),
    _question(
        "held",
        lambda view, asked: composition.composition(view, _moment(view, asked, "end")),
        _HELD,
        "at",
    ),
    _question(
        "timeline",
        lambda view, asked: timeline.timeline(view, asked.device),
        {"steps": "Steps", "timeline": "Over time"},
    ),
    _question(
        "growth",
        lambda view, asked: growth.growth(view, asked.device),
        {"lines": "Made in earlier steps, and still held", "steps": "Steps"},
    ),
    _question(
        "oom",
        lambda view, asked: oom.out_of_memory(view, asked.device),
        {
            "remedies": "What would have helped, the cheapest first",
            "categories": "Held when it failed, by category",
            "lines": "Held when it failed, by line",
            "allocations": "Allocations",
        },
    ),
    _question(
        "fragmentation",
        _fragmentation,
        {
            "groups": "By pool, size class and stream",
            "lines": "Lines that pin free memory",
            "segments": "Pinned segments",
        },
        "at",
    ),
    _question(
        "settings",
        lambda view, asked: settings.settings(view, asked.device, asked.settings),
        {"alternatives": "By simulation"},
        "settings",
    ),
    _question(
        "diff",
        _difference,
        {"categories": "By category", "lines": "By line", "modules": "By module"},
        "at",
        "before",
        "before_at",
    ),
    _question(
        "outside",
        lambda view, asked: outside.outside(view, asked.device),
        {"samples": "Samples"},
    ),
    _question("fit", _fit, {"targets": "By size"}, *_PREDICTS),
    _question("shard", _shard, {"targets": "By ranks, and what they divide"}, *_PREDICTS),
)
"""In the order of the list."""


def question(name: str) -> MemoryQuestion:
    """The question of that name.

    Raises:
        UsageError: There is none; suggests the nearest.
    """
    names = [candidate.name for candidate in QUESTIONS]
    if name in names:
        return QUESTIONS[names.index(name)]
    hint = did_you_mean(name, names, f"there are {', '.join(names)}")
    raise UsageError(f"no question '{name}' about a snapshot: {hint}")
