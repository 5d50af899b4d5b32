"""The limits above which findings are reported, all in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from stepscope.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Thresholds:
    """Limits above which a finding is reported. Shares are of the steady step, from 0 to 1.

    Attributes:
        input_bound_low: Minimum share of waiting for input.
        slow_first_steps_steps: The slow first steps, or a stall, must have lost as much time as
            this many steady steps take.
        slow_first_steps_medium: Share of the observed time that makes the severity medium.
        slow_phase_share: Maximum share of a phase other than forward, backward, optimizer and
            communication.
        slow_phase_excess: Maximum share that saving may take, and that the slow occurrences of any
            other phase may cost beyond its median.
        outside_steps: Minimum share of the recorded time that evaluations, or checkpoints, take
            outside the steps.
        uneven_steps_share: Maximum share that slow steps without a known reason may cost beyond the
            median.
        uneven_steps_medium: Share of that cost that makes the severity medium.
        saving_low: Minimum share of the step that a replay must save.
        saving_medium: Share of the step at stake, mostly the saving, that makes the severity
            medium.
        saving_high: Share that makes it high.
        launch_bound_idle: Minimum share of the device's time that is idle because launches come
            late.
        launch_bound_host: Below that, share of the step that the host needs at least for itself.
        launch_bound_launches: Minimum number of launches in the window.
        python_stretch_ns: Minimum length of a stretch of Python without operators.
        synchronisation_wait: Minimum share of the step spent waiting for the device.
        exposed_communication: Minimum share of the device's time in communication with nothing
            concurrent.
        exposed_copies: Minimum share of the device's time in copies with nothing concurrent.
        pipeline_bubble: Minimum share of the device's time in waiting for other stages.
        imbalance: Minimum share of the step that ranks wait because their work is unequal.
        uneven_stages: Minimum share of the step that the slowest stage computes beyond the mean.
        poor_overlap: Maximum share of communication that computation hides.
        abnormal_collective_factor: A collective is abnormal if it takes this many times the median
            of its peers.
        abnormal_collective_peers: Minimum number of steps with a collective at the same place, if
            sizes were not recorded.
        rank_waiting: Minimum share of the step in which collectives wait for other ranks.
        late_rank: Minimum share of the step that the other ranks wait for the last one.
        late_rank_high: Share of that wait that makes the severity high.
        throttled_gpu: Share of the peers' clock up to which a rank's GPU is throttled.
        odd_rank_share: Share of a rank's step by which one of its parts must exceed that of the
            other ranks to be listed beside the ranks.
        odd_rank_factor: The part must also take this many times as long as on the other ranks.
        allocator_calls: Minimum number of calls per step that get memory from the driver or return
            it.
        memory_near_limit: Reserved share of the device's memory that is near the limit.
        memory_far_below: Reserved share of the device's memory below which much of it is unused.
        memory_leak: Minimum share of the peak by which memory grows in every step.
        memory_unused: Minimum share of the reserved memory that is free, but pinned.
        memory_optimizer_state: Minimum share of the peak that is optimizer state.
        memory_activations: Minimum share of the peak that is activations.
        memory_one_tensor: Minimum share of the peak that is one tensor.
        gpu_utilisation: Share of the device's time in which kernels run, below which it is low.
        matmul_share: Minimum share of the step in matrix products and convolutions that do not use
            the tensor cores, or run in full precision.
        matmul_attained: A matrix product or convolution is slow if it attains less than this share
            of what the device could do with its shapes.
        elementwise_share: Minimum share of the step in elementwise kernels, reductions and random
            numbers that are not small and have no finding of their own, where their shapes are
            not known.
        small_kernel_ns: A kernel is small below this length.
        small_kernel_count: Minimum number of small kernels per step.
        small_kernel_share: Minimum share of small kernels among those that could be fused.
        small_collectives: Minimum number of short collectives per step, one after the other.
        optimizer_kernels: An optimizer step with this many kernels is not fused.
        recomputation: Minimum share of the GPU work (without a GPU: of the step).
        compilation: Minimum share of the window spent in compiling.
        busy_cpus: Minimum share of the step that the training thread waits for a CPU.
        small_step_ns: A step is short up to this length. In a short step, Python around the
            operators means that the model is small, not that its Python is slow,
        small_step_stretch_ns: unless one stretch of Python is longer than this.
        garbage_collection: Minimum share of the step in pauses of the garbage collector.
        profiler_factor: Recorded steps must take this many times as long as the others.
        profiler_overhead: Minimum share of the window that the profiler marks as its own overhead.
        unlinked_work: Minimum share of the GPU work whose launch is missing.
    """

    input_bound_low: float = 0.05
    slow_first_steps_steps: float = 3.0
    slow_first_steps_medium: float = 0.25
    slow_phase_share: float = 0.15
    slow_phase_excess: float = 0.05
    outside_steps: float = 0.1
    uneven_steps_share: float = 0.05
    uneven_steps_medium: float = 0.2
    saving_low: float = 0.03
    saving_medium: float = 0.1
    saving_high: float = 0.3
    launch_bound_idle: float = 0.15
    launch_bound_host: float = 0.5
    launch_bound_launches: int = 30
    python_stretch_ns: int = 100_000
    synchronisation_wait: float = 0.02
    exposed_communication: float = 0.05
    exposed_copies: float = 0.05
    pipeline_bubble: float = 0.1
    imbalance: float = 0.05
    uneven_stages: float = 0.03
    poor_overlap: float = 0.5
    abnormal_collective_factor: float = 5.0
    abnormal_collective_peers: int = 4
    rank_waiting: float = 0.05
    late_rank: float = 0.05
    late_rank_high: float = 0.2
    throttled_gpu: float = 0.9
    odd_rank_share: float = 0.05
    odd_rank_factor: float = 1.5
    allocator_calls: float = 1.0
    memory_near_limit: float = 0.9
    memory_far_below: float = 0.4
    memory_leak: float = 0.001
    memory_unused: float = 0.2
    memory_optimizer_state: float = 0.4
    memory_activations: float = 0.6
    memory_one_tensor: float = 0.25
    gpu_utilisation: float = 0.5
    matmul_share: float = 0.1
    matmul_attained: float = 0.3
    elementwise_share: float = 0.12
    small_kernel_ns: int = 10_000
    small_kernel_count: int = 100
    small_kernel_share: float = 0.5
    small_collectives: int = 20
    optimizer_kernels: int = 50
    recomputation: float = 0.1
    compilation: float = 0.05
    busy_cpus: float = 0.1
    small_step_ns: int = 5_000_000
    small_step_stretch_ns: int = 1_000_000
    garbage_collection: float = 0.02
    profiler_factor: float = 1.5
    profiler_overhead: float = 0.1
    unlinked_work: float = 0.1

    def changed(self, values: Mapping[str, float]) -> Thresholds:
        """The same with other values.

        Raises:
            UsageError: A name is unknown, or a value is negative or not a number.
        """
        known = {field.name: type(getattr(self, field.name)) for field in fields(self)}
        for name, value in values.items():
            if name not in known:
                hint = did_you_mean(name, known, "`stepscope explain thresholds` lists them")
                raise UsageError(f"no threshold '{name}': {hint}")
            if not math.isfinite(value) or value < 0:
                raise UsageError(f"threshold '{name}': give a number, 0 or more, as {name}=0.05")
            if known[name] is int and value != int(value):
                raise UsageError(f"threshold '{name}': give a whole number")
        return replace(self, **{name: known[name](value) for name, value in values.items()})
