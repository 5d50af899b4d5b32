"""Runs a few lines of Python in a process of its own, with limits of memory and time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

_CHILD = """
import json, resource, sys
sys.path[:0] = json.loads(sys.argv[1])
address_space, cpu_seconds = json.loads(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
arguments = json.loads(sys.argv[4])
answer = None
exec(sys.argv[3])
with open("/proc/self/status", encoding="ascii") as status:
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print("\\nANSWER" + json.dumps([answer, peak]))
"""
ADDRESS_SPACE = 8_000_000_000
"""Libraries reserve several gigabytes of addresses without using them."""


@dataclass(frozen=True)
class Ending:
    """How a process ended.

    Attributes:
        answer: What the code assigned to `answer`; None if it did not get so far.
        peak_bytes: Its largest resident set, libraries included; 0 if it did not end by itself.
        exit_code: Its exit code; negative for a signal, None if it took too long.
        errors: What it wrote to stderr.
    """

    answer: Any
    peak_bytes: int
    exit_code: int | None
    errors: str


def run_limited(
    code: str,
    *arguments: object,
    cpu_seconds: int = 60,
    seconds: float = 550,
    address_space: int = ADDRESS_SPACE,
) -> Ending:
    """Runs code that finds `arguments` and assigns `answer`, both of JSON.

    What works without end is ended by its CPU time. `seconds` are only for what waits without end:
    on a busy machine, a minute of CPU time can take many.
    """
    words = [
        json.dumps(sys.path),
        json.dumps([address_space, cpu_seconds]),
        code,
        json.dumps(arguments, default=str),
    ]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, *words],
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr or b""
        said = said.decode() if isinstance(said, bytes) else said
        return Ending(None, 0, None, f"{said}\nno end within {seconds:g} s")
    _, found, last = done.stdout.rpartition("\nANSWER")
    answer, peak = json.loads(last) if found else (None, 0)
    return Ending(answer, peak, done.returncode, done.stderr)


LOAD = """
import stepscope
from stepscope.errors import StepscopeError
try:
    trace = stepscope.load(arguments[0])
    answer = [trace.events.collect().height, trace.problems["problem"].to_list()]
except StepscopeError as error:
    answer = str(error)
"""
"""Loads a trace; the answer is its events and problems, or the error."""
