"""Ways to run one function on many items and combine what it returns."""
