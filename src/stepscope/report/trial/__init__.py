"""What trials of fixes brought."""
