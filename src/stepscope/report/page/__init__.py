"""Pages in one file: the builder, and the drawing code that the viewer shares."""
