"""What `stepscope doctor` looks at: pure functions from what they are given to lists of checks.

One module per area. Nothing here imports torch or anything that could fail to import on a machine
that is not in order; what only torch can say comes from a process of its own (`torch_check.py`).
"""
