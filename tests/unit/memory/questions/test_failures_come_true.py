"""Failed requests: the cause is the planted one, and each remedy does what is said of it.

The program runs again with each remedy on the plain allocator, which shares no code with the
product.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import replace

import polars as pl
import pytest
from tests.support.allocator import DEFAULT_POOL, MIB, UNLIMITED
from tests.support.failing_programs import CARD_SHARE, KINDS, Program, failing_program
from tests.support.snapshot_tables import loaded

from stepscope.memory.questions.oom import out_of_memory
from stepscope.memory.questions.settings import settings
from stepscope.memory.view import MemoryView, SampledMemory

_FEW = (*range(len(KINDS)), 7035)  # the last asks for less than the card has, but in whole pages
_MANY = range(len(KINDS), 200)


def explained(program: Program):
    allocator, is_served = program.run()
    assert not is_served
    view = MemoryView(loaded(pickle.dumps(allocator.snapshot())))
    if program.card is not None:
        samples = pl.DataFrame({"time_ns": [0], "used_bytes": [0]})
        sampled = SampledMemory("metrics.csv", 0, "GPU 0", program.card, samples)
        view = replace(view, sampled=(sampled,))
    return view, out_of_memory(view)


def scaled(program: Program, is_chosen, factor) -> Program:
    return program.with_requests(
        lambda one: replace(one, size=int(one.size * factor)) if is_chosen(one) else one
    )


def remedied(program: Program, remedy: str) -> Program | None:
    """The program with a remedy; None for one that is no change of the program."""
    last = program.requests[-1]
    options = program.settings
    if conf := re.search(r"ALLOC_CONF=(\S+)", remedy):
        values = dict(one.split(":") for one in conf[1].split(",") if ":" in one)
        max_split = values.get("max_split_size_mb")
        changed = replace(
            options,
            expandable=values.get("expandable_segments") == "True",
            max_split=UNLIMITED if max_split is None else int(max_split) * MIB,
            divisions=int(values.get("roundup_power2_divisions", 0)),
        )
        return replace(program, settings=changed)
    if remedy.startswith("raise the limit"):
        return replace(program, settings=replace(options, fraction=None))
    if remedy.startswith("free what is held outside"):
        return replace(program, total=int(program.card * CARD_SHARE))
    if remedy.startswith("allocate on one stream"):
        return program.with_requests(lambda one: replace(one, stream=0))
    if remedy.startswith("do without"):
        return program.with_requests(lambda one: replace(one, pool=DEFAULT_POOL))
    if pieces := re.search(r"asked for in (\d+) pieces", remedy):
        return scaled(program, lambda one: one is last, 1 / int(pieces[1]))
    if "leaves behind" in remedy or "in four chunks" in remedy:
        return None  # which of the tensors it means depends on the largest that is held
    raise AssertionError(f"unknown remedy: {remedy}")


@pytest.mark.parametrize(
    "seed", [*_FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in _MANY)]
)
def test_the_cause_is_named_and_each_remedy_does_what_is_said(seed):
    program = failing_program(seed)
    view, found = explained(program)
    assert found.cause.value == program.cause
    checked = 0
    for row in found.remedies.iter_rows(named=True):
        changed = remedied(program, row["remedy"])
        if changed is None or row["is_enough"] is None:
            continue
        _, is_served = changed.run()
        assert is_served == row["is_enough"], row
        checked += 1
    assert checked or program.cause == "larger than the card"
    if program.cause != "a limit of the process":
        # What needs less than there is was enough, and the other way round.
        needs = found.remedies.filter(pl.col("is_enough").is_not_null())
        if program.cause != "held outside torch":
            is_less = needs["needs_bytes"] <= found.capacity_bytes
            assert is_less.to_list() == needs["is_enough"].to_list()
    # Both questions say the same of the allocator's settings.
    by_settings = dict(
        settings(view).alternatives.select("settings", "is_out_of_memory").iter_rows()
    )
    for row in found.remedies.iter_rows(named=True):
        if conf := re.search(r"ALLOC_CONF=(\S+)", row["remedy"]):
            is_enough = row["is_enough"]
            assert by_settings[conf[1]] is (None if is_enough is None else not is_enough)
    enough = {conf for conf, fails in by_settings.items() if fails is False}
    assert not enough or found.remedies["is_enough"].any()
