"""Finds and opens runs: by paths, globs and URLs, from manifests or loose trace files."""
