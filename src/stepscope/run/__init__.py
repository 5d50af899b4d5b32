"""The run directory: layout, manifest, atomic files. Both wings stand on it."""
