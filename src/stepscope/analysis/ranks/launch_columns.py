"""Names of the columns that tell how far a rank's host and device got by each collective.

`local_time` defines and fills them; `analysis.blame.progress` reads them.
"""

from __future__ import annotations

OWN_HOST, QUEUED = "own_host_ns", "queued_ns"
"""The host's own time up to a collective, and the time from its launch to its start."""
OWN_DEVICE, DEVICE_WORK, READY = "own_device_ns", "device_work_ns", "ready_ns"
"""The device's own time up to a collective, what of it is work, and how long before the
collective's start that work was done; negative where that was later."""
LAUNCHED_WORK = "launched_work_ns"
"""The work's own time since the launch of a collective; null: there is none."""
UNLAUNCHED = "unlaunched_ns"
"""What of the device's own time it had nothing to do, as it was not launched."""
HOST_WAITS = "host_waits_ns"
"""The waits of the host for the work's own time, up to a collective's launch."""

OF_LAUNCHES = (
    OWN_HOST,
    QUEUED,
    OWN_DEVICE,
    DEVICE_WORK,
    READY,
    LAUNCHED_WORK,
    UNLAUNCHED,
    HOST_WAITS,
)
"""All of them, in this order."""
