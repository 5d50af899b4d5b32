"""Making a finished window's files from torch's raw trace, in a process beside the training.

Run as `python -m stepscope.artifacts`, with a `FinishJob` as its argument. Nothing here imports
torch, numpy or polars, so that it starts at once and takes little memory.
"""
