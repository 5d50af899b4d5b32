"""Makes a finished window's files from torch's raw trace, in a separate process.

Run as `python -m stepscope.artifacts`, with a `FinishJob` as its argument. Nothing here imports
torch, numpy or polars, so that it starts quickly and takes little memory.
"""
