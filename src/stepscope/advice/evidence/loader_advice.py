"""How many workers a loader needs, from those that it has, the machine, and what loading costs.

Let a step take C without its wait for input, and S with it. A loader without workers makes a batch
in S - C, so k workers make one every (S - C) / k. A loader with w workers that cannot keep up makes
a batch every S, so each worker takes w S for one, and k workers make one every w S / k. The step
then takes the longer of that and C. One worker more than needed evens out what varies between
batches. A thread that reads a loader without workers counts as one worker.

Work that uses a CPU cannot use more of them than there are: then the training thread keeps one, and
the workers share the others, each the part of a CPU that it was seen to use. Workers that mostly
wait share half of a single one. Each worker also holds
the batches that it prepares ahead in shared memory, and memory of its own. Where the use of the CPU
was not measured, neither case is assumed. Of batches that the loop makes itself, without a
DataLoader, the training thread's CPU time tells whether making them is work.

A batch that comes from another process has a cost of its own: each tensor's memory is passed as a
file and mapped by the training process. CPU time measured with torch 2.13 on Linux: about 0.7 ms,
0.35 ms for each tensor, and 0.15 ms for each megabyte (`transfer_ns`). Where loading in the
training process takes hardly longer, workers do not help.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import polars as pl

from stepscope.advice.evidence.subject import Subject
from stepscope.analysis.selection.partition import INPUT
from stepscope.run.figures import binary_size, duration, sentence
from stepscope.run.manifest import LoaderRecord
from stepscope.trace.arrays import intervals

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
_PER_BATCH_NS, _PER_TENSOR_NS, _PER_BYTE_NS = 700_000, 350_000, 0.15
_PINNED_NS, _ENOUGH_CPUS = 150_000, 4
"""What taking a batch costs that a thread of the loader has received and pinned (60 to 130 µs on an
H200), if that thread has a CPU."""
_HELPS = 0.7
"""Workers help if receiving a batch takes at most this share of loading it."""
_PREFETCH = 2
"""Batches that each worker of a DataLoader prepares ahead if nobody says otherwise."""
_LEAST_SHARE = 0.02
_LEFT_OF_ONE = 0.5
"""What workers that mostly wait may use of a single CPU: the training runs while they wait."""
_ONE_PROCESS, _WORKERS = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"


@dataclass(frozen=True)
class LoaderFacts:
    """What is known of a loader; None: unknown.

    Attributes:
        cpus: CPUs that this rank may use for itself.
        cpu_share: Share of the time of loading that is work for a CPU.
        computes: Whether it is at least `_BURNS`, where no more than that is known.
        is_for_gpu: Whether batches go to a GPU: with `pin_memory`, a thread receives them.
        record: What it was recorded to be; its defaults without a record.
    """

    workers: int | None = None
    has_workers: bool | None = None
    cpus: int | None = None
    cpu_share: float | None = None
    keeps_workers: bool | None = None
    is_for_gpu: bool = False
    record: LoaderRecord = field(default_factory=LoaderRecord)
    computes: bool | None = None

    @property
    def burns_cpu(self) -> bool | None:
        """Whether loading is work for a CPU, rather than waiting."""
        return self.computes if self.cpu_share is None else self.cpu_share >= _BURNS

    @property
    def transfer_ns(self) -> int:
        """What it takes to receive a batch from a worker: at least, if its size is unknown."""
        if self.is_for_gpu and self.cpus is not None and self.cpus >= _ENOUGH_CPUS:
            return _PINNED_NS
        size, tensors = self.record.batch_bytes or 0, self.record.batch_tensors or 0
        return round(_PER_BATCH_NS + tensors * _PER_TENSOR_NS + size * _PER_BYTE_NS)

    @property
    def ahead_bytes(self) -> int | None:
        """Size of the batches that one worker prepares ahead."""
        if self.record.batch_bytes is None:
            return None
        ahead = self.record.prefetch_factor
        return (_PREFETCH if ahead is None else ahead) * self.record.batch_bytes


@dataclass(frozen=True)
class LoaderAdvice:
    """What to do about a loader.

    Attributes:
        workers: How many workers it should have; None if nobody knows how many it has.
        alone_ns: The step with these workers and nothing else changed, if they cannot keep up.
        transfer_ns: What receiving a batch adds to the step with them; 0 if it does so already.
        no_saving: Why nothing can be promised; empty where something can.
        needs_cheaper: Whether a saving takes cheaper batches for granted, because the machine bears
            no more workers: more of them bring less.
    """

    workers: int | None
    alone_ns: int | None
    assumption: str
    advice: str
    transfer_ns: int = 0
    no_saving: str = ""
    needs_cheaper: bool = False


def facts_of(subject: Subject) -> LoaderFacts:
    """What record and trace tell of the loader."""
    host = subject.steps.host if subject.steps is not None else None
    loader = subject.loader
    if loader is not None:
        share = loader.worker_cpu_share
        if loader.workers == 0 and not loader.is_beside:
            share = host.loading_cpu_share if host is not None else None
        return LoaderFacts(
            workers=loader.workers,
            has_workers=loader.workers > 0,
            cpus=max(1, loader.cpus // loader.local_ranks),
            cpu_share=share,
            keeps_workers=loader.is_persistent if loader.workers else None,
            is_for_gpu=subject.window is not None and subject.window.has_gpu,
            record=loader,
        )
    shown = _shown_by_names(subject)
    if shown.has_workers or subject.job_cpus is None or not _computes_here(subject):
        return shown
    share = host.loading_cpu_share if host is not None else None
    return replace(shown, cpus=subject.job_cpus, cpu_share=share, computes=True)


def _computes_here(subject: Subject) -> bool:
    """Whether the training thread itself computes its batches, and no DataLoader was recorded.

    Where the record has no CPU time of the input alone, that of the step decides: what the rest of
    the step cannot have used is the input's.
    """
    summary = subject.steps
    if summary is None or summary.host.cpu_ns is None:
        return False
    if summary.host.loading_cpu_share is not None:
        return summary.host.loading_cpu_share >= _BURNS
    input_ns = _input_share(subject) * summary.mean_ns
    wanted_ns = summary.host.cpu_ns + (summary.host.queued_ns or 0)
    return input_ns > 0 and wanted_ns - (summary.mean_ns - input_ns) >= _BURNS * input_ns


def _input_share(subject: Subject) -> float:
    """The share of the host's step that is input, by the record or else by the window."""
    window = subject.window
    if subject.steps is not None and subject.steps.partition.of(INPUT):
        return subject.steps.partition.of(INPUT) / subject.steps.partition.total_ns
    if subject.host is not None:
        return subject.host.partition.of(INPUT) / max(1, subject.host.partition.total_ns)
    if window is not None and window.has_gpu:
        return window.share(intervals.clip(window.graph.input_waits, *window.window).total_ns)
    return 0.0


def _shown_by_names(subject: Subject) -> LoaderFacts:
    """What the names of a DataLoader's ranges in the window tell."""
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
        waited_ns: How much of it is waiting for input.
    """
    compute_ns = max(1, step_ns - waited_ns)
    if facts.has_workers and not facts.workers:
        return _unknown_number(step_ns, compute_ns)
    now = facts.workers or 0
    makers = now or int(facts.record.is_beside)
    transfer_ns = 0 if makers or facts.has_workers is None else facts.transfer_ns
    if transfer_ns > _HELPS * waited_ns:
        return _not_worth_it(facts, waited_ns)
    work_ns = makers * step_ns if makers else waited_ns
    least = max(now, math.ceil(work_ns / (compute_ns + transfer_ns)))
    needed = least + 1
    most, limit = _most_workers(facts, now)
    workers = needed if most is None else max(now, min(needed, most))
    if workers == now:
        return _no_more_workers(facts, now, needed, limit)
    prepare, take = ("prepares", "takes") if workers == 1 else ("prepare", "take")
    assumption = (
        f"{_workers(workers)} {prepare} batches beside the step and {take} no CPU time away from it"
    )
    if facts.keeps_workers is False:
        assumption += ", and live on from epoch to epoch: what that saves is not counted here"
    alone_ns, limited = None, ""
    keep_up = workers >= least
    if not keep_up:
        alone_ns = max(compute_ns, round(work_ns / workers))
        assumption = f"batches cost so much less that {_workers(workers)} can keep up"
        limited = (
            f"That alone brings a step to about {duration(alone_ns)}: to keep up it would take "
            f"{needed}, but {limit}."
        )
    if now:
        do = f"Raise num_workers from {now} to {workers}"
        if facts.keeps_workers is False:
            do += (
                " and keep them (persistent_workers=True, with the loader made once): now each "
                "epoch starts its workers anew, which takes longer the more there are"
            )
    elif facts.record.is_beside:
        do = (
            "A thread reads the loader and makes one batch after another. Let workers make them: "
            f"DataLoader(num_workers={workers}, persistent_workers=True)"
        )
    else:
        do = (
            "Prepare batches in the background: "
            f"DataLoader(num_workers={workers}, persistent_workers=True, pin_memory=True on a GPU)"
        )
    reason = ""
    if facts.burns_cpu is False:
        reason = " Loading mostly waits, so there may be more workers than CPUs."
    if not keep_up:
        reason = f" {limited}"
    if facts.record.is_iterable:
        do += _DIVIDE
    more = f" If that is not enough, {_CHEAPER}." if keep_up else f" Also {_CHEAPER}."
    storage = f" {_storage(facts)}" if not keep_up and _storage(facts) else ""
    return LoaderAdvice(
        workers,
        alone_ns,
        assumption,
        f"{do}.{reason}{more}{storage}{_costs(facts)}",
        transfer_ns if facts.record.batch_bytes is not None else 0,
        needs_cheaper=not keep_up,
    )


def _most_workers(facts: LoaderFacts, now: int) -> tuple[int | None, str]:
    """How many workers the machine bears, if that is known, and what limits them."""
    limits: list[tuple[int, str]] = []
    if facts.cpus is not None and facts.cpu_share is not None and not facts.burns_cpu:
        each = max(_LEAST_SHARE, facts.cpu_share)
        left = max(_LEFT_OF_ONE, facts.cpus - 1)
        limits.append((max(1, int(left / each)), _few_cpus(facts)))
    elif facts.cpus is not None:
        limits.append((max(1, facts.cpus - 1), _few_cpus(facts)))
    ahead = facts.ahead_bytes
    if facts.record.shared_memory_bytes is not None and ahead:
        fit = now + facts.record.shared_memory_bytes // ahead
        limits.append((fit, f"there is shared memory (/dev/shm) for {_workers(fit)} only"))
    if facts.record.memory_bytes is not None and facts.record.worker_bytes is not None:
        fit = now + facts.record.memory_bytes // max(1, facts.record.worker_bytes + (ahead or 0))
        limits.append((fit, f"there is memory for {_workers(fit)} only"))
    return min(limits) if limits else (None, "")


def _few_cpus(facts: LoaderFacts) -> str:
    if facts.cpus == 1:
        return "there is only 1 CPU, and the training needs it"
    return f"there are only {_cpus(facts)}, and the training needs one"


def _no_more_workers(facts: LoaderFacts, now: int, needed: int, limit: str) -> LoaderAdvice:
    """Advice where the machine bears no more workers, or may not, as far as is known."""
    is_of_cpus = limit == _few_cpus(facts)
    if is_of_cpus and facts.burns_cpu is None:
        tried = min(needed, max(now + 1, 2 * (facts.cpus or 1)))
        return LoaderAdvice(
            tried,
            None,
            f"loading mostly waits for storage or a network, so that {_workers(tried)} can keep "
            "up, or batches cost less: which of the two was not measured",
            "How much of a CPU the loader's workers use was not measured. If they wait for "
            f"storage or a network, raise num_workers from {now} to {tried}. If they compute, the "
            f"{_cpus(facts)} bear no more of them: {_CHEAPER}, move it to the GPU, or give the job "
            "more CPUs.",
        )
    if not now:
        return LoaderAdvice(
            None,
            None,
            "batches cost hardly anything",
            f"{sentence(limit)}: give it more (docker run --shm-size), or {_CHEAPER}.",
            needs_cheaper=True,
        )
    taken = _all_cpus_taken(facts, now) if is_of_cpus else sentence(limit)
    return LoaderAdvice(
        now,
        None,
        "batches cost so much less that the present workers keep up",
        f"{taken}: {_CHEAPER}, move it to the GPU, or give the job more "
        f"{'CPUs' if is_of_cpus else 'memory'}.",
        needs_cheaper=True,
    )


def _not_worth_it(facts: LoaderFacts, waited_ns: int) -> LoaderAdvice:
    """Advice where receiving a batch from a worker takes about as long as making it here."""
    batch_bytes = facts.record.batch_bytes
    size = f" of {binary_size(batch_bytes)}" if batch_bytes is not None else ""
    return LoaderAdvice(
        None,
        None,
        "",
        f"Workers would not help: receiving a batch{size} from another process takes about "
        f"{duration(facts.transfer_ns)}, and making it here takes {duration(waited_ns)}. Make it "
        "cheaper instead: index the whole batch at once (a dataset with __getitems__, or "
        "data[indices] with batch_size=None and a BatchSampler as sampler) rather than sample by "
        "sample, and keep data that fits on the device there.",
        no_saving="it depends on how much cheaper making a batch becomes",
    )


def _costs(facts: LoaderFacts) -> str:
    ahead = facts.ahead_bytes
    if ahead is None or facts.record.batch_bytes is None:
        return ""
    own = ""
    if facts.record.worker_bytes is not None:
        own = f" and {binary_size(facts.record.worker_bytes)} of memory of its own"
    return (
        f" Each worker takes {binary_size(ahead)} of shared memory for the batches that it "
        f"prepares{own}."
    )


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
