"""What fixes do in the training process, once torch is imported; `trial.fixes` says when.

Each function is given the patches of the process and the value that was planned for the script.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from stepscope.trial.patches import Patches

Change = Callable[[Patches, Any], None]
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Where torch reads the allocator's settings: 2.9 and later from both, earlier from the first."""
GC_BEGINS = 2
"""The step after which collections become rare: what start-up makes exists by then."""


def loaders(*, least_workers: int = 0, **arguments: Any) -> Change:
    """Make DataLoaders with other arguments.

    Args:
        least_workers: Loaders with fewer workers are left alone.
        arguments: Their values; `...` stands for the planned value.
    """

    def apply(patches: Patches, value: Any) -> None:
        from torch.utils.data import DataLoader, IterableDataset

        wanted = {name: value if one is ... else one for name, one in arguments.items()}

        def change(given: dict[str, Any]) -> dict[str, Any] | None:
            if given["num_workers"] < least_workers:
                patches.refuse("its loader has no workers")
                return None
            adds_workers = wanted.get("num_workers", 0) > given["num_workers"]
            if adds_workers and isinstance(given["dataset"], IterableDataset):
                patches.refuse("an iterable data set would yield each sample once per worker")
                return None
            return _different(wanted, given)

        patches.arguments(DataLoader, change)

    return apply


def optimizers(**arguments: Any) -> Change:
    """Make each optimizer of torch that takes all of some arguments with them."""

    def apply(patches: Patches, _value: Any) -> None:
        import inspect

        from torch import optim

        def change(given: dict[str, Any]) -> dict[str, Any] | None:
            return arguments if _different(arguments, given) else None

        for kind in vars(optim).values():
            is_optimizer = isinstance(kind, type) and issubclass(kind, optim.Optimizer)
            if not is_optimizer or kind is optim.Optimizer or "__init__" not in vars(kind):
                continue
            if set(arguments) <= set(inspect.signature(kind.__init__).parameters):
                patches.arguments(kind, change)

    return apply


def ddp_buckets(patches: Patches, megabytes: Any) -> None:
    """Make each DistributedDataParallel with buckets of another size."""
    from torch.nn.parallel import DistributedDataParallel

    patches.arguments(
        DistributedDataParallel, lambda given: _different({"bucket_cap_mb": megabytes}, given)
    )


def _different(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The wanted arguments that were not given so; None if all were."""
    return {name: value for name, value in wanted.items() if given[name] != value} or None


def setting(name: str) -> Change:
    """Set what `torch.set_<name>` sets, and keep the script from setting something else."""

    def apply(patches: Patches, value: Any) -> None:
        import torch

        setter = f"set_{name}"
        before, ours = getattr(torch, f"get_{name}")(), getattr(torch, setter)

        def keep(wanted: Any) -> None:
            patches.override(f"{patches.place()}: torch.{setter}({wanted!r})")

        ours(value)
        patches.later(lambda: ours(before))
        patches.replace(torch, setter, lambda _: keep)
        patches.did(f"torch.{setter}({value!r})")

    return apply


def tf32(patches: Patches, precision: Any) -> None:
    """Compute matrix products and convolutions of float32 in TF32."""
    import torch

    setting("float32_matmul_precision")(patches, precision)
    patches.assign(torch.backends.cudnn, "allow_tf32", True)


def zero_grad(patches: Patches, value: Any) -> None:
    """Drop gradients where the script fills them with zeros."""
    from torch import nn, optim

    def wrap(zero: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(zero)
        def dropped(owner: Any, set_to_none: bool = True) -> None:
            if not set_to_none:
                where = patches.place()
                patches.did(f"{where}: zero_grad")
                patches.override(f"{where}: set_to_none=False")
            zero(owner, set_to_none=value)

        return dropped

    patches.replace(optim.Optimizer, "zero_grad", wrap)
    patches.replace(nn.Module, "zero_grad", wrap)


def rare_gc(patches: Patches, every: Any) -> None:
    """Freeze what start-up made, and collect every so many steps."""
    collect = gc.collect
    has_begun = False

    def rarely(generation: int = 2) -> int:
        if not has_begun:
            return collect(generation)
        patches.override(f"{patches.place()}: gc.collect({generation})")
        return 0

    def stepped(number: int) -> None:
        nonlocal has_begun
        if number == GC_BEGINS:
            has_begun = True
            collect()
            gc.freeze()
            was_enabled = gc.isenabled()
            gc.disable()
            patches.later(gc.unfreeze)
            if was_enabled:
                patches.later(gc.enable)
            patches.did(f"after step {number}")
        elif number > GC_BEGINS and number % every == 0:
            collect(1)

    patches.replace(gc, "collect", lambda _: rarely)
    patches.after_step(stepped)


def cpu_affinity(patches: Patches, ranks: Any) -> None:
    """Give this rank its share of the CPUs."""
    import torch

    before = sorted(os.sched_getaffinity(0))
    share = len(before) // ranks
    first = int(os.environ["LOCAL_RANK"]) * share
    threads = torch.get_num_threads()
    os.sched_setaffinity(0, before[first : first + share])
    torch.set_num_threads(min(threads, share))
    patches.later(lambda: os.sched_setaffinity(0, before))
    patches.later(lambda: torch.set_num_threads(threads))
    patches.did(f"CPUs {before[first]} to {before[first + share - 1]}")


def non_blocking(patches: Patches, kinds: Any) -> None:
    """Let `Tensor.to` return before a copy from pinned memory has ended."""
    import torch

    def kind_of(target: Any) -> str:
        if isinstance(target, int) and not isinstance(target, bool):
            return "cuda"
        if isinstance(target, str):
            return target.partition(":")[0]
        return target.type if isinstance(target, torch.device) else ""

    def wrap(move: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(move)
        def moved(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
            if tensor.is_pinned() and "non_blocking" not in keywords and len(arguments) <= 1:
                target = keywords.get("device", arguments[0] if arguments else None)
                if kind_of(target) in kinds:
                    patches.did(f"{patches.place()}: non_blocking=True")
                    keywords["non_blocking"] = True
            return move(tensor, *arguments, **keywords)

        return moved

    patches.replace(torch.Tensor, "to", wrap)


def allocator_settings(patches: Patches, value: Any) -> None:
    """Note the settings that the process has, and keep the script from changing them."""
    import torch

    variable = ALLOCATOR_VARIABLES[0]
    # The allocator reads the variable of the process before the script begins.
    if os.environ.get(variable) != value:
        patches.refuse(f"the command sets {variable} itself")
        return

    def keep(wanted: str) -> None:
        patches.override(f"{patches.place()}: _set_allocator_settings({wanted!r})")

    patches.replace(torch.cuda.memory, "_set_allocator_settings", lambda _: keep)
    patches.did(f"{variable}={value}")


def compiled(patches: Patches, options: Any) -> None:
    """Compile the outermost module that is called with gradients."""
    import torch
    from torch import nn

    is_inside = False

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def called(module: Any, *arguments: Any, **keywords: Any) -> Any:
            nonlocal is_inside
            is_main = threading.current_thread() is threading.main_thread()
            if is_inside or not is_main or not torch.is_grad_enabled():
                return call(module, *arguments, **keywords)
            has_own = next(module.parameters(), None) is not None
            if has_own and not isinstance(module, nn.modules.loss._Loss):
                # What is compiled must not find this wrapper.
                nn.Module.__call__ = call  # type: ignore[method-assign]
                module.compile(**options)
                patches.did(f"{patches.place()}: {type(module).__name__}")
                return call(module, *arguments, **keywords)
            is_inside = True
            try:
                return call(module, *arguments, **keywords)
            finally:
                is_inside = False

        return called

    patches.replace(nn.Module, "__call__", wrap)
