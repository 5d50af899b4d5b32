"""Keys of the arguments that PyTorch writes into events and instants."""

from __future__ import annotations

MEMORY_EVENT = "[memory]"
"""Name of the instant recorded for each allocation and free of the caching allocator."""

MEMORY_ARGUMENTS = {
    "device_type": "Device Type",  # 0: the host, 1: a CUDA or ROCm device
    "device": "Device Id",
    "address": "Addr",
    "bytes": "Bytes",  # negative for a free
    "total_allocated_bytes": "Total Allocated",  # after the event
    "total_reserved_bytes": "Total Reserved",  # after the event
}
"""Arguments of `MEMORY_EVENT`."""

COLLECTIVE_ARGUMENTS = {
    "collective": "Collective name",  # "allreduce", "_allgather_base", …
    "dtype": "dtype",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "group_size": "Group size",
    "process_group": "Process Group Name",
    "process_group_description": "Process Group Description",
    "process_group_ranks": "Process Group Ranks",
}
"""Arguments of collectives, on the kernel and on the enclosing operator `record_param_comms`."""
