"""Pages of the manual, and lists of pages and examples."""
