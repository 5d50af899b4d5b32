"""From where on something is worth a finding: every threshold, in one table."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from stepscope.errors import UsageError


@dataclass(frozen=True)
class Thresholds:
    """Limits of the rules. Shares are of the steady step and lie between 0 and 1.

    Attributes:
        input_bound_low: Share of waiting for input that is worth a finding.
        input_bound_medium: From this share on it is of medium severity.
        input_bound_high: From this share on it is of high severity.
        slow_first_steps_steps: The slow beginning, or a stall, is worth a finding if it lost as
            much time as so many steady steps take.
        slow_first_steps_medium: Share of the observed time from which on it is of medium severity.
        slow_phase_share: Share that a phase outside forward, backward and optimizer may have.
        slow_phase_excess: Share that the slow occurrences of one phase may cost beyond its median.
        slow_phase_high: Share of the saving from which on it is of high severity.
        uneven_steps_share: Share that slow steps without a known reason may cost beyond the median.
        uneven_steps_medium: From this share on it is of medium severity.
        saving_low: Share of the step that a replay must save to be worth a finding.
        saving_medium: From this share on a finding is of medium severity.
        saving_high: From this share on it is of high severity.
        launch_bound_idle: Share of the device's time idle because launches come late, at least.
        python_stretch_ns: A stretch of Python without operators counts from this length on.
        synchronisation_wait: Share of the step spent in waiting for the device, at least.
        exposed_communication: Share of the device's time in communication with nothing beside it.
        exposed_copies: Share of the device's time in copies with nothing beside them.
        poor_overlap: Share of communication that is hidden behind computation, at most.
        abnormal_collective_factor: A collective is abnormal if it takes so many times the median
            of its peers.
        abnormal_collective_peers: Where sizes are not recorded: at the same place in so many steps.
        rank_waiting: Share of the step in which collectives wait for other ranks, at least.
        late_rank: Share of the step that the others wait for the last rank, at least.
        late_rank_high: From this share on it is of high severity.
        odd_rank_share: Share of a rank's step by which one part of it exceeds that of the other
            ranks, to be shown beside the ranks.
        odd_rank_factor: And so many times as long as on the other ranks, at least.
        allocator_calls: Calls per step that get memory from the driver or give it back.
        memory_near_limit: Reserved share of the device's memory from which on it is near the limit.
        memory_far_below: Reserved share up to which much of it is unused.
        memory_leak: Share of the peak by which memory grows in every step, at least.
        memory_unused: Share of the reserved memory that is not in use, from which on it is
            fragmented.
        memory_optimizer_state: Share of the peak that is optimizer state, at least.
        memory_activations: Share of the peak that is activations, at least.
        memory_one_tensor: Share of the peak that is one tensor, at least.
        gpu_utilisation: Share of the device's time in which kernels run, below which it is low.
        matmul_share: Share of the step in matrix products and convolutions that do without the
            tensor cores, or in full precision.
        matmul_attained: Share of what the device could do at best with a matrix product's or a
            convolution's shapes, below which it is slow.
        elementwise_share: Share of the step in elementwise kernels, reductions and random numbers
            that are not small and have no finding of their own, at least.
        small_kernel_ns: A kernel is small below this length.
        small_kernel_count: So many small kernels per step, at least.
        small_kernel_share: Share of all kernels that are small, at least.
        optimizer_kernels: So many kernels in one optimizer step mean that it is not fused.
        recomputation: Share of the device's (without a GPU: the step's) time, at least.
        compilation: Share of the window spent in compiling, at least.
        busy_cpus: Share of the step that the training thread waits for a CPU, at least.
        small_step_ns: A step of up to this length is short: what Python takes around its operators
            says that the model is small, not that its Python is slow.
        small_step_stretch_ns: Unless one stretch of Python is longer than this.
        garbage_collection: Share of the step in the garbage collector's pauses, at least.
        profiler_factor: Recorded steps take so many times the others.
        profiler_overhead: Share of the window that the profiler marks as its own overhead.
        unlinked_work: Share of the GPU work whose launch is missing.
    """

    input_bound_low: float = 0.05
    input_bound_medium: float = 0.15
    input_bound_high: float = 0.35
    slow_first_steps_steps: float = 3.0
    slow_first_steps_medium: float = 0.25
    slow_phase_share: float = 0.15
    slow_phase_excess: float = 0.05
    slow_phase_high: float = 0.35
    uneven_steps_share: float = 0.05
    uneven_steps_medium: float = 0.2
    saving_low: float = 0.03
    saving_medium: float = 0.1
    saving_high: float = 0.3
    launch_bound_idle: float = 0.15
    python_stretch_ns: int = 100_000
    synchronisation_wait: float = 0.02
    exposed_communication: float = 0.05
    exposed_copies: float = 0.05
    poor_overlap: float = 0.5
    abnormal_collective_factor: float = 5.0
    abnormal_collective_peers: int = 4
    rank_waiting: float = 0.05
    late_rank: float = 0.05
    late_rank_high: float = 0.2
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
    elementwise_share: float = 0.2
    small_kernel_ns: int = 10_000
    small_kernel_count: int = 100
    small_kernel_share: float = 0.5
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
            UsageError: There is no threshold of a name, or a value is no number from 0 on.
        """
        known = {field.name: type(getattr(self, field.name)) for field in fields(self)}
        for name, value in values.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}"
                raise UsageError(f"no threshold '{name}': {hint}")
            if not math.isfinite(value) or value < 0:
                raise UsageError(f"threshold '{name}': give a number from 0 on, as {name}=0.05")
            if known[name] is int and value != int(value):
                raise UsageError(f"threshold '{name}': give a whole number")
        return replace(self, **{name: known[name](value) for name, value in values.items()})
