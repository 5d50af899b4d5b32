"""The fixes that can be tried without editing the script: one registry.

A fix is a row: which findings it answers, what it may cost, how it is planned from what is known of
the script, and which change of the training process (`trial.changes`) applies it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepscope.trial import changes
from stepscope.trial.changes import Change


@dataclass(frozen=True)
class Facts:
    """What is known of the unchanged script, once it has been diagnosed.

    Attributes:
        promises: Finding to the step after its fix over the step before.
        doubt: Why the diagnosis promises nothing; empty if it does.
        workers_advised: Loader workers that `input-bound` advises; None if it does not say.
        workers_alone_ratio: Step with these workers alone, if they cannot keep up, over the step.
        workers_kept_ratio: Step over today's step, if workers persist from epoch to epoch;
            None if they do already, or that is unknown.
        is_kept_ratio_bound: Whether it is that at most: what a worker needs for a batch is unknown.
        loader_workers: Workers of the training's loader; None if it has no loader.
        prefetch_factor: Batches that each of them prepares ahead; None if unknown.
        threads: Threads that torch uses within an operator.
        optimizers: Classes of the optimizers that step, as a script would import them.
        loader_cpu_share: Share of the time that the loader's workers use a CPU; None if unknown.
        zeroes_gradients: Whether it fills gradients with zeros; None if unknown.
        allocator: Settings of the GPU's allocator that are worth a run; or, as text, why there are
            none.
    """

    findings: frozenset[str] = frozenset()
    promises: Mapping[str, float] = field(default_factory=dict)
    doubt: str = ""
    workers_advised: int | None = None
    workers_alone_ratio: float | None = None
    workers_kept_ratio: float | None = None
    is_kept_ratio_bound: bool = True
    loader_workers: int | None = None
    prefetch_factor: int | None = None
    threads: int = 1
    cpus: int = 1
    local_ranks: int = 1
    is_distributed: bool = False
    uses_gpu: bool = False
    optimizers: tuple[str, ...] = ()
    loader_cpu_share: float | None = None
    zeroes_gradients: bool | None = None
    allocator: Plan | str = "the memory of the script was not simulated"


@dataclass(frozen=True)
class Plan:
    """A fix with its value for one script.

    Attributes:
        value: What `Fix.apply` is given; plain, because it travels to the process as JSON.
        lines: What a person would write into the script.
        promised_ratio: Step after over step before, if the fix knows better than its findings.
        promise_basis: Why there is another promise than the finding's, or none.
        promised_reserved_bytes: The most that the GPU's allocator reserves; None: no promise.
        promised_retries: How often it has to give back its cache; None: no promise.
    """

    value: Any
    changes: str
    lines: tuple[str, ...]
    promised_ratio: float | None = None
    promise_basis: str = ""
    promised_reserved_bytes: int | None = None
    promised_retries: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fix:
    """A fix that can be tried on a script.

    Attributes:
        plan: Its value for a script; or, as text, why it does not apply.
        apply: Applies it in the training process, once torch is imported.
        group: Fixes of the same group exclude each other; empty for none.
        part_of: A fix of its group that does this and more; empty for none.
        promised_by: The finding whose promise is what this fix alone brings; empty for none.
        start_up_s: How much longer the start of the script may take with it, in seconds.
        redraws: Whether random numbers for the data are drawn in another order, so that the losses
            of a script that augments its data differ from step to step.
    """

    name: str
    title: str
    answers: tuple[str, ...]
    applies_to: str
    risks: str
    plan: Callable[[Facts], Plan | str]
    apply: Change
    group: str = ""
    part_of: str = ""
    promised_by: str = ""
    only_if_asked: bool = False
    start_up_s: float = 0.0
    redraws: bool = False


_INPUT_BOUND = "input-bound"
_GC_EVERY = 200
_SMALL_WORK = ("launch-bound", "many-small-kernels", "fusible-pattern", "unfused-elementwise")
_BUCKET_MB = 100
_WORKERS = "workers"


def _more_workers(facts: Facts) -> Plan | str:
    now = facts.loader_workers
    if now is None:
        return "the script builds no DataLoader that the training uses"
    spare = max(1, facts.cpus // facts.local_ranks - 1)
    number = facts.workers_advised or spare
    if now and facts.loader_cpu_share is None:
        number = min(number, spare)
    if number <= now:
        return f"its loader has {now} workers already"
    alone = facts.workers_alone_ratio
    return Plan(
        number,
        f"num_workers {now} → {number}",
        (f"DataLoader(..., num_workers={number}, persistent_workers=True)",),
        promised_ratio=alone,
        promise_basis="" if alone is None else f"{number} workers alone cannot keep up",
    )


def _keep_workers(facts: Facts) -> Plan | str:
    if not facts.loader_workers:
        return "its loader has no workers"
    basis = "no finding says what starting workers costs"
    if facts.workers_kept_ratio is not None:
        basis = "slow-epoch-start, with what a worker was seen to need for a batch"
        if facts.is_kept_ratio_bound:
            basis = "slow-epoch-start, at most; an epoch's first batch may come sooner, too"
    return Plan(
        True,
        "persistent_workers=True",
        ("DataLoader(..., persistent_workers=True)",),
        promised_ratio=facts.workers_kept_ratio,
        promise_basis=basis,
    )


def _pin_memory(facts: Facts) -> Plan | str:
    if facts.uses_gpu and facts.loader_workers is None:
        return "the script builds no DataLoader that the training uses"
    return _on_gpu(Plan(True, "pin_memory=True", ("DataLoader(..., pin_memory=True)",)))(facts)


def _rare_gc(_facts: Facts) -> Plan:
    return Plan(
        _GC_EVERY,
        f"gc.freeze(), gc.disable(), gc.collect(1) every {_GC_EVERY} steps",
        (
            "gc.collect(); gc.freeze(); gc.disable()  # after the first steps",
            f"if step % {_GC_EVERY} == 0: gc.collect(1)",
        ),
    )


def _fewer_threads(facts: Facts) -> Plan | str:
    if facts.threads == 1:
        return "torch uses a single thread"
    mine = max(1, facts.cpus // facts.local_ranks)
    number = max(1, mine - min(facts.loader_workers or 0, mine - 1))
    if number >= facts.threads:
        number = facts.threads // 2
    return Plan(
        number,
        f"intra-op threads {facts.threads} → {number}",
        (f"torch.set_num_threads({number})",),
    )


def _own_cpus(facts: Facts) -> Plan | str:
    if facts.local_ranks < 2:
        return "a single rank has the machine to itself"
    if facts.cpus < 2 * facts.local_ranks:
        return f"{facts.cpus} CPUs are too few to divide among {facts.local_ranks} ranks"
    if not hasattr(os, "sched_setaffinity"):
        return "this system has no CPU affinity"
    share = facts.cpus // facts.local_ranks
    return Plan(
        facts.local_ranks,
        f"{share} CPUs of its own for each rank",
        (f"os.sched_setaffinity(0, range(local_rank * {share}, (local_rank + 1) * {share}))",),
    )


def _drop_gradients(facts: Facts) -> Plan | str:
    if facts.zeroes_gradients is False:
        return "the script drops gradients already"
    return Plan(
        True,
        "zero_grad(set_to_none=True)",
        ("optimizer.zero_grad(set_to_none=True)",),
        promise_basis="no finding says what new memory for gradients costs",
    )


def _optimizer(argument: str, basis: str = "") -> Callable[[Facts], Plan | str]:
    def plan(facts: Facts) -> Plan:
        classes = facts.optimizers or ("OPTIMIZER",)
        lines = tuple(f"{name}(..., {argument})" for name in classes)
        return Plan(True, argument, lines, promise_basis=basis)

    return plan


def _on_gpu(planned: Plan) -> Callable[[Facts], Plan | str]:
    return lambda facts: planned if facts.uses_gpu else "no GPU is in use"


def _larger_buckets(facts: Facts) -> Plan | str:
    if not facts.is_distributed:
        return "the script does not train with several ranks"
    return Plan(
        _BUCKET_MB,
        f"bucket_cap_mb={_BUCKET_MB}",
        (f"DistributedDataParallel(..., bucket_cap_mb={_BUCKET_MB})",),
        promise_basis="the findings promise what hiding all communication saves",
    )


_ALL = (
    Fix(
        name="loader-workers",
        title="prepare batches in worker processes",
        answers=(_INPUT_BOUND,),
        applies_to="scripts with a DataLoader over a data set with a length",
        risks="more memory on the host; random augmentations are drawn in another order",
        plan=_more_workers,
        apply=changes.loaders(num_workers=..., persistent_workers=True),
        group=_WORKERS,
        promised_by=_INPUT_BOUND,
        redraws=True,
    ),
    Fix(
        name="persistent-workers",
        title="keep loader workers alive between epochs",
        answers=("slow-epoch-start", _INPUT_BOUND, "stalled-step", "uneven-steps"),
        applies_to="scripts whose DataLoader has workers, with several epochs in the steps tried",
        risks="the workers keep their memory between epochs; from the second epoch on, random "
        "augmentations are drawn in another order",
        plan=_keep_workers,
        apply=changes.loaders(least_workers=1, persistent_workers=...),
        group=_WORKERS,
        part_of="loader-workers",
        redraws=True,
    ),
    Fix(
        name="pin-memory",
        title="load batches into pinned memory",
        answers=("pageable-copies", "exposed-copies"),
        applies_to="scripts with a DataLoader that train on a GPU",
        risks="memory of the host that cannot be swapped out",
        plan=_pin_memory,
        apply=changes.loaders(pin_memory=...),
        promised_by="pageable-copies",
    ),
    Fix(
        name="non-blocking",
        title="copy from pinned memory without waiting",
        answers=("exposed-copies", "synchronisation"),
        applies_to="batches in pinned memory that Tensor.to moves to a GPU",
        risks="memory that the script changes right after the copy may arrive changed",
        plan=_on_gpu(
            Plan(
                ["cuda"],
                "non_blocking=True in copies from pinned memory",
                ("batch = batch.to(device, non_blocking=True)",),
                promise_basis=(
                    "the findings promise what pinned memory and copies beside the step save"
                ),
            )
        ),
        apply=changes.non_blocking,
    ),
    Fix(
        name="rare-gc",
        title="run Python's garbage collector rarely, and not over what start-up made",
        answers=("garbage-collector",),
        applies_to="every script",
        risks="memory in reference cycles is freed later; calls of gc.collect() do nothing",
        plan=_rare_gc,
        apply=changes.rare_gc,
        promised_by="garbage-collector",
    ),
    Fix(
        name="threads",
        title="use no more intra-op threads than there are CPUs to spare",
        answers=("busy-cpus",),
        applies_to="work on the CPU, and processes that share a machine",
        risks="too few threads slow large operators on the CPU; sums round differently",
        plan=_fewer_threads,
        apply=changes.setting("num_threads"),
        promised_by="busy-cpus",
    ),
    Fix(
        name="cpu-affinity",
        title="give each rank of a machine CPUs of its own",
        answers=("busy-cpus", "late-rank", "rank-waiting"),
        applies_to="several ranks on a machine with at least two CPUs for each",
        risks="a rank cannot use CPUs that others leave idle",
        plan=_own_cpus,
        apply=changes.cpu_affinity,
    ),
    Fix(
        name="fused-optimizer",
        title="update parameters with a fused optimizer",
        answers=("unfused-optimizer", "launch-bound"),
        applies_to="Adam, AdamW, SGD and Adagrad of torch",
        risks="rounds differently; not with optimizers that other code steps through",
        plan=_optimizer("fused=True"),
        apply=changes.optimizers(fused=True, foreach=None),
        group="optimizer",
        promised_by="unfused-optimizer",
    ),
    Fix(
        name="foreach-optimizer",
        title="update parameters with an optimizer that takes many tensors at once",
        answers=("unfused-optimizer", "launch-bound"),
        applies_to="most optimizers of torch",
        risks="needs memory for copies of the parameters; rounds differently",
        plan=_optimizer("foreach=True", "the finding promises what a fused optimizer saves"),
        apply=changes.optimizers(foreach=True),
        group="optimizer",
    ),
    Fix(
        name="zero-grad-none",
        title="drop gradients instead of filling them with zeros",
        answers=("zeroed-gradients", "unfused-optimizer", *_SMALL_WORK),
        applies_to="scripts that call zero_grad(set_to_none=False)",
        risks="code that reads .grad after zero_grad finds None; parameters without a gradient are "
        "left alone by the optimizer",
        plan=_drop_gradients,
        apply=changes.zero_grad,
    ),
    Fix(
        name="tf32",
        title="compute matrix products of float32 in TF32",
        answers=("full-precision-matmuls", "tensor-cores-unused", "slow-matmuls"),
        applies_to="float32 on GPUs from Ampere on",
        risks="products have 10 bits of mantissa instead of 23",
        plan=_on_gpu(
            Plan(
                "high",
                "TF32 in matrix products and convolutions",
                (
                    'torch.set_float32_matmul_precision("high")',
                    "torch.backends.cudnn.allow_tf32 = True",
                ),
            )
        ),
        apply=changes.tf32,
        promised_by="full-precision-matmuls",
    ),
    Fix(
        name="ddp-buckets",
        title="send gradients in larger buckets",
        answers=("exposed-communication", "poor-overlap"),
        applies_to="models in DistributedDataParallel",
        risks="sending begins later; sums round differently",
        plan=_larger_buckets,
        apply=changes.ddp_buckets,
    ),
    Fix(
        name="allocator-settings",
        title="give the CUDA allocator the settings that the simulation of its memory favours",
        answers=(
            "allocator-churn",
            "memory-fragmented",
            "reserved-without-bound",
            "out-of-memory",
            "memory-near-limit",
        ),
        applies_to="GPUs, if a simulated setting saves 5% of the reserved memory, or retries",
        risks="expandable segments cannot be shared between processes",
        plan=lambda facts: facts.allocator if facts.uses_gpu else "no GPU is in use",
        apply=changes.allocator_settings,
    ),
    Fix(
        name="compile",
        title="compile the outermost module",
        answers=(*_SMALL_WORK, "cpu-bound-python"),
        applies_to="models that torch.compile can trace",
        risks="a slow start, and again with new shapes; rounds differently; needs a C++ compiler",
        plan=lambda _facts: Plan(
            {},
            "torch.compile of the outermost module",
            ("model.compile()  # or model = torch.compile(model)",),
            promise_basis="no finding says what compiling saves",
        ),
        apply=changes.compiled,
        only_if_asked=True,
        start_up_s=300.0,
    ),
)
FIXES: dict[str, Fix] = {fix.name: fix for fix in _ALL}
"""Every fix by its name, in the order in which they are listed and tried."""
ALLOCATOR = FIXES["allocator-settings"]
