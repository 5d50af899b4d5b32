"""Freeze what exists after start-up, and run Python's garbage collector rarely."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan

_BEGIN = 2
"""The step after which it begins: what start-up makes exists by then."""
_EVERY = 200


def _plan(facts: Facts) -> Plan | str:  # noqa: ARG001 - it applies to every script
    return Plan(
        _EVERY,
        f"gc.freeze(), gc.disable(), gc.collect(1) every {_EVERY} steps",
        (
            "gc.collect(); gc.freeze(); gc.disable()  # after the first steps",
            f"if step % {_EVERY} == 0: gc.collect(1)",
        ),
    )


def _apply(patches: Patches, every: Any) -> None:
    import gc

    collect = gc.collect
    has_begun = False

    def rarely(generation: int = 2) -> int:
        if not has_begun:
            return collect(generation)
        patches.override(f"{patches.place()}: gc.collect({generation})")
        return 0

    def stepped(number: int) -> None:
        nonlocal has_begun
        if number == _BEGIN:
            has_begun = True
            collect()
            gc.freeze()
            was_enabled = gc.isenabled()
            gc.disable()
            patches.later(gc.unfreeze)
            if was_enabled:
                patches.later(gc.enable)
            patches.did(f"after step {number}")
        elif number > _BEGIN and number % every == 0:
            collect(1)

    patches.replace(gc, "collect", lambda _: rarely)
    patches.after_step(stepped)


FIX = Fix(
    name="rare-gc",
    title="run Python's garbage collector rarely, and not over what start-up made",
    answers=("garbage-collector",),
    applies_to="every script",
    risks="memory in reference cycles is freed later; calls of gc.collect() do nothing",
    plan=_plan,
    apply=_apply,
    promised_by=("garbage-collector",),
)
