"""Windows outside the schedule: what requests them, and how."""
