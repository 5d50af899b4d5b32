"""Makes a finished window's files from torch's raw trace, in a separate process.

Nothing here imports torch, numpy or polars, so that the process starts quickly and takes little
memory.
"""
