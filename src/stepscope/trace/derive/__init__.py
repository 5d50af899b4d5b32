"""What follows from the tables of a trace: steps, nesting, links, kinds and groups."""
