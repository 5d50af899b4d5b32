"""The role of an event of a Chrome trace, by its phase (`ph`)."""

from __future__ import annotations

import numpy as np

UNKNOWN_ROLE, EVENT_ROLE, INSTANT_ROLE, COUNTER_ROLE, FLOW_ROLE, METADATA_ROLE = range(6)
BEGIN_ROLE, END_ROLE = 6, 7

ROLE_OF_PHASE = np.zeros(256, np.uint8)
"""The role of each phase code (`rows.phase_code`)."""
for _role, _phases in (
    (EVENT_ROLE, "X"),
    (INSTANT_ROLE, "iIRn"),
    (COUNTER_ROLE, "C"),
    (FLOW_ROLE, "stf"),
    (METADATA_ROLE, "M"),
    (BEGIN_ROLE, "BbS"),
    (END_ROLE, "EeF"),
):
    for _phase in _phases:
        ROLE_OF_PHASE[ord(_phase)] = _role

HAS_NAME = np.isin(np.arange(8), (EVENT_ROLE, INSTANT_ROLE, COUNTER_ROLE, FLOW_ROLE, BEGIN_ROLE))
"""For each role, whether its events have a name and a lane in the tables."""

IS_ASYNCHRONOUS = np.isin(np.arange(256), list(map(ord, "bSeF")))
"""For each phase code, whether it begins or ends an asynchronous event."""
