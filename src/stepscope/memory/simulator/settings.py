"""What the simulated allocator is set to, and what it knows of each group of blocks, as numbers."""

from __future__ import annotations

import numpy as np

from stepscope.trace.machine.arrays import Written, WrittenTable

UNLIMITED = 2**62

# What the allocator is set to, as numbers.
(
    EXPANDABLE, MAX_SPLIT, ROUNDING_LIMIT, LARGE_SEGMENT, CAPACITY, LIMIT, COLLECT_ABOVE,
    ADDRESS_SPACE,
) = range(8)  # fmt: skip
CONFIG_FIELDS = 8

# What is known of each group: its pool, the number of its pool and class (for ages), whether its
# pool may be released, and which of the recorded segments' addresses comes next.
POOL, CLASS, RELEASABLE, GIVEN, GIVEN_END = range(5)
GROUP_FIELDS = 5
Groups = WrittenTable[np.int64]
"""A row for each field, a column for each group."""
Ages = Written[np.int64]
"""Searches of each pool and class."""
