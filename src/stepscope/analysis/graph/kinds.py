"""What the nodes and edges of the graph of a step are; `step_graph` defines each kind."""

from __future__ import annotations

from enum import IntEnum


class NodeKind(IntEnum):
    """What a node is."""

    HOST = 0
    COMPUTE = 1
    COMMUNICATION = 2
    MEMCPY = 3
    MEMSET = 4


class EdgeKind(IntEnum):
    """Why one node cannot begin before another has ended."""

    ORIGIN = 0
    THREAD = 1
    LAUNCH = 2
    STREAM = 3
    SYNC = 4
    WAIT = 5
    HANDOVER = 6
    ARRIVAL = 7
    QUEUE = 8
