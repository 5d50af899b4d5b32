"""Climbs the ladder (`ladder`): replays a window with one finding after the other fixed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stepscope.advice.evidence.replayed import saved_by
from stepscope.advice.evidence.specific_causes import specific_first
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Finding
from stepscope.advice.rank.ladder import (
    COMMUNICATION,
    COMPUTE,
    COPIES,
    CPU,
    DEVICE,
    FLOOR,
    HOST,
    HOST_LIMIT,
    INPUT,
    OTHERS,
    PRECISION,
    TODAY,
    Ladder,
    Rung,
)
from stepscope.advice.rules.compute.precision import better_type
from stepscope.analysis.critical_path import Limits, limits_now, limits_of
from stepscope.analysis.floors import KINDS, WorkFloors
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.replay import Replay, replay, unchanged
from stepscope.run.figures import percent, significant
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array

_NOTABLE = 0.01
"""Share of today's step that a fix must bring to be a rung."""
_AT_ONCE = 2
"""How many candidates for a rung are replayed, unless none of them brings enough."""
_PARTLY = 0.1
"""Share of the time of work that must have a floor for the work to be named."""
_MOSTLY = 0.5
"""Share of the GPU's time that must have a floor for the last rung to be one."""
_NEARLY_NONE = 0.05
_PRECISIONS = {
    "float64": "FP64", "float32": "FP32", "tf32": "TF32", "float16": "FP16", "bfloat16": "BF16",
    "float8": "FP8", "int8": "INT8",
}  # fmt: skip
_NO_WINDOW = "no recorded window can be read to its end, so there is nothing to replay"
_START_UP = "only the first steps of the training were recorded, which may be start-up"
_NOTHING = "no finding promises a saving, and floors are known for GPUs only"
_INCOMPLETE, _BUSY = "trace-incomplete", "busy-cpus"


def climb(subject: Subject, findings: Sequence[Finding]) -> Ladder:
    """The ladder of one rank's findings."""
    window = subject.window
    if window is None:
        return Ladder(reason=_NO_WINDOW)
    if subject.steps is not None and subject.steps.holds_only_first_steps:
        return Ladder(reason=_START_UP)
    broken = next((f for f in findings if f.id == _INCOMPLETE and f.severity.is_weighty), None)
    if broken is not None:
        return Ladder(reason=broken.title)
    promising = [one for one in findings if one.saving_ns]
    if not window.has_gpu and not promising:
        return Ladder(reason=_NOTHING)
    climber = _Climber(subject, window, subject.step_ns or window.step_ns)
    climber.today()
    climber.fix(promising)
    if window.has_gpu:
        climber.reach_the_floor(promising)
    return climber.ladder()


@dataclass(frozen=True)
class _Tried:
    """A replay of some fixes."""

    changes: Changes
    again: Replay
    step_ns: int


@dataclass
class _Climber:
    """A ladder that grows by one rung at a time.

    Attributes:
        now: The replay of the last rung; None as long as nothing is fixed.
    """

    subject: Subject
    window: WindowView
    step_ns: int
    now: _Tried | None = None
    rungs: list[Rung] = field(default_factory=list)
    floor_ns: int | None = None
    device: str = ""
    rests_on: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def today(self) -> None:
        limits, steps, basis = limits_now(self.window.path), self.subject.steps, "recorded window"
        if steps is not None:
            limits, basis = self._by_record(self.step_ns, steps.wait_ns) or limits, "step record"
        self._put(TODAY, "nothing", self.step_ns, limits, basis)

    def fix(self, findings: Sequence[Finding]) -> None:
        """One rung per finding, the one that brings the most at each."""
        left = sorted(findings, key=lambda one: -(one.saving_ns or 0))
        gains = [one.saving_ns or 0 for one in left]
        fixed: list[Finding] = []
        while left:
            place, tried = self._best(fixed, left, gains)
            best = left[place]
            if gains[place] < _NOTABLE * self.step_ns:
                break
            del left[place], gains[place]
            fixed.append(best)
            limits = self._limits_with_free_cpus(fixed, tried.step_ns)
            self._add(best.id, best.title, tried, _basis(best), limits)
        if not left:
            return
        names = ", ".join(dict.fromkeys(one.id for one in left))
        tried = self._try_more([*fixed, *left], left)
        if self.rungs[-1].step_ns - tried.step_ns >= _NOTABLE * self.step_ns:
            self._add(OTHERS, f"all others together: {names}", tried, "replay")
        else:
            self.now = tried
            self.rests_on.append(f"Beyond these fixes, the others bring nothing more: {names}")

    def _best(
        self, fixed: list[Finding], left: list[Finding], gains: list[int]
    ) -> tuple[int, _Tried]:
        """The place of the finding that brings the most on top of those fixed, and its replay.

        Gains mostly fall as more is fixed, so a finding is replayed again only if what it brought
        before is more than the best has by now. What makes the GPU wait comes before that it waits,
        as in the report (`specific_causes`).

        Args:
            gains: What each brought when it was last replayed; brought up to date.
        """
        tried: dict[int, _Tried] = {}
        if fixed:
            for place in sorted(range(len(left)), key=lambda place: -gains[place]):
                most_ns = max((gains[one] for one in tried), default=-1)
                is_enough = len(tried) >= _AT_ONCE and most_ns >= _NOTABLE * self.step_ns
                if gains[place] <= most_ns or is_enough:
                    break
                tried[place] = self._try_more([*fixed, left[place]], [left[place]])
                gains[place] = max(0, self.rungs[-1].step_ns - tried[place].step_ns)
        known = sorted(tried or range(len(left)), key=lambda place: -gains[place])
        first = specific_first([replace(left[one], saving_ns=gains[one]) for one in known])[0]
        best = next(one for one in known if left[one].id == first.id)
        return best, tried.get(best) or self._try_more([*fixed, left[best]], [left[best]])

    def _try_more(self, findings: Sequence[Finding], new: Sequence[Finding]) -> _Tried:
        """The replay of the findings, of which some are new to the last rung."""
        start = unchanged(self.window.graph) if self.now is None else self.now.changes
        changes = (one.changes for one in new if one.changes is not None)
        return self._try(findings, functools.reduce(Changes.and_also, changes, start))

    def _try(self, findings: Sequence[Finding], changes: Changes) -> _Tried:
        again = replay(changes)
        saved_ns = saved_by(findings, again.saving_share, self.step_ns)
        return _Tried(changes, again, self.step_ns - saved_ns)

    def reach_the_floor(self, findings: Sequence[Finding]) -> None:
        """The rungs above the fixes: the device's limits, a better precision, no host."""
        window, graph = self.window, self.window.graph
        changes = unchanged(graph) if self.now is None else self.now.changes
        better = better_type(self.subject)
        is_slow = any(one.id == "full-precision-matmuls" for one in findings)
        faster = better if is_slow else None
        floors = window.floors(better)  # as the rule about precision asks, with or without finding
        self._note_peaks(floors, faster)
        known = [kind for kind in floors.kinds if kind.known_ns >= _PARTLY * kind.total_ns > 0]
        if floors.known_share >= _PARTLY:
            changes = changes.and_also(self._at_floor(floors.floor_ns))
            basis = f"replay; {percent(floors.known_share)} of the GPU's time has a floor"
            text = f"{_listed([_named(kind.name, floors) for kind in known])} at their floors"
            self._add(DEVICE, text, self._try(findings, changes), basis)
            if faster is not None:
                changes = changes.and_also(self._at_floor(floors.better_ns))
                text = f"FP32 matrix products at the peak of {_PRECISIONS[faster]}"
                self._add(PRECISION, text, self._try(findings, changes), "replay")
        moments = intervals.merge([graph.origin_ns], [int(graph.end_ns.max())])
        changes = changes.drop_edges(graph.edge_kind == EdgeKind.SYNC).scale_host(moments)
        text = "host, launches and input take no time"
        self._add(HOST, text, self._try(findings, changes), "replay")
        if floors.known_share >= _MOSTLY:
            self.rungs[-1] = replace(self.rungs[-1], limit=FLOOR, limit_share=None)
            self.floor_ns = self.rungs[-1].step_ns
            self.rests_on.append(
                "The floor is that of the kernels as they are: fusing them moves fewer bytes, and "
                "may go below it"
            )

    def _at_floor(self, floor_ns: Int64Array) -> Changes:
        dur_ns = self.window.graph.dur_ns.copy()
        dur_ns[self.window.work["node"].to_numpy()] = floor_ns
        return unchanged(self.window.graph).shorten_work(dur_ns)

    def _limits_with_free_cpus(self, fixed: Sequence[Finding], step_ns: int) -> Limits | None:
        """What limits the step once nothing but the wait for a CPU is gone, which no replay shows.

        By the step record: what is left of the wait for input, and the rest.
        """
        steps = self.subject.steps
        if steps is None or [one.id for one in fixed] != [_BUSY]:
            return None
        return self._by_record(step_ns, steps.wait_ns * (1 - steps.host.wait_queued_share))

    def _by_record(self, step_ns: int, input_ns: float) -> Limits | None:
        """The wait for input and the rest of the step, where one thread's time is all of it."""
        if self.window.has_gpu or self.subject.has_peers or not input_ns:
            return None
        of_input = min(step_ns, round(input_ns))
        return Limits(0, 0, 0, of_input, step_ns - of_input)

    def _add(
        self, rung: str, fixed: str, tried: _Tried, basis: str, limits: Limits | None = None
    ) -> None:
        step_ns = min([tried.step_ns, *(one.step_ns for one in self.rungs[-1:])])
        limits = limits or limits_of(tried.changes, tried.again)
        self._put(rung, fixed, step_ns, limits, basis)
        self.now = tried

    def _put(self, rung: str, fixed: str, step_ns: int, limits: Limits, basis: str) -> None:
        has_gpu = self.window.has_gpu
        names = (COMPUTE, COMMUNICATION, COPIES, INPUT, HOST_LIMIT if has_gpu else CPU)
        most, name = max(zip(limits, names, strict=True), key=lambda one: one[0])
        share = most / sum(limits) if most else None
        self.rungs.append(Rung(rung, fixed, step_ns, name if most else "", share, basis))

    def _note_peaks(self, floors: WorkFloors, faster: str | None) -> None:
        known = {peaks.name: peaks for peaks in floors.devices.values() if peaks is not None}
        self.device = ", ".join(known)
        types = [*floors.types, *([faster] if faster is not None else [])]
        for peaks in known.values():
            speeds = [
                f"{significant(peaks.teraflops[one])} TFLOP/s in {_PRECISIONS[one]}"
                for one in types
                if one in peaks.teraflops
            ]
            speeds.append(f"{significant(peaks.memory_gb_per_s)} GB/s of memory bandwidth")
            self.rests_on.append(f"{peaks.name}, by its data sheet: {', '.join(speeds)}")
        if not known:
            self.missing.append(
                "The device is not in the table of peaks (`stepscope explain devices`), so its "
                "kernels have no floor"
            )
        shares = [
            f"{kind.name} {percent(kind.known_ns / kind.total_ns)}"
            for kind in floors.kinds
            if kind.total_ns
        ]
        self.rests_on.append(
            f"Of their time on the GPU, these shares have a floor: {', '.join(shares)}; the rest "
            "counts as measured"
        )
        if floors.bus_gb_per_s:
            of_links = _listed([significant(speed) for speed in floors.bus_gb_per_s])
            self.rests_on.append(
                f"Collectives at the best bus bandwidth that this trace shows in their process "
                f"group: {of_links} GB/s; the link may allow more"
            )
        if not known:
            return
        of_products = next((kind for kind in floors.kinds if kind.name == KINDS[0]), None)
        lacking = "the GPU's work", 1 - floors.known_share, 1 - _MOSTLY
        if of_products is not None and of_products.total_ns:
            share = 1 - of_products.known_ns / of_products.total_ns
            if share > _NEARLY_NONE:
                lacking = KINDS[0], share, _NEARLY_NONE
        what, share, most = lacking
        if share > most:
            why = (
                "strides and paddings were not recorded (newer torch writes them with "
                "record_shapes=True), or the kernels are compiled or custom"
                if floors.has_shapes
                else "no shapes of operators were recorded (record_shapes=True)"
            )
            much = f"{percent(share)} of" if share < 1 else "All of"
            self.missing.append(f"{much} the time of {what} has no floor: {why}")

    def ladder(self) -> Ladder:
        if not self.window.has_gpu:
            self.missing.append("Floors are known for GPUs only")
        steps = self.subject.steps
        is_whole = steps is None and not self.window.graph.steps
        return Ladder(
            rungs=tuple(self.rungs),
            floor_ns=self.floor_ns,
            device=self.device,
            rests_on=tuple(self.rests_on),
            missing=tuple(self.missing),
            is_whole_file=is_whole,
        )


def _basis(finding: Finding) -> str:
    if finding.changes is None:
        return "measured, not replayed"
    return "replay; at the most" if finding.is_upper_bound else "replay"


def _named(kind: str, floors: WorkFloors) -> str:
    types = [_PRECISIONS.get(one, one) for one in floors.types]
    return f"{kind} ({', '.join(types)})" if kind == KINDS[0] and types else kind


def _listed(text: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(text[:-1]), *text[-1:]]))
