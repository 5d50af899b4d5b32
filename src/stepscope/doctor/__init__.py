"""The checks of `stepscope doctor`: pure functions that return lists of checks.

One module per area. Nothing here imports torch or anything else that can fail to import on a broken
machine. What only torch knows comes from a separate process (`torch_check.py`).
"""
