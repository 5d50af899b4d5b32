"""A small just-in-time compiler for loops over bytes and arrays: typed Python to machine code.

numba compiles arrays, objects and most of Python. For the few hundred lines that scan bytes, that
takes seconds, and importing it alone takes most of one. These lines use only numbers, addresses,
arrays and calls of each other, so they can be translated directly for LLVM, which takes a tenth of
that.

`jit.py` has `jit`, which compiles a function when it is first called, and `helpers.py` marks
functions that compiled ones and Python call. `kinds.py` has the types of values, `arrays.py` how
parameters that are arrays are declared, `instructions.py` and `elements.py` the access to memory,
`operators.py` arithmetic and comparisons, and `functions.py` what is known of a function.
`translate.py` translates it, with `syntax.py`, `code.py`, and `expressions.py`
below it; `build.py` makes machine code of the result and keeps it, and `calling.py` calls that.

Where Python raises an error for an index, a division or a shift, the loop ends with that and its
line. Each round of a loop over arrays looks whether it is to end; a call with many elements is made
by another thread, so that Ctrl-C arrives. Addresses are not checked: `instructions.py` lists who
uses them, and why they hold. Source that the process does not run is not taken.
"""

from pathlib import Path


def files_now() -> dict[Path, tuple[int, int, int]]:
    """Returns what tells versions of this package's files apart, without reading them."""
    states = {file: file.stat() for file in Path(__file__).parent.glob("*.py")}
    return {file: (has.st_ino, has.st_mtime_ns, has.st_size) for file, has in states.items()}


FILES_AT_IMPORT = files_now()
"""Of the files before any of them was imported: they may change under a running process."""
