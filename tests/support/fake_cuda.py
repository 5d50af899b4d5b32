"""A CUDA allocator that a test plays, for machines without a GPU."""

from __future__ import annotations

from types import SimpleNamespace

GIB = 1024**3


class FakeCuda:
    """What `torch.cuda` has for memory; `calls` has what was asked of it."""

    def __init__(self, devices=2, available=True):
        self.calls = []
        self.observers = []
        self.devices = devices
        self.available = available
        self.fails = False
        self.is_up = available
        self.refuses_observers = False
        self._waiting = []
        self.memory = SimpleNamespace(
            _record_memory_history=lambda **options: self.calls.append(("history", options)),
            _snapshot=self._snapshot,
        )

    def _snapshot(self):
        if self.fails:
            raise RuntimeError("allocator is confused")
        self.calls.append(("snapshot", {}))
        return {"segments": [], "device_traces": [[]]}

    def is_available(self):
        return self.available

    def is_initialized(self):
        return self.is_up

    def _lazy_call(self, function):
        self._waiting.append(function)

    def bring_up(self):
        self.is_up = True
        for function in self._waiting:
            function()

    def _attach(self, observer):
        if self.refuses_observers:
            raise RuntimeError("no observers here")
        self.observers.append(observer)

    def device_count(self):
        return self.devices

    def memory_reserved(self, device):
        return [3 * GIB, 0][device]

    def memory_allocated(self, device):
        return GIB

    def max_memory_allocated(self, device):
        return 2 * GIB

    def reset_peak_memory_stats(self, device):
        self.calls.append(("reset", {"device": device}))

    @property
    def torch(self):
        c_module = SimpleNamespace(_cuda_attach_out_of_memory_observer=self._attach)
        return SimpleNamespace(cuda=self, _C=c_module)
