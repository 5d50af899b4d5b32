"""Layout of the arrays that are passed to compiled code for plain blocks.

Each is an int64 array of addresses and numbers. These are the indices into the arrays.
"""

from __future__ import annotations

LENGTH = 0xFFFFFFFF
"""Mask for the length in the first word of a string view."""

# Counts of a survey: rows and bytes of text by role, then distinct names and lanes.
ROLES = 8
TEXT_BYTES = ROLES
NAMES, LANES = 2 * ROLES, 2 * ROLES + 1
SURVEY_FIELDS = 2 * ROLES + 2

# Meaning of the numbers in a block. Roles are bytes, everything else is int64.
ROLE_OF, IS_GPU, IS_WORK, NAME_ID, CODE, LANE_ID, LANE_DEVICE, LANE_STREAM = range(8)

# Target of the columns: addresses of arrays with the type of each column, and numbers. After these
# fields come those of instants, counter samples and flows, in the order of their roles.
(
    IS_DENSE,  # 1: values follow each other without gaps for nulls, and text is as in a page
    EVENT_ROOM, EVENT_LONGS, EVENT_INTS, EVENT_CODES, EVENT_VIEWS, EVENT_BITS, BITS_EACH,
    EVENT_TEXT, FIRST_OF_LANE, FIRST_EVENT,
    ARGS_BITS,
    ARGS_FROM,  # the row of their first bit
    # How much of it is filled.
    EVENTS_FILLED, EVENT_BYTES_FILLED,
    # How many values columns with nulls have; if not dense, as many as rows.
    ARGS_FILLED, CORRELATIONS_FILLED, EXTERNALS_FILLED, DEVICES_FILLED, STREAMS_FILLED,
    SIZES_FILLED,
    OTHERS,
) = range(22)  # fmt: skip

# Of each table of other rows.
(
    NAME_COLUMN, LANE_COLUMN, TIME_COLUMN, PHASE_COLUMN, ID_COLUMN, ID_BITS, VIEW_COLUMN, TEXT,
    TEXT_BITS,
    TEXT_FROM,  # the row of the first of these bits
    ROWS_FILLED, IDS_FILLED, TEXT_BYTES_FILLED, TEXTS_FILLED,
) = range(14)  # fmt: skip
OTHER_FIELDS = 14
TARGET_FIELDS = OTHERS + 3 * OTHER_FIELDS

NO_LANE = -2
"""In place of the device of a lane's first event, if it has none yet."""

# Columns of events: of 64 bits, of 32 bits, and validity bits.
NUMBER, START, DUR, CORRELATION_IDS, EXTERNAL_IDS, STREAMS, SIZES = range(7)
EVENT_LONG_COLUMNS = 7
NAME_IDS, LANE_IDS, DEVICES = range(3)
EVENT_INT_COLUMNS = 3
CORRELATION_BITS, EXTERNAL_BITS, DEVICE_BITS, STREAM_BITS, SIZE_BITS = range(5)
EVENT_BIT_COLUMNS = 5
