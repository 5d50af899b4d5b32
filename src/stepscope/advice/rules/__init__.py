"""One module per rule. Each has `ID` and `find(subject)`, which gives the rule's findings."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.advice.finding import Finding
from stepscope.advice.rules import (
    abnormal_collective,
    activations_dominate,
    allocator_churn,
    busy_cpus,
    compilation_in_window,
    cpu_bound_python,
    exposed_communication,
    exposed_copies,
    full_precision_matmuls,
    garbage_collector,
    heavy_recomputation,
    input_bound,
    late_rank,
    launch_bound,
    layout_copies,
    low_gpu_utilisation,
    many_small_collectives,
    many_small_kernels,
    memory_far_below_limit,
    memory_fragmented,
    memory_leak,
    memory_near_limit,
    one_tensor_dominates,
    optimizer_state_dominates,
    out_of_memory,
    pageable_copies,
    poor_overlap,
    profiler_overhead,
    rank_waiting,
    recompilation,
    reserved_without_bound,
    slow_first_steps,
    slow_matmuls,
    slow_phase,
    stalled_steps,
    synchronisation,
    tensor_cores_unused,
    throttled_gpu,
    trace_incomplete,
    uneven_steps,
    unfused_attention,
    unfused_elementwise,
    unfused_optimizer,
)
from stepscope.advice.subject import Subject

_MODULES = (
    input_bound,
    launch_bound,
    cpu_bound_python,
    busy_cpus,
    synchronisation,
    pageable_copies,
    exposed_copies,
    exposed_communication,
    abnormal_collective,
    poor_overlap,
    many_small_collectives,
    rank_waiting,
    late_rank,
    throttled_gpu,
    allocator_churn,
    out_of_memory,
    memory_leak,
    memory_fragmented,
    reserved_without_bound,
    memory_near_limit,
    memory_far_below_limit,
    optimizer_state_dominates,
    activations_dominate,
    one_tensor_dominates,
    low_gpu_utilisation,
    tensor_cores_unused,
    full_precision_matmuls,
    unfused_attention,
    slow_matmuls,
    unfused_elementwise,
    layout_copies,
    many_small_kernels,
    unfused_optimizer,
    heavy_recomputation,
    slow_phase,
    slow_first_steps,
    stalled_steps,
    uneven_steps,
    recompilation,
    compilation_in_window,
    garbage_collector,
    profiler_overhead,
    trace_incomplete,
)

RULES: dict[str, Callable[[Subject], list[Finding]]] = {
    module.ID: module.find for module in _MODULES
}
"""Every rule by its id, in the order in which they are asked."""

OF_THE_RUN = frozenset({late_rank.ID, throttled_gpu.ID})
"""Rules that compare all ranks of the run, and need nothing of a window."""
