"""Ways to run one function on many items."""
