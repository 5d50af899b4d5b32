"""How much of a GPU the allocator can have, by the best that is known of it."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.memory.questions.outside import typical_outside_bytes
from stepscope.memory.sampled import of_device
from stepscope.memory.simulator.capacity import capacity_of
from stepscope.memory.view import MemoryView


@dataclass(frozen=True)
class Limit:
    """What the allocator can have.

    Attributes:
        bytes: How much.
        source: How it is known, in words.
    """

    bytes: int
    source: str


def limit_of(view: MemoryView, device: int, total_bytes: int | None = None) -> Limit | None:
    """What the allocator of a device can have; None: unknown.

    In this order: what was reserved and free when a request failed; what the GPU has, less what
    samples show outside the allocator; what the GPU has.

    Args:
        view: The snapshot.
        device: The device.
        total_bytes: What the GPU has, if that is known from elsewhere.
    """
    capacity = capacity_of(view.replay, device)
    if capacity.bytes is not None and capacity.is_exact:
        return Limit(capacity.bytes, capacity.source)
    sampled = of_device(view.sampled, device)
    total = total_bytes if sampled is None or not sampled.total_bytes else sampled.total_bytes
    if total is None:
        return None
    apart = typical_outside_bytes(view, device)
    if apart is None:
        return Limit(total, "what the GPU has; what is outside torch's allocator is not known")
    return Limit(total - apart, "what the GPU has, less what samples show outside the allocator")
