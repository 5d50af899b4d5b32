"""Sections of the diagnosis's page about the step: where it goes, each one, and a typical one."""

from __future__ import annotations

import re
from typing import Any

from stepscope.advice.diagnosis import Diagnosis
from stepscope.advice.drawn_step import TypicalStep
from stepscope.advice.rank_summary import RankSummary
from stepscope.report import units
from stepscope.report.diagnosis.words import (
    besides,
    compute_rows,
    compute_title,
    partition_basis,
    partition_scope,
    step_basis,
    work,
)
from stepscope.report.page import blocks
from stepscope.report.page.step_groups import StepGroups
from stepscope.report.text import sentence

_STEP_NAME = re.compile(r"ProfilerStep#(\d+)")


def step_section(diagnosis: Diagnosis) -> dict[str, Any]:
    """How long a step takes, and what it consists of."""
    shown, record = diagnosis.shown, diagnosis.shown.steps
    whole = "whole file" if shown.is_whole_file else "step"
    large = [] if shown.step_ns is None else [(whole, units.duration(shown.step_ns))]
    if record is not None:
        if record.mean_ns:
            large.append(("steps/s", f"{1e9 / record.mean_ns:.3g}"))
        if record.tokens_per_second is not None:
            large.append(("tokens/s", units.count(round(record.tokens_per_second))))
        if record.samples_per_second is not None:
            large.append(("samples/s", units.count(round(record.samples_per_second))))
        large.append(("longest step", units.duration(record.worst_ns)))
    partition = shown.partition
    return blocks.section(
        "step",
        "Where the step goes",
        blocks.numbers(large),
        blocks.text(sentence(step_basis(diagnosis, shown))),
        blocks.text(f"{sentence(work(shown))}.", "note") if work(shown) else None,
        None
        if partition is None
        else blocks.bar(
            [(part.name, part.total_ns) for part in partition.parts],
            partition.total_ns,
            partition.steps,
        ),
        blocks.text(f"{sentence(partition_basis(shown))}.", "note") if partition else None,
        blocks.text(f"{partition_scope(shown)}.", "note") if partition_scope(shown) else None,
        blocks.text(sentence(besides(record)), "note") if record and record.other_kinds else None,
    )


def compute_section(rank: RankSummary) -> dict[str, Any]:
    """What the compute consists of."""
    title, _, amount = compute_title(rank).partition("   ")
    made_of = blocks.facts(compute_rows(rank))
    note = blocks.text(f"{sentence(amount)}.", "note") if made_of else None
    return blocks.section("compute", title, made_of, note)


def steps_section(diagnosis: Diagnosis) -> dict[str, Any]:
    """Each step's duration: of the step record, else of the window."""
    shown = diagnosis.shown
    groups = _record_groups(shown) or _window_groups(shown)
    if groups is None or len(groups.first) < 2:
        return blocks.section("steps", "Steps")
    return blocks.section("steps", "Steps", blocks.history([groups]))


def typical_step_section(diagnosis: Diagnosis) -> dict[str, Any]:
    """One steady step of the window, the nearest to the median."""
    step = None if diagnosis.details is None else diagnosis.details.step
    if step is None:
        return blocks.section("typical-step", "A typical step")
    clock = "the main thread" if step.device is None else f"GPU {step.device}"
    others = sum(lane.others for lane in step.lanes)
    shown = sum(len(lane.slices) for lane in step.lanes)
    merged = (
        f" The {shown:,} longest slices are drawn one by one; the {others:,} others show as the"
        " share of time that they cover."
        if others
        else ""
    )
    return blocks.section(
        "typical-step",
        "A typical step",
        blocks.mini_timeline(step),
        blocks.text(
            f"Step {step.step} of {clock}, {units.duration(step.dur_ns)}: {_chosen(diagnosis)}."
            f"{_ahead(step)}{merged} `stepscope view` shows every slice.",
            "note",
        ),
    )


def _chosen(diagnosis: Diagnosis) -> str:
    """Why this step is drawn."""
    if len(diagnosis.shown.window_steps) == 1:
        return "the only steady step that was recorded in detail"
    return "of the steady steps recorded in detail, the one nearest to their median"


def _ahead(step: TypicalStep) -> str:
    """In which other steps the host is while the GPU works on this one."""
    if step.device is None:
        return ""
    named = (_STEP_NAME.fullmatch(one.name) for lane in step.lanes for one in lane.slices)
    others = sorted({int(found[1]) for found in named if found} - {step.step})
    if not others:
        return ""
    word = "step" if len(others) == 1 else "steps"
    return (
        f" Meanwhile the host is in {word} {' and '.join(map(str, others))}: it runs ahead of the"
        " GPU."
        if others[0] > step.step
        else f" In this time the host is also in {word} {' and '.join(map(str, others))}."
    )


def _record_groups(rank: RankSummary) -> StepGroups | None:
    summary = rank.steps
    if summary is None:
        return None
    kept = [one for one in rank.meeting.steps.records() if one.is_whole_step]
    special = dict.fromkeys((*summary.compiling.steps, *summary.compiled_once.steps), "compiling")
    special |= {one.step: "recorded in detail" for one in kept if one.window is not None}
    special |= dict.fromkeys(summary.first_steps, "slow at the start")
    special |= dict.fromkeys(summary.steps_after_window, "slow right after a window")
    kinds = [special.get(one.step, "") for one in kept]
    title = f"step record of rank {rank.rank}"
    return StepGroups.of(title, [one.step for one in kept], [one.dur_ns for one in kept], kinds)


def _window_groups(rank: RankSummary) -> StepGroups | None:
    if rank.device_steps is not None:
        rows = rank.device_steps
        device = next(iter(rows["device"]), None)
        mine = [at for at, one in enumerate(rows["device"]) if one == device]
        steps = [rows["step"][at] for at in mine]
        ns = [rows["total_ns"][at] for at in mine]
        return StepGroups.of(f"the recorded window, GPU {device}", steps, ns)
    if rank.host is not None:
        rows = rank.host.steps
        title = "the recorded window, main thread"
        return StepGroups.of(title, rows["step"], rows["wall_ns"])
    return None
