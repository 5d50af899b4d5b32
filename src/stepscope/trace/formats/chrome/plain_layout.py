"""Where compiled code finds what a plain block means, and where it puts the block's columns.

Each is a row of int64 with addresses and numbers; these are the places in the rows.
"""

from __future__ import annotations

LENGTH = 0xFFFFFFFF
"""The part of a string view's first word that is its length."""

# What a survey counts.
EVENTS, EVENT_BYTES, MOMENTS, MOMENT_BYTES, FLOWS, METADATA, NEW_WORDS = range(7)
SURVEY_FIELDS = 7

# What the numbers of a block stand for; roles are bytes, everything else is int64.
ROLE_OF, IS_GPU, IS_WORK, NAME_ID, CODE, LANE_ID, LANE_DEVICE, LANE_STREAM = range(8)

# Where the columns go: addresses of arrays of the type that each column has, and numbers.
(
    EVENT_ROOM, EVENT_LONGS, EVENT_INTS, EVENT_CODES, EVENT_VIEWS, EVENT_BITS, BITS_EACH,
    EVENT_TEXT, FIRST_OF_LANE, FLOW_ROOM, FLOW_LONGS, FLOW_INTS, FLOW_PHASES, FLOW_BITS,
    MOMENT_ROWS, MOMENT_VIEWS, MOMENT_BITS, MOMENT_TEXT, FIRST_EVENT,
) = range(19)  # fmt: skip
TARGET_FIELDS = 19

# Columns of events of 64 bits, of 32 bits, and those of bits that say which rows are no null.
NUMBER, START, DUR, CORRELATION_IDS, EXTERNAL_IDS, STREAMS, SIZES = range(7)
EVENT_LONG_COLUMNS = 7
NAME_IDS, LANE_IDS, DEVICES = range(3)
EVENT_INT_COLUMNS = 3
ARGS_BITS, CORRELATION_BITS, EXTERNAL_BITS, DEVICE_BITS, STREAM_BITS, SIZE_BITS = range(6)
EVENT_BIT_COLUMNS = 6
