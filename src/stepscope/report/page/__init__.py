"""Pages in one file: drawing code and colours that reports and the viewer share, and the builder."""
