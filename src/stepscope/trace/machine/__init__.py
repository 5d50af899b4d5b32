"""Machine code for loops over bytes and arrays: a small, typed part of Python, translated for LLVM.

numba compiles arrays, objects and most of Python. For the few hundred lines that scan bytes, that
takes seconds, and importing it alone takes most of one. These lines use only numbers, addresses,
arrays and calls of each other, so they can be translated directly, which takes a tenth of that.

`kinds.py` has the types of values, `arrays.py` how parameters that are arrays are declared,
`called.py` marks functions that translated ones and Python call, `instructions.py` and
`elements.py` have the access to memory, `operators.py` arithmetic and comparisons, and
`functions.py` what is known of a function. `translate.py` translates it, with `syntax.py`,
`code.py`, `expressions.py` and `statements.py` below it; `build.py` makes machine code of the
result and keeps it, `calling.py` has the decorators and calls the code, and `loops.py` does so on
first use.
"""
