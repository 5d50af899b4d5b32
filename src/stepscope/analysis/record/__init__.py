"""What the step record tells without any trace."""
