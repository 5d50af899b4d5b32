"""Runs one query in a process of its own, whose time and memory end where they should.

DuckDB looks at its limits between chunks of rows, and some functions take gigabytes and minutes for
a single value. A process can be ended at any time, and the system limits its memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.run.helper_processes import command_of, environment_of
from stepscope.trace.sql.execution import Execution, execute

_OVERHEAD_BYTES = 512_000_000
"""Memory of Python and DuckDB themselves, with their threads."""


def execute_apart(given: Execution, directory: Path, time_limit_s: float | None) -> list[str]:
    """As `execution.execute`, in another process.

    Args:
        directory: An empty directory for what is exchanged.
    """
    asked, errors = directory / "asked.json", directory / "errors.txt"
    asked.write_text(json.dumps(asdict(given)), "utf-8")
    command = command_of("stepscope.trace.sql.separate_process", str(asked))
    if hasattr(signal, "siginterrupt"):
        # As Python has it. Since Polars was imported, a wait that Ctrl-C interrupts would go on.
        signal.siginterrupt(signal.SIGINT, True)
    with errors.open("wb") as noise:
        process = subprocess.Popen(
            command, env=environment_of(), stdin=subprocess.PIPE, stdout=noise, stderr=noise
        )
        # While its input is open we live. It is closed when we end, however we do.
        assert process.stdin is not None
        with process.stdin:
            try:
                process.wait(time_limit_s)
            except subprocess.TimeoutExpired:
                raise UsageError(f"the query timed out after {time_limit_s:g} s") from None
            finally:
                process.kill()
                process.wait()
    try:
        answer = json.loads(_answer_path(asked).read_text("utf-8"))
    except (OSError, ValueError):
        text = " ".join(errors.read_text("utf-8", "replace").split())[-200:]
        raise UsageError(_why(process.returncode, given.memory_bytes, text)) from None
    if "error" in answer:
        raise UsageError(answer["error"])
    return list(map(str, answer["names"]))


def _why(exit_code: int, memory_bytes: int | None, text: str) -> str:
    if memory_bytes is not None:
        return (
            f"the query was ended (exit code {exit_code}); it probably needs more than"
            f" {memory_bytes / 2**30:.1f} GiB of memory: select fewer rows or shorter values"
        )
    return f"the query was ended (exit code {exit_code}) {text}".rstrip()


def _answer_path(asked: Path) -> Path:
    return asked.with_name("answer.json")


def _work(asked: Path) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    given = Execution(**json.loads(asked.read_text("utf-8")))
    if given.memory_bytes is not None:
        _limit_memory(given.memory_bytes + _OVERHEAD_BYTES)
    answer: dict[str, object]
    try:
        answer = {"names": execute(given)}
    except UsageError as error:
        answer = {"error": str(error)}
    except MemoryError:
        memory = f"{(given.memory_bytes or 0) / 2**30:.1f} GiB"
        answer = {"error": f"the query needs more than {memory} of memory: select less"}
    target = _answer_path(asked)
    part = target.with_suffix(".part")
    part.write_text(json.dumps(answer), "utf-8")
    part.replace(target)


def _end_with_parent() -> None:
    # Not by `sys.stdin`: a thread that reads from it holds its lock, for which the interpreter
    # waits a second when it ends, and then aborts.
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(1)


def _limit_memory(most_bytes: int) -> None:
    if sys.platform != "win32":
        import resource

        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
