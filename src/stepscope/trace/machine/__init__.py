"""A small just-in-time compiler for loops over bytes and arrays: typed Python to machine code.

numba compiles arrays, objects and most of Python. For the few hundred lines that scan bytes, that
takes seconds, and importing it alone takes most of one. These lines use only numbers, addresses,
arrays and calls of each other, so they can be translated directly for LLVM, which takes a tenth of
that.

`jit.py` has `jit`, which compiles a function when it is first called, and `helpers.py` marks
functions that compiled ones and Python call. `kinds.py` has the types of values, `arrays.py` how
parameters that are arrays are declared, `instructions.py` and `elements.py` the access to memory,
`operators.py` arithmetic and comparisons, and `functions.py` what is known of a function.
`translate.py` translates it, with `syntax.py`, `code.py`, `expressions.py` and `statements.py`
below it; `build.py` makes machine code of the result and keeps it, and `calling.py` calls that.
"""
