"""The memory census: which storages held parameters, gradients, activations and the rest, and when.

It is `memory_census.jsonl` in the rank's folder, one JSON object per line, in the format that
`stepscope memory` reads. Addresses are used again, so each sighting has its time. The census is
taken only while memory is being recorded: in a window, or while the allocator's history is on. The
file is rotated: when it is full, it becomes `memory_census.older.jsonl`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from stepscope.capture.steps.replacements import Replacements, is_compiling
from stepscope.run.figures import describe_error
from stepscope.run.files import LineFile
from stepscope.run.layout import RankLayout
from stepscope.run.manifest import ArtifactRecord

log = logging.getLogger("stepscope")

_DEEPEST = 6
_CPU = -1
"""The CPU's number, as in torch's traces."""

OnStorages = Callable[[str, list[tuple[Any, ...]]], None]
"""Receives a kind of memory, and storages of that kind: device, address, bytes, time_ns, name."""


def _hook(notice: Callable[..., None]) -> Callable[..., None]:
    """A hook of the thread that watches; it runs inside the training's calls and must not raise."""

    @functools.wraps(notice)
    def hook(watch: TensorWatch, *given: Any) -> None:
        if watch._is_mine() and not is_compiling():
            try:
                notice(watch, *given)
            except Exception as error:  # noqa: BLE001 - the training must go on
                watch._failed(error)

    return hook


class TensorWatch:
    """Notes where the training's tensors lie, while it is asked to.

    Parameters and buffers come from the modules that are called, gradients and optimizer state from
    optimizers after each of their steps, inputs from the arguments of the outermost module, and
    activations from what autograd saves for the backward pass while that module runs.

    Everything is heard through torch's own hooks for all modules and optimizers, which are there
    only between `listen` and `leave`. Only the thread that created the watch counts. No tensor is
    kept.
    """

    def __init__(self, on_storages: OnStorages) -> None:
        self._on_storages = on_storages
        self._thread = threading.get_ident()
        self._replacements = Replacements()
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._names: dict[int, str] = {}
        self._parameter_names: dict[int, str] = {}
        self._path: list[str] = []
        self._saved: list[tuple[Any, ...]] = []
        self._saving: Any = None
        self.problem = ""
        """Why it stopped listening before it was told to; empty if it did not."""

    @property
    def is_listening(self) -> bool:
        """Whether the hooks are there."""
        return bool(self._replacements)

    def listen(self) -> None:
        """Put the hooks into torch."""
        if self._replacements or self.problem:
            return
        from torch.nn.modules import module as modules
        from torch.optim import optimizer as optimizers

        after = optimizers.register_optimizer_step_post_hook(self._after_optimizer)
        self._replacements.undo_by(after.remove)
        if _has_compiled():
            # Hooks for all modules would have compiled ones compiled again.
            return
        self._let_functions_disable_hooks()
        begin = modules.register_module_forward_pre_hook(self._before_forward)
        end = modules.register_module_forward_hook(self._after_forward, always_call=True)
        self._replacements.undo_by(begin.remove)
        self._replacements.undo_by(end.remove)

    def leave(self) -> None:
        """Take the hooks out of torch."""
        self._replacements.restore()
        self._end_forward()
        self._path.clear()

    def forget(self) -> None:
        """Notice nothing more: this is a fork, with the hooks of its parent."""
        self._thread = -1

    def _let_functions_disable_hooks(self) -> None:
        """Step aside for `torch.func.grad` and the like, which refuse to work inside hooks."""
        from torch.autograd import graph

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            @contextlib.contextmanager
            def disable(message: str) -> Iterator[None]:
                with self._aside(), original(message):
                    yield

            return disable

        self._replacements.replace(graph, "disable_saved_tensors_hooks", around)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Without our hooks for saved tensors, if they are the innermost."""
        saving = self._saving if self._is_mine() else None
        if saving is None or _innermost_pack() is not saving.pack_hook:
            yield
            return
        saving.__exit__()
        self._saving = None
        try:
            yield
        finally:
            saving.__enter__()
            self._saving = saving

    def _failed(self, error: Exception) -> None:
        """Stop listening: the hooks run inside the training's own calls, and must not raise."""
        self.problem = describe_error(error)
        log.warning("stepscope: the memory census ends early: %s", self.problem)
        log.debug("stepscope: the memory census", exc_info=error)
        with contextlib.suppress(Exception):
            self.leave()

    def _is_mine(self) -> bool:
        return self._thread == threading.get_ident()

    # -- modules --------------------------------------------------------------------------------

    @_hook
    def _before_forward(self, module: Any, arguments: tuple[Any, ...]) -> None:
        if not _is_in_backward():
            if not self._path:
                self._begin_forward(module, arguments)
            self._path.append(self._names.get(id(module), type(module).__name__))

    @_hook
    def _after_forward(self, *_: Any) -> None:
        if self._path and not _is_in_backward():
            self._path.pop()
            if not self._path:
                self._end_forward()

    def _begin_forward(self, module: Any, arguments: tuple[Any, ...]) -> None:
        from torch.autograd.graph import saved_tensors_hooks

        if module not in self._roots:
            self._roots.add(module)
            self._names.update({id(part): name for name, part in module.named_modules()})
            self._parameter_names.update(
                {id(tensor): name for name, tensor in module.named_parameters()}
            )
        moment = time.time_ns()
        self._on_storages("parameter", list(_named(module.named_parameters(), moment)))
        self._on_storages("buffer", list(_named(module.named_buffers(), moment)))
        # torch passes no keyword arguments to this hook; its caller has them.
        keywords = sys._getframe(3).f_locals.get("kwargs", {})
        given = _tensors({"": arguments, **keywords} if isinstance(keywords, dict) else arguments)
        # What another module computed is no input: it comes from the graph.
        inputs = ((name, tensor) for name, tensor in given if tensor.grad_fn is None)
        self._on_storages("input", list(_named(inputs, moment)))
        if not _can_save():
            return
        saving = saved_tensors_hooks(self._pack, _unpack)
        saving.__enter__()  # left at the end of the same call, so contexts of the user's nest
        self._saving = saving

    def _end_forward(self) -> None:
        saving, self._saving = self._saving, None
        # An interrupt may have left contexts of the user's on top, which are not ours to leave.
        if saving is not None and _innermost_pack() is saving.pack_hook:
            saving.__exit__()
        saved, self._saved = self._saved, []
        if saved:
            self._on_storages("activation", saved)

    def _pack(self, tensor: Any) -> Any:
        # The tensor itself would keep its own graph alive.
        kept = tensor.detach()
        try:
            where = _place(kept)
            if where is not None:
                name = self._path[-1] if self._path else None
                self._saved.append((*where, time.time_ns(), name))
        except Exception as error:  # noqa: BLE001 - it runs inside the training's forward pass
            self._failed(error)
        return kept

    # -- optimizers -----------------------------------------------------------------------------

    @_hook
    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        moment = time.time_ns()
        found: dict[str, list[tuple[str | None, Any]]] = {
            "parameter": [], "gradient": [], "optimizer_state": [],
        }  # fmt: skip
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._parameter_names.get(id(parameter))
                found["parameter"].append((name, parameter))
                if parameter.grad is not None:
                    found["gradient"].append((name, parameter.grad))
                state = optimizer.state.get(parameter)
                for key, value in _tensors(state, str(name or "")) if state else ():
                    found["optimizer_state"].append((key, value))
        for kind, tensors in found.items():
            self._on_storages(kind, list(_named(tensors, moment)))


def _unpack(tensor: Any) -> Any:
    return tensor


def _is_in_backward() -> bool:
    """Whether autograd runs: then modules recompute what a checkpoint left out."""
    import torch

    return bool(torch._C._current_graph_task_id() != -1)


def _can_save() -> bool:
    """Whether no other hooks for saved tensors would be replaced: only the innermost count.

    torch can say so from version 2.5 on.
    """
    import torch

    autograd: Any = torch._C._autograd
    return (
        hasattr(autograd, "_top_saved_tensors_default_hooks")
        and autograd._saved_tensors_hooks_is_enabled()
        and _innermost_pack() is None
    )


def _innermost_pack() -> Any:
    """The innermost function that tensors are saved through; None: there is none."""
    import torch

    autograd: Any = torch._C._autograd
    innermost = autograd._top_saved_tensors_default_hooks(True)
    return None if innermost is None else innermost[0]


def _has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


def _named(tensors: Any, moment: int) -> Iterator[tuple[Any, ...]]:
    """The storages of named tensors, each once."""
    seen = set()
    for name, tensor in tensors:
        where = _place(tensor)
        if where is not None and where not in seen:
            seen.add(where)
            yield (*where, moment, name or None)


def _place(tensor: Any) -> tuple[int, int, int] | None:
    """Device, address and bytes of a tensor's storage; None if it has none of its own."""
    tensor = getattr(tensor, "_local_tensor", tensor)  # of a distributed tensor
    try:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError, AttributeError):
        return None  # sparse, fake, quantised
    if not address or not size:
        return None
    index = tensor.device.index
    return _CPU if index is None else index, address, size


def _tensors(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The tensors in nested containers, with the keys that lead to them."""
    if hasattr(value, "untyped_storage"):
        yield name, value
    elif depth < _DEEPEST:
        items: Any = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, (list, tuple)):
            items = (("", part) for part in value)
        for key, part in items:
            yield from _tensors(part, ".".join(filter(None, (name, str(key)))), depth + 1)


VERSION = 1
MOST_BYTES = 32 * 1024 * 1024
"""The size at which the file is rotated."""
KIND = "memory_census"
_LASTING = ("parameter", "buffer", "optimizer_state")
"""Kinds that stay where they are: noted when they are first seen, and when they move."""


class MemoryCensus:
    """Writes the census of one rank."""

    def __init__(
        self,
        layout: RankLayout,
        note: Callable[[ArtifactRecord], None],
        is_recording: Callable[[], bool],
    ) -> None:
        self._layout = layout
        self._note = note
        self._is_recording = is_recording
        self._step = 0
        self._file: LineFile | None = None
        self._size = 0
        self._names: dict[str, int] = {}
        self._lasting: dict[str, list[tuple[Any, ...]]] = {}
        self.watch = TensorWatch(self._on_storages)

    def step_begins(self, step: int) -> None:
        """Listen to a step if memory is recorded in it."""
        self._step = step
        if self._is_recording():
            self.watch.listen()
        elif self.watch.is_listening:
            self.watch.leave()

    def close(self) -> None:
        """End the census."""
        self.watch.leave()
        file, self._file = self._file, None
        if file is None:
            return
        file.close()
        problem, layout = file.problem or self.watch.problem, self._layout
        self._note(ArtifactRecord.of(KIND, layout.census, layout.root, problem=problem))

    def _on_storages(self, kind: str, found: list[tuple[Any, ...]]) -> None:
        """Write what was seen: one line for each device."""
        if not found:
            return
        if kind in _LASTING:
            places = [entry[:3] for entry in found]
            key = f"{kind} {places[0]}"  # several models and optimizers each have their own
            if self._lasting.get(key) == places:
                return
            self._lasting[key] = places
        for device in sorted({entry[0] for entry in found}):
            mine = [entry for entry in found if entry[0] == device]
            times = [entry[3] for entry in mine]
            names, added = self._numbers([entry[4] for entry in mine])
            if added:
                self._write({"names": added})
            record: dict[str, Any] = {"kind": kind, "device": device, "step": self._step}
            if len(set(times)) == 1:
                record["time_ns"] = times[0]
            else:
                record["times_ns"] = times
            record["addresses"] = [entry[1] for entry in mine]
            record["bytes"] = [entry[2] for entry in mine]
            record["names"] = names
            self._write(record)
        if self._size > MOST_BYTES:
            self._rotate()

    def _numbers(self, names: list[str | None]) -> tuple[list[int | None], list[str]]:
        """The numbers of names, and the names that are new."""
        numbers: list[int | None] = []
        added = []
        for name in names:
            if name is not None and name not in self._names:
                self._names[name] = len(self._names)
                added.append(name)
            numbers.append(None if name is None else self._names[name])
        return numbers, added

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            self._layout.root.mkdir(parents=True, exist_ok=True)
            self._file = LineFile(self._layout.census)
            self._put({"census": VERSION, "clock": "unix_ns"})
        self._put(record)

    def _put(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        self._size += len(line)
        if self._file is not None:
            self._file.write(line)

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
        self._layout.census.replace(self._layout.older_census)
        self._file, self._size = None, 0
        # The new file stands alone: it has its own names, and what lasts is noted again.
        self._names.clear()
        self._lasting.clear()
