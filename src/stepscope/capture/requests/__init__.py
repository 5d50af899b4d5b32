"""Windows besides the schedule: who asks for them, and how."""
