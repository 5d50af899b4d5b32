"""How full each GPU gets, and of what: from the rank's memory snapshot, or from its window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.advice.evidence.subject import Subject

if TYPE_CHECKING:
    from stepscope.memory.view import MemoryView


@dataclass(frozen=True)
class Room:
    """One GPU's memory.

    Attributes:
        device: The GPU.
        reserved_bytes: The most that the allocator had reserved.
        allocated_bytes: The most that the program held.
        limit_bytes: What the allocator can have.
        limit_source: How that is known; empty: the trace says how large the GPU is.
        batch_bytes: Of what was held at the peak, activations, inputs and temporaries; None:
            without a snapshot, or if most of the peak is of unknown category.
        has_failed: Whether a request for memory failed.
    """

    device: int
    reserved_bytes: int
    allocated_bytes: int
    limit_bytes: int
    limit_source: str = ""
    batch_bytes: int | None = None
    has_failed: bool = False

    @property
    def share(self) -> float:
        """The reserved share of the limit."""
        return self.reserved_bytes / max(1, self.limit_bytes)


def rooms(subject: Subject) -> list[Room]:
    """Each GPU whose size is known, in order; the snapshot counts before the window."""
    window = subject.window
    of_window = {
        row["device"]: row
        for row in ([] if window is None else window.memory.iter_rows(named=True))
    }
    found = {
        device: Room(device, row["reserved_bytes"], row["allocated_bytes"], row["total_bytes"])
        for device, row in of_window.items()
        if row["total_bytes"] is not None
    }
    if subject.memory is not None:
        sizes = {device: row["total_bytes"] for device, row in of_window.items()}
        found |= _of_snapshot(subject.memory, sizes)
    return [found[device] for device in sorted(found)]


def _of_snapshot(view: MemoryView, sizes: Mapping[int, int | None]) -> dict[int, Room]:
    """What the snapshot says of each GPU whose limit is known."""
    # Most ranks recorded no snapshot, and these import many modules.
    from stepscope.memory.categories.kinds import OF_BATCH, MemoryCategory
    from stepscope.memory.questions.composition import peak
    from stepscope.memory.questions.outside import limit_of
    from stepscope.memory.schema import EXACT_SIZES

    if view.snapshot.settings.get(EXACT_SIZES):
        return {}
    found = {}
    for device in view.devices:
        limit = limit_of(view, device, sizes.get(device))
        if limit is None:
            continue
        curve = view.curve(device)
        categories = peak(view, device).categories.select("category", "allocated_bytes")
        shares = dict(categories.iter_rows())
        held = sum(shares.values())
        is_known = 2 * shares.get(MemoryCategory.UNKNOWN.value, 0) < held
        batch = sum(shares.get(kind.value, 0) for kind in OF_BATCH)  # what grows with it
        found[device] = Room(
            device=device,
            reserved_bytes=int(curve["reserved_bytes"].to_numpy().max()),
            allocated_bytes=view.peak_bytes(device),
            limit_bytes=limit[0],
            limit_source=limit[1],
            batch_bytes=batch if is_known else None,
            has_failed=not view.out_of_memory(device).is_empty(),
        )
    return found
