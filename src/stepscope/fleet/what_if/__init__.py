"""What a job would be without its stragglers, by replaying its operations with ideal durations."""
