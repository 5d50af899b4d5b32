"""Freed memory serves the next array, where the C library can be told so."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

PROGRAMME = """
import json, resource
import numpy as np
from stepscope.trace.arrays.memory_reuse import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(12_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

fetched = faults()
keep_freed_memory()
faults()
print(json.dumps([fetched, faults()]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_large_arrays_reuse_memory():
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAMME], capture_output=True, text=True, check=True
    )
    fetched, kept = json.loads(answer.stdout)
    assert kept < fetched / 4
