"""Rules about steps that are unlike the others, and parts of steps."""
