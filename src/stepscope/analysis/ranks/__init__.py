"""What comparing ranks stands on: their collectives, matched, on one clock."""
