"""Diagnoses a rank by one recorded window, whose trace is open."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import polars as pl

from stepscope.advice.evidence.believable import loss_of
from stepscope.advice.evidence.collectives import cost_of_waits, point_to_point
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.rank.compared_rank import with_window
from stepscope.advice.rank.compute_summary import summarise_compute
from stepscope.advice.rank.findings import subject_of, with_findings
from stepscope.advice.rank.summary import ComparedRank, HostSummary, RankSummary, Request, Waits
from stepscope.analysis.host.partition import HostPartition, partition_host
from stepscope.analysis.host.steady_steps import StepState, steady_steps
from stepscope.analysis.record.pace import recorded_pace
from stepscope.analysis.record.summary import is_in_cycle
from stepscope.analysis.selection.rows import Rows
from stepscope.analysis.selection.scope import Scope
from stepscope.analysis.timeline import Breakdown, break_down_devices, host_scope
from stepscope.errors import StepscopeError, UsageError
from stepscope.opening.reader import RankRun, Window
from stepscope.run.figures import duration
from stepscope.trace.model import Trace
from stepscope.trace.problems import counted


@dataclass
class WindowDiagnosis:
    """Diagnoses a rank by one of its windows, whose trace has the steps asked for.

    Attributes:
        notes: Receives what could not be read, and what was repaired or left out.
    """

    rank: RankRun
    window: Window
    trace: Trace
    alone: RankSummary
    request: Request
    waits: Waits | None
    notes: list[str]

    def diagnose(self) -> RankSummary | None:
        """The summary of the rank; None if the window cannot be judged."""
        try:
            view, host, device, compared = self._measure()
        except StepscopeError as error:
            if self.request.scope.steps is not None and isinstance(error, UsageError):
                raise
            self.notes.append(str(error))
            return None
        problems = self._note_problems()
        self.notes.extend(self._cycle_notes() or view.steady.notes)
        self.notes.extend(self._round_notes())
        self.notes.extend(view.graph.notes)
        if host is None and device is None:
            self.notes.append(
                f"{self.window.trace_path}: no thread with operators or calls, and no GPU work"
            )
            return None
        waits = self.waits
        if waits is not None and waits.window != self.window.index:
            waits = None
        subject = replace(
            subject_of(self.rank, self.alone, self.request, self.trace, self.notes),
            host=host,
            window=view,
            waits=None if waits is None else waits.table,
            problems=problems,
        )
        summary = self._summary(subject, view, device, compared)
        return with_findings(summary, subject)

    def host_steps(self) -> RankSummary:
        """The summary by a file that lacks its end: how long annotated steps take on the host."""
        steady = steady_steps(self.trace, Scope(steps=self.request.scope.steps))
        is_annotated = bool(steady.steps) and not self.trace.step_source
        problems = self._note_problems()
        if is_annotated:
            self.notes.extend(steady.notes)
        alone = subject_of(self.rank, self.alone, self.request, None, self.notes)
        subject = replace(alone, problems=problems)
        summary = replace(
            self.alone,
            window=self.window,
            window_steps=steady.steps if is_annotated else (),
            window_step_ns=steady.step_ns if is_annotated else None,
            window_median_ns=steady.median_ns if is_annotated else None,
            problems=problems,
            notes=tuple(self.notes),
            is_cut_off=True,
        )
        return with_findings(summary, subject)

    def _asked(self) -> Scope:
        """The scope asked for; with the slow steps that the record shows to come again and again.

        Such a step is part of the steady state, though it is an exception within its window.
        """
        steps = self._whole_of_cycle or self._whole_rounds
        return replace(self.request.scope, steps=steps) if steps else self.request.scope

    @functools.cached_property
    def _whole_rounds(self) -> tuple[int, ...]:
        """The steady steps that are whole rounds of batches on all ranks; none if all are."""
        waits = self.waits
        is_asked = self.request.scope.steps is not None
        if waits is None or waits.window != self.window.index or is_asked:
            return ()
        steps = steady_steps(self.trace, self.request.scope).steps
        whole = tuple(step for step in steps if step not in waits.parts_of_rounds)
        return whole if whole != steps else ()

    @functools.cached_property
    def _whole_of_cycle(self) -> tuple[int, ...]:
        """All whole steps of the window, if slow ones among them belong to a cycle; else none."""
        record = self.alone.steps
        if self.request.scope.steps is not None or record is None:
            return ()
        judged = steady_steps(self.trace, self.request.scope).of_state(
            StepState.COMPLETE,
            StepState.APART,
            StepState.PART_OF_ROUND,
            StepState.STALL,
            StepState.START_UP,
        )
        odd = [one for one in judged if one.state in (StepState.STALL, StepState.START_UP)]
        if not odd or not all(is_in_cycle(record, one.step) for one in odd):
            return ()
        return tuple(one.step for one in judged)

    def _cycle_notes(self) -> list[str]:
        record = self.alone.steps
        if not self._whole_of_cycle or record is None or record.cycle is None:
            return []
        every = record.cycle.distance
        return [f"1 step in {every} is slow, by the step record: those of the window count as well"]

    def _round_notes(self) -> list[str]:
        if self._whole_of_cycle or not self._whole_rounds:
            return []
        parts = steady_steps(self.trace, self.request.scope).steps
        left_out = ", ".join(str(one) for one in parts if one not in self._whole_rounds)
        why = "another rank has part of a round of batches, and the ranks wait for each other"
        return [f"not part of the steady step: step {left_out} ({why})"]

    def _measure(self) -> tuple[WindowView, HostPartition | None, Breakdown | None, ComparedRank]:
        """What is measured on the window before any rule is asked."""
        asked = self._asked()
        record = self.alone.steps
        manifest = self.alone.compared.manifest
        loader = None if manifest is None else manifest.loader
        pace = None if record is None else recorded_pace(record, loader)
        view = WindowView(self.trace, asked, self.request.baseline, pace)
        if record is not None and view.graph.has_outrun_record:
            needs_ns = view.graph.replayed_step_ns
            self.notes.append(
                f"the step record is not used: its steps of {duration(record.mean_ns)} are the "
                f"host's, which ran ahead of the GPU; the GPU needs {duration(needs_ns)} for one"
            )
            self.alone = replace(self.alone, steps=None)
        steps = view.scope.steps
        host = partition_host(self.trace, steps)
        device = None
        if view.has_gpu:
            device = break_down_devices(view.timeline, view.idle)
        compared = self.alone.compared
        if compared.window not in (None, self.window.index):
            compared = replace(compared, pieces=None)  # they are of the other window
            compared = with_window(compared, self.window, self.trace, asked)
        return view, host, device, compared

    def _note_problems(self) -> tuple[tuple[str, int, str], ...]:
        """Notes what is wrong with the trace, and returns it: problem, count and message."""
        table = self.trace.all_problems
        problems = tuple(table["problem", "count", "message"].iter_rows())
        self.notes.extend(counted(message, count) for _, count, message in problems)
        return problems

    def _summary(
        self, subject: Subject, view: WindowView, device: Breakdown | None, compared: ComparedRank
    ) -> RankSummary:
        waits, host = subject.waits, subject.host
        loss = loss_of(view)
        cost_ns, costs_ns = (None, None) if waits is None else cost_of_waits(view, waits)
        return replace(
            self.alone,
            host=None if host is None else HostSummary(host.partition, Rows.of(host.steps)),
            device=None if device is None else device.partition,
            communication=None if device is None else _communication(view),
            device_steps=None if device is None else Rows.of(view.timeline.steps),
            critical_path=None if device is None else view.path,
            compute=summarise_compute(view),
            scope=view.timeline.scope if device is not None else host_scope(host, view.asked),
            window=self.window,
            window_steps=view.graph.steps,
            window_step_ns=view.step_ns,
            window_median_ns=view.steady.median_ns if view.graph.steps else view.step_ns,
            step_source=self.trace.step_source,
            problems=subject.problems,
            notes=tuple(self.notes),
            compared=compared,
            cost_of_waits_ns=cost_ns,
            costs_of_waits_ns=costs_ns,
            clock_lag_ns=view.graph.clock_lag_ns,
            purpose=subject.purpose,
            has_recorded_pace=view.graph.has_recorded_pace,
            missing=loss.text if loss.is_too_much else "",
            exchanges=_exchanges(view, has_gpu=device is not None),
            exchanges_per_step=len(point_to_point(view).collectives) / max(1, view.steps)
            if device is not None
            else 0.0,
        )


def _exchanges(view: WindowView, *, has_gpu: bool) -> bool:
    if has_gpu:
        return bool(point_to_point(view).is_one.any())
    name = pl.col("name").cast(pl.String)
    found = view.trace.names.filter(name.str.contains(r"^(c10d::|gloo:)(send|recv)"))
    return bool(len(found.select("name").head(1).collect()))


def _communication(view: WindowView) -> tuple[int, int]:
    """Time of all communication per step, of several devices their mean, and what hides of it."""
    line = view.timeline
    count = view.steps * max(1, len(line.scope.devices))
    hidden_ns = line.total_comm_ns - line.exposed_comm_ns
    return round(line.total_comm_ns / count), round(hidden_ns / count)
