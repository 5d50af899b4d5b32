"""Freed memory serves the next array, where the C library can be told so."""

from __future__ import annotations

import json
import os
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


AFTER_THREADS = """
import json, threading
from pathlib import Path
import numpy as np
from stepscope.trace.arrays.memory_reuse import keep_freed_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

def work():
    arrays = [np.ones(10_000) for _ in range(2_000)]

keep_freed_memory()
sizes = []
for _ in range(3):
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    work()
    sizes.append(resident_mb())
print(json.dumps(sizes))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_that_a_thread_freed_serves_others():
    answer = subprocess.run(
        [sys.executable, "-c", AFTER_THREADS], capture_output=True, text=True, check=True
    )
    assert max(json.loads(answer.stdout)) < 160 + 120  # one share of 160 MB, and the libraries


RETURNED = """
import json
from pathlib import Path
import numpy as np
from stepscope.trace.arrays.memory_reuse import keep_freed_memory, return_freed_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

keep_freed_memory()
np.ones(12_500_000), np.ones(100)
after = np.ones(100)
before = resident_mb()
return_freed_memory()
print(json.dumps(before - resident_mb()))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_can_be_returned():
    answer = subprocess.run(
        [sys.executable, "-c", RETURNED], capture_output=True, text=True, check=True
    )
    assert json.loads(answer.stdout) > 80  # of 100 MB


ENVIRONMENT = """
import os
from stepscope.trace.arrays.memory_reuse import keep_freed_memory

keep_freed_memory()
names = ("NUMPY_MADVISE_HUGEPAGE", "_RJEM_MALLOC_CONF", "OPENBLAS_NUM_THREADS")
print(*(os.environ[name] for name in names))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_what_the_user_set_stays():
    chosen = {
        "NUMPY_MADVISE_HUGEPAGE": "1",
        "_RJEM_MALLOC_CONF": "narenas:7",
        "OPENBLAS_NUM_THREADS": "2",
    }
    answer = subprocess.run(
        [sys.executable, "-c", ENVIRONMENT],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **chosen},
    )
    assert answer.stdout.split() == list(chosen.values())


THREADS = """
import threading
from pathlib import Path
from stepscope.trace.arrays.memory_reuse import keep_freed_memory

keep_freed_memory()
import numpy as np
print(len(list(Path("/proc/self/task").iterdir())) - threading.active_count())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads as Linux does")
def test_numpy_starts_no_threads():
    unset = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    answer = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, env=unset
    )
    assert answer.stdout == "0\n"
