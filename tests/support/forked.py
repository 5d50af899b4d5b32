"""Runs verbs in processes that are forked where everything is imported already: many cases fast."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import resource
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

from stepscope.analysis import questions
from stepscope.commands import info, memory, report, show
from stepscope.commands.main import main
from tests.support.limited import ADDRESS_SPACE, Ending

PRELOADED = [
    __name__,
    questions.__name__,
    *(verb.__name__ for verb in (info, memory, report, show)),
    # What a report imports when it needs it: half of the time of one on a small trace.
    "polars",
    "stepscope.advice.diagnosis",
    "stepscope.advice.rank.findings",
    "stepscope.advice.rank.diagnose_window",
    "stepscope.report.diagnosis",
    "stepscope.report.render.markdown",
    "stepscope.trace.formats.chrome.reader",
    "stepscope.trace.load",
]


def run_verb(
    words: Sequence[str], *, cpu_seconds: int, seconds: float, address_space: int = ADDRESS_SPACE
) -> Ending:
    """Runs a verb of the command line; the answer is its exit code and what it wrote to stderr."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    limits = (cpu_seconds, address_space)
    process = context.Process(
        target=_answer, args=(sender, tuple(words), limits, dict(os.environ)), daemon=True
    )
    process.start()
    sender.close()
    answer, peak, said = None, 0, ""
    try:
        if receiver.poll(seconds):
            answer, peak = receiver.recv()
    except EOFError:
        said = "it ended without an answer"
    process.join(0 if answer is None and not said else 30)
    if process.is_alive():
        process.kill()
        process.join()
        return Ending(None, 0, None, f"it took more than {seconds} s")
    return Ending(answer, peak, process.exitcode, said)


def end_server() -> None:
    """End the process that the others are forked from; the next verb starts another."""
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()


def _answer(
    sender: Connection, words: tuple[str, ...], limits: tuple[int, int], environment: dict[str, str]
) -> None:
    os.environ.update(environment)  # the server has that of its own start
    cpu_seconds, address_space = limits
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = main(list(words))
    with Path("/proc/self/status").open(encoding="ascii") as status:
        peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    sender.send(([code, said.getvalue()[-2000:]], peak))
