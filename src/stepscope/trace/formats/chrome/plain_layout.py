"""Layout of the arrays that are passed to compiled code for plain blocks.

Each is an int64 array of addresses and numbers. These are the indices into the arrays.
"""

from __future__ import annotations

LENGTH = 0xFFFFFFFF
"""Mask for the length in the first word of a string view."""

# Counts of a survey.
EVENTS, EVENT_BYTES, MOMENTS, MOMENT_BYTES, FLOWS, METADATA, NAMES, LANES = range(8)
SURVEY_FIELDS = 8

# Meaning of the numbers in a block. Roles are bytes, everything else is int64.
ROLE_OF, IS_GPU, IS_WORK, NAME_ID, CODE, LANE_ID, LANE_DEVICE, LANE_STREAM = range(8)

# Target of the columns: addresses of arrays with the type of each column, and numbers.
(
    EVENT_ROOM, EVENT_LONGS, EVENT_INTS, EVENT_CODES, EVENT_VIEWS, EVENT_BITS, BITS_EACH,
    EVENT_TEXT, FIRST_OF_LANE, FLOW_ROOM, FLOW_LONGS, FLOW_INTS, FLOW_PHASES, FLOW_BITS,
    MOMENT_ROOM, MOMENT_TIMES, MOMENT_INTS, MOMENT_ROLES, MOMENT_VIEWS, MOMENT_BITS, MOMENT_TEXT,
    FIRST_EVENT,
    IS_DENSE,  # 1: values follow each other without gaps for nulls, and text is as in a page
    ARGS_BITS_OF_BLOCK,  # of the arguments, if dense: their bits start anew with each block
    # How much of it is filled.
    EVENTS_FILLED, EVENT_BYTES_FILLED, FLOWS_FILLED, MOMENTS_FILLED, MOMENT_BYTES_FILLED,
    # How many values columns with nulls have; if not dense, as many as rows.
    ARGS_FILLED, CORRELATIONS_FILLED, EXTERNALS_FILLED, DEVICES_FILLED, STREAMS_FILLED,
    SIZES_FILLED, FLOW_IDS_FILLED,
) = range(36)  # fmt: skip
TARGET_FIELDS = 36

NO_LANE = -2
"""In place of the device of a lane's first event, if it has none yet."""

# Columns of events: of 64 bits, of 32 bits, and validity bits.
NUMBER, START, DUR, CORRELATION_IDS, EXTERNAL_IDS, STREAMS, SIZES = range(7)
EVENT_LONG_COLUMNS = 7
NAME_IDS, LANE_IDS, DEVICES = range(3)
EVENT_INT_COLUMNS = 3
ARGS_BITS, CORRELATION_BITS, EXTERNAL_BITS, DEVICE_BITS, STREAM_BITS, SIZE_BITS = range(6)
EVENT_BIT_COLUMNS = 6
