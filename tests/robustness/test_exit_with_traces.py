"""A program may end in any way while it still holds a trace: the interpreter goes down quietly."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from tests.support.chrome_traces import read_compiled
from tests.support.arrow_columns import columns_in_use

events = [
    {"ph": "X", "name": f"op {n % 7}", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": n, "dur": 1,
     "args": {"Input Dims": [[n, 2], [3, 4]], "External id": n}}
    for n in range(3000)
]
data = json.dumps({"traceEvents": events}).encode()
held = read_compiled(data, 1 << 14)
assert columns_in_use() > 0

class Late:
    def __init__(self, tables): self.tables = tables
    def __del__(self): del self.tables

ENDING
"""


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "late = Late(held); cycle = [late]; cycle.append(cycle); sys.modules['kept'] = late",
        "import threading; threading.Thread(target=lambda kept=held: None).start()",
        "held = held.args['args'].str.len_bytes(); assert held.sum() > 0; raise SystemExit(0)",
        "del held; assert columns_in_use() == 0",
    ],
)
def test_the_interpreter_ends_without_a_word(ending):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("ENDING", ending)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
