"""How many workers a loader needs, from those that it has, the CPUs, and what loading costs.

Let a step take C without its wait for input, and S with it. A loader without workers makes a batch
in S - C, so k workers make one every (S - C) / k. A loader with w workers that cannot keep up makes
a batch every S, so each worker takes w S for one, and k workers make one every w S / k. The step
then takes the longer of that and C. One worker more than needed evens out what varies between
batches, where there is a CPU for it.

Work that uses a CPU cannot use more of them than there are: then the training thread keeps one, and
the workers get the others. Work that waits, for a disk or a network, is not bound by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from stepscope.advice.subject import Subject

_BURNS = 0.5
"""Loading that spends at least this share of its time on a CPU counts as CPU work."""
_CHEAPER = (
    "make the work per sample cheaper (decode and tokenise ahead of time, store larger records, "
    "read from local disk)"
)
KEEP_WORKERS = (
    "Keep the loader's workers: DataLoader(..., persistent_workers=True), made once, before the "
    "loop over epochs"
)
_DIVIDE = (
    ", and let the IterableDataset give each worker its part (torch.utils.data.get_worker_info): "
    "otherwise each returns all of the data"
)
_ONE_PROCESS, _WORKERS = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"


@dataclass(frozen=True)
class LoaderFacts:
    """What is known of a loader; None: unknown.

    Attributes:
        workers: Its `num_workers`.
        has_workers: Whether it has any.
        cpus: CPUs that this rank may use for itself.
        cpu_share: Share of the time of loading that is work for a CPU.
        keeps_workers: Whether the same workers serve all epochs.
        is_iterable: Whether its dataset is an `IterableDataset`.
    """

    workers: int | None = None
    has_workers: bool | None = None
    cpus: int | None = None
    cpu_share: float | None = None
    keeps_workers: bool | None = None
    is_iterable: bool | None = None

    @property
    def burns_cpu(self) -> bool | None:
        """Whether loading is work for a CPU, rather than waiting."""
        return None if self.cpu_share is None else self.cpu_share >= _BURNS


@dataclass(frozen=True)
class LoaderAdvice:
    """What to do about a loader.

    Attributes:
        workers: How many workers it should have; None if nobody knows how many it has.
        alone_ns: The step with these workers and nothing else changed, if they cannot keep up.
        assumption: What a saving takes for granted.
        advice: What to do.
    """

    workers: int | None
    alone_ns: int | None
    assumption: str
    advice: str


def facts_of(subject: Subject) -> LoaderFacts:
    """What record and trace tell of the loader."""
    host = subject.steps.host if subject.steps is not None else None
    loader = subject.loader
    if loader is not None:
        share = loader.worker_cpu_share
        if loader.workers == 0:
            share = host.wait_cpu_share if host is not None else None
        return LoaderFacts(
            workers=loader.workers,
            has_workers=loader.workers > 0,
            cpus=max(1, loader.cpus // loader.local_ranks),
            cpu_share=share,
            keeps_workers=loader.is_persistent if loader.workers else None,
            is_iterable=loader.is_iterable,
        )
    if subject.window is None:
        return LoaderFacts()
    name = pl.col("name")
    names = subject.window.trace.name_rows.select(
        without=name.str.contains(_ONE_PROCESS, literal=True).any(),
        with_workers=name.str.contains(_WORKERS, literal=True).any(),
    )
    if names["with_workers"][0]:
        return LoaderFacts(has_workers=True)
    return LoaderFacts(workers=0, has_workers=False) if names["without"][0] else LoaderFacts()


def advise(facts: LoaderFacts, step_ns: int, waited_ns: int) -> LoaderAdvice:
    """Says how many workers a loader should have.

    Args:
        facts: What is known of it.
        step_ns: The step now, on average.
        waited_ns: How much of it is waiting for input.
    """
    compute_ns = max(1, step_ns - waited_ns)
    if facts.has_workers and not facts.workers:
        return _unknown_number(step_ns, compute_ns)
    now = facts.workers or 0
    work_ns = now * step_ns if now else waited_ns
    least = max(now, math.ceil(work_ns / compute_ns))
    needed = least + 1
    most = None
    if facts.cpus is not None and facts.burns_cpu is not False:
        most = max(1, facts.cpus - 1, now)
    workers = needed if most is None else min(needed, most)
    if workers == now:
        return LoaderAdvice(
            workers,
            None,
            "batches cost so much less that the present workers keep up",
            f"{_all_cpus_taken(facts, now)}: {_CHEAPER}, move it to the GPU, or give the job more "
            f"CPUs. {_storage(facts)}".strip(),
        )
    prepare, take = ("prepares", "takes") if workers == 1 else ("prepare", "take")
    assumption = (
        f"{_workers(workers)} {prepare} batches beside the step and {take} no CPU time away from it"
    )
    alone_ns = None
    keep_up = workers >= least
    if not keep_up:
        alone_ns = max(compute_ns, round(work_ns / workers))
        assumption = f"batches cost so much less that {_workers(workers)} can keep up"
    if now:
        do = f"Raise num_workers from {now} to {workers}"
    else:
        do = (
            "Prepare batches in the background: "
            f"DataLoader(num_workers={workers}, persistent_workers=True, pin_memory=True on a GPU)"
        )
    reason = ""
    if facts.burns_cpu is False:
        reason = " Loading mostly waits, so there may be more workers than CPUs."
    elif not keep_up:
        reason = (
            f" To keep up it would take {needed}, but there are only {_cpus(facts)}, and the "
            "training needs one."
        )
    if facts.is_iterable:
        do += _DIVIDE
    more = f" If that is not enough, {_CHEAPER}." if keep_up else f" Also {_CHEAPER}."
    storage = f" {_storage(facts)}" if not keep_up and _storage(facts) else ""
    return LoaderAdvice(workers, alone_ns, assumption, f"{do}.{reason}{more}{storage}")


def _unknown_number(step_ns: int, compute_ns: int) -> LoaderAdvice:
    """Advice where a trace shows that there are workers, but not how many."""
    times = step_ns / compute_ns
    return LoaderAdvice(
        None,
        None,
        f"the workers keep up, as about {times:.1f} times as many do if there are CPUs for them",
        f"The loader has workers, and they do not keep up: raise num_workers, to about {times:.1f} "
        "times what it is if the machine has that many CPUs to spare, raise prefetch_factor if "
        f"the waits come in bursts, or {_CHEAPER}.",
    )


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


def _all_cpus_taken(facts: LoaderFacts, now: int) -> str:
    """Why there can be no more workers."""
    take = "takes" if now == 1 else "take"
    if facts.cpus is None or now >= facts.cpus:
        return f"The loader's {_workers(now)} already {take} the {_cpus(facts)}"
    rest = "the other" if now == 1 else f"the other {now}"
    return (
        f"The training takes one of the {_cpus(facts)}, and the loader's {_workers(now)} already "
        f"{take} {rest}"
    )


def _cpus(facts: LoaderFacts) -> str:
    return "1 CPU" if facts.cpus == 1 else f"{facts.cpus} CPUs"


def _storage(facts: LoaderFacts) -> str:
    """Where nobody knows whether loading uses a CPU, the advice is for the case that it does."""
    if facts.burns_cpu is None:
        return "If loading waits for storage instead of using a CPU, more workers help."
    return ""
