"""The run directory: layout, manifests, atomic files. Recording and reading both use it."""
